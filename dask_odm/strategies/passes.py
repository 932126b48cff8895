"""Passes over a store by Dask: the linear problem's sums, added up chunk by chunk where the workers read them.

A pass is a few long tasks, one a worker thread, each over a run of chunks; only sums travel. Chunks belong to
fixed groups whose sums are added pair by pair, a tree that does not depend on how many tasks there are: so the
bits do not depend on the workers. The page cache is the cache: nothing of a store is kept in Dask's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from dask_odm.data.store import Store
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.linear import BLOCK_BYTES, FeatureMap, LinearLoss, PrimalSums, Query, RowsBlock, hessian_share
from dask_odm.strategies.cluster import Cluster, return_free_memory

Array = NDArray[Any]
MOST_GROUPS = 64
HELD_SUMS = 10  # one a level of the tree that groups are added up by, and those of blocks


def chunk_groups(n_chunks: int) -> list[range]:
    """Runs of chunks, a power of two of them, that sums are gathered by; depends on the store alone."""
    count = 1
    while 2 * count <= min(n_chunks, MOST_GROUPS):
        count *= 2
    bounds = [n_chunks * g // count for g in range(count + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def task_count(groups: int, threads: int) -> int:
    """Tasks of a pass, a power of two: one a thread where that is one, else four or more, so that none waits long."""
    count = 1
    while count < threads:
        count *= 2
    return min(groups, count if count == threads else 4 * count)


def task_bytes(store: Store, k: int, curvature: str) -> int:
    """Peak bytes of one task: a chunk with its columns, blocks of it, and sums."""
    sums = HELD_SUMS * 8 * (k * k if curvature == "full" else k)
    return store.chunk_nbytes + 16 * store.chunk_rows + 5 * BLOCK_BYTES + sums


@dataclass(frozen=True, eq=False)
class StoreProblem:
    """A `LinearProblem` over the rows of a store.

    Parameters
    ----------
    features : FeatureMap
    loss : LinearLoss
    store : Store
        With labels.
    cluster : Cluster
    """

    features: FeatureMap
    loss: LinearLoss
    store: Store
    cluster: Cluster

    def fits(self, curvature: str) -> bool:
        """Whether sums with that ``curvature`` fit the workers' memory."""
        available, _ = self.cluster.share(self.cluster.workers * self.cluster.threads)
        return task_bytes(self.store, self.k, curvature) <= available

    def require(self, curvature: str) -> None:
        """Raise MemoryLimitError, with both figures, unless they fit."""
        needed, tasks = task_bytes(self.store, self.k, curvature), self.cluster.workers * self.cluster.threads
        self.cluster.require(needed, tasks, "A pass over the store")

    def with_lam(self, lam: float) -> StoreProblem:
        """The problem over the same rows for another λ."""
        return replace(self, loss=self.loss.with_lam(lam))

    @property
    def k(self) -> int:
        return self.features.k

    @property
    def every(self) -> int:
        return hessian_share(self.store.rows, self.k)

    def sums(self, w: Array, curvature: str, *, precise: bool = False, every: int = 1) -> PrimalSums:
        total: PrimalSums = self._pass("newton-pass", w, precise, Query.sums, curvature, every)
        return total

    def product(self, w: Array, v: Array, *, precise: bool = False) -> Array:
        total: Array = self._pass("hessian-product", w, precise, Query.product, v)
        return total

    def slopes(self, w: Array, direction: Array, steps: Array, *, precise: bool = False) -> Array:
        total: Array = self._pass("line-search", w, precise, Query.slopes, direction, steps)
        return total

    def _pass(self, name: str, w: Array, precise: bool, method: Callable[..., Any], *arguments: Any) -> Any:
        """Start the tasks of a pass, wait, and add up their sums."""
        query = Query(self.features, self.loss, w, precise)
        groups = chunk_groups(self.store.n_chunks)
        count = task_count(len(groups), self.cluster.workers * self.cluster.threads)
        each = len(groups) // count
        run = delayed(sum_groups, pure=False)
        serial = uuid4().hex  # tasks of two fits at the same time are not the same, though they ask for the same w
        tasks = [
            run(self.store, part, query, method, arguments, dask_key_name=f"{name}-{serial}-{i}")
            for i, part in enumerate(groups[i : i + each] for i in range(0, len(groups), each))
        ]
        parts = dict(self.cluster.results(tasks))
        return _tree_sum([parts[i] for i in range(count)])


def sum_groups(
    store: Store, groups: Sequence[range], query: Query, method: Callable[..., Any], arguments: Sequence[Any]
) -> Any:
    """What ``method`` of ``query`` sums over groups of chunks, added up pair by pair: a pass's task."""
    buffer = store.buffer()
    try:
        with single_threaded_blas:
            return _tree_sum(method(query, _blocks(store, group, buffer), *arguments) for group in groups)
    finally:
        return_free_memory()


def _blocks(store: Store, chunks: range, buffer: NDArray[np.uint8]) -> Iterator[RowsBlock]:
    nothing = np.empty(0)
    for i in chunks:
        block = store.read(i, buffer)
        assert block.y is not None
        yield RowsBlock(block.X, block.y, nothing if block.weight is None else block.weight)


def _tree_sum(parts: Iterable[Any]) -> Any:
    """The sum of a power of two of parts, pair by pair; of a sequence made on the way, few are held at a time."""
    held: list[tuple[int, Any]] = []  # sums of 2**level parts, the level falling
    for part in parts:
        level, total = 0, part
        while held and held[-1][0] == level:
            level, total = level + 1, held.pop()[1] + total
        held.append((level, total))
    ((_, total),) = held
    return total
