"""Training data: rows, weights and targets of one fit, in memory or in a store, behind one interface.

A recipe asks for what its solver needs: statistics, sums over all rows, partitions, kernel products, rows by number. It
does not know where the rows are. `dask_odm.estimators.base.StoreEstimator` decides that once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.ranks import Ranks, ranks_bytes, sampled_rows
from dask_odm.data.rows.scaling import RANKS, Scaling
from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.rows.targets import OneOfMany, RealValues
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Partitioner
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.pivots import PivotRows
from dask_odm.learning.problem.products import Products, Purpose
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.linalg.row_passes import PassBytes, Passes
from dask_odm.typing import Array


class HasStatistics(Protocol):
    """Whatever the rows are scaled by."""

    def statistics(self, scale: str | None = None) -> Statistics: ...


class TrainingData(ABC):
    """Rows that take part in a fit, with their targets and weights."""

    run: FitRun
    X: Any  # raw rows (n, d) in memory, an array or csr_array; None for a store
    whole: HasStatistics | None  # all rows, or all machines' data, if this is a part: their statistics scale the rows

    @property
    def in_memory(self) -> bool:
        return self.X is not None

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows; of a store also those that do not take part (no label or no weight)."""

    @property
    def is_sparse(self) -> bool:
        """Whether rows are CSR arrays."""
        return False

    @property
    def density(self) -> float:
        """The share of all entries of the given rows that is stored, 1 for dense rows."""
        return 1.0

    @property
    def keeps_zeros(self) -> bool:
        """Whether zeros of the rows stay zeros if it costs a shift: these are CSR arrays, smaller than dense ones."""
        itemsize = self.raw_dtype.itemsize
        return self.is_sparse and self.density * (itemsize + 4) < itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in memory."""
        return self.rows * self.features * self.raw_dtype.itemsize

    @property
    def n_targets(self) -> int:
        """Number of targets of a row."""
        return 1

    @property
    def labelled_rows(self) -> int:
        """Number of rows with a label; in memory, of rows that take part."""
        return self.rows

    @property
    def row_numbers(self) -> tuple[int, Array | None]:
        """The count of given rows, and the number of each row of the passes (n,), or None if they are all rows."""
        return self.rows, None

    @property
    @abstractmethod
    def features(self) -> int: ...
    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...  # that is computed in
    @property
    def raw_dtype(self) -> np.dtype[Any]:
        """Type of the rows that a model is given."""
        return self.dtype

    @property
    @abstractmethod
    def class_weights(self) -> tuple[float, ...]:
        """Factor of a row's weight by the code of its class, which the weights of blocks do not have in them.

        Two for the two classes that a machine tells apart; none for real targets.
        """

    @property
    @abstractmethod
    def total_weight(self) -> float: ...  # of all rows, class weights included
    @property
    def mean_weight(self) -> float:
        """Mean weight of the rows that take part, class weights included."""
        total = self.total_weight
        return 1.0 if total == self.labelled_rows else total / len(self.taking_part[0])

    @property
    @abstractmethod
    def class_totals(self) -> Array:
        """Sums of the row weights of many classes, without class weights, (classes,)."""

    @property
    @abstractmethod
    def taking_part(self) -> tuple[Array, Array, Array]:
        """Ascending numbers of the rows that take part, as `KernelData.pivots` count them, targets, whole weights."""

    @abstractmethod
    def given_rows(self, numbers: Array) -> Any:
        """Return the raw rows at ascending ``numbers`` of the given data, dense or as a CSR array."""

    @property
    @abstractmethod
    def cluster(self) -> Cluster:
        """Place where passes over the rows run: the workers for a store, this process for rows in memory."""

    def held_bytes(self, *, scaled: bool = True) -> int:
        """Return the bytes that this process holds beside the given rows: numbers per row, and copies.

        ``scaled`` counts a scaled copy of the rows, too, if one is made.
        """
        return self.rank_bytes

    @property
    def rank_bytes(self) -> int:
        """Bytes of the ranks of all columns, in this process and where tasks run."""
        return ranks_bytes(self.features, self.features * self.density) if self.run.scale == RANKS else 0

    def beside(self, nbytes: int) -> TrainingData:
        """Return the same rows, beside which this process holds ``nbytes`` of other machines' models, if they count."""
        return self

    @abstractmethod
    def columns(self) -> tuple[Array, Array]:
        """Return targets and weights of all rows as in the blocks of passes, each (n,); weights may be empty.

        The targets of two classes are 1 for the positive class, another code ≥ 0 for the other, and −1 for a row that
        does not take part.
        """

    @abstractmethod
    def row_weights(self) -> Array:
        """Return the weights of all rows, (n,), which no class weights are multiplied into; may be empty."""

    @abstractmethod
    def first_rows(self, count: int) -> tuple[Any, Array, Array]:
        """Return the first ``count`` raw rows, or fewer, with targets (n, t) and weights, 0 for one left out."""

    @property
    @abstractmethod
    def block_rows(self) -> int:
        """Rows of each block of a ``full`` pass but the last, however many rows there are."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a string that identifies rows and targets in a checkpoint."""

    @abstractmethod
    def sample(self, count: int, seed: int) -> Any:
        """Return `MemoryData` of about ``count`` rows, or all, drawn by their numbers alone."""

    @abstractmethod
    def scaled_blocks(self, choice: KernelChoice) -> Iterator[tuple[Any, Any]]:
        """Yield all rows that take part, some at a time, as `MemoryData`, and as they are scaled."""

    @abstractmethod
    def drawn_by_class(self, count: int, least: int, seed: int) -> Array:
        """Return ascending numbers of about ``count`` rows of many classes, as `KernelData.pivots` count them.

        They are drawn by their numbers and classes alone, from every class at least about ``least``, or all of its
        rows.
        """

    def of_passes(self, values: Array) -> Array:
        """Return ``values`` (…, n) of the rows of `taking_part` at the places of all rows of passes, 0 elsewhere."""
        return values

    def unmerged(self, values: Array) -> Array:
        """Return ``values`` (…, n) of merged rows for every row that they were merged of."""
        return values

    def statistics(self, scale: str | None = None) -> Statistics:
        """Return weighted statistics of the features as ``scale`` sees them, those of the whole if this is a part."""
        if self.whole is not None:
            return self.whole.statistics(scale)
        return self._ranked if scale == RANKS else self._statistics

    @cached_property
    def _ranked(self) -> Statistics:
        """Statistics of ranked features, those of a sample that does not depend on the seed."""
        drawn = self.sample(sampled_rows(self.features * self.density), 0)
        ranks = Ranks.of_rows(drawn.X, drawn.weight, self._statistics)
        return ranks.statistics(drawn.X, drawn.weight)

    @property
    @abstractmethod
    def _statistics(self) -> Statistics: ...

    def merged(self) -> TrainingData:
        """Return the same problem with equal rows merged, if they are cheap to find; else itself."""
        return self

    @abstractmethod
    def with_targets(self, targets: RealValues) -> TrainingData:
        """Return the same rows with their real targets in other units. Nothing is copied on disk."""

    @abstractmethod
    def of_machine(self, targets: OneOfMany) -> TrainingData:
        """Return the data of one machine of many classes, scaled like all rows. Nothing is copied on disk."""

    def of_target(self, target: int) -> TrainingData:
        """Return the same rows with one of several targets. Nothing is computed twice that they share."""
        return self

    @abstractmethod
    def passes(self, weights: int, *, full: bool = False) -> Passes:
        """Return passes over all raw rows; for more ``weights`` fewer sums are held at a time.

        ``full`` sums have the square of that many entries, however many there are, and few of them stand for any number
        of blocks.
        """

    @abstractmethod
    def require_pass(self, needed: PassBytes, what: str, advice: tuple[str, ...] = ()) -> None:
        """Raise MemoryLimitError, as `Cluster.require` does, unless such passes fit where they run."""

    @abstractmethod
    def seen_by(self, choice: KernelChoice) -> KernelData:
        """Return the rows as the kernel of ``choice`` sees them."""


