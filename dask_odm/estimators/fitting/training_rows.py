"""Rows in memory on their way to a solver: weights settled, scaling and kernel chosen, dense or sparse."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.duplicates import merge_equal
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows, sparse_statistics
from dask_odm.data.store.statistics import Statistics, StatisticsAccumulator
from dask_odm.errors import InputError
from dask_odm.typing import Array

NEGLIGIBLE = 1e-100  # of the largest weight: as good as zero, and its share of the loss underflows
MERGED_SHARE = 0.95  # merging more rows than that into fewer is not worth the copy


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows in memory that count.

    Attributes
    ----------
    X : ndarray or csr_array of shape (n, d)
        Raw.
    y : ndarray of shape (n,)
        −1.0 or 1.0.
    weight : ndarray of shape (n,)
        Positive row weights, class weights left out: what statistics are weighted by.
    class_weights : tuple of float
        What a negative and a positive row's weight is multiplied by.
    kept : ndarray of shape (n,)
        The number each row came with.
    """

    X: Any
    y: Array
    weight: Array
    class_weights: tuple[float, float]
    kept: Array

    @classmethod
    def of(cls, X: Any, y: Array, weight: Array, class_weights: tuple[float, float]) -> TrainingRows:
        """Leave out rows of weight zero.

        Raises
        ------
        InputError
            No row is left, or the weights are too large to be added up.
        """
        total = weight * np.where(y > 0, class_weights[1], class_weights[0])
        kept = np.flatnonzero(total > NEGLIGIBLE * total.max(initial=0.0))
        if not len(kept):
            raise InputError("no row has both a label and a positive weight.")
        if len(kept) < len(y):
            X, y, weight = X[kept], y[kept], weight[kept]
        if not np.isfinite(weight.sum()):
            raise InputError("the row weights are too large: their sum is not finite.")
        return cls(X, y, weight, class_weights, kept)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def total_weights(self) -> Array:
        """Row weights times class weights, (n,)."""
        return self.weight * np.where(self.y > 0, self.class_weights[1], self.class_weights[0])

    def merged(self) -> TrainingRows:
        """Rows that are equal, and their labels, made one of their weights' sum: the same problem, of fewer rows."""
        if issparse(self.X):
            return self
        first, of = merge_equal(self.X, self.y)
        if len(first) > MERGED_SHARE * self.n:
            return self
        weight = np.bincount(of, self.weight, len(first))
        return TrainingRows(self.X[first], self.y[first], weight, self.class_weights, self.kept[first])

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

    def scaled(self, scaling: Scaling) -> Array | SparseRows:
        """Rows as a kernel sees them; sparse ones stay so until they are read."""
        return SparseRows(self.X, scaling) if issparse(self.X) else scaling(self.X)
