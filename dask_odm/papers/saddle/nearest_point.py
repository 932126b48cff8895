"""Wolfe's method and Gilbert's algorithm: the nearest points of two reduced hulls, by a pass over the rows in each
iteration.

problem  the point of least norm of the polytope ``{Aη − Bξ}`` (`dask_odm.papers.saddle.problem`)
corral   affinely independent points p_1 … p_k of it, k ≤ d + 1, with z the point of least norm of their affine hull,
         inside their convex hull. A pass gives the point v of the polytope that minimises z·v; it joins the corral, and
         z moves towards the least norm of the larger affine hull; points whose weight gets to zero are dropped.
factor   upper triangular R with ``RᵀR = s 11ᵀ + PPᵀ``. A triangular system adds a column, a QR decomposition
         removes some. Systems are solved with a step of refinement, which squares the error of R
stop     ``(ub − lb)/ub ≤ tol`` with ub = ½‖z‖² and lb = max(0, z·v)²/(2‖z‖²), the largest so far; or the hulls overlap:
         ub is at rounding level of the rows' scale, or lb is zero after a few iterations and
         `dask_odm.papers.saddle.feasibility` proves it. Over rows in memory there are a few iterations more, unless the
         gap reaches tol²

Gilbert's algorithm is the same with a *forgetful* corral, which keeps the point of least norm only: a step goes along
the segment from it to one vertex, as in the Frank-Wolfe method with an exact step. It takes many more passes.

Sources: P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976; E. G. Gilbert: *An
iterative procedure for computing the minimum of a quadratic form on a convex set*, SIAM Journal on Control 4, 1966; for
SVM: Gärtner and Jaggi, 2009. Here the first point is the difference of the class means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrs, dtrtrs

from dask_odm.learning.solution import OnStep, Record, StepLog
from dask_odm.papers.saddle.client_hulls import ClientHulls
from dask_odm.papers.saddle.feasibility import Verdict, lower_bound, settle_overlap
from dask_odm.papers.saddle.problem import TOUCHING, HullProblem, Vertex
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class HullSolution:
    """The nearest points of two reduced hulls.

    ``points`` (2, d) are those of the positive and of the negative hull. ``thresholds`` are the weighted quantiles of
    the scores along the direction between them, at which each capped simplex is filled, if they were computed.
    ``upper`` and ``lower`` bound half the squared distance. ``converged`` tells whether the gap is below the tolerance,
    ``overlap`` whether the hulls were not shown to be disjoint. ``support`` has the numbers of the rows whose η or ξ
    is positive, found by Wolfe's method for rows in memory. ``verdict`` is the result of the feasibility test, if it
    was made.
    """

    points: Array
    thresholds: tuple[float, float] | None
    upper: float
    lower: float
    converged: bool
    overlap: bool
    history: list[Record]
    support: Array | None = None
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
    held = problem.holds_rows and not forgetful
    log = StepLog(on_step)
    lower = 0.0
    verdict: Verdict | None = None
    if resume is not None:
        corral = Corral.of_state(resume, problem, forgetful=forgetful)
        lower = resume.lower
        log.take_up(resume.history)
        problem.memory = resume.memory
        problem.passes_made = resume.passes
    elif corral is None:
        corral = Corral.of_start(problem, forgetful=forgetful)
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
    support = corral.support() if held else None
    return HullSolution(corral.ends, vertex.thresholds, *bounds, log.history, support, verdict)


def find_nearest_points(
    problem: HullProblem, alphas: Sequence[float | None], *, tol: float, max_iter: int, on_step: OnStep
) -> list[tuple[HullProblem, HullSolution]]:
    """Find the nearest points for each of ``alphas``, in their order.

    Each run starts from the corral of the next larger alpha. Its points are in the hulls of a smaller alpha, too, which
    are larger.
    """
    corral = Corral.of_start(problem)
    found = {}
    for alpha in sorted(set(alphas), key=lambda each: -(each or 0.0)):
        hulls = problem.with_alpha(alpha)
        found[alpha] = hulls, find_nearest_point(hulls, tol=tol, max_iter=max_iter, corral=corral, on_step=on_step)
        problem.passes_made = hulls.passes_made
    return [found[alpha] for alpha in alphas]


# The corral --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CorralState:
    """The checkpoint of a run.

    ``vectors`` (3, k, d) are directions, the points that are their vertices, and the parts of these in the positive
    hull; a point is the difference of points of both hulls. ``weights`` has shape (k,), ``factor`` (k, k) is R and
    ``spread`` is s. ``lower`` is the largest lower bound so far; ``passes`` over the rows and the problem's ``memory``
    are those before the last vertex, which a resumed run computes again.
    """

    vectors: Array
    weights: Array
    factor: Array
    spread: float
    lower: float
    passes: int
    memory: Array
    history: list[Record]


@dataclass(eq=False)
class Corral:
    """Points and their weights, as in `CorralState`; ``vectors`` has room for more points.

    ``supports`` has a bit for every row in memory and every point: whether the point is made of the row.
    """

    vectors: Array
    weights: Array
    factor: Array
    spread: float
    supports: list[Array]
    forgetful: bool

    @classmethod
    def of_start(cls, problem: HullProblem | ClientHulls, *, forgetful: bool = False) -> Corral:
        """Build the corral of the problem's first point, which has no direction."""
        start = problem.start
        point = start.difference
        spread = max(problem.scale**2, np.finfo(float).tiny)
        factor = np.array([[np.sqrt(spread + float(point @ point))]])
        vectors = np.stack([np.zeros_like(point), point, start.points[0]])[:, None]
        supports = [] if forgetful else [start.support()]
        return cls(vectors, np.ones(1), factor, spread, supports, forgetful)

    @classmethod
    def of_state(cls, state: CorralState, problem: HullProblem | ClientHulls, *, forgetful: bool) -> Corral:
        """Build the corral of a resumed run, finding the rows in memory that its points are made of again."""
        supports = [np.empty(0, dtype=np.uint8)] * len(state.weights)
        if problem.holds_rows and not forgetful:
            supports = [(problem.vertex(w) if w.any() else problem.start).support() for w in state.vectors[0]]
        return cls(state.vectors.copy(), state.weights, state.factor, state.spread, supports, forgetful)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def points(self) -> Array:
        """The points, (k, d)."""
        return self.vectors[1, : len(self)]

    @property
    def nearest(self) -> Array:
        """The point of least norm, (d,)."""
        return self.weights @ self.points

    @property
    def ends(self) -> Array:
        """Points of the two hulls, (2, d), whose difference is `nearest`."""
        positive = self.weights @ self.vectors[2, : len(self)]
        return np.array([positive, positive - self.nearest])

    def support(self) -> Array:
        """Return the numbers, ascending, of the rows in memory that some point is made of."""
        return np.flatnonzero(np.unpackbits(np.bitwise_or.reduce(self.supports)))

    def state(self, lower: float, passes: int, memory: Array, history: Sequence[Record]) -> CorralState:
        """Return a copy of the corral as a checkpoint."""
        vectors = self.vectors[:, : len(self)].copy()
        return CorralState(vectors, self.weights, self.factor, self.spread, lower, passes, memory, list(history))

    def join(self, direction: Array, vertex: Vertex) -> bool:
        """Add the vertex of a direction, and move the nearest point; return whether it moved.

        It does not if in float64 the vertex is in the affine hull of the corral already: if the share of its square
        outside is 1e-13 at most.
        """
        if self.forgetful:
            return self._step(vertex)
        k = len(self)
        p = vertex.difference
        column, _ = dtrtrs(self.factor, self.spread + self.points @ p, trans=1)
        whole = self.spread + float(p @ p)
        left = whole - float(column @ column)
        if left <= 1e-13 * whole:
            return False
        if k == self.vectors.shape[1]:
            self.vectors = np.concatenate([self.vectors, np.zeros_like(self.vectors)], axis=1)
        self.vectors[:, k] = direction, p, vertex.points[0]
        factor = np.zeros((k + 1, k + 1), order="F")
        factor[:k, :k] = self.factor
        factor[:, k] = *column, np.sqrt(left)
        self.factor = factor
        self.weights = np.append(self.weights, 0.0)
        self.supports.append(vertex.support())
        self._move()
        return True

    def _step(self, vertex: Vertex) -> bool:
        """Replace all points by the one of least norm on the segment to a vertex. Return whether it moved."""
        z = self.nearest
        way = z - vertex.difference
        slope = float(z @ way)
        square = float(way @ way)
        if slope <= 0 or square == 0:
            return False
        share = min(1.0, slope / square)
        positive = self.ends[0]
        moved = z - share * way
        self.vectors[:, 0] = np.zeros_like(z), moved, positive + share * (vertex.points[0] - positive)
        return bool((moved != z).any())

    def _move(self, dropped: float = 1e-14) -> None:
        """Move to the point of least norm of the affine hull, dropping points whose weight falls to zero on the way.

        A weight of at most ``dropped`` is zero up to rounding.
        """
        while True:
            aim = self._affine_weights()
            if (aim > dropped).all():
                self.weights = aim
                return
            falling = np.flatnonzero(aim <= dropped)
            fall = self.weights[falling] - aim[falling]
            steps = np.divide(self.weights[falling], fall, out=np.zeros(len(fall)), where=fall > 0)
            step = min(1.0, float(steps.min()))
            self.weights = (1.0 - step) * self.weights + step * aim
            self.weights[falling[steps == steps.min()]] = 0.0
            self._keep(self.weights > dropped)

    def _affine_weights(self) -> Array:
        """Return the weights (k,), of sum 1, of the point of least norm in the points' affine hull."""
        points = self.points
        u, _ = dpotrs(self.factor, np.ones(len(self)))
        error, _ = dpotrs(self.factor, 1.0 - self.spread * u.sum() - points @ (u @ points))
        u += error
        return u / u.sum()

    def _keep(self, stay: Array) -> None:
        """Keep only the points of the mask ``stay``, and make their weights sum to one again."""
        k = len(self)
        self.factor = np.asarray(np.linalg.qr(self.factor[:, stay], mode="r"))
        first = int(np.argmin(stay))  # the first that goes; those before it are in their places
        self.vectors[:, first : stay.sum()] = self.vectors[:, first:k][:, stay[first:]]
        self.supports = [each for each, stays in zip(self.supports, stay, strict=True) if stays]
        self.weights = self.weights[stay] / self.weights[stay].sum()
