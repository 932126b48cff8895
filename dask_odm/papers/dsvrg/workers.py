"""Distributed SVRG: all workers sum the full gradient in parallel, then take their steps one after the other.

Source: DiODM, and SODM, algorithm 2. Partitions D_1 … D_K are stratified; R_j is what is left of D_j. In an epoch
all workers sum the gradient over their partitions, in parallel. Then w goes through a chain of hops, future by
future, from worker to worker. Hop j takes a step for each row of R_j, without replacement, until R_j is used up or T
steps are done.

Departures: T counts the steps of each worker and stage (DiODM's counts the whole stage, SODM's algorithm as printed
takes one step a partition). Neither paper refills R_j, so their steps would end after one pass. Here all R_j are
refilled when every one is empty, in a new order drawn from (seed, refill, j). R_j is read in pieces, one at a time, so
that a task holds one piece. The order of the pieces is random, and so is the order of the rows of each.

A hop depends on its arguments alone. So the hop of a lost worker is computed again to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import require_rows
from dask_odm.engine.tasks import worker_task
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import BLOCK_BYTES, PrimalSums, Query
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.dsvrg.solver import stiffest_of, walk_rows, warm_up
from dask_odm.typing import Array


def ring_partitions(rows: int, n_partitions: int | None) -> int:
    """Return the number of partitions: ``n_partitions``, or eight (fewer for few rows), whatever the workers."""
    if n_partitions is None:
        # eight partitions of at least 16 rows, if the user does not choose
        return max(1, min(8, rows // 16))
    require_rows(rows, n_partitions)
    return n_partitions


@dataclass(frozen=True, eq=False)
class RingJob:
    """The arguments that all tasks of a ring share.

    Dense rows in memory are already scaled; ``scaling`` is that of dense rows on disk. ``features`` maps rows as
    `reader` returns them: scaled if they are dense. Label code 1 is positive; class weights are in the rows' weights.
    ``stage_steps`` is T; None takes all rows that are left.
    """

    partitions: StoredPartitions | MemoryPartitions
    scaling: Scaling | StoredScaling | None
    features: FeatureMap
    loss: BandLoss
    stage_steps: int | None
    seed: int

    @property
    def n(self) -> int:
        return sum(self.partitions.counts)

    @cached_property
    def stages(self) -> int:
        """Number of epochs that use up every R_j."""
        largest = max(self.partitions.counts)
        return 1 if self.stage_steps is None else -(-largest // self.stage_steps)

    def stage(self, epoch: int, k: int) -> tuple[int, int, int]:
        """Return the number of the refill that an epoch belongs to, and the start and stop of its steps in R_k."""
        refill, stage = divmod(epoch, self.stages)
        count = self.partitions.counts[k]
        steps = self.stage_steps or self.partitions.counts[k]
        return refill, min(count, stage * steps), min(count, (stage + 1) * steps)

    def piece_rows(self, k: int) -> list[int]:
        """Return the number of rows of every piece of partition k."""
        if isinstance(self.partitions, StoredPartitions):
            return [rows for _, rows in self.partitions.pieces(k, k + 1)]
        return [self.partitions.counts[k]]

    @property
    def task_bytes(self) -> int:
        """Peak bytes of one task: a piece, raw and scaled, its labels, weights and order, and vectors.

        A walk holds some sixteen vectors, and each hop leaves one until the epoch is over.
        """
        parts = len(self.partitions.counts)
        rows = max(max(self.piece_rows(k)) for k in range(parts))
        return self.partitions.reading_bytes + 40 * rows + 5 * BLOCK_BYTES + (16 + parts) * 8 * self.features.k


def reader(job: RingJob, k: int) -> Callable[[int], tuple[Any, Array, Array]]:
    """Return a function that reads a piece of partition k: scaled dense rows or raw CSR rows, label codes and weights.

    They are valid until the next piece is read.
    """
    partitions = job.partitions
    if isinstance(partitions, StoredPartitions):
        pieces = list(partitions.pieces(k, k + 1))
        of_chunk = partitions.reader(k, job.scaling)

        def read(piece: int) -> tuple[Array, Array, Array]:
            X, y, weight = of_chunk(pieces[piece])
            return X, (y > 0).astype(np.int8), weight

        return read
    y, weight = partitions.labels(k, k + 1)
    X = partitions.matrix(k)
    return lambda piece: (X, (y > 0).astype(np.int8), weight)


def visits(job: RingJob, k: int, epoch: int) -> Iterator[tuple[int, Array]]:
    """Yield the pieces of R_k that a hop visits, with the rows of each in the order of its steps."""
    refill, start, stop = job.stage(epoch, k)
    sizes = job.piece_rows(k)

    def rng(*of: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(job.seed, spawn_key=(3, refill, k, *of)))

    at = 0
    for piece in rng().permutation(len(sizes)).tolist():
        first = max(start - at, 0)
        last = min(stop - at, sizes[piece])
        if first < last:
            yield piece, rng(piece).permutation(sizes[piece])[first:last]
        at += sizes[piece]


@worker_task
def sum_partition(job: RingJob, w: Array, k: int) -> PrimalSums:
    """Sum the loss and the dual image of partition k at w: one task of a full pass."""
    pieces = map(reader(job, k), range(len(job.piece_rows(k))))
    return Query(job.features, job.loss, np.array(w)).sums((RowBlock(*rows) for rows in pieces), "none")


@worker_task
def stiffest_in(job: RingJob, k: int) -> float:
    """Return the largest ``c ‖φ‖²`` of partition k."""
    return stiffest_of(map(reader(job, k), range(len(job.piece_rows(k)))), job.loss, job.features)


@worker_task
def walk_partition(
    w: Array, job: RingJob, snapshot: Array, dual_image: Array, step: float, epoch: int, k: int
) -> Array:
    """Take the steps of R_k from w, and return the w they end at: one hop."""
    # arrays from another worker are read-only, and the loops would be compiled anew for them, so these are copies
    snapshot = np.array(snapshot)
    dual_image = np.array(dual_image)
    read = reader(job, k)
    parts = ((read(piece), order) for piece, order in visits(job, k, epoch))
    return walk_rows(job.features, job.loss, job.n, parts, snapshot, dual_image, step, start=w)


@dataclass(frozen=True, eq=False)
class Ring:
    """A `dask_odm.papers.dsvrg.solver.StochasticProblem` whose steps go from worker to worker."""

    job: RingJob
    cluster: Cluster

    def __post_init__(self) -> None:
        # no advice: pieces are read one by one, so that more partitions take no less
        self.cluster.require(self.job.task_bytes, len(self.job.partitions.counts), "An epoch of the ring")
        warm_up(self.job.partitions.dtype, sparse=self.job.partitions.is_sparse)

    @property
    def n(self) -> int:
        return self.job.n

    @property
    def k(self) -> int:
        return self.job.features.k

    @property
    def _numbers(self) -> list[tuple[int]]:
        return [(k,) for k in range(len(self.job.partitions.counts))]

    def sums(self, w: Array) -> PrimalSums:
        parts = self.cluster.each(sum_partition, self._numbers, "gradient", self.job, w)
        return reduce(add, parts)

    def stiffest(self) -> float:
        return float(max(self.cluster.each(stiffest_in, self._numbers, "smoothness", self.job)))

    def snapshot(self, w: Array, dual_image: Array) -> tuple[Array, float]:
        return dual_image, 0.0

    def walk(self, w: Array, dual_image: Array, step: float, epoch: int) -> tuple[Array, float, int]:
        ranges = [(k, *self.job.stage(epoch, k)[1:]) for (k,) in self._numbers]
        walked = [(k, stop - start) for k, start, stop in ranges if stop > start]
        shared = self.job, w, dual_image, step, epoch
        end = self.cluster.chain(walk_partition, w, [(k,) for k, _ in walked], "hop", *shared)
        return end, sum(steps for _, steps in walked) / self.n, len(walked)
