"""Training data in memory: threads of this process solve, and workers compute kernel products of many rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import ScaledRows, Scaling
from dask_odm.data.rows.sparse import SparseRows, taken
from dask_odm.data.rows.targets import OneOfMany, drawn_rows
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partition.base import Partitioner
from dask_odm.engine.shuffle import partition_arrays
from dask_odm.errors import InputError
from dask_odm.kernels.pivots import READS_ROWS, MemoryPivots, choosing_bytes
from dask_odm.kernels.user_kernels import CallableKernel, Precomputed
from dask_odm.learning.problem.linear import block_rows, group_count, groups_of_sums
from dask_odm.learning.problem.products import Products
from dask_odm.learning.training.kernel_choice import KernelChoice
from dask_odm.learning.training.kernel_products import products_in_memory
from dask_odm.learning.training.memory_rows import TrainingRows
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import (
    KernelData,
    PartitionedRows,
    Purpose,
    TrainingData,
    WeightedProducts,
)
from dask_odm.linalg.row_passes import PassBytes, ThreadPasses
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class MemoryData(TrainingData):
    """Training data of rows in memory.

    ``held`` are the rows that take part, ``given`` (n, d) all rows as they were given, from which a precomputed kernel
    reads its values. If this is the data of one of several machines, ``whole`` is that of all: their statistics scale
    the rows.
    """

    run: FitRun
    held: TrainingRows
    given: Any
    whole: TrainingData | None = None

    @classmethod
    def of(cls, run: FitRun, X: Any, y: Array, weight: Array, class_weights: tuple[float, ...]) -> MemoryData:
        """Build training data from raw rows ``X`` (n, d), targets and weights (n,), without the rows of weight zero.

        Raises InputError if no row is left, or if the weights are too large to be summed.
        """
        return cls(run, TrainingRows.of(X, y, weight, class_weights), X)

    @property
    def rows(self) -> int:
        return self.held.n

    @property
    def labelled_rows(self) -> int:
        return self.held.n

    @property
    def features(self) -> int:
        return int(self.held.X.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.held.X.dtype)

    @property
    def raw_dtype(self) -> np.dtype[Any]:
        return self.dtype

    @property
    def class_weights(self) -> tuple[float, ...]:
        return self.held.class_weights

    @property
    def total_weight(self) -> float:
        return float(self.held.total_weights.sum())

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.local(self.run.memory_limit)

    def columns(self) -> tuple[Array, Array]:
        return self.held.codes, self.held.block_weights

    def origin(self) -> tuple[Array, Array]:
        X = self.held.X[:1024]  # near enough
        y = self.held.y[:1024].reshape(X.shape[0], -1)
        near = np.zeros(self.features) if issparse(X) else X.mean(axis=0, dtype=np.float64)
        return near.astype(self.dtype).astype(np.float64), y.mean(axis=0)

    def fingerprint(self) -> str:
        return self.held.fingerprint()

    def sample(self, count: int, seed: int) -> MemoryData:
        if count >= self.rows:
            return self
        return replace(self, held=self.held.at(drawn_rows(self.held.kept, count, seed)), whole=self.whole or self)

    def statistics(self) -> Statistics:
        return self._statistics if self.whole is None else self.whole.statistics()

    @cached_property
    def _statistics(self) -> Statistics:
        return self.held.statistics()

    def merged(self) -> MemoryData:
        merged = self.held.merged()
        return self if merged is self.held else replace(self, held=merged)

    def of_machine(self, targets: OneOfMany) -> MemoryData:
        return replace(self, held=self.held.of_machine(targets), whole=self)

    def passes(self, weights: int, *, full: bool = False) -> ThreadPasses:
        held = self.held
        step = block_rows(self.features, held.X)
        most = group_count(weights, full=full)
        return ThreadPasses.cut(held.X, held.codes, held.block_weights, step, most, CPU_COUNT)

    def require_pass(self, needed: PassBytes, what: str) -> None:
        sums = (CPU_COUNT + groups_of_sums(needed.sums)) * needed.sums  # sums of every thread, and those of all groups
        self.cluster.require(sums + CPU_COUNT * needed.work + needed.row * self.rows, 1, what)

    def seen_by(self, choice: KernelChoice, scaling: Scaling | None = None) -> MemoryKernelData:
        """Return the rows as the kernel of ``choice`` sees them, by default in the scaling that it asks for."""
        if choice.kernel == "precomputed":
            return self._looked_up(choice)
        statistics = self.statistics()
        scaling = choice.scaling(statistics, sparse=issparse(self.held.X)) if scaling is None else scaling
        kernel = choice.make(statistics)
        scaled = self.held.scaled(scaling)
        if isinstance(kernel, CallableKernel):
            kernel.check(scaled)
        return MemoryKernelData(self, kernel, scaling, scaled)

    def _looked_up(self, choice: KernelChoice) -> MemoryKernelData:
        """Return data for a precomputed kernel: every row is its own number, by which values are looked up."""
        if choice.scale is not None:
            raise InputError("scale must be None for kernel='precomputed', whose values are what is learned from.")
        kernel = Precomputed(choice.bias, self.given)
        kernel.check()
        numbers = self.held.kept[:, None].astype(self.dtype)
        return MemoryKernelData(self, kernel, Scaling(np.zeros(1), np.ones(1)), numbers)


@dataclass(frozen=True, eq=False)
class MemoryKernelData(KernelData):
    """Rows in memory as a kernel sees them."""

    data: MemoryData

    @cached_property
    def _pool(self) -> MemoryPivots:
        return MemoryPivots(self.scaled, CPU_COUNT)

    def pivots(self, count: int, method: str) -> MemoryPivots:
        if READS_ROWS[method]:
            needed = choosing_bytes(count, self.data.features) + self._pool.pass_bytes(count) + self.data.held_bytes()
            advice = "Use a smaller n_landmarks, or more memory."
            self.data.cluster.require(needed, 1, f"Choosing {count} landmarks", advice)
        return self._pool

    @contextmanager
    def products(self, purpose: Purpose) -> Iterator[WeightedProducts]:
        held = self.data.held
        with self._products(self.scaled, purpose, _bytes_of_copy(self.scaled)) as products:
            yield WeightedProducts(products, held.y, held.total_weights)

    def _products(self, rows: Any, purpose: Purpose, copied: int) -> AbstractContextManager[Products]:
        """Provide products over scaled ``rows`` while ``copied`` bytes of scaled rows are held."""
        named = not isinstance(self.kernel, CallableKernel | Precomputed)
        taken = self.data.held_bytes(scaled=False) + copied
        return products_in_memory(self.kernel, rows, self.data.run, purpose, taken, named=named)

    @contextmanager
    def partitions(self, partitioner: Partitioner, *, always: bool = False) -> Iterator[MemoryPartitioned]:
        y = self.data.held.y
        weight = self.data.held.total_weights
        if always or partitioner.n_partitions > 1:
            found = partition_arrays(self.scaled, y, weight, partitioner)
        else:
            # in random order, since descent goes block by block and rows often come sorted by class
            order = np.random.default_rng(self.data.run.seed).permutation(len(y))
            found = MemoryPartitions(taken(self.scaled, order), y[order], weight[order], order, (len(y),))
        yield MemoryPartitioned(found, self.scaling, self.data.cluster, self)

    @property
    def product_rows(self) -> Array:
        return np.arange(self.data.rows)

    def chosen_pivots(self, index: Array) -> tuple[Any, Array]:
        return self.data.held.raw(index), self.data.held.kept[index]


@dataclass(frozen=True, eq=False)
class MemoryPartitioned(PartitionedRows):
    """Partitions of rows in memory."""

    partitions: MemoryPartitions
    seen: MemoryKernelData

    def products(self, purpose: Purpose, reserved: int = 0) -> AbstractContextManager[Products]:
        X = self.partitions.X
        copied = _bytes_of_copy(self.seen.scaled) + _bytes_of_copy(X)
        return self.seen._products(X, purpose.with_reserved(reserved), copied)

    def chosen(self, rows: Array) -> tuple[Any, Array]:
        return self.seen.chosen_pivots(rows)


def _bytes_of_copy(rows: Array | SparseRows | ScaledRows) -> int:
    """Return the bytes of rows that were copied to be scaled; 0 if they are scaled on reading."""
    return rows.nbytes if isinstance(rows, np.ndarray) else 0
