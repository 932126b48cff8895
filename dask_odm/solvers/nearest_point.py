"""Wolfe's nearest point: two reduced hulls by active sets, a pass over the rows an iteration.

problem  the point of least norm of the polytope ``{Aη − Bξ}`` (`dask_odm.problems.hulls`)
corral   affinely independent points p_1 … p_k of it, k ≤ d + 1, with z the point of least norm of their affine hull,
         inside their convex hull. A pass gives the point v of the polytope that minimises z·v; it joins the corral,
         and z moves towards the least norm of the larger affine hull; points whose weight gets to zero are dropped.
factor   upper triangular R with ``RᵀR = s 11ᵀ + PPᵀ``: a column more by one triangular system, one less by rotations
stop     ``(ub − lb)/ub ≤ tol`` with ub = ½‖z‖² and lb = max(0, z·v)²/(2‖z‖²), the largest so far; or the hulls overlap:
         ub is at rounding level of the rows' scale, or lb is zero after a few iterations and
         `dask_odm.solvers.overlap` proves it. Over rows at hand, a few iterations more, where tol² is not yet reached

P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976. Here the first direction is that
of the class means, and systems are solved with a step of refinement, which squares the error of R.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.lapack import dtrtrs

from dask_odm.kernels.jit import compiled_in_order
from dask_odm.problems.hulls import ROUNDING, HullProblem, RowSets, Vertex
from dask_odm.solvers.overlap import WORTHWHILE, Verdict, judge
from dask_odm.solvers.step_log import OnStep, Record, StepLog
from dask_odm.typing import Array

POLISHED = 8  # more iterations over rows at hand: they are cheap, and an offset's error is but the root of the gap's
DEPENDENT = 1e-13  # of a point's square: what is left of it beside the corral's, where it is of their affine hull
DROPPED = 1e-14  # a weight that is zero but for rounding


@dataclass(frozen=True, eq=False)
class CorralState:
    """Where a run stands: all that it takes to go on from there.

    Attributes
    ----------
    directions : ndarray of shape (k, d)
        That each point of the corral was asked for.
    points, positive : ndarrays of shape (k, d)
        The corral, and the points of the positive hull that it is of.
    weights : ndarray of shape (k,)
    factor : ndarray of shape (k, k)
        R.
    spread : float
        s.
    lower : float
        The largest lower bound so far.
    passes : int
        Over the rows before the last look, which is taken again where a run goes on.
    memory : ndarray
        The problem's, before the last look.
    history : list of dict
    """

    directions: Array
    points: Array
    positive: Array
    weights: Array
    factor: Array
    spread: float
    lower: float
    passes: int
    memory: Array
    history: list[Record]

    def kept(self, stay: Array) -> CorralState:
        """Without the points that do not ``stay`` (mask); weights sum to one again."""
        factor = self.factor
        for k in np.flatnonzero(~stay)[::-1]:
            factor = without_column(factor, int(k))
        weights = self.weights[stay]
        return replace(
            self,
            directions=self.directions[stay],
            points=self.points[stay],
            positive=self.positive[stay],
            weights=weights / weights.sum(),
            factor=factor,
        )


@dataclass(frozen=True, eq=False)
class HullSolution:
    """The nearest points of two reduced hulls.

    Attributes
    ----------
    points : ndarray of shape (2, d)
        Of the positive and of the negative hull.
    thresholds : tuple of two floats
        Scores at which the caps are used up, of the direction between them.
    upper, lower : float
        Bounds of half the squared distance.
    converged, overlap : bool
        Whether the gap is below the tolerance; whether nothing shows that the hulls are apart.
    history : list of dict
    entries : ndarray of shape (n,) or None
        η and ξ, where rows are at hand.
    verdict : Verdict or None
        Of the hulls' overlap, where nothing had shown that they are apart.
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
    """(ub − lb)/ub, 0 to 1."""
    return max(0.0, 1.0 - lower / upper) if upper > 0 else 1.0


def lower_bound(w: Array, vertex: Vertex) -> float:
    """``max(0, m(w))² / (2‖w‖²)`` by the vertex of w."""
    square = float(w @ w)
    least = float(w @ vertex.difference) - vertex.slack
    return max(0.0, least) ** 2 / (2.0 * square) if square > 0 else 0.0


def precise(problem: HullProblem, w: Array, vertex: Vertex) -> Vertex:
    """The vertex of w without slack: a model's offset is its thresholds'."""
    return problem.vertex(w, exact=True) if vertex.slack > 0 else vertex


