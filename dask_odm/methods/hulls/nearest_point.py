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
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.hulls.clients.problem import ClientHulls
from dask_odm.methods.hulls.corral import Corral, CorralState
from dask_odm.methods.hulls.feasibility import Verdict, lower_bound, settle_overlap
from dask_odm.methods.hulls.problem.hulls import TOUCHING, HullProblem, RowSets, Vertex
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class HullSolution:
    """The nearest points of two reduced hulls.

    ``points`` (2, d) are those of the positive and of the negative hull. ``thresholds`` are the weighted quantiles of
    the scores along the direction between them, at which each capped simplex is filled, if they were computed.
    ``upper`` and ``lower`` bound half the squared distance. ``converged`` tells whether the gap is below the tolerance,
    ``overlap`` whether the hulls were not shown to be disjoint. ``entries`` (n,) are η and ξ, found by Wolfe's method
    for rows in memory. ``verdict`` is the result of the feasibility test, if it was made.
    """

    points: Array
    thresholds: tuple[float, float] | None
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
    corral = Corral.of_vertex(problem.start, problem.scale) if resume is None else _taken_up(problem, resume)
    log = StepLog(on_step)
    return _by_corral(problem, corral, log, tol=tol, max_iter=max_iter, resume=resume, on_state=on_state)


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
    corral = Corral.of_vertex(problem.start, problem.scale)
    found = {}
    for alpha in sorted(set(alphas), key=lambda each: -(each or 0.0)):
        hulls = problem.with_alpha(alpha)
        found[alpha] = hulls, _by_corral(hulls, corral, StepLog(on_step), tol=tol, max_iter=max_iter)
        problem.passes_made = hulls.passes_made
    return [found[alpha] for alpha in alphas]


def _by_corral(problem: HullProblem, corral: Corral, log: StepLog, **settings: Any) -> HullSolution:
    """Approach the nearest points by a corral, which is left as it ends."""
    # iterations in memory are cheap, and the offset's error is the root of the gap
    more = 8 if problem.holds_rows else 0
    found = approach(problem, corral, log, more=more, **settings)
    if not problem.holds_rows:
        return found
    entries = np.zeros(problem.passes.rows)
    for weight, rows in zip(corral.weights, corral.rows, strict=True):  # one at a time, since there may be hundreds
        if rows is not None:
            entries += weight * problem.entries(rows)
    return replace(found, entries=entries)


def _taken_up(problem: HullProblem, state: CorralState) -> Corral:
    """Return the corral of an interrupted run. The row sets of its points are computed again."""
    rows: list[RowSets | None] = [None] * len(state.weights)
    if problem.holds_rows:
        rows = [(problem.vertex(w) if w.any() else problem.start).rows for w in state.directions]
    return Corral.of_state(state, rows)


class Approach(Protocol):
    """A point z of the polytope that moves towards the origin, vertex by vertex.

    ``nearest`` (d,) is z, and ``ends`` (2, d) are the points of both hulls whose difference it is. ``figures`` are
    further ones of a step's record. `join` moves by the vertex of a direction, or returns False if that brings z no
    nearer. `state` returns a copy as a checkpoint.
    """

    @property
    def nearest(self) -> Array: ...
    @property
    def ends(self) -> Array: ...
    @property
    def figures(self) -> dict[str, Any]: ...
    def join(self, direction: Array, vertex: Vertex) -> bool: ...
    def state(self, lower: float, passes: int, memory: Array, history: Sequence[Record]) -> Any: ...


def approach(
    problem: HullProblem | ClientHulls,
    place: Approach,
    log: StepLog,
    *,
    tol: float,
    max_iter: int,
    resume: Any = None,
    on_state: Callable[[Any], object] | None = None,
    more: int = 0,
    hopeless: int = 8,
) -> HullSolution:
    """Move ``place`` by the vertex of its own direction, a pass each, until the bounds meet or the hulls overlap.

    The arguments are those of `find_nearest_point`. Unless the gap is at most tol², there are ``more`` iterations once
    it is at most ``tol``. After ``hopeless`` iterations without a positive lower bound feasibility is tested.
    """
    lower = 0.0
    verdict: Verdict | None = None
    if resume is not None:
        lower = resume.lower
        log.take_up(resume.history)
        problem.memory = resume.memory
        problem.passes_made = resume.passes
    reached = sum(record["gap"] <= tol for record in log.history)
    while True:
        z = place.nearest
        upper = 0.5 * float(z @ z)
        overlap = upper <= 0.5 * (TOUCHING * problem.scale) ** 2
        memory = problem.memory
        passes = problem.passes_made
        vertex = problem.vertex(z)
        lower = max(lower_bound(z, vertex.least(z)), lower)
        gap = 1.0 if overlap else relative_gap(upper, lower)
        log.add(gap, upper, problem.passes_made, lower=lower, **place.figures, **problem.costs)
        if on_state is not None:
            on_state(place.state(lower, passes, memory, log.history))
        if len(log.history) == hopeless and lower == 0 and not overlap:
            verdict, lower = settle_overlap(problem.by_passes)
            overlap = bool(verdict.overlap)
        reached += gap <= tol
        enough = gap <= tol and (reached > more or gap <= tol**2)
        if overlap or enough or len(log.history) >= max_iter or not place.join(z, vertex):
            break
    if vertex.slack > 0:
        vertex = problem.vertex(z, exact=True)  # since the model's offset comes from its thresholds
    log.amend(passes=problem.passes_made)
    log.settle()
    converged = not overlap and relative_gap(upper, lower) <= tol
    overlap = overlap or lower == 0
    points = place.ends
    return HullSolution(points, vertex.thresholds, upper, lower, converged, overlap, log.history, verdict=verdict)