@dataclass(frozen=True, eq=False)
class KernelData(ABC):
    """Training data as a kernel sees it: scaled rows, and products and sums of kernel values.

    ``scaled`` are the scaled rows if they are in memory, as an array, or rows that return one when indexed; else None.
    """

    data: TrainingData
    kernel: Kernel
    scaling: Scaling
    scaled: Any = None

    @abstractmethod
    def pivots(self, count: int, method: str) -> PivotRows:
        """Return the candidate rows of landmarks; raise MemoryLimitError if choosing ``count`` does not fit."""

    @abstractmethod
    def products(self, purpose: Purpose) -> AbstractContextManager[Products]:
        """Provide products with the kernel matrix of the rows of `TrainingData.taking_part`."""

    @abstractmethod
    def partitions(self, partitioner: Partitioner, *, always: bool = False) -> AbstractContextManager[PartitionedRows]:
        """Provide the rows in the order of their partitions. On disk, they exist within the ``with`` block only.

        One partition in memory is in a random order, unless rows are ``always`` dealt by the partitioner.
        """

    @abstractmethod
    def chosen_pivots(self, index: Array) -> tuple[Any, Array]:
        """Return raw rows that were chosen from `pivots`, and their numbers in the given data."""


@dataclass(frozen=True, eq=False)
class PartitionedRows(ABC):
    """Rows in the order of their partitions, with what tasks need to read them.

    ``scaling`` is that of raw rows, in the form that tasks carry.
    """

    partitions: MemoryPartitions | StoredPartitions
    scaling: Any
    cluster: Cluster

    @abstractmethod
    def products(self, purpose: Purpose, reserved: int = 0) -> AbstractContextManager[Products]:
        """Provide products with the kernel matrix of all rows, in the order of the partitions.

        Others take ``reserved`` bytes of every worker, or of this process if there are no workers.
        """

    @abstractmethod
    def chosen(self, rows: Array) -> tuple[Any, Array]:
        """Return raw rows, and their numbers, by ascending ``row_numbers`` of the partitions."""
