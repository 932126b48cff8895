"""The rows in memory that take part in a fit, dense or sparse, with targets and weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.duplicates import merge_equal
from dask_odm.data.rows.scaling import ScaledRows, Scaling, are_few, scaled_rows
from dask_odm.data.rows.sparse import SparseRows, sparse_statistics
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.data.store.statistics import Statistics, StatisticsAccumulator
from dask_odm.errors import InputError
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows in memory that take part in a fit."""

    X: Any  # raw rows, an ndarray or csr_array of shape (n, d)
    y: Array  # −1 or 1 for two classes, the class code for more, or real targets; float64 (n,)
    weight: Array  # positive row weights without class weights, (n,); statistics are weighted by them
    class_weights: tuple[float, ...]  # factor of the row weights for each class, the negative one first; () for none
    kept: Array  # number of each row in the given data, (n,)
    given_rows: int  # number of rows of the given data
    copies: Array | None = None  # index of the merged row for each original row; None if no rows were merged

    @classmethod
    def of(cls, X: Any, y: Array, weight: Array, class_weights: tuple[float, ...]) -> TrainingRows:
        """Build training rows without those of weight zero.

        Raises InputError if no row is left, or if the weights are too large to be summed.
        """
        given = len(y)
        total = _weighed(weight, y, class_weights)
        least = 1e-100 * total.max(initial=0.0)  # the share of such a row in the loss underflows
        kept = np.arange(given) if total.min(initial=np.inf) > least else np.flatnonzero(total > least)
        if not len(kept):
            raise InputError("no row has both a label and a positive weight.")
        if len(kept) < given:
            X = X[kept]
            y = y[kept]
            weight = weight[kept]
        if not np.isfinite(weight.sum()):
            raise InputError("the row weights are too large: their sum is not finite.")
        return cls(X, y, weight, class_weights, kept, given)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        X = self.X
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if issparse(X) else X.nbytes)

    @property
    def numbers(self) -> Array | None:
        """Number of each row in the given data (n,), or None if all rows take part."""
        return None if self.n == self.given_rows else self.kept

    @property
    def is_copied_to_scale(self) -> bool:
        """Whether `scaled` copies the rows."""
        return not issparse(self.X) and are_few(self.X)

    def held_bytes(self, *, scaled: bool, of_pair: bool) -> int:
        """Return the bytes that are held beside the given rows: numbers per row, and copies.

        ``scaled`` counts a scaled copy of the rows, too, if one is made. ``of_pair`` counts what is held for a machine
        that tells the two largest of many classes apart, whose rows are copied.
        """
        n = sum(sorted(np.bincount(self.y.astype(np.int64)).tolist())[-2:]) if of_pair else self.n
        copies = (of_pair or self.n < self.given_rows) + (scaled and self.is_copied_to_scale)
        numbers = 12  # per row: target, weight, row number, hash, curvature, and sampling weights
        return n * (8 * numbers + copies * self.nbytes // self.n)

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
        signs = np.where(codes == targets.positive, 1.0, -1.0)
        if targets.pair_weights is None:
            found = replace(self, y=signs, weight=self.weight * factors, class_weights=(1.0, 1.0), copies=None)
        else:
            found = replace(self, y=signs, class_weights=targets.pair_weights, copies=None)
        seen = np.flatnonzero(factors > 0)
        return found if len(seen) == self.n else found.at(seen)

    def merged(self) -> TrainingRows:
        """Return the same problem with equal rows of equal label merged and their weights summed.

        Sparse rows are returned as they are, and so are rows with few equal ones.
        """
        if issparse(self.X):
            return self
        first, of = merge_equal(self.X, self.y)
        if len(first) > 0.95 * self.n:
            return self  # not worth the copy
        return replace(self.at(first), weight=np.bincount(of, self.weight, len(first)), copies=of)

    def at(self, index: Array) -> TrainingRows:
        """Return the rows at ``index``."""
        rows = {name: getattr(self, name)[index] for name in ("X", "y", "weight", "kept")}
        return replace(self, **rows, copies=None)

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
