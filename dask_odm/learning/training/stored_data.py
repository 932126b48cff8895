"""Training data in a store, read pass by pass by Dask's workers or by threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import StoredScaling
from dask_odm.data.rows.stored import KeptStatistics, StoredPartitions, kept_rows
from dask_odm.data.rows.targets import OneClass, OneOfMany, RealValues, Targets, TwoClasses, class_scales
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.statistics import Statistics
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Partitioner
from dask_odm.engine.passes import StorePasses
from dask_odm.engine.pivot_passes import StorePivots, gathered
from dask_odm.engine.shuffle import Shuffle, scaling_path
from dask_odm.errors import NO_ROWS, InputError
from dask_odm.events import Meter
from dask_odm.learning.distributed_products import products_of_file, require_memory, write_rows
from dask_odm.learning.problem.products import Products, Purpose
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import HasStatistics, KernelData, PartitionedRows, TrainingData
from dask_odm.linalg.row_passes import PassBytes
from dask_odm.linalg.rows import slabs, uniforms_of
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class StoredData(TrainingData):
    """Training data of the rows of a store that ``targets`` keeps."""

    X = None
    run: FitRun
    store: Store
    targets: Targets
    whole: HasStatistics | None = None
    of_labels: tuple[tuple[float, float], ...] = ()  # class weights of each of several labels

    @property
    def rows(self) -> int:
        return self.store.rows

    @property
    def n_targets(self) -> int:
        return max(1, self.store.targets) if isinstance(self.targets, RealValues) else 1

    @property
    def is_sparse(self) -> bool:
        return self.store.is_sparse

    @property
    def density(self) -> float:
        entries = self.store.layout.entries
        return 1.0 if entries is None else entries.total / (self.rows * self.features)

    @property
    def nbytes(self) -> int:
        return self.store.layout.rows_nbytes

    @property
    def labelled_rows(self) -> int:
        if isinstance(self.targets, OneOfMany):
            counts = zip(self.store.class_counts or (), self.targets.class_weights, strict=True)
            return sum(count for count, weight in counts if weight > 0)
        if isinstance(self.targets, OneClass):
            return self.store.rows
        return self.store.known_rows

    @property
    def features(self) -> int:
        return self.store.features

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.run.dtype or self.store.dtype)

    @property
    def raw_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.store.dtype)

    @property
    def class_weights(self) -> tuple[float, ...]:
        if isinstance(self.targets, OneOfMany):
            return self.targets.pair_weights or (1.0, 1.0)
        return self.targets.class_weights

    @cached_property
    def total_weight(self) -> float:
        if isinstance(self.targets, OneClass | RealValues):
            known = self.store.facts.known_weight if self.n_targets > 1 else None
            return float(self.taking_part[2].sum()) if known is None else known
        return float(self.store.class_weights_total() @ np.array(self.targets.class_weights))

    @property
    def class_totals(self) -> Array:
        return self.store.class_weights_total()

    @cached_property
    def cluster(self) -> Cluster:
        return self.run.cluster().without(self.rank_bytes)

    def columns(self) -> tuple[Array, Array]:
        y, weight = zip(*map(self.targets.columns, self.store.column_blocks()), strict=True)
        return np.concatenate(y), np.concatenate(weight)

    def row_weights(self) -> Array:
        if not self.store.has_weight:
            return np.empty(0)
        return np.concatenate([block.columns()[1] for block in self.store.column_blocks()])

    def first_rows(self, count: int) -> tuple[Array, Array, Array]:
        block = self.store.read_rows(np.arange(min(count, self.rows)))
        keep, y, weight = self.targets(block)
        return block.X, y.reshape(len(y), -1), np.where(keep, weight, 0.0)

    @property
    def block_rows(self) -> int:
        return self.store.chunk_rows

    def fingerprint(self) -> str:
        seen_as = [each for each in (self.store.recoded, self.store.target, self.of_labels) if each not in (None, ())]
        return f"{self.store.digest} {self.targets}{''.join(map(str, seen_as))}"

    def sample(self, count: int, seed: int) -> MemoryData:
        share = count / max(1, self.labelled_rows)
        numbers, y, _ = self._rows_where(lambda numbers, y: uniforms_of(numbers, seed) < share)
        blocks = gathered(self.store, self.cluster, numbers, "sample")
        X = np.concatenate([block.X.astype(self.dtype, copy=False) for block in blocks])
        weight = np.concatenate([np.ones(len(b.X)) if b.weight is None else b.weight for b in blocks])
        drawn = MemoryData.of(self.run, X, y, weight, self.class_weights, of_labels=self.of_labels)
        return replace(drawn, kept=numbers[drawn.kept], whole=self)

    def drawn_by_class(self, count: int, least: int, seed: int) -> Array:
        scales = class_scales(np.array(self.store.class_counts), count, least)

        def keys(numbers: Array, y: Array) -> Array:
            return np.asarray(uniforms_of(numbers, seed) * scales[y.astype(np.int64)])

        most = 2.0 + 20.0 / count  # some 2 count + 20 rows have smaller keys: next to never fewer than ``count``
        numbers, y, _ = self._rows_where(lambda numbers, y: keys(numbers, y) < most)
        return np.sort(numbers[np.argsort(keys(numbers, y), kind="stable")[:count]])

    def scaled_blocks(self, choice: KernelChoice) -> Iterator[tuple[MemoryData, Any]]:
        scaling = self.seen_by(choice).scaling
        for block in self.store.blocks():
            keep, y, _ = self.targets(block)
            at = np.flatnonzero(keep)
            if len(at):
                X = block.X[at].astype(self.dtype, copy=False)
                weight = np.ones(len(at)) if block.weight is None else block.weight[at]
                yield MemoryData(self.run, X, y[at], weight, self.class_weights, block.first + at, X), scaling(X)

    def of_passes(self, values: Array) -> Array:
        out = np.zeros((*values.shape[:-1], self.rows))
        out[..., self.taking_part[0]] = values
        return out

    def with_targets(self, targets: RealValues) -> StoredData:
        return replace(self, targets=targets)

    def of_machine(self, targets: OneOfMany) -> StoredData:
        return StoredData(self.run, self.store, targets, self)

    def of_target(self, target: int) -> StoredData:
        assert isinstance(self.targets, RealValues)
        own = TwoClasses(self.of_labels[target]) if self.of_labels else self.targets.of_target(target)
        return StoredData(self.run, self.store.of_target(target, as_label=bool(self.of_labels)), own, self)

    @cached_property
    def _statistics(self) -> Statistics:
        """Statistics of the rows that take part, those of the store itself if all do alike."""
        store = self.store
        if not store.has_weight and self.labelled_rows == store.rows and self.targets.keeps_all:
            return store.statistics
        passes = StorePasses(store, self.cluster, partial(kept_rows, self.targets))
        nbytes = 8 * 6 * store.features
        passes.require(
            PassBytes(nbytes, 8 * (store.features if not store.is_sparse else 1), 0), "Statistics of the rows"
        )
        found = passes.run(KeptStatistics(store.features, store.is_sparse), KeptStatistics.gather, nbytes=nbytes)
        if not found.count:
            raise InputError(NO_ROWS)
        return found.result()

    def _room(self) -> Any:
        """Return memory for all rows, a CSR array without bounds if they are sparse."""
        store = self.store
        entries = store.layout.entries
        if entries is None:
            return np.empty((store.rows, store.features), self.dtype)
        kind = np.int32 if entries.total < 2**31 else np.int64
        X = csr_array((store.rows, store.features), dtype=self.dtype)
        X.data, X.indices = np.empty(entries.total, self.dtype), np.empty(entries.total, kind)
        X.indptr = np.zeros(store.rows + 1, kind)
        return X

    def in_this_process(self) -> MemoryData:
        """Return the same rows, read into memory."""
        store = self.store
        X = self._room()
        y = np.empty((store.rows, *([self.n_targets] if self.n_targets > 1 else [])))
        weight = np.empty(store.rows)
        with Meter("read", store.n_chunks, "chunks") as meter:
            for block in meter.over(store.blocks()):
                rows = slice(block.first, block.first + block.X.shape[0])
                keep, y[rows], _ = self.targets(block)
                if store.is_sparse:
                    at = X.indptr[rows.start]
                    X.indptr[rows.start + 1 : rows.stop + 1] = at + block.X.indptr[1:]
                    X.data[at : at + block.X.nnz] = block.X.data
                    X.indices[at : at + block.X.nnz] = block.X.indices
                else:
                    X[rows] = block.X
                weight[rows] = keep if block.weight is None else np.where(keep, block.weight, 0.0)
        if store.is_sparse:
            X.has_canonical_format = True  # as rows of a store are
        return MemoryData.of(self.run, X, y, weight, self.class_weights, of_labels=self.of_labels)

    def passes(self, weights: int, *, full: bool = False) -> StorePasses:
        return StorePasses(self.store, self.cluster, self.targets.columns)

    def require_pass(self, needed: PassBytes, what: str, advice: tuple[str, ...] = ()) -> None:
        self.passes(0).require(needed, what, advice)

    def seen_by(self, choice: KernelChoice) -> StoredKernelData:
        choice.require_named("a store of this size")
        statistics = self.statistics(choice.scale)
        return StoredKernelData(self, choice.make(statistics), choice.scaling(statistics, sparse=self.keeps_zeros))

    @cached_property
    def taking_part(self) -> tuple[Array, Array, Array]:
        return self._rows_where(lambda numbers, y: np.ones(len(numbers), bool))

    def given_rows(self, numbers: Array) -> Any:
        return self.store.read_rows(numbers).X

    def _rows_where(self, chosen: Callable[[Array, Array], Array]) -> tuple[Array, Array, Array]:
        """Return numbers, targets and weights of the rows that take part and are ``chosen`` by number and target."""
        found: list[tuple[Array, ...]] = []
        for block in self.store.column_blocks():
            keep, y, weight = self.targets(block)
            keep &= chosen(block.first + np.arange(len(keep)), y)
            found.append((block.first + np.flatnonzero(keep), y[keep], weight[keep]))
        numbers, y, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if not len(numbers):
            raise InputError(NO_ROWS)
        return numbers, y, weight


@dataclass(frozen=True, eq=False)
class StoredKernelData(KernelData):
    """Rows of a store as a kernel sees them, scaled on reading."""

    data: StoredData

    @cached_property
    def _pool(self) -> StorePivots:
        data = self.data
        return StorePivots(data.store, data.targets, self.scaling, data.cluster, data.dtype)

    def pivots(self, count: int, method: str) -> StorePivots:
        self._pool.require(count, method)
        return self._pool

    @contextmanager
    def products(self, purpose: Purpose) -> Iterator[Products]:
        data = self.data
        shape = data.rows, data.features
        require_memory(self.kernel, shape, data.dtype, data.run.here(), purpose, 0)  # before anything is read
        kept, _, _ = data.taking_part

        def taking_part() -> Iterator[Array]:
            for block in data.store.blocks():
                inside = kept[np.searchsorted(kept, block.first) : np.searchsorted(kept, block.first + len(block.X))]
                yield self.scaling(block.X[inside - block.first].astype(data.dtype, copy=False))

        with scratch_folder() as folder:
            write_rows(folder, (len(kept), data.features), data.dtype, taking_part())
            with products_of_file(self.kernel, folder, data.cluster, data.run.here(), purpose) as products:
                yield products

    @contextmanager
    def partitions(self, partitioner: Partitioner, *, always: bool = False) -> Iterator[StoredPartitioned]:
        data = self.data
        with scratch_folder() as folder:
            shuffle = Shuffle(data.store, data.targets, folder, data.cluster, data.run.dtype)
            partitions = shuffle.by_partitioner(partitioner, self.scaling)
            yield StoredPartitioned(partitions, StoredScaling(scaling_path(folder)), data.cluster, self, folder)

    def chosen_pivots(self, index: Array) -> tuple[Any, Array]:
        return self._pool.raw(index), index


@dataclass(frozen=True, eq=False)
class StoredPartitioned(PartitionedRows):
    """Partitions of the rows of a store, in a scratch ``folder`` of the fit."""

    partitions: StoredPartitions
    seen: StoredKernelData
    folder: str

    @contextmanager
    def products(self, purpose: Purpose, reserved: int = 0) -> Iterator[Products]:
        """Yield products over all rows in the order of the partitions, from a file that holds them all."""
        cluster = self.cluster
        if cluster.client is None:
            purpose = purpose.with_reserved(reserved)
        else:
            cluster = cluster.without(reserved)
        rows, _ = self.partitions.rows(0, len(self.partitions.counts), self.seen.scaling, 0)
        path = os.path.join(self.folder, "root")
        os.mkdir(path)
        write_rows(path, (rows.n, rows.d), rows.dtype, slabs(rows))
        with products_of_file(self.seen.kernel, path, cluster, self.seen.data.run.here(), purpose) as products:
            yield products

    def chosen(self, rows: Array) -> tuple[Array, Array]:
        """Read the raw rows from one partition on disk after the other."""
        partitions = self.partitions
        out = np.empty((len(rows), partitions.features), partitions.dtype)
        for k in range(len(partitions.counts)):
            numbers = partitions.row_numbers(k, k + 1)
            at = np.searchsorted(rows, numbers)
            inside = np.flatnonzero((at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == numbers))
            out[at[inside]] = partitions.raw(k, k + 1, inside)
        return out, rows
