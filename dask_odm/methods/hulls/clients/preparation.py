"""Preparation of a client's rows: features of the columns' order that its steps take, rotated for steps in blocks.

The paper rotates the rows by random signs and the Walsh-Hadamard transform, which makes all coordinates alike. Steps in
all coordinates at once do not depend on a rotation, so rows stay as they are for these.

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithm 1.
Here the transform is divided by √d.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack

from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.hulls.clients.rows import ClientRows
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.methods.hulls.problem.query import HullQuery, Totals
from dask_odm.methods.hulls.problem.weighted_quantile import CLASSES
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Preparation:
    """The function that prepares the rows of a client: its coordinates and weights.

    ``query`` makes features, classes and weights of raw rows. ``log_cap`` is the largest log e of a row of weight 1; ∞
    for whole hulls. ``signs`` (2^k,) are those of the rotation of the padded features; None means no rotation. ``size``
    is the number of coordinates, padded with zeros at the end.
    """

    query: HullQuery
    log_cap: float
    signs: Array | None
    size: int

    @classmethod
    def of(cls, problem: HullProblem, block_size: int | None, seed: int) -> Preparation:
        """Return the preparation for steps in blocks of ``block_size`` coordinates, or in all if it is None."""
        log_cap = -math.log(problem.mass) if problem.mass > 0 else math.inf
        if block_size is None:
            return cls(problem.query, log_cap, None, problem.d)
        size = 1 << max(0, problem.d - 1).bit_length()
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size)
        return cls(problem.query, log_cap, signs, size + -size % min(block_size, size))

    def __call__(self, blocks: Iterable[RowBlock]) -> ClientRows:
        """Prepare the rows of one client."""
        pieces = list(self.query.pieces(blocks))
        sign, weight = (np.concatenate([part[i] for part in pieces]) for i in (1, 2))
        order = np.concatenate([np.flatnonzero(sign == each) for each in CLASSES])
        S = self._columns([part[0] for part in pieces], order)
        weight = weight[order]
        return ClientRows(S, int((sign == CLASSES[0]).sum()), weight, np.log(weight), self.log_cap)

    def keeps_sparse(self, X: Any) -> bool:
        """Whether the rows ``X`` stay sparse: if they are neither rotated nor scaled."""
        return bool(issparse(X)) and self.signs is None and self.query.features.scaling is None

    def _columns(self, pieces: Sequence[Any], order: Array) -> Any:
        """Return the rows in ``order`` as columns in the clients' coordinates, (size, n)."""
        if self.keeps_sparse(pieces[0]):
            return vstack(pieces, format="csr")[order].T
        return self.rotated(np.concatenate([self.query.features.dense(X) for X in pieces])[order])

    def rotated(self, rows: Array) -> Array:
        """Convert rows (n, d) to columns in the clients' coordinates, (size, n)."""
        S = np.zeros((self.size, len(rows)))
        S[: rows.shape[1]] = rows.T
        if self.signs is not None:
            hadamard(S[: len(self.signs)], self.signs)
        return S

    def back(self, points: Array) -> Array:
        """Convert points (m, size) in the clients' coordinates to features (m, d)."""
        if self.signs is not None:
            columns = np.array(points.T[: len(self.signs)], order="C")
            hadamard(columns, np.ones(len(self.signs)))  # but for the signs the rotation is its own inverse
            points = (self.signs[:, None] * columns).T
        return points[:, : self.query.features.d]

    def within(self, w: Array) -> Array:
        """Project w (size,) onto the directions that belong to features, in the clients' coordinates."""
        return w if self.signs is None else self.rotated(self.back(w[None]))[:, 0]

    def totals(self, totals: Totals) -> Totals:
        """Convert the totals of the features to the clients' coordinates."""
        return replace(totals, sums=self.rotated(totals.sums).T)

    def nbytes(self, X: Any, rows: int) -> int:
        """Return the peak bytes of a client with so many ``rows``; ``X`` are those of one in memory, else None."""
        vectors = 16 * rows  # numbers a row that a client holds or works in
        if X is not None and self.keeps_sparse(X):
            return 8 * (8 * X.nnz + vectors)
        return 8 * (4 * rows * max(self.query.features.d, self.size) + vectors)


def hadamard(columns: Array, signs: Array) -> None:
    """Multiply the rows of ``columns`` (D, n) by ``signs``, and apply the Walsh-Hadamard transform, in place.

    D is a power of two. The transform is divided by √D, which makes it orthogonal and its own inverse.
    """
    d, n = columns.shape
    columns *= signs[:, None]
    half = 1
    while half < d:
        pairs = columns.reshape(d // (2 * half), 2, half, n)
        left = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = left
        half *= 2
    columns /= math.sqrt(d)
