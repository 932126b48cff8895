"""Tasks on a client's workers, or on threads of this process: started, waited for, and cancelled if anything fails.

Some prefer one worker, the same in every call, and take any other if that is gone. Equal work on many items is done in
runs of a few, a task each.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask
from dask._task_spec import Task, TaskRef
from dask.base import annotate, normalize_token

from dask_odm.data.storage.files import load_bytes, save_bytes
from dask_odm.engine.client import watch_of, while_wanted
from dask_odm.engine.tasks import TOLD, aligned, worker_task
from dask_odm.events import Progress, report
from dask_odm.linalg.threads import run_threads, single_threaded_blas

if TYPE_CHECKING:
    from distributed import Client

FEW_TASKS = 128  # of equal work, so that progress is seen; a scheduler takes 1 to 2 ms for each (benchmarks/scale.py)
# results that the client asks for, or a worker joins, at a time; one by one, each takes a message there and back
JOINED = 8


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks of some workers, or of threads of this process."""

    client: Client | None  # None runs tasks on threads of this process
    workers: int
    threads: int  # of each worker
    # what tasks were said to need bytes for, and how many
    told: list[tuple[str, int]] = field(default_factory=list, kw_only=True)

    @property
    def slots(self) -> int:
        """Number of tasks that run at the same time."""
        return self.workers * self.threads

    @property
    def tasks(self) -> int:
        """Number of tasks that equal work is cut into: one for each of many threads, and up to four for each of few."""
        return self.slots * max(1, min(4, FEW_TASKS // self.slots))

    @contextmanager
    def cancelled_on_error(self, tasks: Sequence[Any]) -> Iterator[None]:
        """Cancel the started ``tasks`` if an error or Ctrl-C ends the block, whoever still holds futures of them."""
        try:
            yield
        except BaseException:
            self._cancel(tasks)
            raise

    @contextmanager
    def _sending(self, keys: Sequence[str]) -> Iterator[None]:
        """Raise errors of the cluster as ClusterError, and cancel the tasks of these ``keys`` if anything is raised.

        An interrupt within Dask leaves tasks that were sent, with futures that only the traceback holds. A notebook
        keeps that.
        """
        assert self.client is not None
        with watch_of(self.client).errors():
            try:
                yield
            except BaseException:
                from distributed import Future

                self._cancel([Future(key, self.client) for key in keys])
                raise

    @contextmanager
    def _sent(self) -> Iterator[None]:
        """Send tasks with what was told of their memory; Dask does not warn of large graphs meanwhile."""
        told = {}
        if self.told:
            told[TOLD] = (*self.told[-1], max(nbytes for _, nbytes in self.told), os.getpid())
        # weights of millions of features are no mistake
        with annotate(**told), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            yield

    def _cancel(self, tasks: Sequence[Any]) -> None:
        if self.client is not None:
            with suppress(Exception):  # the client may have lost its scheduler
                watch_of(self.client).wait(self.client.cancel, tasks, checked=False)

    def started(self, graph: dict[str, Any], keys: Sequence[str]) -> list[Any]:
        """Start the tasks of a Dask graph on a client's workers, and return the futures of ``keys``."""
        assert self.client is not None
        with self._sending(keys), self._sent():
            return list(self.client.get(NamedGraph(graph), list(keys), sync=False))

    def done(self, futures: Sequence[Any], *, valued: bool = True) -> Iterator[tuple[int, Any]]:
        """Yield number and result of the futures of a client as they finish.

        If they are not ``valued``, their results are None, and workers are not asked. Raises ClusterError if workers
        died too often under a task, if no worker or scheduler is left, or if it is silent.
        """
        assert self.client is not None
        # after a success, tasks are released and not cancelled, since those that are kept are inputs of later tasks
        with self._sending([future.key for future in futures]):
            number = {future: i for i, future in enumerate(futures)}
            watch = watch_of(self.client)
            for some in watch.completed(futures, JOINED):
                sound = [future for future in some if future.status == "finished"]
                failed = [future for future in some if future.status != "finished"]
                for part in filter(None, (sound, failed)):  # one that failed takes no result of others with it
                    asked = valued or part is failed
                    results = watch.wait(self.client.gather, part) if asked else [None] * len(part)
                    release(part)  # workers need not hold them any longer, nor be asked again if they die
                    for future in part:
                        yield number[future], aligned(results.pop(0))

    def places(self) -> list[str]:
        """Return the addresses of the present workers, in a fixed order."""
        assert self.client is not None
        return sorted(watch_of(self.client).workers())

    def submit(self, key: str, place: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit ``function(*arguments)``, preferably to the worker at ``place``, and return the future.

        Futures among the arguments are awaited. Wait for the result by `gather`, which knows what to do when that
        worker is gone.
        """
        assert self.client is not None
        with self._sending([key]), self._sent():
            workers = None if place is None else [place]
            return self.client.submit(function, *arguments, key=key, workers=workers, allow_other_workers=bool(place))

    def gather(self, futures: Sequence[Any], keys: Sequence[str]) -> list[Any]:
        """Return the results of ``futures`` in order; raises ClusterError as `done`.

        ``keys`` are those of all tasks with a preferred worker that the results may depend on, and of the futures
        themselves.
        """
        from distributed.scheduler import NoValidWorkerError

        assert self.client is not None
        watch = watch_of(self.client, keys)
        with watch.errors(), self.cancelled_on_error(futures):
            try:
                results = watch.results(futures)
            except NoValidWorkerError:  # the preferred worker is gone, though any other would do
                watch.rerun("no-worker", "erred", others=True)
                results = watch.results(futures)
        return list(map(aligned, results))

    def each(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str, *shared: Any
    ) -> list[Any]:
        """Return ``[function(*shared, *a) for a in arguments]``, one task each.

        Task j prefers the same worker in every call. What they share is sent to each worker once.
        """
        if self.client is None:
            return run_threads(lambda a: function(*shared, *a), arguments, self.threads)
        futures = self._pinned(function, arguments, name, shared)
        return self.gather(futures, [future.key for future in futures])

    def chain(
        self, function: Callable[..., Any], start: Any, arguments: Sequence[tuple[Any, ...]], name: str, *shared: Any
    ) -> Any:
        """Apply ``x = function(x, *shared, *a)`` for each of ``arguments``, from ``start`` on, from worker to worker.

        Neighbours prefer the same worker, as in `each`, since a hand-over within a worker is cheaper by a third. All
        tasks are started at once and kept until the last is done. If a worker is lost, what it held is computed again
        from the task before.
        """
        if self.client is None:
            return reduce(lambda x, a: function(x, *shared, *a), arguments, start)
        futures = self._pinned(function, arguments, name, shared, start)
        with self.cancelled_on_error(futures):
            return self.gather(futures[-1:], [future.key for future in futures])[0]

    def _pinned(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str, shared: tuple[Any, ...],
        *start: Any,
    ) -> list[Any]:  # fmt: skip
        """Submit one task for each of ``arguments``, which prefers one worker and takes any other if that is gone.

        With ``start``, the tasks form a chain: each gets the future of the one before as its first argument.
        """
        places = self.places()
        serial = f"{name}-{uuid4().hex}"
        sent = self.submit(f"{serial}-shared", None, together, *shared) if shared else ()
        futures = []
        for j, more in enumerate(arguments):
            place = places[j * len(places) // len(arguments)] if places else None
            futures.append(self.submit(f"{serial}-{j}", place, _with_shared, function, sent, more, *start))
            start = (futures[-1],) if start else ()
        return futures

    def tell_workers(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function(*arguments)`` on every present worker, outside of its tasks; failures are ignored."""
        assert self.client is not None
        with suppress(Exception):  # the cluster may be lost
            watch_of(self.client).wait(self.client.run, function, *arguments, on_error="return")

    def map_chunks(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], phase: str, *shared: Any,
        folder: str | None = None,
    ) -> list[Any]:  # fmt: skip
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
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], tasks: int, phase: str,
        *shared: Any, folder: str | None = None,
    ) -> Iterator[tuple[int, list[Any]]]:  # fmt: skip
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
        self, function: Callable[..., Any], runs: dict[str, Sequence[tuple[Any, ...]]], bounds: Sequence[int],
        folder: str, shared: tuple[Any, ...],
    ) -> Iterator[tuple[int, list[Any]]]:  # fmt: skip
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


