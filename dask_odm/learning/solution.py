"""Settings that every solver takes, and the solution that it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_odm.learning.problem.odm import Point
from dask_odm.typing import Array


@dataclass(frozen=True)
class SolverSettings:
    """When to stop, and the seed of every random choice.

    ``tol`` bounds the relative duality gap (P − D)/P; ``max_iter`` bounds the rounds of a solver.
    """

    tol: float = 1e-3
    max_iter: int = 200
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Solution:
    """Dual variables of one partition: result, warm start of the parent and checkpoint in one record.

    Attributes
    ----------
    dual : ndarray of shape (n_machines, n)
        Signed dual variables s, float64; one machine for two classes.
    weight : float
        Sum of the partition's row weights, the m_k for which s was solved.
    rows : int
        Rows of the partition.
    start : Point
        Primal, its lower bound and their gap at the warm start, before solving.
    point : Point
        Primal of this solution, the best lower bound found by the dual, and their gap.
    sweeps, steps : int
        Newton steps to a gap of ``tol``, and Newton steps until rounding stops them.
    converged : bool
        Whether ``point.gap`` reached the tolerance.
    seconds : float
        Wall time of the solve.
    """

    dual: Array
    weight: float
    rows: int
    start: Point
    point: Point
    sweeps: int = 0
    steps: int = 0
    converged: bool = True
    seconds: float = 0.0

    def rescaled(self, weight: float) -> Array:
        """Return ``dual`` as a start for a problem of total ``weight``: s ∝ 1/m by the optimality conditions.

        Both papers start from the plain concatenation of the children's dual variables. Each child was solved with ρ ∝
        m_k, so that start is too large by the fan-in, and worse than zeros.
        """
        return self.dual * (self.weight / weight)

    def without_dual(self) -> Solution:
        """Return the solution without its dual variables, which is cheap to send."""
        return replace(self, dual=np.empty((len(self.dual), 0)))
