"""Equal work in runs of a few items, a task each."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import Any
from uuid import uuid4

from dask._task_spec import Task
from dask.base import annotate

from dask_odm.data.storage.files import load_bytes, save_bytes
from dask_odm.engine.client import while_wanted
from dask_odm.engine.futures import FEW_TASKS, JOINED, Tasks, pickled, spread_task, together
from dask_odm.engine.tasks import worker_task
from dask_odm.events import Progress, report
from dask_odm.linalg.threads import run_threads, single_threaded_blas


class Runs(Tasks):
    """Work on many items, in as many tasks as keep all threads busy."""

    def map_chunks(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        phase: str,
        *shared: Any,
        folder: str | None = None,
    ) -> list[Any]:
        """Return ``[function(*shared, *a) for a in arguments]`` in order, by tasks of a few items each.

        What they share is sent to each worker once, not with every task, or through a ``folder`` as by `finished`.
        Reports `Progress`.
        """
        report(Progress(phase, 0, len(arguments)))
        done = 0
        results: dict[int, list[Any]] = {}
        for first, result in self.finished(function, arguments, self.tasks, phase, *shared, folder=folder):
            results[first] = result
            done += len(result)
            report(Progress(phase, done, len(arguments)))
        return [item for first in sorted(results) for item in results[first]]

    def finished(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        tasks: int,
        phase: str,
        *shared: Any,
        folder: str | None = None,
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the results of `map_chunks` in runs as they finish, up to ``tasks``, each with the number of its first.

        Earlier runs start first. Without a client, all have finished then. Workers join the results of many tasks,
        a few at a time: to ask a worker for a result takes a scheduler as long as a task. If all workers see a
        ``folder``, what tasks share and what they return goes through files there, and the scheduler has tasks only.
        """
        count = min(len(arguments), tasks)
        bounds = [round(i * len(arguments) / count) for i in range(count + 1)]
        runs = [arguments[a:b] for a, b in pairwise(bounds)]
        if self.client is None:
            found = run_threads(lambda run: _run_group(function, run, shared), runs, self.threads)
            yield from zip(bounds, found, strict=False)
            return
        serial = uuid4().hex  # two fits at the same time must not share tasks: one may end in an error
        keys = [f"{phase}-{serial}-{i}" for i in range(count)]
        if folder is not None:
            yield from self._through_files(function, dict(zip(keys, runs, strict=True)), bounds, folder, shared)
            return
        sent = f"{phase}-{serial}-shared"
        graph = {
            key: spread_task(key, partial(_run_group, function, run), sent) for key, run in zip(keys, runs, strict=True)
        }
        joined = JOINED if count > FEW_TASKS else 1
        if joined > 1:
            parts = [keys[i : i + joined] for i in range(0, count, joined)]
            keys = [f"{phase}-{serial}-joined-{i}" for i in range(len(parts))]
            graph |= {key: (_in_a_row, part) for key, part in zip(keys, parts, strict=True)}
        with annotate(priority=_earlier):
            futures = self.started(graph | {sent: (partial(together, *shared),)}, keys)
        for i, result in self.done(futures):
            yield bounds[joined * i], result

    def _through_files(
        self,
        function: Callable[..., Any],
        runs: dict[str, Sequence[tuple[Any, ...]]],
        bounds: Sequence[int],
        folder: str,
        shared: tuple[Any, ...],
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the results of `finished`, of ``runs`` by key, through files of a ``folder``."""
        asked = os.path.join(folder, f"{next(iter(runs))}-shared")
        save_bytes(asked, pickled(shared))
        answers = [os.path.join(folder, key) for key in runs]
        calls = [
            partial(_run_filed, function, run, asked, answer)
            for run, answer in zip(runs.values(), answers, strict=True)
        ]
        with annotate(priority=_earlier):
            futures = self.started({key: Task(key, call) for key, call in zip(runs, calls, strict=True)}, list(runs))
        for i, _ in self.done(futures, valued=False):
            yield bounds[i], pickle.loads(load_bytes(answers[i]))
            os.unlink(answers[i])
        os.unlink(asked)


def _earlier(key: str) -> int:
    """Return the priority of a task of `Cluster.finished`, which Dask would start in any order."""
    number = key.rpartition("-")[2]
    return -int(number) if number.isdecimal() else 0


def _in_a_row(runs: Sequence[list[Any]]) -> list[Any]:
    """Join the results of neighbouring tasks of a call."""
    return list(chain.from_iterable(runs))


@worker_task
def _run_group(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], shared: tuple[Any, ...]
) -> list[Any]:
    with single_threaded_blas:
        return [function(*shared, *a) for a in while_wanted(arguments)]


def _run_filed(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], asked: str, answer: str) -> None:
    """Write the results of `_run_group` to the file ``answer``, given what the tasks share in the file ``asked``."""
    # many small arrays are loaded without a line of Python by protocol 4, and by 5 with several of each
    save_bytes(answer, pickle.dumps(_run_group(function, arguments, _shared_in(asked)), protocol=4))


@lru_cache(maxsize=1)  # it may be large, and threads of a worker mostly run tasks of one call
def _shared_in(path: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = pickle.loads(load_bytes(path))
    return found
