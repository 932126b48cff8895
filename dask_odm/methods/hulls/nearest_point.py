"""Wolfe's method and Gilbert's algorithm: the nearest points of two reduced hulls, by a pass over the rows in each
iteration.

problem  the point of least norm of the polytope ``{Aη − Bξ}`` (`dask_odm.methods.hulls.problem.hulls`)
corral   affinely independent points p_1 … p_k of it, k ≤ d + 1, with z the point of least norm of their affine hull,
         inside their convex hull (`dask_odm.methods.hulls.corral`). A pass gives the point v of the polytope that
         minimises z·v; it joins the corral, and z moves towards the least norm of the larger affine hull; points whose
         weight gets to zero are dropped.
stop     ``(ub − lb)/ub ≤ tol`` with ub = ½‖z‖² and lb = max(0, z·v)²/(2‖z‖²), the largest so far; or the hulls overlap:
         ub is at rounding level of the rows' scale, or lb is zero after a few iterations and
         `dask_odm.methods.hulls.feasibility` proves it. Over rows in memory there are a few iterations more, unless the
         gap reaches tol²

Gilbert's algorithm is the same with a forgetful corral: a step goes towards one vertex, as in the Frank-Wolfe method
with an exact step. It keeps no vertices, and takes many more passes.

Sources: P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976; E. G. Gilbert: *An
iterative procedure for computing the minimum of a quadratic form on a convex set*, SIAM Journal on Control 4, 1966; for
SVM: Gärtner and Jaggi, 2009. Here the first point is the difference of the class means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.hulls.clients.problem import ClientHulls
from dask_odm.methods.hulls.corral import Corral, CorralState
from dask_odm.methods.hulls.feasibility import Verdict, lower_bound, settle_overlap
from dask_odm.methods.hulls.problem.hulls import TOUCHING, HullProblem, RowSets
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
        return self.points[0] - self.points[1]


def relative_gap(upper: float, lower: float) -> float:
    """Return (ub − lb)/ub, from 0 to 1; 1 if ub is 0."""
    return max(0.0, 1.0 - lower / upper) if upper > 0 else 1.0


def find_nearest_point(
    problem: HullProblem | ClientHulls,
    *,
    tol: float,
    max_iter: int,
    forgetful: bool = False,
    corral: Corral | None = None,
    resume: CorralState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[CorralState], object] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls by Wolfe's method, or if ``forgetful`` by Gilbert's algorithm.

    The run ends at a relative gap of ``tol``, or after ``max_iter`` iterations of a pass each. After eight of them
    without a positive lower bound, feasibility is tested. A run can start from a ``corral`` of larger hulls, which is
    left as it ends; ``resume`` is a state to go on from. ``on_step`` is called with the record of every iteration,
    ``on_state`` with a copy of its state.
    """
    held = problem if isinstance(problem, HullProblem) and problem.holds_rows and not forgetful else None
    log = StepLog(on_step)
    lower = 0.0
    verdict: Verdict | None = None
    if resume is not None:
        corral = Corral.of_state(resume, _row_sets(held, resume), forgetful=forgetful)
        lower = resume.lower
        log.take_up(resume.history)
        problem.memory = resume.memory
        problem.passes_made = resume.passes
    elif corral is None:
        corral = Corral.of_vertex(problem.start, problem.scale, forgetful=forgetful)
    more = 8 if held else 0  # iterations in memory are cheap, and the offset's error is the root of the gap
    reached = sum(record["gap"] <= tol for record in log.history)
    while True:
        z = corral.nearest
        upper = 0.5 * float(z @ z)
        overlap = upper <= 0.5 * (TOUCHING * problem.scale) ** 2
        memory = problem.memory
        passes = problem.passes_made
        vertex = problem.vertex(z)
        lower = max(lower_bound(z, vertex.least(z)), lower)
        gap = 1.0 if overlap else relative_gap(upper, lower)
        figures: dict[str, Any] = problem.costs if forgetful else {"corral": len(corral)} | problem.costs
        log.add(gap, upper, problem.passes_made, lower=lower, **figures)
        if on_state is not None:
            on_state(corral.state(lower, passes, memory, log.history))
        if len(log.history) == 8 and lower == 0 and not overlap:
            verdict, lower = settle_overlap(problem.by_passes)
            overlap = bool(verdict.overlap)
        reached += gap <= tol
        enough = gap <= tol and (reached > more or gap <= tol**2)
        if overlap or enough or len(log.history) >= max_iter or not corral.join(z, vertex):
            break
    if vertex.slack > 0:
        vertex = problem.vertex(z, exact=True)  # since the model's offset comes from its thresholds
    log.amend(passes=problem.passes_made)
    log.settle()
    bounds = upper, lower, not overlap and relative_gap(upper, lower) <= tol, overlap or lower == 0
    entries = None if held is None else _entries(held, corral)
    return HullSolution(corral.ends, vertex.thresholds, *bounds, log.history, entries, verdict)


def _row_sets(held: HullProblem | None, state: CorralState) -> list[RowSets | None]:
    """Compute the row sets of a corral's points again, if the rows are in memory."""
    if held is None:
        return [None] * len(state.weights)
    return [(held.vertex(w) if w.any() else held.start).rows for w in state.vectors[0]]


def _entries(held: HullProblem, corral: Corral) -> Array:
    """Return η and ξ of the nearest points, (n,)."""
    entries = np.zeros(held.passes.rows)
    for weight, rows in zip(corral.weights, corral.rows, strict=True):  # one at a time, as there may be hundreds
        if rows is not None:
            entries += weight * held.entries(rows)
    return entries


def find_nearest_points(
    problem: HullProblem, alphas: Sequence[float | None], *, tol: float, max_iter: int, on_step: OnStep
) -> list[tuple[HullProblem, HullSolution]]:
    """Find the nearest points for each of ``alphas``, in their order.

    Each run starts from the corral of the next larger alpha. Its points are in the hulls of a smaller alpha, too, which
    are larger.
    """
    corral = Corral.of_vertex(problem.start, problem.scale)
    found = {}
    for alpha in sorted(set(alphas), key=lambda each: -(each or 0.0)):
        hulls = problem.with_alpha(alpha)
        found[alpha] = hulls, find_nearest_point(hulls, tol=tol, max_iter=max_iter, corral=corral, on_step=on_step)
        problem.passes_made = hulls.passes_made
    return [found[alpha] for alpha in alphas]
