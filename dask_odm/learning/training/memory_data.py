"""Training data in memory: threads of this process solve, and workers compute kernel products of many rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.memory import MemoryPartitions, SparseRows, merge_equal, taken
from dask_odm.data.rows.scaling import COPIED_BYTES, Scaling, scaled_rows
from dask_odm.data.rows.targets import OneOfMany, RealValues, class_scales, drawn_rows
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.statistics import EntryStatistics, Statistics, StatisticsAccumulator
from dask_odm.engine.client import active_client
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Partitioner
from dask_odm.engine.shuffle import partition_arrays
from dask_odm.errors import NO_ROWS, InputError
from dask_odm.kernels.pivots import RACES, MemoryPivots
from dask_odm.kernels.user_kernels import CallableKernel, Precomputed
from dask_odm.learning.distributed_products import products_here, products_of_file, write_rows
from dask_odm.learning.problem.linear import SPARSE_ROWS, block_rows, groups_of_sums, row_groups
from dask_odm.learning.problem.products import Products, Purpose
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import HasStatistics, KernelData, PartitionedRows, TrainingData
from dask_odm.linalg.csr_rows import CSRRows, is_sparse
from dask_odm.linalg.row_passes import PassBytes, ThreadPasses
from dask_odm.linalg.rows import uniforms_of
from dask_odm.typing import Array

WORKER_ROWS = 8192  # rows beyond which workers compute kernel products, if there are any


@dataclass(frozen=True, eq=False)
class MemoryData(TrainingData):
    """Training data of rows in memory, dense or sparse, without those of weight zero."""

    run: FitRun
    X: Any  # raw rows, an ndarray or csr_array of shape (n, d)
    # −1 or 1 for two classes, the class code for more, or real targets; float64 (n,), or (n, t) for t real targets or
    # labels, which are −1 or 1
    y: Array
    weight: Array  # positive row weights without class weights, (n,); statistics are weighted by them
    factors: tuple[float, ...]  # `class_weights`
    kept: Array  # number of each row in the given data, (n,)
    given: Any  # all rows as they were given, from which a precomputed kernel reads its values
    copies: Array | None = None  # index of the merged row for each original row; None if no rows were merged
    stays_sparse: bool = False  # whether kernels see the rows as `CSRRows`, as decided for all rows of the fit
    whole: HasStatistics | None = None
    of_labels: tuple[tuple[float, float], ...] = ()  # class weights of each of several labels
    of_all: MemoryData | None = None  # the same rows with all of several targets, if this is one of them
    others: int = 0  # bytes of other machines' models
    plain_weight: Array | None = None  # `row_weights` where class weights are in ``weight``, (n,)

    @classmethod
    def of(
        cls, run: FitRun, X: Any, y: Array, weight: Array, class_weights: tuple[float, ...], **more: Any
    ) -> MemoryData:
        """Build training data from raw rows ``X`` (n, d), targets and weights (n,), without the rows of weight zero.

        Raises InputError if no row is left, or if the weights are too large to be summed.
        """
        sparse = issparse(X) and is_sparse(X)
        made = cls(run, X, y, weight, class_weights, np.arange(len(y)), X, stays_sparse=sparse, **more)
        total = made.total_weights
        least = 1e-100 * total.max(initial=0.0)  # the share of such a row in the loss underflows
        if not total.min(initial=np.inf) > least:
            made = made._at(np.flatnonzero(total > least))
        if not made.rows:
            raise InputError(NO_ROWS)
        if not np.isfinite(made.weight.sum()):
            raise InputError("the row weights are too large: their sum is not finite.")
        return made

    @property
    def rows(self) -> int:
        return len(self.y)

    @property
    def n_targets(self) -> int:
        return 1 if self.y.ndim == 1 else int(self.y.shape[1])

    @property
    def is_sparse(self) -> bool:
        return bool(issparse(self.X))

    @property
    def density(self) -> float:
        rows = self.given if issparse(self.given) else self.X
        return rows.nnz / (rows.shape[0] * self.features) if issparse(rows) else 1.0

    @property
    def features(self) -> int:
        return int(self.X.shape[1])

    @property
    def row_width(self) -> int:
        """Numbers of a row as a kernel sees it, on average."""
        return 2 + 2 * (int(self.X.nnz) // self.rows) if self.stays_sparse else self.features

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.X.dtype)

    @property
    def class_weights(self) -> tuple[float, ...]:
        return self.factors

    @property
    def total_weights(self) -> Array:
        """Row weights times class weights, (n,); the same array if all class weights are 1."""
        if set(self.factors) <= {1.0}:
            return self.weight
        if len(self.factors) == 2:
            return self.weight * np.where(self.y > 0, self.factors[1], self.factors[0])
        return self.weight * np.array(self.factors)[self.y.astype(np.int64)]

    @property
    def total_weight(self) -> float:
        return float(self.total_weights.sum())

    @property
    def class_totals(self) -> Array:
        return np.bincount(self.y.astype(np.int64), self.weight, len(self.factors))

    @cached_property
    def cluster(self) -> Cluster:
        return self.run.here()

    @property
    def row_numbers(self) -> tuple[int, Array | None]:
        count = int(self.given.shape[0])
        return count, None if self.rows == count else self.kept

    @property
    def taking_part(self) -> tuple[Array, Array, Array]:
        return np.arange(self.rows), self.y, self.total_weights

    def columns(self) -> tuple[Array, Array]:
        codes = (self.y > 0).astype(np.int8) if len(self.factors) == 2 else self.y
        return codes, np.empty(0) if (self.weight == 1.0).all() else self.weight

    def row_weights(self) -> Array:
        return self.weight if self.plain_weight is None else self.plain_weight

    def held_bytes(self, *, scaled: bool = True) -> int:
        gathered = self.rows < self.given.shape[0]
        copies = gathered * sum(part.nbytes for part in self._arrays) + (scaled and self._is_copied) * self.nbytes
        # per row: targets, weight, row number, hash, curvature, and sampling weights
        targets = (self.of_all or self).n_targets
        numbers = 12 if targets == 1 else 11 + 3 * targets  # all as given, in units, and each by itself
        return self.others + self.rank_bytes + 8 * numbers * self.rows + copies

    @property
    def _is_copied(self) -> bool:
        """Whether kernels see a scaled, dense copy of the rows, which saves time in every pass."""
        return not self.stays_sparse and self.nbytes <= COPIED_BYTES

    @property
    def _arrays(self) -> tuple[Array, ...]:
        """The arrays that hold the rows."""
        X = self.X
        return (X.data, X.indices, X.indptr) if issparse(X) else (X,)

    def first_rows(self, count: int) -> tuple[Any, Array, Array]:
        y = self.y[:count]
        return self.X[:count], y.reshape(len(y), -1), self.weight[:count]

    @property
    def block_rows(self) -> int:
        least = SPARSE_ROWS if issparse(self.X) else block_rows(self.features, self.X)
        return max(least, self.features)  # sums of a block have the square of that many entries

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.X.shape, self.X.dtype, self.factors)).encode())
        for array in (*self._arrays, self.y, self.weight):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _at(self, index: Array) -> MemoryData:
        """Return the rows at ``index``, which are not copied if they are all in their order."""
        if np.array_equal(index, np.arange(self.rows)):
            return replace(self, copies=None)
        names = ("X", "y", "weight", "kept", *(("plain_weight",) if self.plain_weight is not None else ()))
        rows = {name: getattr(self, name)[index] for name in names}
        return replace(self, **rows, copies=None)

    def given_rows(self, numbers: Array) -> Any:
        return self.given[numbers]

    def raw(self, index: Array) -> Any:
        """Return raw rows at ``index``, which a model keeps: dense, or as `SparseRows`."""
        return SparseRows(self.X[index]) if issparse(self.X) else self.X[index]

    def sample(self, count: int, seed: int) -> MemoryData:
        if count >= self.rows:
            return self
        return replace(self._at(drawn_rows(self.kept, count, seed)), whole=self.whole or self)

    def drawn_by_class(self, count: int, least: int, seed: int) -> Array:
        codes = self.y.astype(np.int64)
        scales = class_scales(np.bincount(codes, minlength=len(self.factors)), count, least)
        return np.sort(np.argsort(uniforms_of(self.kept, seed) * scales[codes], kind="stable")[:count])

    def unmerged(self, values: Array) -> Array:
        return values if self.copies is None else values[..., self.copies]

    def scaled_blocks(self, choice: KernelChoice) -> Iterator[tuple[MemoryData, Any]]:
        yield self, self.seen_by(choice).scaled

    def weighed(self) -> MemoryData:
        """Return the same rows with weights that have the class weights in them."""
        return replace(self, weight=self.total_weights, factors=tuple(1.0 for _ in self.factors))

    @cached_property
    def _statistics(self) -> Statistics:
        if issparse(self.X):
            of_entries = EntryStatistics(self.features)
            of_entries.update(self.X, self.weight)
            return of_entries.result()
        gathered = StatisticsAccumulator(self.features)
        gathered.update(self.X, self.weight)
        return gathered.result()

    def merged(self) -> MemoryData:
        """Return the same problem with equal rows of equal label merged and their weights summed.

        Sparse rows are returned as they are, and so are rows with few equal ones, or of several targets.
        """
        if issparse(self.X) or self.n_targets > 1 or self.of_all is not None:
            return self
        first, of = merge_equal(self.X, self.y)
        if len(first) > 0.95 * self.rows:
            return self  # not worth the copy
        return replace(self._at(first), weight=np.bincount(of, self.weight, len(first)), copies=of)

    def beside(self, nbytes: int) -> MemoryData:
        return replace(self, others=nbytes)

    def with_targets(self, targets: RealValues) -> MemoryData:
        return replace(self, y=targets.scaled(self.y))

    def of_machine(self, targets: OneOfMany) -> MemoryData:
        """Return the rows of one machine of many classes, with targets ±1. Nothing is copied if it uses all rows."""
        codes = self.y.astype(np.int64)
        factors = targets.of_codes(codes)
        y = np.where(codes == targets.positive, 1.0, -1.0)
        weight = self.weight * factors if targets.pair_weights is None else self.weight
        own = targets.pair_weights or (1.0, 1.0)
        plain = self.plain_weight if weight is self.weight else self.row_weights()
        found = replace(self, y=y, weight=weight, factors=own, copies=None, whole=self, plain_weight=plain)
        seen = np.flatnonzero(factors > 0)
        return found if len(seen) == self.rows else found._at(seen)

    def of_target(self, target: int) -> MemoryData:
        """Return the same rows with one of several targets, and what all see of them."""
        factors = self.of_labels[target] if self.of_labels else ()
        y = self.y[:, target].copy()
        return replace(self, y=y, factors=factors, of_labels=(), whole=self.whole or self, of_all=self)

    @cached_property
    def _seen(self) -> dict[KernelChoice, MemoryKernelData]:
        """All targets' rows as kernels see them."""
        return {}

    def passes(self, weights: int, *, full: bool = False) -> ThreadPasses:
        most = row_groups(weights, full=full)
        if full:
            return ThreadPasses.cut(self.X, *self.columns(), self.block_rows, most, CPU_COUNT, aligned=True)
        step = min(block_rows(self.features, self.X), self.rows)
        return ThreadPasses.cut(self.X, *self.columns(), step, most, CPU_COUNT)

    def require_pass(self, needed: PassBytes, what: str, advice: tuple[str, ...] = ()) -> None:
        # sums of every thread, and those of all groups
        sums = needed.of_sums(CPU_COUNT + groups_of_sums(needed.sums), 3 * self.rows)
        self.cluster.require(sums + CPU_COUNT * needed.work + needed.row * self.rows, 1, what, advice)

    def seen_by(self, choice: KernelChoice, scaling: Scaling | None = None) -> MemoryKernelData:
        """Return the rows as the kernel of ``choice`` sees them, by default in the scaling that it asks for."""
        if self.of_all is not None and scaling is None:
            known = self.of_all._seen
            if choice not in known:
                known[choice] = self.of_all.seen_by(choice)
            return replace(known[choice], data=self)
        if choice.kernel == "precomputed":
            return self._looked_up(choice)
        statistics = self.statistics(choice.scale)
        scaling = choice.scaling(statistics, sparse=self.keeps_zeros) if scaling is None else scaling
        kernel = choice.make(statistics)
        with np.errstate(over="ignore", invalid="ignore"):  # rows that are too large for it are refused elsewhere
            square = float(((statistics.variance + statistics.mean**2) * scaling.factor**2).sum())
        scaled: Any
        if self.stays_sparse and kernel.takes_csr and not scaling.moves_far(square):
            scaled = scaling.of_csr(self.X)
        elif not issparse(self.X):
            scaled = scaled_rows(self.X, scaling)
        elif self._is_copied:
            dense = self.X.toarray()
            scaled = scaling(dense, dense)
        else:
            scaled = SparseRows(self.X, scaling)  # made dense and scaled on reading
        if isinstance(kernel, CallableKernel):
            kernel.check(scaled)
        return MemoryKernelData(self, kernel, scaling, scaled)

    def _looked_up(self, choice: KernelChoice) -> MemoryKernelData:
        """Return data for a precomputed kernel: every row is its own number, by which values are looked up."""
        if choice.scale is not None:
            raise InputError("scale must be None for kernel='precomputed', whose values are what is learned from.")
        kernel = Precomputed(choice.bias, self.given)
        kernel.check()
        numbers = self.kept[:, None].astype(self.dtype)
        return MemoryKernelData(self, kernel, Scaling(np.zeros(1), np.ones(1)), numbers)


