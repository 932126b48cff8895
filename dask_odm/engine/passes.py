"""Passes over a store by Dask: sums over rows, added up chunk by chunk where the workers read them.

A pass is a few long tasks, one a worker thread, each over a run of chunks; only sums travel. Chunks belong to
fixed groups whose sums are added pair by pair, a tree that does not depend on how many tasks there are: so the
bits do not depend on the workers. The page cache is the cache: nothing of a store is kept in Dask's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any
from uuid import uuid4

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster, return_free_memory
from dask_odm.kernels.sums import tree_sum
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.primal import (
    BLOCK_BYTES,
    Affine,
    FeatureMap,
    LinearLoss,
    PrimalSums,
    Query,
    RowBlock,
    hessian_share,
)
from dask_odm.problems.sample import PrioritySample
from dask_odm.problems.span import TILE_BYTES, Draw, SpanQuery, SpanSums
from dask_odm.problems.span_loops import span_product
from dask_odm.typing import Array

MOST_GROUPS = 64
CLIENT_BYTES = 64 << 20  # of sums of tasks that may meet in the client; more are added up by the workers
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
        available, _ = self.cluster.share(self.cluster.slots)
        return task_bytes(self.store, self.k, curvature) <= available

    def require(self, curvature: str) -> None:
        """Raise MemoryLimitError, with both figures, unless they fit."""
        needed = task_bytes(self.store, self.k, curvature)
        self.cluster.require(needed, self.cluster.slots, "A pass over the store")

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
        nbytes = 8 * self.k * self.k if curvature == "full" else 0
        total: PrimalSums = self._pass("newton-pass", w, precise, Query.sums, curvature, every, nbytes=nbytes)
        return total

    def product(self, w: Array, v: Array, *, precise: bool = False) -> Array:
        total: Array = self._pass("hessian-product", w, precise, Query.product, v)
        return total

    def slopes(self, w: Array, direction: Array, steps: Array, *, precise: bool = False) -> Array:
        total: Array = self._pass("line-search", w, precise, Query.slopes, direction, steps)
        return total

    def _pass(
        self, name: str, w: Array, precise: bool, method: Callable[..., Any], *arguments: Any, nbytes: int = 0
    ) -> Any:
        query = Query(self.features, self.loss, w, precise)
        return run_pass(self.cluster, self.store, name, query, method, arguments, nbytes=nbytes)


def run_pass(
    cluster: Cluster,
    store: Store,
    name: str,
    query: Any,
    method: Callable[..., Any],
    arguments: Sequence[Any],
    of_groups: Sequence[Any] = (),
    *,
    nbytes: int = 0,
) -> Any:
    """What ``method(query, blocks, *arguments)`` sums over all chunks: the tasks of a pass, and their sum.

    ``of_groups`` has one more argument for every one of `chunk_groups`, if there is one. ``nbytes`` is what the sum
    of a task takes, where that is not little: large ones are added up on the workers, by the same tree.
    """
    groups = chunk_groups(store.n_chunks)
    count = task_count(len(groups), cluster.slots)
    each = len(groups) // count
    run = delayed(sum_groups, pure=False)
    serial = uuid4().hex  # tasks of two fits at the same time are not the same, though they ask for the same
    tasks = [
        run(
            store,
            groups[i : i + each],
            query,
            method,
            arguments,
            of_groups[i : i + each],
            dask_key_name=f"{name}-{serial}-{i}",
        )
        for i in range(0, len(groups), each)
    ]
    if count * nbytes > CLIENT_BYTES:
        tasks = [tree_sum(tasks)]
    parts = dict(cluster.results(tasks))
    return tree_sum([parts[i] for i in range(len(tasks))])


def sum_groups(
    store: Store,
    groups: Sequence[range],
    query: Any,
    method: Callable[..., Any],
    arguments: Sequence[Any],
    of_groups: Sequence[Any] = (),
) -> Any:
    """What ``method`` of ``query`` sums over groups of chunks, added up pair by pair: a pass's task."""
    buffer = store.buffer()
    more: Sequence[tuple[Any, ...]] = [(argument,) for argument in of_groups] or [()] * len(groups)
    try:
        with single_threaded_blas:
            return tree_sum(
                method(query, _blocks(store, group, buffer), *arguments, *argument)
                for group, argument in zip(groups, more, strict=True)
            )
    finally:
        return_free_memory()


def _blocks(store: Store, chunks: range, buffer: NDArray[np.uint8]) -> Iterator[RowBlock]:
    nothing = np.empty(0)
    for i in chunks:
        block = store.read(i, buffer)
        assert block.y is not None
        yield RowBlock(block.X, block.y, nothing if block.weight is None else block.weight, block.first)


