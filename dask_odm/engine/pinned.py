"""Tasks that prefer one worker, the same in every call, and take any other if that is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any
from uuid import uuid4

from dask_odm.engine.futures import Tasks, together
from dask_odm.linalg.threads import run_threads


class PinnedTasks(Tasks):
    """Work on shards that stay with their workers."""

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
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        name: str,
        shared: tuple[Any, ...],
        *start: Any,
    ) -> list[Any]:
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


def _with_shared(function: Callable[..., Any], shared: tuple[Any, ...], more: tuple[Any, ...], *start: Any) -> Any:
    return function(*start, *shared, *more)
