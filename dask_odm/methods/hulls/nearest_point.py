"""Wolfe's method: the nearest points of two reduced hulls by active sets, with a pass over the rows in each iteration.

problem  the point of least norm of the polytope ``{Aη − Bξ}`` (`dask_odm.methods.hulls.problem.hulls`)
corral   affinely independent points p_1 … p_k of it, k ≤ d + 1, with z the point of least norm of their affine hull,
         inside their convex hull (`dask_odm.methods.hulls.corral`). A pass gives the point v of the polytope that
         minimises z·v; it joins the corral, and z moves towards the least norm of the larger affine hull; points whose
         weight gets to zero are dropped.
stop     ``(ub − lb)/ub ≤ tol`` with ub = ½‖z‖² and lb = max(0, z·v)²/(2‖z‖²), the largest so far; or the hulls overlap:
         ub is at rounding level of the rows' scale, or lb is zero after a few iterations and
         `dask_odm.methods.hulls.feasibility` proves it. Over rows in memory there are a few iterations more, unless the
         gap reaches tol²

Source: P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976. Here the first point is
the difference of the class means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.hulls.corral import Corral, CorralState
from dask_odm.methods.hulls.feasibility import WORTHWHILE, Verdict, judge
from dask_odm.methods.hulls.problem.hulls import ROUNDING, HullProblem, RowSets, Vertex
from dask_odm.typing import Array

POLISHED = 8  # extra iterations over rows in memory: they are cheap, and the offset's error is the root of the gap


@dataclass(frozen=True, eq=False)
class HullSolution:
    """The nearest points of two reduced hulls.

    Attributes
    ----------
    points : ndarray of shape (2, d)
        The points of the positive and of the negative hull.
    thresholds : tuple of two floats
        Weighted quantiles of the scores along the direction between them, at which each capped simplex is filled.
    upper, lower : float
        Bounds of half the squared distance.
    converged, overlap : bool
        Whether the gap is below the tolerance, and whether the hulls were not shown to be disjoint.
    history : list of dict
    entries : ndarray of shape (n,) or None
        η and ξ, for rows in memory.
    verdict : Verdict or None
        The result of the feasibility test, if it was made.
    """

    points: Array
    thresholds: tuple[float, float]
    upper: float
    lower: float
    converged: bool
    overlap: bool
    history: list[Record]
    entries: Array | None = None
    verdict: Verdict | None = None

    @property
    def gap(self) -> float:
        return relative_gap(self.upper, self.lower)

    @property
    def direction(self) -> Array:
        return np.asarray(self.points[0] - self.points[1])


def relative_gap(upper: float, lower: float) -> float:
    """Return (ub − lb)/ub, from 0 to 1; 1 if ub is 0."""
    return max(0.0, 1.0 - lower / upper) if upper > 0 else 1.0


def lower_bound(w: Array, vertex: Vertex) -> float:
    """Return the lower bound ``max(0, m(w))² / (2‖w‖²)`` that the vertex of w gives."""
    square = float(w @ w)
    least = float(w @ vertex.difference) - vertex.slack
    return max(0.0, least) ** 2 / (2.0 * square) if square > 0 else 0.0


def precise(problem: HullProblem, w: Array, vertex: Vertex) -> Vertex:
    """Return the vertex of w without slack, since the model's offset comes from its thresholds."""
    return problem.vertex(w, exact=True) if vertex.slack > 0 else vertex


def find_nearest_points(
    problem: HullProblem,
    alphas: Sequence[float | None],
    *,
    tol: float,
    max_iter: int,
    on_step: OnStep = lambda record: None,
) -> list[tuple[HullProblem, HullSolution]]:
    """Find the nearest points for each of ``alphas``, in their order.

    Each run starts from the corral of the next larger alpha. Its points are in the hulls of a smaller alpha, too, which
    are larger.
    """
    solver = _NearestPoint(problem, tol, StepLog(on_step), None)
    found = {}
    for alpha in sorted(set(alphas), key=lambda each: -(each or 0.0)):
        hulls = problem.with_alpha(alpha)
        found[alpha] = hulls, solver.follow(hulls, max_iter, StepLog(on_step))
        problem.passes_made = hulls.passes_made
    return [found[alpha] for alpha in alphas]


def settle_overlap(problem: HullProblem) -> tuple[Verdict, float]:
    """Test whether the hulls overlap. Returns the verdict, and a lower bound of half the squared distance.

    The bound is 0 unless the hulls were proved disjoint. The problem's `memory` is left as it was.
    """
    verdict = judge(problem)
    memory = problem.memory
    if verdict.overlap is not False:
        return verdict, 0.0
    lower = lower_bound(verdict.direction, problem.vertex(verdict.direction))
    problem.recall(memory)
    return verdict, lower


