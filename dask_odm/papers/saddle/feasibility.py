"""Hull feasibility: a proof that two reduced hulls have a common point, or that they have none.

A solver of the nearest points notices a common point only when their distance is at rounding level, after hundreds of
passes. This test takes a few steps of two passes each, even if features are nearly dependent, as those of real data.

Among all η and ξ of the capped simplices, ``0 ≤ η_i ≤ c_i/m`` with sums of 1, those of largest entropy with Aη = Bξ are
``η_i = (c_i/m) σ(t_i)`` with ``t_i = u·x_i + b₊``, and likewise ξ with ``t_i = b₋ − u·x_i``; σ is the logistic
function. The tilt (u, b₊, b₋) minimises the convex

    F = Σ_i (c_i/m) log(1 + exp t_i) − b₊ − b₋,      ∇F = (Aη − Bξ, Ση − 1, Σξ − 1)

which takes Newton's method a few steps, whatever linear map the features went through. Either answer is proved on the
way:

disjoint  if F < 0 at some tilt, ``u·x`` is less on all of the positive hull than on the negative one. For F is at least
          the entropy of any common point, which is not negative
overlap   Newton's step δ to ``η_i + (c_i/m) σ'(t_i) δ_i`` solves the equations exactly. If that keeps the bounds of all
          entries, it *is* a common point

The smooth problem is the dual of maximising the Fermi-Dirac entropy. For a test of feasibility Newton's step need not
be small, as for an analytic centre; it only has to keep the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.saddle.problem import TILT_FEATURES, TOUCHING, HullProblem, HullQuery
from dask_odm.papers.saddle.weighted_quantile import CLASSES
from dask_odm.typing import Array

STEPS = 0.5 ** np.arange(10)  # shares of Newton's step that are tried


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer of the feasibility test.

    ``overlap`` says whether the hulls have a common point; None means that neither was proved. Along ``direction`` (d,)
    the hulls are disjoint, or nearly so.
    """

    overlap: bool | None
    direction: Array


def settle_overlap(problem: HullProblem) -> tuple[Verdict, float]:
    """Test whether the hulls overlap. Returns the verdict, and a lower bound of half the squared distance.

    The bound is 0 unless the hulls were proved disjoint. The problem's `memory` is left as it was.
    """
    verdict = judge(problem)
    if verdict.overlap is not False:
        return verdict, 0.0
    memory = problem.memory
    w = verdict.direction
    lower = lower_bound(w, problem.vertex(w).least(w))
    problem.memory = memory
    return verdict, lower


def lower_bound(w: Array, least: float) -> float:
    """Return the lower bound ``max(0, m(w))² / (2‖w‖²)`` of half the squared distance, ``least`` being m(w)."""
    square = float(w @ w)
    return max(0.0, least) ** 2 / (2.0 * square) if square > 0 else 0.0


def separating_alpha(problem: HullProblem, w: Array) -> float | None:
    """Return the least alpha of two digits whose hulls are disjoint along ``w`` (d,); None if 1 is not enough."""

    def apart(alpha: float) -> bool:
        return problem.with_alpha(alpha).vertex(w).least(w) > TOUCHING * problem.scale * float(np.linalg.norm(w))

    low = int(100 * (problem.alpha or 0.0))
    high = 100
    if not apart(1.0):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if apart(middle / 100) else (middle, high)
    return high / 100


def judge(problem: HullProblem, most_features: int = TILT_FEATURES, most_steps: int = 40) -> Verdict:
    """Decide whether the hulls have a common point, up to rounding at the rows' scale.

    The answer is undecided for more than ``most_features``.
    """
    if problem.d > most_features:
        return Verdict(None, problem.start.difference)
    tilt = Tilt(problem)
    at = tilt.start
    overlap = None
    for _ in range(most_steps):
        value, gradient, hessian = tilt.sums(at)
        step, left = newton_step(gradient, hessian, problem.scale)
        broken, values = tilt.reach(at, step)
        best = int(np.argmin(values))
        if values[best] < 0:
            at = at + STEPS[best] * step
            overlap = False
            break
        if broken + left <= TOUCHING:
            overlap = True
            break
        if not values[best] < value:
            break
        at = at + STEPS[best] * step
    return Verdict(overlap, -at[:-2])


def newton_step(gradient: Array, hessian: Array, scale: float) -> tuple[Array, float]:
    """Return Newton's step (k,), and the norm of the quadratic model's gradient after the step.

    All entries of that gradient are divided by ``scale`` but the last two.
    """
    unit = np.sqrt(np.maximum(np.diag(hessian), np.finfo(float).tiny))
    regular = hessian / (unit[:, None] * unit)
    regular[np.diag_indices_from(regular)] += 1e-14 * len(unit)  # features may depend on each other
    step = -np.linalg.solve(regular, gradient / unit) / unit
    left = gradient + hessian @ step
    return step, float(np.linalg.norm(left[:-2]) / (scale or 1.0) + np.abs(left[-2:]).sum())