def release(futures: Iterable[Any]) -> None:
    for future in futures:
        future.release()


def _with_shared(function: Callable[..., Any], shared: tuple[Any, ...], more: tuple[Any, ...], *start: Any) -> Any:
    return function(*start, *shared, *more)


class NamedGraph(dict[str, Any]):
    """A Dask graph that is named after its first key, which no other graph has; it is sent as a plain dict.

    Dask names a graph by a digest of all that is in it, for which the client takes longer than for all else.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@normalize_token.register(NamedGraph)
def _name_of_graph(graph: NamedGraph) -> str:
    return next(iter(graph))


def spread_task(key: Any, function: Callable[..., Any], shared: Any, *arguments: Any) -> Any:
    """Return the task ``key`` that calls ``function`` with the result of task ``shared``, and ``arguments``.

    Dask gives it to any worker that is idle. Else it would draw all such tasks to the one that has ``shared`` first.
    """
    return Task(key, function, TaskRef(shared), *arguments, _data_producer=True)


def pickled(value: Any) -> bytes:
    """Return ``value`` as Dask sends it to workers, of which `pickle.loads` makes it again."""
    from distributed.protocol.pickle import dumps

    return dumps(value)


@worker_task
def together(*shared: Any) -> tuple[Any, ...]:
    """Hold what the tasks of a call share; this is a task, so that it is made again if its worker is lost."""
    return shared


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
    return pickle.loads(load_bytes(path))
