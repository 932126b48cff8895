"""Sums over shards that can be added pair by pair, in each epoch `Moments` and then `Mixture`: nobody needs all w_i."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean (k,) of ``u_i`` over some shards, and sums of squared deviations from it.

    ``figures`` (count, 3) are those of each shard's pass: ‖w_i‖, the rows that moved w, and the sum of their losses.
    """

    count: int
    mean: Array
    squares: Array
    figures: Array

    @classmethod
    def of(cls, W: Array, counted: Array) -> Moments:
        """Compute the moments of shards from their weights ``W`` (m, k); ``counted`` (m, 2) are the further figures."""
        U = _normalised(W)
        mean = U.mean(axis=0)
        figures = np.column_stack([np.linalg.norm(W, axis=1), counted])
        return cls(len(W), mean, ((U - mean) ** 2).sum(axis=0), figures)

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        change = other.mean - self.mean
        mean = self.mean + change * (other.count / count)
        squares = self.squares + other.squares + change**2 * (self.count * other.count / count)
        return Moments(count, mean, squares, np.concatenate([self.figures, other.figures]))


def _normalised(W: Array) -> Array:
    """Return the rows of ``W`` (m, k) divided by their norms."""
    norms = np.linalg.norm(W, axis=1)
    return W / np.where(norms > 0, norms, 1.0)[:, None]


@dataclass(frozen=True, eq=False)
class Centre:
    """The point (k,) that distances are measured from, and how much they count.

    The ``precision`` (k,) is 1/v, and 0 for features that are left out. ``half_beta`` is β/2; 0 gives all shards the
    same weight.
    """

    mean: Array
    precision: Array
    half_beta: float

    def distances(self, W: Array) -> Array:
        """Return the squared Mahalanobis distances (m,) of the rows of ``W`` (m, k), normalised."""
        return ((_normalised(W) - self.mean) ** 2) @ self.precision

    def weights(self, distances: Array) -> Array:
        """Return the weights (M,) of all shards, which sum to 1, from their distances."""
        scores = -self.half_beta * distances
        shares = np.exp(scores - scores.max())
        return shares / shares.sum()

    def mixture(self, W: Array) -> Mixture:
        """Mix the shards of weights ``W`` (m, k)."""
        distances = self.distances(W)
        scores = -self.half_beta * distances
        top = float(scores.max())
        shares = np.exp(scores - top)
        return Mixture(top, float(shares.sum()), shares @ W, distances)


@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture of some shards: sums of exponentials relative to the largest, so that mixtures can be added.

    ``top`` is the largest score S, ``total`` is Σ exp(S − top), ``vector`` (k,) is Σ exp(S − top) w.
    """

    top: float
    total: float
    vector: Array
    distances: Array

    def __add__(self, other: Mixture) -> Mixture:
        top = max(self.top, other.top)
        mine = float(np.exp(self.top - top))
        theirs = float(np.exp(other.top - top))
        total = mine * self.total + theirs * other.total
        vector = mine * self.vector + theirs * other.vector
        return Mixture(top, total, vector, np.concatenate([self.distances, other.distances]))
