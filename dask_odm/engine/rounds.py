"""Rounds: shards whose state stays with their workers, while questions and answers travel.

A shard *holds* what never changes (its rows, a factor), which is made again where it is lost, and has a *state*, a
plain record of arrays, which a step replaces by another. On a cluster both are results of tasks that prefer one
worker. What a lost worker held is computed again by Dask, from the last checkpoint and the messages since then;
a checkpoint every so many questions cuts that chain of tasks.

Whatever a step is given is read-only, in this process too: it makes new arrays instead of writing into old ones. So
a task that runs twice sees the same and gives the same bits, and so do threads and workers.
"""

from __future__ import annotations

import copy
import operator
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from dask.sizeof import sizeof

from dask_odm.data.storage.checked_writes import open_whole
from dask_odm.engine.cluster import Cluster, return_free_memory
from dask_odm.errors import ClusterError
from dask_odm.linalg.threads import run_threads, single_threaded_blas

EMBEDDED_BYTES = 10_000  # of a message that travels within each task; a larger one is the result of a task of its own
CHECKPOINT_EVERY = 16

Begin = Callable[[Any], Any]
Step = Callable[[Any, Any, Any], tuple[Any, Any]]
Question = Callable[[Any, Any, Any], Any]
Add = Callable[[Any, Any], Any]