@dataclass(frozen=True, eq=False)
class SpanPass:
    """What is asked of raw rows in blocks about the span of landmarks: a `SpanQuery` and how rows come to it."""

    query: SpanQuery
    scaling: Affine

    def sums(self, blocks: Iterable[RowBlock], a: Array, draw: Draw | None) -> SpanSums:
        """The sums at ``a``; curvatures as a list, for every block which rows are active, on which side of the band."""
        loss, pull, sides = 0.0, np.zeros(self.query.r), []
        sample: PrioritySample | None = None
        for block in blocks:
            curvature = np.empty(len(block.codes))
            for rows, K in self._tiles(block.X):
                codes, weight = block.codes[rows], block.weight[rows]
                loss = self.query.add_sums(K, codes, weight, a, pull, curvature[rows], loss)
            sides.append(self._pack(block, curvature))
            if draw is not None:
                read = partial(self._rows, block.X)
                drawn = PrioritySample.draw(curvature, block.codes, block.first, read, draw.size, draw.seed)
                sample = drawn if sample is None else sample + drawn
        return SpanSums(loss, pull, (sides,), sample)

    def product(self, blocks: Iterable[RowBlock], p: Array, sides: Sequence[Array]) -> Array:
        """``Kᵀ (c ∘ K p)`` over the blocks, of their active rows alone."""
        out, buffer, step = np.zeros(self.query.r), self.query.buffer(), self.query.tile_rows
        for block, packed in zip(blocks, sides, strict=True):
            curvature = self._unpack(block, packed)
            active = np.flatnonzero(curvature)
            for i in range(0, len(active), step):
                rows = active[i : i + step]
                span_product(self.query.tile(self._rows(block.X, rows), buffer), curvature[rows], p, out)
        return out

    def slopes(self, blocks: Iterable[RowBlock], a: Array, direction: Array, steps: Array) -> Array:
        """Derivatives of the blocks' losses along ``direction``."""
        total = np.zeros(len(steps))
        for block in blocks:
            for rows, K in self._tiles(block.X):
                total += self.query.slopes(K, block.codes[rows], block.weight[rows], a, direction, steps)
        return total

    def support(self, blocks: Iterable[RowBlock], a: Array, draw: Draw) -> PrioritySample:
        """Rows of the blocks drawn by their dual variables at ``a``."""

        def drawn() -> Iterator[PrioritySample]:
            for block in blocks:
                chances = np.empty(len(block.codes))
                for rows, K in self._tiles(block.X):
                    chances[rows] = self.query.chances(K, block.codes[rows], block.weight[rows], a)
                read = partial(self._rows, block.X)
                yield PrioritySample.draw(chances, block.codes, block.first, read, draw.size, draw.seed)

        return reduce(add, drawn())

    def _rows(self, X: Array, rows: slice | Array) -> Array:
        """Some of raw rows as the kernel sees them."""
        return self.scaling(X[rows].astype(self.query.landmarks.dtype, copy=False))

    def _tiles(self, X: Array) -> Iterator[tuple[slice, Array]]:
        buffer, step = self.query.buffer(), self.query.tile_rows
        for start in range(0, len(X), step):
            rows = slice(start, min(len(X), start + step))
            yield rows, self.query.tile(self._rows(X, rows), buffer)

    def _pack(self, block: RowBlock, curvature: Array) -> Array:
        """Two bits a row: active; and below the band, or as stiff above it."""
        full = curvature == self.query.loss.row_stiffness(block.codes, block.weight)
        return np.stack([np.packbits(curvature > 0), np.packbits(full)])

    def _unpack(self, block: RowBlock, packed: Array) -> Array:
        n = len(block.codes)
        active, full = np.unpackbits(packed, axis=1, count=n).astype(bool)
        stiffness = self.query.loss.row_stiffness(block.codes, block.weight)
        return np.where(active, np.where(full, stiffness, self.query.loss.settings.upsilon * stiffness), 0.0)


@dataclass(frozen=True, eq=False)
class StoreSpan:
    """A `Span` over the rows of a store, with labels: kernel values are computed anew in every pass.

    Parameters
    ----------
    query : SpanQuery
    scaling : Affine
    store : Store
    cluster : Cluster
    """

    query: SpanQuery
    scaling: Affine
    store: Store
    cluster: Cluster

    def require(self, draw_size: int) -> None:
        """Raise MemoryLimitError, with both figures, unless a pass that draws so many rows fits."""
        r, row = self.query.r, self._row_bytes
        held = HELD_SUMS * (8 * r + 2 * draw_size * row) + 3 * self.query.landmarks.nbytes
        chunk = self.store.chunk_nbytes + 40 * self.store.chunk_rows
        tiles = 2 * TILE_BYTES + 3 * row * self.query.tile_rows
        self.cluster.require(held + chunk + tiles, self.cluster.slots, f"A pass over the store for {r} landmarks")

    @property
    def _row_bytes(self) -> int:
        """Of a row that is drawn."""
        return self.query.landmarks.itemsize * self.query.landmarks.shape[1] + 24

    def sums(self, a: Array, draw: Draw | None = None) -> SpanSums:
        nbytes = 0 if draw is None else draw.size * self._row_bytes
        total: SpanSums = self._pass("span-pass", SpanPass.sums, (a, draw), nbytes=nbytes)
        return total

    def product(self, at: SpanSums, p: Array) -> Array:
        total: Array = self._pass("span-product", SpanPass.product, (p,), at.curvatures)
        return total

    def slopes(self, a: Array, direction: Array, steps: Array) -> Array:
        total: Array = self._pass("span-line-search", SpanPass.slopes, (a, direction, steps))
        return total

    def support(self, a: Array, draw: Draw) -> PrioritySample:
        nbytes = draw.size * self._row_bytes
        drawn: PrioritySample = self._pass("span-support", SpanPass.support, (a, draw), nbytes=nbytes)
        return drawn

    def _pass(
        self,
        name: str,
        method: Callable[..., Any],
        arguments: Sequence[Any],
        of_groups: Sequence[Any] = (),
        *,
        nbytes: int = 0,
    ) -> Any:
        query = SpanPass(self.query, self.scaling)
        return run_pass(self.cluster, self.store, name, query, method, arguments, of_groups, nbytes=nbytes)
