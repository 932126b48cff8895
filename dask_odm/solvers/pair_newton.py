"""The exact machine of two classes whose whole kernel matrix fits the cache, or nearly: one of many, one against one.

A few sweeps of dual coordinate descent tell nearly all rows that will be outside the band; semismooth Newton, whose
step solves ``(K_SS + D_S) a_S = t_S`` over the rows S outside by Cholesky (see `dask_odm.solvers.exact`), takes it from
there to the gap that is asked for, in a few steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from dask_odm.jit import compiled
from dask_odm.problems.odm import RowLosses
from dask_odm.solvers.base import SolverSettings
from dask_odm.solvers.dense import mended
from dask_odm.solvers.dual_cd import descend
from dask_odm.solvers.line_search import least_row_step
from dask_odm.solvers.step_log import Record, step_record
from dask_odm.typing import Array

SWEEPS = 10  # of coordinate descent: more cost as much as the steps of Newton that they save
TINY = np.finfo(float).tiny


@dataclass(frozen=True, eq=False)
class PairSolution:
    """Coefficients (n,), P and its relative gap for the matrix that was given, and one record a step."""

    coefficients: Array
    primal: float
    gap: float
    converged: bool
    history: list[Record]


def solve_pair(losses: RowLosses, K: Array, settings: SolverSettings, start: Array | None = None) -> PairSolution:
    """Minimise P over rows with the kernel matrix ``K`` (n, n).

    Parameters
    ----------
    losses : RowLosses
        Of the n rows.
    K : float64 ndarray of shape (n, n)
    settings : SolverSettings
        ``max_iter`` bounds Newton's steps; the seed orders the rows that descent visits.
    start : ndarray of shape (n,), optional
        Coefficients to start from, without descent.
    """
    began, history = time.perf_counter(), list[Record]()
    a = _descended(losses, K, settings.seed) if start is None else start
    scores = _scores(K, a)
    while True:
        primal, gap = pair_gap(losses, a, scores)
        history.append(step_record(len(history), gap, primal, float(len(history) + 1), time.perf_counter() - began))
        if gap <= settings.tol or len(history) > settings.max_iter:
            break
        before = a
        a, scores = _stepped(losses, K, a, scores, primal)
        if np.array_equal(a, before):
            break
    return PairSolution(a, primal, gap, gap <= settings.tol, history)


def pair_gap(losses: RowLosses, a: Array, scores: Array) -> tuple[float, float]:
    """P of coefficients (n,) with their scores, and the relative gap of these as dual variables."""
    margins = losses.y * scores
    primal = _primal(losses, a, scores)
    return primal, float(losses.row_gaps(losses.y * a, margins).sum()) / max(primal, TINY)


def _primal(losses: RowLosses, a: Array, scores: Array) -> float:
    return 0.5 * float(a @ scores) + float(losses.losses(losses.y * scores).sum())


def _descended(losses: RowLosses, K: Array, seed: int) -> Array:
    n, rng, settings = len(losses.y), np.random.default_rng(seed), losses.settings
    a, scores = np.zeros(n), np.zeros(n)
    order = np.stack([rng.permutation(n) for _ in range(SWEEPS)])
    descend(K, a, scores, losses.y, losses.stiffness_low, losses.stiffness_high, settings.low, settings.high, order)
    return a


@compiled
def _scores(K: Array, a: Array) -> Array:
    """``K a``, of the rows that count: K is symmetric, and its rows are contiguous."""
    out = np.zeros(len(a))
    for i in range(len(a)):
        if a[i] != 0.0:
            row = K[i]
            for j in range(len(out)):
                out[j] += a[i] * row[j]
    return out


@compiled
def _gather(K: Array, active: Array, root: Array, ridge: float) -> Array:
    """``1 + ridge + √D K √D`` of the active rows, its lower half."""
    n = len(active)
    out = np.empty((n, n))
    for i in range(n):
        row = K[active[i]]
        for j in range(i + 1):
            out[i, j] = root[i] * root[j] * row[active[j]]
        out[i, i] += 1.0 + ridge
    return out


def _solved(K: Array, active: Array, stiffness: Array, target: Array) -> Array:
    """Coefficients of the active rows: scaled by √stiffness on both sides, their system is good for any λ."""
    root = np.sqrt(stiffness)

    def attempt(ridge: float) -> Array | None:
        factor, info = lapack.dpotrf(_gather(K, active, root, ridge).T, lower=0, clean=0, overwrite_a=1)
        return None if info else np.asarray(lapack.dpotrs(factor, root * target, lower=0)[0])

    trace = len(active) + float(stiffness @ K.diagonal()[active])
    return root * mended(attempt, lambda: np.finfo(float).eps * trace)


def _stepped(losses: RowLosses, K: Array, a: Array, scores: Array, primal: float) -> tuple[Array, Array]:
    """A step of Newton, or as much of it as P falls for."""
    margins, settings = losses.y * scores, losses.settings
    stiffness = losses.curvature(margins)
    active = np.flatnonzero(stiffness)
    target = losses.y * np.where(margins < 1.0, settings.low, settings.high)
    new = np.zeros_like(a)
    if len(active):
        new[active] = _solved(K, active, stiffness[active], target[active])
    after = _scores(K, new)
    if _primal(losses, new, after) < primal:
        return new, after
    d, change = new - a, after - scores
    length = least_row_step(losses, scores, change, float(a @ change), float(d @ change))
    return a + length * d, scores + length * change
