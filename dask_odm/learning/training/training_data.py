"""Training data: rows, weights and targets of one fit, in memory or in a store, behind one face.

A recipe asks for what its solver needs (statistics, sums over all rows, partitions, kernel products, rows by number)
and does not know where the rows are. That is decided once, by `dask_odm.estimators.base.StoreEstimator`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partition.base import Partitioner
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import PivotRows
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.products import Products
from dask_odm.learning.training.kernel_choice import KernelChoice
from dask_odm.learning.training.run import FitRun
from dask_odm.linalg.row_passes import PassBytes, Passes
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.models.base import Model
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Purpose:
    """What kernel products are for: a few words, the bytes their user holds, and advice where that is too much.

    Parameters
    ----------
    what : str
    nbytes : callable
        Bytes held in this process for n rows of d features, of n, d and the bytes of an entry.
    advice : str
    """

    what: str
    nbytes: Any
    advice: str = "Use more memory, solver='landmark' without certify, or solver=SODM(stop_at=…)."

    def with_reserved(self, nbytes: int) -> Purpose:
        """The same, with so many bytes more that its user holds in this process."""
        return replace(self, nbytes=lambda *shape: self.nbytes(*shape) + nbytes) if nbytes else self


@dataclass(frozen=True, eq=False)
class WeightedProducts:
    """Products with the kernel matrix of the rows that take part, with their targets and weights (n,)."""

    products: Products
    y: Array
    weight: Array


class TrainingData(Protocol):
    """Rows that take part in a fit, with their targets and weights.

    Attributes
    ----------
    run : FitRun
    rows, features : int
        Of a store, rows that do not take part (no label, no weight) are counted in ``rows``.
    dtype : numpy dtype
        What is computed in.
    in_memory : bool
    positive : int
        Of two classes, the code of the positive one in the blocks of passes.
    class_weights : tuple of float
        What rows of each class are multiplied by; empty for real targets.
    total_weight : float
        Sum of all weights, class weights included.
    """

    @property
    def run(self) -> FitRun: ...
    @property
    def rows(self) -> int: ...
    @property
    def labelled_rows(self) -> int:
        """Rows with a label; in memory, those that take part."""
        ...

    @property
    def features(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def in_memory(self) -> bool: ...
    @property
    def positive(self) -> int: ...
    @property
    def class_weights(self) -> tuple[float, ...]: ...
    @property
    def total_weight(self) -> float: ...
    @property
    def cluster(self) -> Cluster:
        """Where passes over the rows run: the workers for a store, this process for rows in memory."""
        ...

    @property
    def row_numbers(self) -> tuple[int, Array | None]:
        """How many rows were given, and which of them each of the passes' rows is, (n,): None where they are all."""
        ...

    def columns(self) -> tuple[Array, Array]:
        """Targets and weights of all rows as the blocks of passes have them, each (n,), the latter perhaps empty."""
        ...

    @property
    def copies(self) -> Array | None:
        """Of `merged` data, which of these rows each row is that they were made of; None where each is one itself."""
        ...

    def origin(self) -> tuple[Array, Array]:
        """A point near the rows (d,) and values near the targets (t,), found without a pass: what sums are about.

        The point is float64, of values that the rows' own type has.
        """
        ...

    def fingerprint(self) -> str:
        """What tells a checkpoint which rows and targets these are."""
        ...

    def held_bytes(self, *, scaled: bool = True) -> int:
        """Bytes that this process holds of rows in memory besides what was given: numbers of each, and copies.

        With ``scaled`` rows, where they are copied to be scaled.
        """
        ...

    def pair_bytes(self) -> int:
        """As `held_bytes`, of the two largest of many classes, which a machine learns to tell apart."""
        ...

    def sample(self, count: int, seed: int) -> Any:
        """About ``count`` rows, or all, drawn by their numbers alone, as training data in memory."""
        ...

    def statistics(self) -> Statistics:
        """Weighted statistics of the features."""
        ...

    def merged(self) -> TrainingData:
        """The same problem with equal rows made one of their weight, where that is cheap to find; else itself."""
        ...

    def of_machine(self, targets: OneOfMany) -> TrainingData:
        """Of many classes, what one machine learns from: scaled as the rows of all classes are, and never copied on
        disk."""
        ...

    def passes(self, weights: int, *, full: bool = False) -> Passes:
        """Passes over all rows, raw, for a problem in so many weights: of more, fewer sums are held at a time.

        ``full``: a sum has the square of that many entries, be they ever so many.
        """
        ...

    @property
    def raw_dtype(self) -> np.dtype[Any]:
        """Of the rows as a model is given them."""
        ...

    def predicted_loss(self, model: Model, loss: BandLoss) -> float:
        """The rows' losses at the values that a model of one output predicts for them, summed: one prediction."""
        ...

    def require_pass(self, needed: PassBytes, what: str) -> None:
        """Raise MemoryLimitError, with both figures, unless such passes fit where they run."""
        ...

    def seen_by(self, choice: KernelChoice) -> KernelData:
        """The rows as the kernel that ``choice`` asks for sees them."""
        ...


class KernelData(Protocol):
    """Training data as a kernel sees it: scaled, and asked for kernel values."""

    @property
    def data(self) -> TrainingData: ...
    @property
    def kernel(self) -> Kernel: ...
    @property
    def scaling(self) -> Scaling: ...

    def pivots(self, count: int, method: str) -> PivotRows:
        """Rows that landmarks are chosen from; MemoryLimitError where choosing ``count`` does not fit."""
        ...

    def span(self, landmarks: Landmarks, loss: BandLoss, budget: int, draws: int) -> SpanProblem:
        """Sums over all rows about the span of ``landmarks``.

        Parameters
        ----------
        budget : int
            Bytes of kernel values that may be kept in this process.
        draws : int
            Most rows that a pass draws.
        """
        ...

    def products(self, purpose: Purpose) -> AbstractContextManager[WeightedProducts]:
        """Products with the kernel matrix of all rows that take part."""
        ...

    def partitions(self, partitioner: Partitioner, *, always: bool = False) -> AbstractContextManager[PartitionedRows]:
        """The rows in the order of their partitions; on disk, they are there within the ``with`` block only.

        One partition in memory is in a random order, unless rows are ``always`` dealt by the partitioner.
        """
        ...

    def places(self, pivots: Array) -> Array:
        """Places in `products` of rows that were chosen from `pivots`."""
        ...

    def chosen_pivots(self, index: Array) -> tuple[Any, Array]:
        """Raw rows, and their numbers, that were chosen from `pivots`."""
        ...

    def chosen_places(self, places: Array) -> tuple[Any, Array]:
        """Raw rows, and their numbers, at ``places`` in `products`."""
        ...


class PartitionedRows(Protocol):
    """Rows in the order of their partitions, and what tasks need to read them."""

    @property
    def partitions(self) -> MemoryPartitions | StoredPartitions: ...
    @property
    def scaling(self) -> Any:
        """From raw rows to scaled ones, as tasks carry it."""
        ...

    @property
    def cluster(self) -> Cluster: ...
    def products(self, purpose: Purpose, reserved: int = 0) -> AbstractContextManager[Products]:
        """Products with the kernel matrix of all rows, in the order of the partitions.

        ``reserved`` bytes of every worker, or of this process where there are none, are taken by others.
        """
        ...

    def chosen(self, rows: Array) -> tuple[Any, Array]:
        """Raw rows, and their numbers, by ascending ``row_numbers`` of the partitions."""
        ...
