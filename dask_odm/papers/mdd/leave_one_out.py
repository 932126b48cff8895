"""Leave-one-out errors of ridge regression for many λ, summed in one pass over the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dask_odm.linalg.row_passes import PassBytes, RowBlock
from dask_odm.papers.mdd.moments import PIECE_BYTES, Embedding, ShardMoments, pieces
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class LeaveOutQuery:
    """The query for the leave-one-out squared errors of ridge regression, for many λ; tasks carry it.

    Let U and s be the eigenvectors and eigenvalues of the scatter of all rows, ``q = Uᵀx`` and n the sum of weights.
    The fit's value is ``f = Σ_k q_k β_k/(s_k + nλ)``, and the row's leverage ``h = c (1/n + Σ_k q_k²/(s_k + nλ))``; 1/n
    is there with an intercept only. A fit without the row has the residual ``(y − f)/(1 − h)`` there, exactly. For a
    row of weight above 1 one copy is left out, so that its c in h is 1.
    """

    embedding: Embedding
    mean: Array  # the mean of all rows' φ, less the embedding's origin, (width,)
    rotation: Array  # U, for the embedding's unscaled features, (width, r)
    y_mean: Array  # (t,)
    inverse: Array  # 1/(s + nλ) for every λ, (r, l)
    coefficients: Array  # β, (r, t)
    share: float  # 1/n, or 0 without an intercept
    penalties: Array  # nλ, (l,)

    @classmethod
    def of(cls, moments: ShardMoments, embedding: Embedding, lams: Array, *, intercept: bool) -> LeaveOutQuery:
        """Build the query for all rows of ``moments`` and the values ``lams`` (l,) of λ."""
        n = float(moments.weight.sum())
        values, vectors = eigh(moments.scatter.sum(axis=0), check_finite=False)
        penalties = n * lams
        inverse = 1.0 / (np.maximum(values, 0.0)[:, None] + penalties)
        rotation = moments.factor[:, None] * vectors
        shift = moments.mean - embedding.origin
        beta = vectors.T @ moments.covariance.sum(axis=0)
        share = 1.0 / n if intercept else 0.0
        return cls(embedding, shift, rotation, moments.y_mean, inverse, beta, share, penalties)

    def pass_bytes(self) -> PassBytes:
        """Return the memory that a task of a pass takes."""
        (d, r), lams, t = self.rotation.shape, self.inverse.shape[1], len(self.y_mean)
        own = 8 * (d * r + r * (lams + t)) + self.embedding.work_bytes(self.piece_rows)
        return PassBytes(8 * lams * t, 24, own + 8 * self.piece_rows * (d + 3 * r + 3 * lams * (1 + t)))

    @property
    def piece_rows(self) -> int:
        """Number of rows whose errors are computed at a time."""
        return max(64, PIECE_BYTES // (8 * (len(self.rotation) + self.inverse.shape[1])))

    def sums(self, blocks: Iterable[RowBlock]) -> Array:
        """Sum ``c e²`` over the rows, e being a row's error in the fit without it, (λ, t).

        The sum is not finite if nothing is left to fit without a row.
        """
        total = np.zeros((self.inverse.shape[1], len(self.y_mean)))
        for piece in pieces(blocks, self.piece_rows):
            weight = piece.weight if piece.weight.size else np.ones(len(piece.y))
            phi = np.empty((len(piece.y), self.embedding.width))
            self.embedding(piece.X, phi)
            q = (phi - self.mean) @ self.rotation
            stays = 1.0 - np.minimum(weight, 1.0)[:, None] * (self.share + (q * q) @ self.inverse)
            y = piece.y - self.y_mean
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                for j in range(total.shape[1]):
                    errors = (y[:, [j]] - q @ (self.inverse * self.coefficients[:, [j]])) / stays
                    total[:, j] += weight @ (errors * errors)
        return total
