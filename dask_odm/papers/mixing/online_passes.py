"""One online pass over the rows of a shard from a given w: perceptron, Passive-Aggressive, and ODM's stochastic steps.

With margin ``z = y w·x`` and a row's weight c (1 by default), one row moves w as follows:

perceptron   ``w += c y x`` if z ≤ 0 (a margin of 0 is a mistake); the loss counts mistakes
pa           ``w += min(c, 1) τ y x``, ``τ = l/‖x‖²``, ``l = max(0, 1 − z)``; the loss is l²
pa1, pa2     the same with ``τ = min(cC, l/‖x‖²)``, and ``τ = l/(‖x‖² + 1/(2cC))``
odm          the implicit step ``argmin ½‖v − w‖² + η p(v)`` of ODM's objective of the row,
             ``p(v) = ½‖v‖² + c λ/(1 − θ)² ½((1 − θ − z)₊² + υ (z − 1 − θ)₊²)``, ``η = 1/(1 + t)`` for the t-th row
             that the shard has seen over all epochs; in closed form, and stable whatever λ and the size of the rows

A row of zeros does not move w, except that "odm" still shrinks w.

Sources: Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence Minimization
Principle*, algorithms 2 and 3; Crammer et al., *Online passive-aggressive algorithms*, 2006; for implicit steps Kulis,
Bartlett, *Implicit online learning*, 2010.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.linalg.jit import compiled, frozen, inlined
from dask_odm.typing import Array

LOCALS = ("perceptron", "pa", "pa1", "pa2", "odm")
PERCEPTRON, PA, PA1, PA2, ODM = range(5)


@dataclass(frozen=True)
class LocalRule:
    """The rule by which a row moves w: one of `LOCALS`.

    ``C`` is the aggressiveness of "pa1" and "pa2"; ``lam``, ``theta`` and ``upsilon`` belong to "odm".
    """

    name: str
    C: float
    lam: float
    theta: float
    upsilon: float

    def walk(self, X: Any, y: Array, weight: Array, w: Array, seen: int) -> tuple[float, float]:
        """Make one pass in the order of the rows, changing ``w`` in place.

        ``X`` (n, d) is C-contiguous or CSR, and ``y`` is ±1. ``w`` has d entries, or d + 1 if a constant feature of 1
        is added last. ``seen`` counts the rows that the shard has visited before, in this epoch and earlier ones.
        Returns the number of rows that moved w, and the sum of their losses.
        """
        n, d = X.shape
        if issparse(X):
            rows = X.indptr, X.indices, X.data
        else:
            rows = np.arange(n + 1) * d, np.empty(0, np.int32), X.reshape(-1)
        kind = LOCALS.index(self.name)
        low = 1.0 - self.theta  # what follows is in the order that the compiled loops read it
        numbers = np.array([self.C, self.lam / low**2, low, 1.0 + self.theta, self.upsilon])
        moved, loss = walk_rows(*map(frozen, (*rows, y, weight)), w, d, kind, numbers, seen)
        return moved, loss


@inlined
def _moves(kind: int, z: float, shrunk: float, numbers: Array) -> bool:
    """Whether a row of margin z moves w, apart from the shrinking by "odm"."""
    if kind == PERCEPTRON:
        return z <= 0.0
    if kind == ODM:
        return z * shrunk < numbers[2] or z * shrunk > numbers[3]
    return z < 1.0


@inlined
def _length(kind: int, z: float, square: float, c: float, eta: float, numbers: Array) -> tuple[float, float]:
    """Return the multiple of y x that is added to w before "odm" shrinks it, and the row's loss."""
    if kind == PERCEPTRON:
        return c, 1.0
    if kind == ODM:
        a = eta * c * numbers[1]
        loss = 0.0
        if z < (1.0 + eta) * numbers[2]:
            loss = 0.5 * c * numbers[1] * max(0.0, numbers[2] - z) ** 2
            return a * ((1.0 + eta) * numbers[2] - z) / (1.0 + eta + a * square), loss
        a *= numbers[4]
        loss = 0.5 * c * numbers[1] * numbers[4] * max(0.0, z - numbers[3]) ** 2
        return a * ((1.0 + eta) * numbers[3] - z) / (1.0 + eta + a * square), loss
    loss = 1.0 - z
    if kind == PA1:
        return min(c * numbers[0], loss / square), loss * loss
    if kind == PA2:
        return loss / (square + 0.5 / (c * numbers[0])), loss * loss
    return min(c, 1.0) * loss / square, loss * loss


@compiled
def walk_rows(
    indptr: Array, indices: Array, data: Array, y: Array, weight: Array, w: Array, d: int, kind: int, numbers: Array,
    seen: int,
) -> tuple[float, float]:  # fmt: skip
    """Make the pass of `LocalRule.walk` over CSR rows; empty ``indices`` mean that rows have all d features.

    With "odm", w is ``scale`` times the array, so that shrinking it takes one multiplication.
    """
    moved = 0.0
    total = 0.0
    scale = 1.0
    eta = 0.0
    dense = indices.size == 0
    constant = w.size > d
    for i in range(y.size):
        row = data[indptr[i] : indptr[i + 1]]
        at = indices[0:0] if dense else indices[indptr[i] : indptr[i + 1]]
        score = 0.0
        if dense:
            for j in range(row.size):
                score += float(w[j]) * float(row[j])
        else:
            for j in range(row.size):
                score += w[at[j]] * row[j]
        if constant:
            score += float(w[d])
        if kind == ODM:
            eta = 1.0 / (1.0 + seen + i)
        z = y[i] * score * scale
        if _moves(kind, z, 1.0 / (1.0 + eta), numbers):
            square = 1.0 if constant else 0.0
            for j in range(row.size):
                square += float(row[j]) * float(row[j])
            if square > 0.0:
                length, loss = _length(kind, z, square, weight[i], eta, numbers)
                length *= y[i] / scale
                if dense:
                    for j in range(row.size):
                        w[j] += length * row[j]
                else:
                    for j in range(row.size):
                        w[at[j]] += length * row[j]
                if constant:
                    w[d] += length
                moved += 1.0
                total += loss
        if kind == ODM:
            scale /= 1.0 + eta
    if kind == ODM:
        for j in range(w.size):
            w[j] *= scale
    return moved, total
