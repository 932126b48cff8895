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
    C: float = 1.0
    lam: float = 1e3
    theta: float = 0.1
    upsilon: float = 0.5

    @property
    def numbers(self) -> Array:
        """Parameters in the form that the compiled loops read: C, λ/(1 − θ)², 1 − θ, 1 + θ and υ, (5,)."""
        low = 1.0 - self.theta
        return np.array([self.C, self.lam / low**2, low, 1.0 + self.theta, self.upsilon])

    def walk(self, X: Any, y: Array, weight: Array, w: Array, seen: int) -> Array:
        """Make one pass in the order of the rows, changing ``w`` in place.

        ``X`` (n, d) is C-contiguous or CSR, ``y`` is ±1, and an empty ``weight`` stands for weights of 1. ``w`` has d
        entries, or d + 1 if a constant feature of 1 is added last. ``seen`` counts the rows that the shard has visited
        before, in this epoch and earlier ones. Returns the number of rows that moved w, and the sum of their losses.
        """
        kind = LOCALS.index(self.name)
        if issparse(X):
            arrays = X.indptr, X.indices, X.data
            return np.array(walk_sparse(*map(frozen, (*arrays, y, weight)), w, X.shape[1], kind, self.numbers, seen))
        return np.array(walk_dense(*map(frozen, (X, y, weight)), w, kind, self.numbers, seen))


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
def walk_dense(
    X: Array, y: Array, weight: Array, w: Array, kind: int, numbers: Array, seen: int
) -> tuple[float, float]:
    """Make the pass of `LocalRule.walk` over dense rows.

    With "odm", w is ``scale`` times the array, so that shrinking it takes one multiplication.
    """
    d = X.shape[1]
    moved = 0.0
    total = 0.0
    scale = 1.0
    eta = 0.0
    constant = w.size > d
    for i in range(y.size):
        row = X[i]
        score = 0.0
        for j in range(d):
            score += float(w[j]) * float(row[j])
        if constant:
            score += float(w[d])
        if kind == ODM:
            eta = 1.0 / (1.0 + seen + i)
        z = y[i] * score * scale
        if _moves(kind, z, 1.0 / (1.0 + eta), numbers):
            square = 1.0 if constant else 0.0
            for j in range(d):
                square += float(row[j]) * float(row[j])
            if square > 0.0:
                c = weight[i] if weight.size else 1.0
                length, loss = _length(kind, z, square, c, eta, numbers)
                length *= y[i] / scale
                for j in range(d):
                    w[j] += length * row[j]
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


@compiled
def walk_sparse(
    indptr: Array, indices: Array, data: Array, y: Array, weight: Array, w: Array, d: int, kind: int, numbers: Array,
    seen: int,
) -> tuple[float, float]:  # fmt: skip
    """Make the pass of `walk_dense` over CSR rows."""
    moved = 0.0
    total = 0.0
    scale = 1.0
    eta = 0.0
    constant = w.size > d
    for i in range(y.size):
        score = w[d] if constant else 0.0
        for at in range(indptr[i], indptr[i + 1]):
            score += w[indices[at]] * data[at]
        if kind == ODM:
            eta = 1.0 / (1.0 + seen + i)
        z = y[i] * score * scale
        if _moves(kind, z, 1.0 / (1.0 + eta), numbers):
            square = 1.0 if constant else 0.0
            for at in range(indptr[i], indptr[i + 1]):
                square += float(data[at]) * float(data[at])
            if square > 0.0:
                c = weight[i] if weight.size else 1.0
                length, loss = _length(kind, z, square, c, eta, numbers)
                length *= y[i] / scale
                for at in range(indptr[i], indptr[i + 1]):
                    w[indices[at]] += length * data[at]
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


@compiled
def mark_nonzero(X: Array, present: Array) -> int:
    """Mark in ``present`` (d,) the features that are nonzero in some row of ``X`` (n, d), and return how many are.

    Reading stops when all are marked.
    """
    found = present.sum()
    for i in range(X.shape[0]):
        if found == present.size:
            break
        row = X[i]
        for j in range(row.size):
            if row[j] != 0 and not present[j]:
                present[j] = True
                found += 1
    return found


def warm_up_passes(dtype: np.dtype[Any], rule: LocalRule) -> None:
    """Compile the loops for dense rows of ``dtype``, or load them from the cache."""
    rule.walk(np.zeros((1, 1), dtype), np.ones(1), np.empty(0), np.zeros(1), 0)
    mark_nonzero(frozen(np.zeros((1, 1), dtype)), np.zeros(1, np.bool_))