def find_nearest_points(
    problem: HullProblem,
    alphas: Sequence[float | None],
    *,
    tol: float,
    max_iter: int,
    on_step: OnStep = lambda record: None,
) -> list[tuple[HullProblem, HullSolution]]:
    """The nearest points for every one of ``alphas``, in their order, each from the corral of the next larger one.

    The smaller alpha, the larger are the hulls: they have all points of those before, and overlap where those did.
    """
    solver, found = _NearestPoint(problem, tol, StepLog(on_step), lambda state: None), {}
    for alpha in sorted(set(alphas), key=lambda each: -(each or 0.0)):
        hulls = problem.with_alpha(alpha)
        found[alpha] = hulls, solver.follow(hulls, max_iter, StepLog(on_step))
        problem.passes_made = hulls.passes_made
    return [found[alpha] for alpha in alphas]


def settle_overlap(problem: HullProblem) -> tuple[Verdict, float]:
    """Whether the hulls overlap, and the lower bound along the direction that parts them; the problem is as before."""
    verdict, memory = judge(problem), problem.memory
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
    on_state: Callable[[CorralState], object] = lambda state: None,
) -> HullSolution:
    """The nearest points of two reduced hulls.

    Parameters
    ----------
    problem : HullProblem
    tol : float
        Relative gap of the bounds to reach.
    max_iter : int
        Most iterations, a pass over the rows each.
    resume : CorralState, optional
        Go on from there.
    on_step : callable
        Told of every iteration.
    on_state : callable
        Given the state after every iteration.
    """
    return _NearestPoint(problem, tol, StepLog(on_step), on_state).run(max_iter, resume)


class _NearestPoint:
    def __init__(
        self, problem: HullProblem, tol: float, log: StepLog, on_state: Callable[[CorralState], object]
    ) -> None:
        self._problem, self._tol, self._log, self._on_state = problem, tol, log, on_state
        self._rows: list[RowSets | None] = []
        self._verdict: Verdict | None = None
        self._last: CorralState | None = None

    def follow(self, problem: HullProblem, max_iter: int, log: StepLog) -> HullSolution:
        """The nearest points of larger hulls than the last ones, from there."""
        self._problem, self._log, self._verdict = problem, log, None
        state = None if self._last is None else replace(self._last, lower=0.0, history=[])
        return self._ended(state or self._begun(), max_iter)

    def run(self, max_iter: int, resume: CorralState | None) -> HullSolution:
        return self._ended(self._begun() if resume is None else self._taken_up(resume), max_iter)

    def _ended(self, state: CorralState, max_iter: int) -> HullSolution:
        problem, log = self._problem, self._log
        while True:
            z = state.weights @ state.points
            upper = 0.5 * float(z @ z)
            overlap = upper <= 0.5 * (ROUNDING * problem.scale) ** 2
            memory, passes, vertex = problem.memory, problem.passes_made, problem.vertex(z)
            lower = max(lower_bound(z, vertex), state.lower)
            gap = 1.0 if overlap else relative_gap(upper, lower)
            log.add(gap, upper, problem.passes_made, lower=lower, corral=len(state.weights))
            state = replace(state, lower=lower, passes=passes, memory=memory, history=list(log.history))
            self._on_state(state)
            if len(log.history) == WORTHWHILE and state.lower == 0 and not overlap:
                self._verdict, lower = settle_overlap(problem)
                overlap, state = bool(self._verdict.overlap), replace(state, lower=lower)
                log.amend(passes=problem.passes_made)
            done = overlap or self._enough(gap) or len(log.history) >= max_iter
            following = None if done else self._joined(state, z, vertex)
            if following is None:
                vertex = precise(problem, z, vertex)
                log.amend(passes=problem.passes_made)
                log.settle()
                self._last = state
                return self._solution(state, vertex, upper, overlap)
            state = following

    def _enough(self, gap: float) -> bool:
        """Whether the gap is below the tolerance; of rows at hand, a few iterations ago, or far below."""
        if gap > self._tol or not self._problem.holds_rows:
            return gap <= self._tol
        return gap <= self._tol**2 or sum(record["gap"] <= self._tol for record in self._log.history) > POLISHED

    def _solution(self, state: CorralState, vertex: Vertex, upper: float, overlap: bool) -> HullSolution:
        positive = state.weights @ state.positive
        points = np.array([positive, positive - state.weights @ state.points])
        converged = not overlap and relative_gap(upper, state.lower) <= self._tol
        overlap = overlap or state.lower == 0
        return HullSolution(
            points, vertex.thresholds, upper, state.lower, converged, overlap, self._log.history,
            self._entries(state), self._verdict,
        )  # fmt: skip

    def _entries(self, state: CorralState) -> Array | None:
        """η and ξ, one vertex after the other: there may be hundreds, as long as the rows are many."""
        if any(rows is None for rows in self._rows):
            return None
        total = np.zeros(self._problem.passes.rows)
        for weight, rows in zip(state.weights, self._rows, strict=True):
            assert rows is not None
            total += weight * self._problem.entries(rows)
        return total

    def _begun(self) -> CorralState:
        """The class means alone."""
        start = self._problem.start
        self._rows = [start.rows]
        square = float(start.difference @ start.difference)
        spread = max(self._problem.scale**2, np.finfo(float).tiny)
        points, positive = start.difference[None], start.points[:1]
        factor = np.array([[np.sqrt(spread + square)]])
        return CorralState(np.zeros_like(points), points, positive, np.ones(1), factor, spread, 0.0, 0, np.empty(0), [])

    def _taken_up(self, state: CorralState) -> CorralState:
        """A lost run's state; the rows of its points are asked for again."""
        problem = self._problem
        if problem.holds_rows:
            asked = (problem.vertex(w) if w.any() else problem.start for w in state.directions)
            self._rows = [vertex.rows for vertex in asked]
        else:
            self._rows = [None] * len(state.weights)
        self._log.take_up(state.history)
        problem.recall(state.memory)
        problem.passes_made = state.passes
        return state

    def _joined(self, state: CorralState, z: Array, vertex: Vertex) -> CorralState | None:
        """The corral with one point more, and z moved; None where float64 tells no way further."""
        points, p = state.points, vertex.difference
        column = triangular(state.factor, state.spread + points @ p, transposed=True)
        whole = state.spread + float(p @ p)
        left = whole - float(column @ column)
        if left <= DEPENDENT * whole:
            return None
        k = len(column)
        factor = np.zeros((k + 1, k + 1))
        factor[:k, :k], factor[:k, k], factor[k, k] = state.factor, column, np.sqrt(left)
        self._rows.append(vertex.rows)
        return self._moved(
            replace(
                state,
                directions=np.vstack([state.directions, z]),
                points=np.vstack([points, p]),
                positive=np.vstack([state.positive, vertex.points[0]]),
                weights=np.append(state.weights, 0.0),
                factor=factor,
            )
        )

    def _moved(self, state: CorralState) -> CorralState:
        """z moved towards the least norm of the affine hull, without the points whose weight gets to zero."""
        while True:
            aim = affine_weights(state)
            if (aim > DROPPED).all():
                return replace(state, weights=aim)
            falling = np.flatnonzero(aim <= DROPPED)
            fall = state.weights[falling] - aim[falling]
            steps = np.divide(state.weights[falling], fall, out=np.zeros(len(fall)), where=fall > 0)
            step = min(1.0, float(steps.min()))
            weights = (1.0 - step) * state.weights + step * aim
            weights[falling[steps == steps.min()]] = 0.0
            stay = weights > DROPPED
            self._rows = [rows for rows, stays in zip(self._rows, stay, strict=True) if stays]
            state = replace(state, weights=weights).kept(stay)


