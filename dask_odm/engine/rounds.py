"""Rounds: shards stay with their workers, while questions and answers travel.

A shard *holds* what never changes (its rows, a factor), which is made again if it is lost. It has a *state*, a plain
record of arrays, which each step replaces by a new one. On a cluster both are results of tasks that prefer one worker.
Dask computes again what a lost worker held, from the last checkpoint and the messages since then. A checkpoint every so
many questions cuts that chain of tasks.

Everything that a step is given is read-only, in this process too: a step makes new arrays instead of writing into old
ones. So a task that runs twice gives the same bits, and so do threads and workers.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import add
from typing import Any
from uuid import uuid4

from dask.sizeof import sizeof
from dask.utils import funcname

from dask_odm.data.storage.files import load_bytes, save_bytes
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.tasks import memory_returned, read_only
from dask_odm.errors import ClusterError
from dask_odm.linalg.threads import return_free_memory, run_threads, single_threaded_blas

Begin = Callable[[Any], Any]
Step = Callable[[Any, Any, Any], tuple[Any, Any]]
Question = Callable[[Any, Any, Any], Any]


class Rounds:
    """Shards that are asked again and again.

    The workers of ``cluster`` and threads of this process give the same bits. ``shards`` has what each shard is told:
    paths, numbers. Never big arrays, since they are sent with tasks. ``name`` is part of the tasks' names on a
    dashboard. All functions must be picklable, and their results must depend on their arguments alone.

    ``hold(shard)`` returns what a shard keeps and no step changes; by default it keeps the shard itself.
    ``begin(held)`` returns the first state of a shard: an array, or a dict or a frozen dataclass of arrays and plain
    values. ``states`` are those of a `snapshot` to go on from instead.

    A checkpoint is made after every ``checkpoint_every`` calls of `ask`: at most so many steps are repeated when a
    worker dies. ``scratch`` is a folder that all workers reach, in which the last checkpoint is kept, one file per
    shard. Without workers there is none.

    A question raises what a function raised, and ClusterError as `Cluster.done`. If an error or Ctrl-C comes while
    workers are asked, nothing is left on them, and the instance cannot be asked again. A worker holds up to two states
    of a shard while a step replaces one by the other, and the last answer.
    """

    def __init__(
        self, cluster: Cluster, shards: Sequence[Any], begin: Begin, *, name: str,
        hold: Callable[[Any], Any] | None = None, states: Sequence[Any] | None = None, checkpoint_every: int = 16,
        scratch: str | None = None,
    ) -> None:  # fmt: skip
        assert cluster.client is None or scratch is not None
        self._cluster = cluster
        self._name = name
        self._serial = uuid4().hex
        self._every = checkpoint_every
        self._scratch = scratch
        self._asked = 0
        self._sent = 0
        self._over = False
        self._files: list[str] = []
        self._places: list[str | None] = [None] * len(shards)
        self._started: list[Any] = []  # tasks to cancel if an error ends a question
        self._keys: list[str] = []  # keys of tasks that exist, or are computed again if a worker is lost
        self._states: list[Any] = []
        with self._question():
            self._held = self._each(_hold, [(hold, shard) for shard in shards])
            if states is None:
                self._states = self._each(_begin, [(begin, held) for held in self._held])
            else:
                self._resume(states)

    def ask(self, step: Step, message: Any = None, *, summed: bool = False) -> Any:
        """Take ``step(held, state, message) -> (state, answer)`` on every shard; return the answers in order.

        ``message`` consists of arrays, numbers and records of them. If ``summed``, return the sum of the answers
        instead, added on the workers pair by pair in the order of the shards.
        """
        with self._question():
            said = self._say(message)
            pairs = zip(self._held, self._states, strict=True)
            self._states = self._each(_move, [(step, held, state, said) for held, state in pairs])
            answers = self._answers(self._each(_answer, [(state,) for state in self._states]), summed)
            self._asked += 1
            if self._cluster.client is not None and self._asked % self._every == 0:
                files = self._next_files()
                self._results(self._each(_save, list(zip(self._states, files, strict=True))))
                self._cut(files)
        return answers

    def read(self, question: Question, message: Any = None, *, summed: bool = False) -> Any:
        """Return ``question(held, state, message)`` of every shard, or their sum, as `ask`; states stay as they are."""
        with self._question():
            said = self._say(message)
            pairs = zip(self._held, self._states, strict=True)
            return self._answers(self._each(_look, [(question, held, state, said) for held, state in pairs]), summed)

    def snapshot(self) -> list[Any]:
        """Return the states of all shards, in order, from which another `Rounds` can go on."""
        with self._question():
            return self._results(self._each(_state, [(state,) for state in self._states]))

    # Tasks of all shards: futures with a client, results without one ---------------------------------------------

    def _answers(self, parts: list[Any], summed: bool) -> Any:
        """Return the parts, or their sum by a tree of pairs; an odd one goes up as it is."""
        while summed and len(parts) > 1:
            pairs = list(zip(parts[::2], parts[1::2], strict=False))
            odd = parts[len(parts) // 2 * 2 :]
            stride = len(self._places) // len(pairs)  # sums are made about where their left part is
            parts = self._each(add, pairs, stride) + odd
        found = self._results(parts)
        return found[0] if summed else found

    def _say(self, message: Any) -> Any:
        """Return the message as tasks are given it; the caller may then change its arrays again.

        A message of more than 10 kB is the result of a task of its own. So it is sent once per worker, not once per
        shard.
        """
        if self._cluster.client is None:
            return read_only(copy.deepcopy(message))
        if len(self._places) == 1 or sizeof(message) <= 10_000:
            return message
        return self._submit(None, read_only, message)

    def _each(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]], stride: int = 1) -> list[Any]:
        """Run ``function(*a)`` for each of ``arguments``; the j-th prefers the worker of shard ``j * stride``."""
        if self._cluster.client is None:
            try:
                return run_threads(lambda a: function(*a), arguments, self._cluster.threads)
            finally:
                if function in _OF_CALLERS:
                    return_free_memory()  # once, since it takes as long as a small shard's step
        return [self._submit(self._places[j * stride], function, *a) for j, a in enumerate(arguments)]

    def _submit(self, place: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
        of_caller = function in _OF_CALLERS
        called = arguments[0] if of_caller and arguments[0] is not None else function
        key = f"{self._name}-{funcname(called).strip('_').replace('_', '-')}-{self._serial}-{self._sent}"
        task = (_tidily, function) if of_caller else (function,)
        future = self._cluster.submit(key, place, *task, *arguments)
        self._sent += 1
        self._started.append(future)
        self._keys.append(key)
        return future

    def _results(self, tasks: list[Any]) -> list[Any]:
        return tasks if self._cluster.client is None else self._cluster.gather(tasks, self._keys)

    # What a worker's death must not undo -----------------------------------------------------------------------

    @contextmanager
    def _question(self) -> Iterator[None]:
        """Find the shards' places for a question; if an error ends the block, cancel all tasks that were started."""
        if self._cluster.client is None:
            yield
            return
        if self._over:
            raise ClusterError(f"The rounds of {self._name!r} ended with an error; begin anew, or from a snapshot.")
        self._places = places(self._places, self._cluster.places())
        keys = len(self._keys)
        before = self._states
        self._over = True
        with self._cluster.cancelled_on_error(self._started):
            yield
        self._started[:], self._over = [*self._held, *self._states], False
        if self._states is before:
            del self._keys[keys:]

    def _resume(self, states: Sequence[Any]) -> None:
        """Go on from a caller's states; the caller may then change their arrays again."""
        if self._cluster.client is None:
            self._states = [_Shard(read_only(state)) for state in copy.deepcopy(list(states))]
            return
        files = self._next_files()
        for state, file in zip(states, files, strict=True):
            _save(_Shard(state), file)
        self._cut(files)

    def _next_files(self) -> list[str]:
        names = (f"{self._name}-{self._serial}-{self._asked}-{j}.state" for j in range(len(self._places)))
        return [f"{self._scratch}/{name}" for name in names]

    def _cut(self, files: list[str]) -> None:
        """Go on from a checkpoint in ``files``, and forget the tasks and the files before it."""
        del self._keys[len(self._places) :]  # keep the keys of what shards hold
        self._states = self._each(_load, [(file,) for file in files])
        for file in self._files:
            with suppress(FileNotFoundError):
                os.remove(file)
        self._files = files


