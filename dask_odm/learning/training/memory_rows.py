"""The rows in memory that take part in a fit, dense or sparse, with targets and weights."""

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

NEGLIGIBLE = 1e-100  # share of the largest weight below which a weight counts as zero; its share of the loss underflows
MERGED_SHARE = 0.95  # share of rows left above which merging equal rows is not worth the copy


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows in memory that take part in a fit.

    Attributes
    ----------
    X : ndarray or csr_array of shape (n, d)
        Raw rows.
    y : float64 ndarray of shape (n,)
        −1 or 1 for two classes, the class code for more, or real targets.
    weight : ndarray of shape (n,)
        Positive row weights without class weights. Statistics are weighted by them.
    class_weights : tuple of float
        Factor of the row weights for each class, the negative one first; empty for real targets.
    kept : ndarray of shape (n,)
        Number of each row in the given data.
    copies : ndarray or None
        Index of the merged row for each original row; None if no rows were merged.
    """

    X: Any
    y: Array
    weight: Array
    class_weights: tuple[float, ...]
    kept: Array
    copies: Array | None = None

    @classmethod
    def of(cls, X: Any, y: Array, weight: Array, class_weights: tuple[float, ...]) -> TrainingRows:
        """Build training rows without those of weight zero.

        Raises InputError if no row is left, or if the weights are too large to be summed.
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
        """Whether `scaled` copies the rows."""
        return not issparse(self.X) and are_few(self.X)

    @property
    def total_weights(self) -> Array:
        """Row weights times class weights, (n,)."""
        return _weighed(self.weight, self.y, self.class_weights)

    @property
    def codes(self) -> Array:
        """Targets (n,) for loops over blocks: class codes, int8 for two classes, or real targets."""
        return (self.y > 0).astype(np.int8) if len(self.class_weights) == 2 else self.y

    @property
    def block_weights(self) -> Array:
        """Row weights for loops over blocks: empty if all are 1."""
        return np.empty(0) if (self.weight == 1.0).all() else self.weight

    def of_machine(self, targets: OneOfMany) -> TrainingRows:
        """Return the rows of one machine of many classes, with targets ±1. Nothing is copied if it uses all rows."""
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
        """Return the same problem with equal rows of equal label merged and their weights summed.

        Sparse rows are returned as they are, and so are rows with few equal ones.
        """
        if issparse(self.X):
            return self
        first, of = merge_equal(self.X, self.y)
        if len(first) > MERGED_SHARE * self.n:
            return self
        weight = np.bincount(of, self.weight, len(first))
        return TrainingRows(self.X[first], self.y[first], weight, self.class_weights, self.kept[first], of)

    def at(self, index: Array) -> TrainingRows:
        """Return the rows at ``index``."""
        return TrainingRows(self.X[index], self.y[index], self.weight[index], self.class_weights, self.kept[index])

    def statistics(self) -> Statistics:
        """Return weighted statistics of the features."""
        if issparse(self.X):
            return sparse_statistics(self.X, self.weight)
        gathered = StatisticsAccumulator(self.X.shape[1])
        gathered.update(self.X, self.weight)
        return gathered.result()

    def raw(self, numbers: Array) -> Any:
        """Return raw rows at ``numbers``, which a model keeps: dense, or as `SparseRows`."""
        return SparseRows(self.X[numbers]) if issparse(self.X) else self.X[numbers]

    def fingerprint(self) -> str:
        """Return a digest of everything that is learned from."""
        digest = hashlib.sha256(repr((self.X.shape, self.X.dtype, self.class_weights)).encode())
        parts = (self.X.data, self.X.indices, self.X.indptr) if issparse(self.X) else (self.X,)
        for array in (*parts, self.y, self.weight):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def scaled(self, scaling: Scaling) -> Array | SparseRows | ScaledRows:
        """Return the rows as a kernel sees them. Sparse rows, and many dense ones, are scaled on reading."""
        return SparseRows(self.X, scaling) if issparse(self.X) else scaled_rows(self.X, scaling)


def _weighed(weight: Array, y: Array, class_weights: tuple[float, ...]) -> Array:
    """Return row weights (n,) times the weights of their classes; the same array if all class weights are 1."""
    if set(class_weights) <= {1.0}:
        return weight
    if len(class_weights) == 2:
        return weight * np.where(y > 0, class_weights[1], class_weights[0])
    return weight * np.array(class_weights)[y.astype(np.int64)]
