"""The state of an exact solve after a step, which is its checkpoint, and the solution."""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_odm.learning.problem.losses import Point
from dask_odm.learning.solution import Record
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """Coefficients and scores (n,), P, D and their relative gap, and one record per step."""

    coefficients: Array
    scores: Array
    point: Point
    converged: bool
    history: list[Record]


@dataclass(frozen=True, eq=False)
class ExactState:
    """State of a solve after a step, from which it resumes to the same bits."""

    coefficients: Array  # (n,)
    scores: Array  # (n,)
    inner: Array  # of the preconditioner, (r, r), see `Woodbury`
    stiffness: Array  # of the preconditioner, (n,)
    bound: float = 0.0  # largest dual value found so far
    certified: float = 0.0  # largest dual value for the kernel in float64
    certified_gap: float = 4.0  # the last gap with scores in float64, at most 1; before the first, any gap halves it
    exactness: float = 1.0  # factor of the accuracy that the gap requires; 0 once a direct step does not lower P
    passes: float = 0.0  # kernel entries used so far, as a multiple of the whole matrix
    slow: bool = False  # whether landmarks alone were a slow preconditioner
    double_since: int = -1  # step since which products have float64 entries, as float32 got no further; −1 before
    history: list[Record] = field(default_factory=list)

    @property
    def double(self) -> bool:
        return self.double_since >= 0
