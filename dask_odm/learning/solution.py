"""Settings that every solver takes, and the solution that it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_odm.learning.problem.losses import Point
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
    """Dual variables of one partition: result, warm start of the parent and checkpoint in one record."""

    dual: Array  # signed dual variables s, float64 (n_machines, n); one machine for two classes
    weight: float  # sum of the partition's row weights, the m_k for which s was solved
    rows: int  # of the partition
    start: Point  # primal, its lower bound and their gap at the warm start, before solving
    point: Point  # primal of this solution, the best lower bound found by the dual, and their gap
    sweeps: int = 0  # Newton steps to a gap of ``tol``
    steps: int = 0  # Newton steps until rounding stops them
    converged: bool = True  # whether ``point.gap`` reached the tolerance
    seconds: float = 0.0  # wall time of the solve
    half_norm: float = -1.0  # ½‖w‖² if the solve ended with kernel values in float64, else −1

    def rescaled(self, weight: float) -> Array:
        """Return ``dual`` as a start for a problem of total ``weight``: s ∝ 1/m by the optimality conditions.

        Both papers start from the plain concatenation of the children's dual variables. Each child was solved with ρ ∝
        m_k, so that start is too large by the fan-in, and worse than zeros.
        """
        return self.dual * (self.weight / weight)

    def without_dual(self) -> Solution:
        """Return the solution without its dual variables, which is cheap to send."""
        return replace(self, dual=np.empty((len(self.dual), 0)))