@dataclass(frozen=True, eq=False)
class MemoryKernelData(KernelData):
    """Rows in memory as a kernel sees them."""

    data: MemoryData

    @cached_property
    def _pool(self) -> MemoryPivots:
        return MemoryPivots(self.scaled, CPU_COUNT)

    def pivots(self, count: int, method: str) -> MemoryPivots:
        if RACES[method].reads_rows:
            needed = self._pool.choosing_bytes(count) + self.data.held_bytes()
            advice = "Use a smaller n_landmarks, or more memory."
            self.data.cluster.require(needed, 1, f"Choosing {count} landmarks", advice)
        return self._pool

    def products(self, purpose: Purpose) -> AbstractContextManager[Products]:
        return self._products(self.scaled, purpose)

    @contextmanager
    def _products(self, rows: Any, purpose: Purpose, *others: Any) -> Iterator[Products]:
        """Provide products over scaled ``rows``; copies of ``others`` are held, too.

        Workers compute, and read the rows from a file, if there are workers and many rows and the kernel has a name.
        """
        run = self.data.run
        few = isinstance(rows, SparseRows | CSRRows) or len(rows) <= WORKER_ROWS
        if few or run.threads or active_client() is None or isinstance(self.kernel, CallableKernel | Precomputed):
            # rows that are scaled on reading are no copies
            copied = sum(each.nbytes for each in (rows, *others) if isinstance(each, np.ndarray | CSRRows))
            yield products_here(self.kernel, rows, run.here(), purpose, self.data.held_bytes(scaled=False) + copied)
            return
        with scratch_folder() as folder:
            blocks = (rows[start : start + WORKER_ROWS] for start in range(0, len(rows), WORKER_ROWS))
            write_rows(folder, rows.shape, rows.dtype, blocks)
            with products_of_file(self.kernel, folder, run.cluster(), run.here(), purpose) as products:
                yield products

    @contextmanager
    def partitions(self, partitioner: Partitioner, *, always: bool = False) -> Iterator[MemoryPartitioned]:
        _, y, weight = self.data.taking_part
        if always or partitioner.n_partitions > 1:
            found = partition_arrays(self.scaled, y, weight, partitioner)
        else:
            # in random order, since descent goes block by block and rows often come sorted by class
            order = np.random.default_rng(self.data.run.seed).permutation(len(y))
            found = MemoryPartitions(taken(self.scaled, order), y[order], weight[order], order, (len(y),))
        held = self.data.held_bytes() + (found.X.nbytes if isinstance(found.X, np.ndarray) else 0)
        cluster = self.data.cluster
        yield MemoryPartitioned(found, self.scaling, cluster.without(held), self)

    def chosen_pivots(self, index: Array) -> tuple[Any, Array]:
        return self.data.raw(index), self.data.kept[index]


@dataclass(frozen=True, eq=False)
class MemoryPartitioned(PartitionedRows):
    """Partitions of rows in memory."""

    partitions: MemoryPartitions
    seen: MemoryKernelData

    def products(self, purpose: Purpose, reserved: int = 0) -> AbstractContextManager[Products]:
        return self.seen._products(self.partitions.X, purpose.with_reserved(reserved), self.seen.scaled)

    def chosen(self, rows: Array) -> tuple[Any, Array]:
        return self.seen.chosen_pivots(rows)