def places(before: Sequence[str | None], workers: Sequence[str]) -> list[str | None]:
    """Return the worker that each shard prefers: the one before, if still there and with not more than its share."""
    if not workers:
        return [None] * len(before)
    room = Counter(workers[j * len(workers) // len(before)] for j in range(len(before)))
    chosen: list[str | None] = []
    for worker in before:
        keeps = worker is not None and room[worker] > 0
        chosen.append(worker if keeps else None)
        if keeps:
            room[worker] -= 1  # type: ignore[index]
    free = (worker for worker in workers for _ in range(room[worker]))  # neighbours together
    return [next(free) if worker is None else worker for worker in chosen]


# Tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Shard:
    """A shard's state and last answer: what the task of a step leaves on its worker."""

    state: Any
    answer: Any = None


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a caller's function and return its result as read-only."""
    with single_threaded_blas:
        return read_only(function(*arguments))


def _tidily(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task on a worker: make its arguments read-only, and return freed memory to the system afterwards."""
    with memory_returned():
        return function(*map(read_only, arguments))


def _hold(hold: Callable[[Any], Any] | None, shard: Any) -> Any:
    shard = read_only(shard)
    return shard if hold is None else _run(hold, shard)


def _begin(begin: Begin, held: Any) -> _Shard:
    return _Shard(_run(begin, held))


def _move(step: Step, held: Any, shard: _Shard, message: Any) -> _Shard:
    return _Shard(*_run(step, held, shard.state, message))


def _look(question: Question, held: Any, shard: _Shard, message: Any) -> Any:
    return _run(question, held, shard.state, message)


def _answer(shard: _Shard) -> Any:
    return shard.answer


def _state(shard: _Shard) -> Any:
    return shard.state


_OF_CALLERS = (_hold, _begin, _move, _look)  # tasks that run callers' functions


def _save(shard: _Shard, file: str) -> None:
    save_bytes(file, pickle.dumps(shard.state, protocol=5))


def _load(file: str) -> _Shard:
    return _Shard(read_only(pickle.loads(load_bytes(file))))