def find_nearest_point(
    problem: HullProblem,
    *,
    tol: float,
    max_iter: int,
    resume: CorralState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[CorralState], object] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls.

    The run ends at a relative gap of ``tol``, or after ``max_iter`` iterations of a pass each. ``resume`` is a state to
    go on from. ``on_step`` is called with the record of every iteration, ``on_state`` with a copy of its state.
    """
    return _NearestPoint(problem, tol, StepLog(on_step), on_state).run(max_iter, resume)


class _NearestPoint:
    def __init__(
        self, problem: HullProblem, tol: float, log: StepLog, on_state: Callable[[CorralState], object] | None
    ) -> None:
        self._problem = problem
        self._tol = tol
        self._log = log
        self._on_state = on_state
        self._verdict: Verdict | None = None
        self._corral: Corral | None = None

    def follow(self, problem: HullProblem, max_iter: int, log: StepLog) -> HullSolution:
        """Find the nearest points of hulls that contain the last ones, starting from the last corral."""
        self._problem = problem
        self._log = log
        self._verdict = None
        return self._ended(self._begun() if self._corral is None else self._corral, 0.0, max_iter)

    def run(self, max_iter: int, resume: CorralState | None) -> HullSolution:
        if resume is None:
            return self._ended(self._begun(), 0.0, max_iter)
        return self._ended(self._taken_up(resume), resume.lower, max_iter)

    def _ended(self, corral: Corral, lower: float, max_iter: int) -> HullSolution:
        problem = self._problem
        log = self._log
        self._corral = corral
        while True:
            z = corral.nearest
            upper = 0.5 * float(z @ z)
            overlap = upper <= 0.5 * (ROUNDING * problem.scale) ** 2
            memory = problem.memory
            passes = problem.passes_made
            vertex = problem.vertex(z)
            lower = max(lower_bound(z, vertex), lower)
            gap = 1.0 if overlap else relative_gap(upper, lower)
            log.add(gap, upper, problem.passes_made, lower=lower, corral=len(corral))
            if self._on_state is not None:
                self._on_state(corral.state(lower, passes, memory, log.history))
            if len(log.history) == WORTHWHILE and lower == 0 and not overlap:
                self._verdict, lower = settle_overlap(problem)
                overlap = bool(self._verdict.overlap)
                log.amend(passes=problem.passes_made)
            done = overlap or self._enough(gap) or len(log.history) >= max_iter
            if done or not corral.join(z, vertex):
                vertex = precise(problem, z, vertex)
                log.amend(passes=problem.passes_made)
                log.settle()
                return self._solution(corral, vertex, upper, lower, overlap)

    def _enough(self, gap: float) -> bool:
        """Whether the gap is small enough.

        For rows in memory it must have been below the tolerance for a few iterations, or be below its square.
        """
        if gap > self._tol or not self._problem.holds_rows:
            return gap <= self._tol
        return gap <= self._tol**2 or sum(record["gap"] <= self._tol for record in self._log.history) > POLISHED

    def _solution(self, corral: Corral, vertex: Vertex, upper: float, lower: float, overlap: bool) -> HullSolution:
        positive = corral.nearest_positive
        points = np.array([positive, positive - corral.nearest])
        converged = not overlap and relative_gap(upper, lower) <= self._tol
        found = upper, lower, converged, overlap or lower == 0, self._log.history
        return HullSolution(points, vertex.thresholds, *found, self._entries(corral), self._verdict)

    def _entries(self, corral: Corral) -> Array | None:
        """Return η and ξ, or None without rows in memory; sum one vertex at a time, for there may be hundreds."""
        total = np.zeros(self._problem.passes.rows)
        for weight, rows in zip(corral.weights, corral.rows, strict=True):
            if rows is None:
                return None
            total += weight * self._problem.entries(rows)
        return total

    def _begun(self) -> Corral:
        """Return the first corral, which has the class means alone."""
        return Corral.of_vertex(self._problem.start, self._problem.scale)

    def _taken_up(self, state: CorralState) -> Corral:
        """Return the corral of an interrupted run. The row sets of its points are computed again."""
        problem = self._problem
        rows: list[RowSets | None] = [None] * len(state.weights)
        if problem.holds_rows:
            rows = [(problem.vertex(w) if w.any() else problem.start).rows for w in state.directions]
        self._log.take_up(state.history)
        problem.recall(state.memory)
        problem.passes_made = state.passes
        return Corral.of_state(state, rows)
