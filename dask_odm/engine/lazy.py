"""Values of lazy arrays and frames, computed on the active client's workers or in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from dask.base import compute
from dask.core import flatten
from dask.delayed import Delayed
from dask.optimization import cull
from dask.system import CPU_COUNT

from dask_odm.engine.client import active_client, watch_of
from dask_odm.engine.futures import FEW_TASKS, JOINED, NamedGraph, release
from dask_odm.typing import Array

if TYPE_CHECKING:
    from distributed import Client


def computed(*lazy: Any) -> tuple[Any, ...]:
    """Compute lazy values on the active client's workers, or in this process.

    Raises ClusterError as `Cluster.done` does.
    """
    client = active_client()
    if client is None:
        return compute(*lazy)
    # not Dask's own wait, which never ends if the client is closed meanwhile
    watch = watch_of(client)
    with watch.errors():
        return tuple(watch.results(client.compute(list(lazy))))


def computed_in_order(lazy: Any) -> Iterator[Array]:
    """Yield the blocks of a lazy array in order, as `computed` does, but a few of them at a time.

    A client's workers have two tasks for each thread, or more, ahead of what is asked for.
    """
    client = active_client()
    if client is None:
        for graph, keys in _parts(lazy, 2 * CPU_COUNT):
            yield from compute(*[Delayed(key, graph) for key in keys])
        return
    watch = watch_of(client)
    with watch.errors():
        workers = watch.workers().values()
        started: deque[list[Any]] = deque()
        try:
            for graph, keys in _parts(lazy, max(1, sum(worker["nthreads"] for worker in workers))):
                started.append(client.get(NamedGraph(graph), keys, sync=False))
                if len(started) > 2:
                    yield from _results_of(client, started.popleft())
            while started:
                yield from _results_of(client, started.popleft())
        finally:  # a notebook keeps the traceback of an error, and with it the futures
            release(chain.from_iterable(started))


def computed_once(lazy: Sequence[Any], together: int) -> Iterator[Any]:
    """Compute lazy values at once, as `computed` does, but take only so many ``together`` from a client's workers.

    Workers keep the others until then. The values come in order.
    """
    client = active_client()
    if client is None:
        yield from compute(*lazy)
        return
    with watch_of(client).errors():
        yield from _results_of(client, client.compute(list(lazy)), together)


def _parts(lazy: Any, together: int) -> Iterator[tuple[dict[Any, Any], list[Any]]]:
    """Yield graphs of so many blocks of a lazy array each, with their keys."""
    keys = list(flatten(lazy.__dask_keys__()))
    step = -(-FEW_TASKS // together) * together  # who computes a block looks through the graph that it is in
    for i in range(0, len(keys), step):
        some = keys[i : i + step]
        graph = dict(lazy.__dask_optimize__(lazy.dask, some))
        for j in range(0, len(some), together):
            own = some[j : j + together]
            yield cull(graph, own)[0], own


def _results_of(client: Client, futures: list[Any], together: int = JOINED) -> Iterator[Any]:
    """Yield the results of futures in order, a few at a time, and let go of them."""
    try:
        for i in range(0, len(futures), together):
            some = futures[i : i + together]
            yield from watch_of(client).results(some)  # whoever takes the results may have paused for long
            release(some)
    finally:
        release(futures)