# The smooth problem ------------------------------------------------------------------------------------------------


class Tilt:
    """F of the two hulls of a problem, computed by passes over the rows."""

    def __init__(self, problem: HullProblem) -> None:
        self._problem = problem
        # whole hulls have caps too large to matter: a millionth of a row's share in the smaller class as the mass
        self._mass = problem.mass or 1e-6 * float(problem.totals.weight.min()) / max(1, problem.passes.rows)

    @property
    def start(self) -> Array:
        """The first tilt: no direction, and equal entries for all rows of a class, with sums of 1."""
        share = np.minimum(self._mass / self._problem.totals.weight, 1.0 - 1e-6)  # σ of a finite tilt is below 1
        return np.concatenate([np.zeros(self._problem.d), np.log(share) - np.log1p(-share)])

    def sums(self, tilt: Array) -> tuple[float, Array, Array]:
        """Compute F, its gradient (d + 2,) and its Hessian (d + 2, d + 2): one pass."""
        found: Array = self._problem.run(sum_tilt, tilt, self._mass)
        gradient = found[0, 1:].copy()
        gradient[-2:] -= 1.0
        return float(found[0, 0]) - float(tilt[-2:].sum()), gradient, found[1:, 1:]

    def reach(self, tilt: Array, step: Array) -> tuple[float, Array]:
        """Compute by how much the entries after ``step`` break their bounds, and F after `STEPS` of it: one pass."""
        found: Array = self._problem.run(sum_reach, tilt, step, self._mass)
        return float(found[0]), found[1:] - tilt[-2:].sum() - STEPS * step[-2:].sum()


# Sums over rows with caps of ``c_i / mass``, for a `HullQuery` ------------------------------------------------------


def sum_tilt(query: HullQuery, blocks: Iterable[RowBlock], tilt: Array, mass: float) -> Array:
    """Sum F at ``tilt`` (d + 2,) without its linear part: the value, its gradient beside it, and the Hessian below.

    The sum has shape (d + 3, d + 3), and zeros below the value.
    """
    k = len(tilt)
    found = np.zeros((k + 1, k + 1))
    for X, sign, caps in _capped_rows(query, blocks, mass):
        t = _tilted(X, sign, tilt)
        slope = caps * expit(t)
        curvature = slope * expit(-t)
        found[0, 0] += caps @ _softplus(t)
        found[0, 1:] += _signed_sums(X, sign, slope)
        rooted = X * np.sqrt(curvature)[:, None]
        found[1:-2, 1:-2] += rooted.T @ rooted
        for row, each in zip((-2, -1), CLASSES, strict=True):
            found[row, 1:] += _signed_sums(X, sign, np.where(sign == each, curvature, 0.0))
    found[1:-2, -2:] = found[-2:, 1:-2].T
    return found


def sum_reach(query: HullQuery, blocks: Iterable[RowBlock], tilt: Array, step: Array, mass: float) -> Array:
    """Sum by how much the entries of all rows break their bounds after ``step``, and F's terms after `STEPS` of it.

    The answer has 1 + len(STEPS) numbers.
    """
    found = np.zeros(1 + len(STEPS))
    for X, sign, caps in _capped_rows(query, blocks, mass):
        t = _tilted(X, sign, tilt)
        change = _tilted(X, sign, step)
        entries = caps * expit(t) * (1.0 + expit(-t) * change)
        found[0] += np.maximum(0.0, np.maximum(-entries, entries - caps)).sum()
        found[1:] += [caps @ _softplus(t + share * change) for share in STEPS]
    return found


def _capped_rows(query: HullQuery, blocks: Iterable[RowBlock], mass: float) -> Iterator[tuple[Array, Array, Array]]:
    """Yield features (n, d), signs (n,) and caps (n,); both are 0 of rows that take no part."""
    for X, sign, weight in query.pieces(blocks):
        yield query.features.dense(X), sign, np.where(sign != 0, weight / mass, 0.0)


def _tilted(X: Array, sign: Array, tilt: Array) -> Array:
    """Return the signed score of every row by the tilt's direction, plus the entry of its class, (n,)."""
    return sign * (X @ tilt[:-2]) + np.where(sign > 0, *tilt[-2:])


def _signed_sums(X: Array, sign: Array, factors: Array) -> Array:
    """Sum the signed rows and the weights of either class, both multiplied by ``factors`` (n,): (d + 2,)."""
    return np.concatenate([(sign * factors) @ X, [factors[sign == each].sum() for each in CLASSES]])


def _softplus(t: Array) -> Array:
    """Return log(1 + exp t); several times as fast as `np.logaddexp`."""
    return np.maximum(t, 0.0) + np.log1p(np.exp(-np.abs(t)))
