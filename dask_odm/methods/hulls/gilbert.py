"""Gilbert's algorithm: the nearest points of two reduced hulls by steps towards one vertex at a time.

step   ``z ← z + t (v − z)`` with v the vertex of z, and the t in [0, 1] that makes ½‖z‖² least
stop   ``(ub − lb)/ub ≤ tol``, as `dask_odm.methods.hulls.nearest_point`

Sources: E. G. Gilbert: *An iterative procedure for computing the minimum of a quadratic form on a convex set*, SIAM
Journal on Control 4, 1966; for SVM: Gärtner and Jaggi, 2009. It is the Frank-Wolfe method with an exact step. It keeps
no vertices, and takes many more passes than Wolfe's method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.hulls.clients.problem import ClientHulls
from dask_odm.methods.hulls.nearest_point import HullSolution, approach
from dask_odm.methods.hulls.problem.hulls import HullProblem, Vertex
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class GilbertState:
    """The checkpoint of a run: the points (2, d) of both hulls, and the largest lower bound so far.

    ``passes`` and the problem's ``memory`` are those before the last vertex, which a resumed run computes again.
    """

    points: Array
    lower: float
    passes: int
    memory: Array
    history: list[Record]


class TwoPoints:
    """A point of either hull, (2, d) together, that move at once; a `dask_odm.methods.hulls.nearest_point.Approach`."""

    def __init__(self, ends: Array) -> None:
        self.ends = ends

    @property
    def nearest(self) -> Array:
        return np.asarray(self.ends[0] - self.ends[1])

    @property
    def figures(self) -> dict[str, Any]:
        return {}

    def join(self, direction: Array, vertex: Vertex) -> bool:
        change = vertex.difference - direction
        square = float(change @ change)
        step = min(1.0, max(0.0, -float(direction @ change) / square)) if square > 0 else 0.0
        self.ends = self.ends + step * (vertex.points - self.ends)
        return step > 0

    def state(self, lower: float, passes: int, memory: Array, history: Sequence[Record]) -> GilbertState:
        return GilbertState(self.ends, lower, passes, memory, list(history))


def solve_gilbert(
    problem: HullProblem | ClientHulls,
    *,
    tol: float,
    max_iter: int,
    resume: GilbertState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[GilbertState], object] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls; see `dask_odm.methods.hulls.nearest_point.find_nearest_point`."""
    place = TwoPoints(problem.start.points if resume is None else resume.points)
    return approach(problem, place, StepLog(on_step), tol=tol, max_iter=max_iter, resume=resume, on_state=on_state)