def affine_weights(state: CorralState) -> Array:
    """Weights (k,), of sum 1, of the point of least norm of the affine hull of a corral."""
    points, factor, ones = state.points, state.factor, np.ones(len(state.weights))

    def solved(b: Array) -> Array:
        return triangular(factor, triangular(factor, b, transposed=True))

    u = solved(ones)
    u += solved(ones - state.spread * u.sum() - points @ (points.T @ u))
    return np.asarray(u / u.sum())


def triangular(factor: Array, b: Array, *, transposed: bool = False) -> Array:
    """x with ``R x = b``, or ``Rᵀ x = b``, R upper triangular; LAPACK takes the columns of Rᵀ as they lie.

    Raises
    ------
    numpy.linalg.LinAlgError
        R is singular.
    """
    x, info = dtrtrs(factor.T, b, lower=1, trans=0 if transposed else 1)
    if info:
        raise np.linalg.LinAlgError(f"singular matrix: a triangular factor has a zero at {info - 1}")
    return np.asarray(x)


@compiled_in_order
def without_column(factor: Array, k: int) -> Array:
    """The triangular factor (n − 1, n − 1) of the other columns than ``k`` of ``factor`` (n, n), by rotations."""
    n = factor.shape[0]
    rest = np.empty((n, n - 1))
    rest[:, :k], rest[:, k:] = factor[:, :k], factor[:, k + 1 :]
    for i in range(k, n - 1):
        a, b = rest[i, i], rest[i + 1, i]
        length = np.hypot(a, b)
        c, s = a / length, b / length
        for j in range(i, n - 1):
            upper, lower = rest[i, j], rest[i + 1, j]
            rest[i, j], rest[i + 1, j] = c * upper + s * lower, c * lower - s * upper
    return rest[: n - 1].copy()