class Rounds:
    """Shards that are asked again and again.

    Parameters
    ----------
    cluster : Cluster
        Its workers, or threads of this process: the same bits.
    shards : sequence
        What each shard is told: paths, numbers; never big arrays, since they are sent with tasks.
    begin : callable
        ``begin(held) -> state``: the first state of a shard, which is an array, or a dict or a frozen dataclass of
        arrays and plain values.
    name : str
        Of the tasks, for those who look at a dashboard.
    hold : callable, optional
        ``hold(shard) -> held``: what a shard keeps and no step changes; by default the shard itself.
    states : sequence, optional
        Of a `snapshot` to go on from, instead of `begin`.
    checkpoint_every : int
        Questions by `ask` between two checkpoints: so many steps at most are done again when a worker dies.
    scratch : str, optional
        Folder that all workers reach, where the last checkpoint is kept, one file a shard. Without, it goes through
        the client into the scheduler's memory: for states of up to some megabytes.

    Notes
    -----
    All functions are picklable, and what they return depends on their arguments alone. Each of the four questions
    raises what a function raised, and ClusterError as `Cluster.results`; after an error, or Ctrl-C, while workers
    were asked, nothing is left on them and an instance cannot be asked again. A worker holds up to two states of a
    shard while a step replaces one by the other, and the last answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        shards: Sequence[Any],
        begin: Begin,
        *,
        name: str,
        hold: Callable[[Any], Any] | None = None,
        states: Sequence[Any] | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        scratch: str | None = None,
    ) -> None:
        self._cluster, self._name, self._serial = cluster, name, uuid4().hex
        self._every = checkpoint_every
        self._scratch = scratch
        self._asked = 0
        self._sent = 0
        self._over = False
        self._files: list[str] = []
        self._places: list[str | None] = [None] * len(shards)
        self._started: list[Any] = []  # tasks to cancel where an error ends a question
        self._keys: list[str] = []  # of tasks that are there, or are computed again if a worker is lost
        self._states: list[Any] = []
        with self._question():
            self._held = self._each(_hold, [(hold, shard) for shard in shards])
            if states is None:
                self._states = self._each(_begin, [(begin, held) for held in self._held])
            else:
                self._resume(states)

    def ask(self, step: Step, message: Any = None) -> list[Any]:
        """Answers of ``step(held, state, message) -> (state, answer)`` of every shard, in order; states move on.

        Parameters
        ----------
        step : callable
        message : object
            Arrays, numbers, records of them. It is sent once a worker, not once a shard, where it is large.
        """
        with self._question():
            answers = self._results(self._moved(step, message))
            self._settle()
        return answers

    def ask_sum(self, step: Step, message: Any = None, add: Add = operator.add) -> Any:
        """The sum of all answers of `ask`, made on the workers pair by pair in the order of the shards."""
        with self._question():
            (total,) = self._results(self._summed(self._moved(step, message), add))
            self._settle()
        return total

    def read(self, question: Question, message: Any = None) -> list[Any]:
        """Answers of ``question(held, state, message) -> answer`` of every shard, in order; states stay as they are."""
        with self._question():
            return self._results(self._looked(question, message))

    def read_sum(self, question: Question, message: Any = None, add: Add = operator.add) -> Any:
        """The sum of all answers of `read`, made as by `ask_sum`."""
        with self._question():
            (total,) = self._results(self._summed(self._looked(question, message), add))
        return total

    def snapshot(self) -> list[Any]:
        """States of all shards, in order: what `Rounds` goes on from when it is given them as ``states``."""
        with self._question():
            return self._results(self._each(_state_of, [(state,) for state in self._states]))

    # Tasks of all shards: futures where there is a client, what they return where there is none -----------------

    def _moved(self, step: Step, message: Any) -> list[Any]:
        said = self._say(message)
        arguments = [(step, held, state, said) for held, state in zip(self._held, self._states, strict=True)]
        self._states = self._each(_move, arguments)
        return self._each(_answer_of, [(state,) for state in self._states])

    def _looked(self, question: Question, message: Any) -> list[Any]:
        said = self._say(message)
        pairs = zip(self._held, self._states, strict=True)
        return self._each(_look, [(question, held, state, said) for held, state in pairs])

    def _summed(self, parts: list[Any], add: Add) -> list[Any]:
        """One sum, by the tree of `dask_odm.linalg.sums.tree_sum`, where an odd one out goes up as it is."""
        while len(parts) > 1:
            pairs = list(zip(parts[::2], parts[1::2], strict=False))
            odd = parts[len(parts) // 2 * 2 :]
            stride = len(self._places) // len(pairs)  # about where the left one is
            parts = self._each(_add, [(add, *pair) for pair in pairs], stride) + odd
        return parts

    def _say(self, message: Any) -> Any:
        """The message as tasks are given it; its arrays are the caller's to change again."""
        if self._cluster.client is None:
            return read_only(copy.deepcopy(message))
        if len(self._places) == 1 or sizeof(message) <= EMBEDDED_BYTES:
            return message
        return self._submit(None, _same, message)

    def _each(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]], stride: int = 1) -> list[Any]:
        """``function(*a)`` for each of ``arguments``, j of them where shard ``j * stride`` is."""
        if self._cluster.client is None:
            try:
                return run_threads(lambda a: function(*a), arguments, self._cluster.threads)
            finally:
                if function in _OF_CALLERS:
                    return_free_memory()  # once, since it takes as long as a small shard's step
        return [self._submit(self._places[j * stride], function, *a) for j, a in enumerate(arguments)]

    def _submit(self, place: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
        key = f"{self._name}-{function.__name__.strip('_')}-{self._serial}-{self._sent}"
        task = (_tidily, function) if function in _OF_CALLERS else (function,)
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
        """Find the shards' places; leave no tasks where an error ends the block, else what shards hold and are."""
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

    def _settle(self) -> None:
        """Count a question, and make a checkpoint if it is time to."""
        self._asked += 1
        if self._cluster.client is None or self._asked % self._every:
            return
        if self._scratch is None:
            self._cut(_restore, self._results(self._each(_state_of, [(state,) for state in self._states])))
        else:
            files = self._next_files(self._scratch)
            self._results(self._each(_save, list(zip(self._states, files, strict=True))))
            self._cut_to(files)

    def _resume(self, states: Sequence[Any]) -> None:
        """Go on from a caller's states, whose arrays are the caller's to change again."""
        if self._cluster.client is None or self._scratch is None:
            self._cut(_restore, copy.deepcopy(list(states)))
        else:
            files = self._next_files(self._scratch)
            for state, file in zip(states, files, strict=True):
                _save(_Shard(state), file)
            self._cut_to(files)

    def _next_files(self, folder: str) -> list[str]:
        return [f"{folder}/{self._name}-{self._serial}-{self._asked}-{j}.state" for j in range(len(self._places))]

    def _cut_to(self, files: list[str]) -> None:
        self._cut(_load, files)
        for file in self._files:
            with suppress(FileNotFoundError):
                os.remove(file)
        self._files = files

    def _cut(self, function: Callable[[Any], Any], sources: Sequence[Any]) -> None:
        """Go on from a checkpoint: the tasks before it are forgotten."""
        del self._keys[len(self._places) :]  # all but those of what shards hold
        self._states = self._each(function, [(source,) for source in sources])


def places(before: Sequence[str | None], workers: Sequence[str]) -> list[str | None]:
    """The worker that each shard prefers: as ``before`` where that is still there and has not more than its share."""
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


def read_only(value: Any) -> Any:
    """``value`` with its arrays, those of dicts, tuples, lists and dataclasses within too, as read-only views."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, dict):
        return {name: read_only(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [read_only(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        viewed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(viewed, field.name, read_only(getattr(value, field.name)))
        return viewed
    return value


# Tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Shard:
    """What a step's task leaves on its worker."""

    state: Any
    answer: Any = None


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a caller's function returns, read-only, as its arguments are."""
    with single_threaded_blas:
        return read_only(function(*arguments))


def _tidily(function: Callable[..., Any], *arguments: Any) -> Any:
    """A worker's task, of arguments that may have come from elsewhere; it gives back what it freed."""
    try:
        return function(*map(read_only, arguments))
    finally:
        return_free_memory()


def _hold(hold: Callable[[Any], Any] | None, shard: Any) -> Any:
    shard = read_only(shard)
    return shard if hold is None else _run(hold, shard)


def _begin(begin: Begin, held: Any) -> _Shard:
    return _Shard(_run(begin, held))


def _move(step: Step, held: Any, shard: _Shard, message: Any) -> _Shard:
    return _Shard(*_run(step, held, shard.state, message))


def _look(question: Question, held: Any, shard: _Shard, message: Any) -> Any:
    return _run(question, held, shard.state, message)


_OF_CALLERS = (_hold, _begin, _move, _look)  # tasks in which callers' functions run


def _add(add: Add, left: Any, right: Any) -> Any:
    with single_threaded_blas:
        return add(left, right)


def _answer_of(shard: _Shard) -> Any:
    return shard.answer


def _state_of(shard: _Shard) -> Any:
    return shard.state


def _same(message: Any) -> Any:
    return message


def _restore(state: Any) -> _Shard:
    return _Shard(read_only(state))


def _save(shard: _Shard, file: str) -> None:
    """Write a state aside and rename it: the task may be run twice, or its worker die."""
    aside = Path(f"{file}-{uuid4().hex}")
    try:
        aside.write_bytes(pickle.dumps(shard.state, protocol=5))
        aside.rename(file)
    finally:
        aside.unlink(missing_ok=True)


def _load(file: str) -> _Shard:
    with open_whole(file) as stream:
        return _restore(pickle.load(stream))
