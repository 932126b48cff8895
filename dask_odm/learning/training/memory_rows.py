"""Rows in memory that take part in a fit: dense or sparse, with targets and weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.duplicates import merge_equal
from dask_odm.data.rows.scaled import ScaledRows, are_few, scaled_rows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows, sparse_statistics
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.data.store.statistics import Statistics, StatisticsAccumulator
from dask_odm.errors import InputError
from dask_odm.typing import Array

NEGLIGIBLE = 1e-100  # of the largest weight: as good as zero, and its share of the loss underflows
MERGED_SHARE = 0.95  # merging more rows than that into fewer is not worth the copy


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows in memory that take part in a fit.

    Attributes
    ----------
    X : ndarray or csr_array of shape (n, d)
        Raw.
    y : float64 ndarray of shape (n,)
        −1 or 1 for two classes, the class code for more, or real targets.
    weight : ndarray of shape (n,)
        Positive row weights, class weights left out: what statistics are weighted by.
    class_weights : tuple of float
        What the weight of a row is multiplied by, by its class (the negative one first); empty for real targets.
    kept : ndarray of shape (n,)
        The number each row came with.
    copies : ndarray or None
        Where equal rows were made one: which of these each row is, of those before.
    """

    X: Any
    y: Array
    weight: Array
    class_weights: tuple[float, ...]
    kept: Array
    copies: Array | None = None

    @classmethod
    def of(cls, X: Any, y: Array, weight: Array, class_weights: tuple[float, ...]) -> TrainingRows:
        """Leave out rows of weight zero.

        Raises
        ------
        InputError
            No row is left, or the weights are too large to be added up.
        """
        total = _weighed(weight, y, class_weights)
        least = NEGLIGIBLE * total.max(initial=0.0)
        kept = np.arange(len(y)) if total.min(initial=np.inf) > least else np.flatnonzero(total > least)
        if not len(kept):
            raise InputError("no row has both a label and a positive weight.")
        if len(kept) < len(y):
            X = X[kept]
            y = y[kept]
            weight = weight[kept]
        if not np.isfinite(weight.sum()):
            raise InputError("the row weights are too large: their sum is not finite.")
        return cls(X, y, weight, class_weights, kept)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        X = self.X
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if issparse(X) else X.nbytes)

    @property
    def is_copied_to_scale(self) -> bool:
        """Whether `scaled` rows are a copy."""
        return not issparse(self.X) and are_few(self.X)

    @property
    def total_weights(self) -> Array:
        """Row weights times class weights, (n,)."""
        return _weighed(self.weight, self.y, self.class_weights)

    @property
    def codes(self) -> Array:
        """What loops over blocks read as targets, (n,): class codes (int8 of two classes), or real targets."""
        return (self.y > 0).astype(np.int8) if len(self.class_weights) == 2 else self.y

    @property
    def block_weights(self) -> Array:
        """Row weights as loops over blocks read them: none where all are 1."""
        return np.empty(0) if (self.weight == 1.0).all() else self.weight

    def of_machine(self, targets: OneOfMany) -> TrainingRows:
        """The rows of many classes that one machine sees, with targets ±1; nothing is copied where it sees them all."""
        codes = self.y.astype(np.int64)
        factors = targets.of_codes(codes)
        X = self.X
        weight = self.weight
        kept = self.kept
        seen = np.flatnonzero(factors > 0)
        if len(seen) < self.n:
            X = X[seen]
            weight = weight[seen]
            kept = kept[seen]
            codes = codes[seen]
            factors = factors[seen]
        pair = targets.pair_weights
        y = np.where(codes == targets.positive, 1.0, -1.0)
        if pair is None:
            return TrainingRows(X, y, weight * factors, (1.0, 1.0), kept)
        return TrainingRows(X, y, weight, pair, kept)

    def merged(self) -> TrainingRows:
        """Rows that are equal, and their labels, made one of their weights' sum: the same problem, of fewer rows."""
        if issparse(self.X):
            return self
        first, of = merge_equal(self.X, self.y)
        if len(first) > MERGED_SHARE * self.n:
            return self
        weight = np.bincount(of, self.weight, len(first))
        return TrainingRows(self.X[first], self.y[first], weight, self.class_weights, self.kept[first], of)

    def at(self, index: Array) -> TrainingRows:
        """The rows at ``index``."""
        return TrainingRows(self.X[index], self.y[index], self.weight[index], self.class_weights, self.kept[index])

    def statistics(self) -> Statistics:
        """Weighted statistics of the features."""
        if issparse(self.X):
            return sparse_statistics(self.X, self.weight)
        gathered = StatisticsAccumulator(self.X.shape[1])
        gathered.update(self.X, self.weight)
        return gathered.result()

    def raw(self, numbers: Array) -> Any:
        """Raw rows at ``numbers``, which a model keeps: dense, or sparse until they are sliced."""
        return SparseRows(self.X[numbers]) if issparse(self.X) else self.X[numbers]

    def fingerprint(self) -> str:
        """A digest of everything that is learned from."""
        digest = hashlib.sha256(repr((self.X.shape, self.X.dtype, self.class_weights)).encode())
        parts = (self.X.data, self.X.indices, self.X.indptr) if issparse(self.X) else (self.X,)
        for array in (*parts, self.y, self.weight):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def scaled(self, scaling: Scaling) -> Array | SparseRows | ScaledRows:
        """Rows as a kernel sees them; sparse or many ones are scaled when they are read."""
        return SparseRows(self.X, scaling) if issparse(self.X) else scaled_rows(self.X, scaling)


def _weighed(weight: Array, y: Array, class_weights: tuple[float, ...]) -> Array:
    """Row weights (n,) times those of the classes that ``y`` (n,) says; the same array where no class has one."""
    if set(class_weights) <= {1.0}:
        return weight
    if len(class_weights) == 2:
        return weight * np.where(y > 0, class_weights[1], class_weights[0])
    return weight * np.array(class_weights)[y.astype(np.int64)]
