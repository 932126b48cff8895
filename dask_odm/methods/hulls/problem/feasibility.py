"""Whether two reduced hulls have a point in common, by a smooth problem that has a solution only where they do.

Of all η and ξ with ``0 ≤ η_i ≤ c_i/m`` and sums of 1, those of largest entropy with Aη = Bξ are
``η_i = (c_i/m) σ(t_i)`` with ``t_i = u·x_i + b₊``, and ``t_i = b₋ − u·x_i`` of the negative rows, σ the logistic
function. The tilt (u, b₊, b₋) minimises the convex

    F = Σ_i (c_i/m) log(1 + exp t_i) − b₊ − b₋,      ∇F = (Aη − Bξ, Ση − 1, Σξ − 1)

and ends in Newton's few steps, whatever linear map the features went through. Both answers are proved on the way:

apart     where F < 0 anywhere, ``u·x`` is less on all of the positive hull than on the negative one: F is at least
          the entropy, which is not negative, of any common point
overlap   Newton's step δ to ``η_i + (c_i/m) σ'(t_i) δ_i`` solves the equations exactly; if that keeps the bounds of all
          entries, it *is* a common point

The smooth problem is the dual of a maximum of Fermi and Dirac's entropy; with it as a test of feasibility the step
need not be small, as in an analytic centre's, only keep the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.methods.hulls.problem.query import CLASSES, HullQuery
from dask_odm.typing import Array

STEPS = 0.5 ** np.arange(10)  # shares of Newton's step that are tried
WHOLE = 1e-6  # of a hull without caps, the mass beside a row's weight: too little for a cap to matter
FULL = 1e-6  # what the tilt at the start leaves at least of a row's cap


@dataclass(frozen=True, eq=False)
class TiltSums:
    """F without its linear part, its gradient (d + 2,) and second derivatives (d + 2, d + 2)."""

    value: float
    gradient: Array
    hessian: Array

    def __add__(self, other: TiltSums) -> TiltSums:
        return TiltSums(self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian)


@dataclass(frozen=True, eq=False)
class TiltQuery:
    """What is asked of all rows about a tilt; tasks carry it.

    Parameters
    ----------
    rows : HullQuery
    mass : float
        m.
    """

    rows: HullQuery
    mass: float

    def sums(self, blocks: Iterable[RowBlock], tilt: Array) -> TiltSums:
        """Sums at ``tilt`` (d + 2,)."""
        k = self.rows.features.d + 2
        found = TiltSums(0.0, np.zeros(k), np.zeros((k, k)))
        for Z, caps in self._signed(blocks):
            t = Z @ tilt
            share = expit(t)
            rooted = Z * np.sqrt(caps * share * expit(-t))[:, None]
            found += TiltSums(float(caps @ np.logaddexp(0.0, t)), Z.T @ (caps * share), rooted.T @ rooted)
        return found

    def reach(self, blocks: Iterable[RowBlock], tilt: Array, step: Array) -> Array:
        """By how much entries of all rows together break their bounds after ``step``, and F's sum after `STEPS` of it.

        Returns
        -------
        ndarray of shape (1 + len(STEPS),)
        """
        found = np.zeros(1 + len(STEPS))
        for Z, caps in self._signed(blocks):
            t, change = (Z @ np.stack([tilt, step], axis=1)).T
            share = expit(t)
            share, new = share * caps, share * caps * (1.0 + expit(-t) * change)
            found[0] += np.maximum(-new, 0.0).sum() + np.maximum(new - caps, 0.0).sum()
            found[1:] += [caps @ np.logaddexp(0.0, t + each * change) for each in STEPS]
        return found

    def _signed(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Array, Array]]:
        """Signed features and a one for the row's class, (n, d + 2), and the caps (n,); of rows that take part."""
        features = self.rows.features
        for X, sign, weight in self.rows.pieces(blocks):
            taken = sign != 0
            Z = np.zeros((int(taken.sum()), features.d + 2))
            sign = sign[taken]
            np.multiply(features.dense(X)[taken], sign[:, None], out=Z[:, :-2])
            for k, each in enumerate(CLASSES):
                Z[:, features.d + k] = sign == each
            yield Z, weight[taken] / self.mass


class Tilt:
    """F of the two hulls of a problem, asked for by passes.

    Parameters
    ----------
    problem : HullProblem
    """

    def __init__(self, problem: HullProblem) -> None:
        least = float(problem.totals.weight.min())
        self._problem, self._mass = problem, problem.mass or WHOLE * least / max(1, problem.passes.rows)
        self._query = TiltQuery(problem.query, self._mass)

    @property
    def start(self) -> Array:
        """No direction, and all rows of a class alike, with sums of 1."""
        share = np.minimum(self._mass / self._problem.totals.weight, 1.0 - FULL)
        return np.concatenate([np.zeros(self._problem.d), np.log(share) - np.log1p(-share)])

    def sums(self, tilt: Array) -> TiltSums:
        """F, gradient and second derivatives: a pass."""
        found: TiltSums = self._problem.run(self._query, TiltQuery.sums, tilt)
        found.gradient[-2:] -= 1.0
        return TiltSums(found.value - float(tilt[-2:].sum()), found.gradient, found.hessian)

    def reach(self, tilt: Array, step: Array) -> tuple[float, Array]:
        """By how much the step's entries break their bounds, and F after `STEPS` of it: a pass."""
        found: Any = self._problem.run(self._query, TiltQuery.reach, tilt, step)
        return float(found[0]), found[1:] - tilt[-2:].sum() - STEPS * step[-2:].sum()
