"""Gilbert's algorithm: the nearest points of two reduced hulls by steps towards one vertex at a time.

step   ``z ← z + t (v − z)`` with v the vertex of z, and the t in [0, 1] that makes ½‖z‖² least
stop   ``(ub − lb)/ub ≤ tol``, as `dask_odm.methods.hulls.nearest_point`

Sources: E. G. Gilbert: *An iterative procedure for computing the minimum of a quadratic form on a convex set*, SIAM
Journal on Control 4, 1966; for SVM: Gärtner and Jaggi, 2009. It is the Frank-Wolfe method with an exact step. It keeps
no vertices, and takes many more passes than Wolfe's method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.hulls.feasibility import WORTHWHILE, Verdict
from dask_odm.methods.hulls.nearest_point import HullSolution, lower_bound, precise, relative_gap, settle_overlap
from dask_odm.methods.hulls.problem.hulls import ROUNDING, HullProblem, Vertex
from dask_odm.typing import Array


class Hulls(Protocol):
    """The part of `HullProblem` that Gilbert's algorithm needs."""

    passes_made: int

    @property
    def scale(self) -> float: ...
    @property
    def start(self) -> Vertex: ...
    @property
    def memory(self) -> Array: ...
    def recall(self, memory: Array) -> None: ...
    def vertex(self, w: Array) -> Vertex: ...


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


def solve_gilbert(
    problem: Hulls,
    *,
    tol: float,
    max_iter: int,
    resume: GilbertState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[GilbertState], object] = lambda state: None,
    costs: Callable[[], dict[str, Any]] = dict,
    settle: Callable[[], tuple[Verdict, float]] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls, like `dask_odm.methods.hulls.nearest_point.find_nearest_point`.

    ``costs()`` returns further figures for every record. ``settle()`` is called if `WORTHWHILE` steps find no positive
    lower bound. It tests whether the hulls overlap, and returns the verdict and a lower bound. For a `HullProblem` it
    is `settle_overlap` by default.
    """
    log = StepLog(on_step)
    if settle is None and isinstance(problem, HullProblem):
        settle = partial(settle_overlap, problem)
    points = problem.start.points
    lower = 0.0
    verdict: Verdict | None = None
    if resume is not None:
        points = resume.points
        lower = resume.lower
        log.take_up(resume.history)
        problem.recall(resume.memory)
        problem.passes_made = resume.passes
    while True:
        z = points[0] - points[1]
        upper = 0.5 * float(z @ z)
        overlap = upper <= 0.5 * (ROUNDING * problem.scale) ** 2
        memory = problem.memory
        passes = problem.passes_made
        vertex = problem.vertex(z)
        lower = max(lower, lower_bound(z, vertex))
        gap = 1.0 if overlap else relative_gap(upper, lower)
        log.add(gap, upper, problem.passes_made, lower=lower, **costs())
        on_state(GilbertState(points, lower, passes, memory, list(log.history)))
        if len(log.history) == WORTHWHILE and lower == 0 and not overlap and settle is not None:
            verdict, lower = settle()
            overlap = bool(verdict.overlap)
            log.amend(passes=problem.passes_made)
        if overlap or gap <= tol or len(log.history) >= max_iter:
            break
        change = vertex.difference - z
        square = float(change @ change)
        step = min(1.0, max(0.0, -float(z @ change) / square)) if square > 0 else 0.0
        points = points + step * (vertex.points - points)
    if isinstance(problem, HullProblem):
        vertex = precise(problem, z, vertex)
        log.amend(passes=problem.passes_made)
    log.settle()
    converged = not overlap and gap <= tol
    overlap = overlap or lower == 0
    return HullSolution(points, vertex.thresholds, upper, lower, converged, overlap, log.history, verdict=verdict)
