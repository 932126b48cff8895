"""Newton's method for one pair of classes, whose whole kernel matrix about fits the cache.

If descent (`dask_odm.methods.pairs.descent`) stops short of the gap that is asked for, it has found nearly all of the
active rows. Semismooth Newton goes on from there, in a few steps. Each solves ``(K_SS + D_S) a_S = t_S`` over the
active rows S by Cholesky, see `dask_odm.methods.exact.solver`.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from scipy.linalg import lapack

from dask_odm.learning.line_search import least_row_step
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.step_log import step_record
from dask_odm.linalg.dense import mended
from dask_odm.linalg.jit import compiled
from dask_odm.methods.pairs.descent import TINY, PairSolution, PairValues
from dask_odm.typing import Array


def solve_pair(losses: RowLosses, K: Array, settings: SolverSettings, start: PairSolution) -> PairSolution:
    """Minimise P over rows with the float64 kernel matrix ``K`` (n, n), from where descent ended.

    ``settings.max_iter`` bounds Newton's steps. The records of ``start`` come first.
    """
    began = time.perf_counter()
    history = list(start.history)
    a = start.coefficients
    scores = _scores(K, a)
    carried = False
    while True:
        primal, gap = pair_gap(losses, a, scores)
        if carried and gap <= settings.tol:  # its scores were updated step by step, and may have drifted
            scores = _scores(K, a)
            carried = False
            primal, gap = pair_gap(losses, a, scores)
        passes = start.history[-1]["passes"] + len(history)
        seconds = time.perf_counter() - began
        history.append(step_record(len(history), gap, primal, passes, seconds + start.history[-1]["seconds"]))
        if gap <= settings.tol or len(history) - len(start.history) > settings.max_iter:
            break
        before = a
        a, scores = _stepped(losses, K, a, scores, (primal, gap))
        carried = True
        if np.array_equal(a, before):
            break
    if carried:
        scores = _scores(K, a)
        primal, gap = pair_gap(losses, a, scores)
        history[-1] |= {"gap": gap, "objective": primal}
    return PairSolution(a, scores, primal, gap, gap <= settings.tol, history)


def as_predicted(losses: RowLosses, values: PairValues, found: PairSolution, tol: float) -> PairSolution:
    """Return a float64 solution with its gap if the model predicts in the dtype of ``values``.

    The gap is the largest for scores as far from those in float64 as any is with ``values``. If it would exceed
    ``tol``, the solution keeps its gap and is marked for a model in float64.
    """
    spread = float(np.abs(values.product(found.coefficients) - found.scores).max())
    slopes = np.abs(losses.dual_candidate(losses.y * found.scores))
    rise = spread * float(slopes.sum()) + 0.5 * spread**2 * float(losses.stiffness_low.sum())
    gap = found.gap + rise / max(found.primal, TINY)
    if gap > max(tol, found.gap):
        return replace(found, double_precision=True)
    return replace(found, gap=gap, history=[*found.history[:-1], found.history[-1] | {"gap": gap}])


def pair_gap(losses: RowLosses, a: Array, scores: Array) -> tuple[float, float]:
    """Return P of coefficients (n,) with their scores, and their relative gap as dual variables."""
    margins = losses.y * scores
    primal = losses.primal(a, scores)
    return primal, float(losses.row_gaps(losses.y * a, margins).sum()) / max(primal, TINY)


@compiled
def _scores(K: Array, a: Array) -> Array:
    """Return ``K a``, summed over rows with a coefficient: K is symmetric, and its rows are contiguous."""
    out = np.zeros(len(a))
    for i in range(len(a)):
        if a[i] != 0.0:
            row = K[i]
            for j in range(len(out)):
                out[j] += a[i] * row[j]
    return out


@compiled
def _gather(K: Array, active: Array, root: Array, ridge: float) -> Array:
    """Return the lower half of ``1 + ridge + √D K √D`` over the active rows."""
    n = len(active)
    out = np.empty((n, n))
    for i in range(n):
        row = K[active[i]]
        for j in range(i + 1):
            out[i, j] = root[i] * root[j] * row[active[j]]
        out[i, i] += 1.0 + ridge
    return out


def _solved(K: Array, active: Array, stiffness: Array, target: Array) -> Array:
    """Return coefficients of the active rows. Scaling by √stiffness keeps the system well-conditioned for any λ."""
    root = np.sqrt(stiffness)

    def attempt(ridge: float) -> Array | None:
        factor, info = lapack.dpotrf(_gather(K, active, root, ridge).T, lower=0, clean=0, overwrite_a=1)
        return None if info else np.asarray(lapack.dpotrs(factor, root * target, lower=0)[0])

    trace = len(active) + float(stiffness @ K.diagonal()[active])
    return root * mended(attempt, lambda: np.finfo(float).eps * trace)


def _stepped(losses: RowLosses, K: Array, a: Array, scores: Array, now: tuple[float, float]) -> tuple[Array, Array]:
    """Take a Newton step, or the step of least P along it; ``now`` is P with its gap.

    A step that halves the gap is taken even if P does not fall: coefficients of equal rows of both classes may be far
    from their best values without any effect on P, which depends on their sum alone.
    """
    margins = losses.y * scores
    settings = losses.settings
    stiffness = losses.curvature(margins)
    active = np.flatnonzero(stiffness)
    target = losses.y * np.where(margins < 1.0, settings.low, settings.high)
    new = np.zeros_like(a)
    if len(active):
        new[active] = _solved(K, active, stiffness[active], target[active])
    after = _scores(K, new)
    primal, gap = pair_gap(losses, new, after)
    if primal < now[0] or gap < 0.5 * now[1]:
        return new, after
    d = new - a
    change = after - scores
    length = least_row_step(losses, scores, change, float(a @ change), float(d @ change))
    return a + length * d, scores + length * change
