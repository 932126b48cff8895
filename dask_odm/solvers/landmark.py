"""Newton on the primal over the span of landmarks, for kernels: O(n r) a pass instead of O(n²).

A step solves ``(G + Kᵀ diag(c) K) Δ = −∇P`` by conjugate gradients, preconditioned by the same matrix summed over
a sample of the active rows only, drawn in proportion to their curvature c. Four to six steps from zero; unit steps,
and an exact line search where one does not lower P. The rows themselves are the `Span`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, cho_solve, solve_triangular

from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks, cholesky
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.linear import LinearLoss
from dask_odm.problems.odm import Point, RowLosses
from dask_odm.problems.sample import PrioritySample
from dask_odm.problems.span import Draw, RowSpan, Span, SpanQuery, SpanSums
from dask_odm.solvers.exact import scaled_dual
from dask_odm.solvers.line_search import least_step

Array = NDArray[Any]
SKETCH = 3  # rows a landmark that the preconditioner is made of
SKETCH_GROUPS = 4
TIRED = 15  # iterations of conjugate gradients after which the preconditioner is made anew
MOST_PRODUCTS = 300
START_TOL = 1.0  # of the sample's problem: its rows are few enough to be wrong by as much
START_STEPS = 20
START_STRIDE = 3  # of its landmarks
ROUNDING = 1e-13  # of P: a step that gains less has come to the end of float64
FORCING = 0.1  # most of the gradient that conjugate gradients may leave


@dataclass(frozen=True, eq=False)
class LandmarkState:
    """Where a run stands after a step: all that it takes to go on from there.

    Attributes
    ----------
    a : ndarray of shape (r,)
    sketched : ndarray of shape (r,), or empty
        The coefficients that the preconditioner was made at, from rows drawn in pass ``drawn``.
    drawn, steps : int
    history : list of dict
    """

    a: Array
    sketched: Array
    drawn: int
    steps: int
    history: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class LandmarkSolution:
    """Coefficients of the landmarks (r,), P, the gap over the span, one record a pass of value and gradient, steps."""

    a: Array
    primal: float
    gap: float
    converged: bool
    history: list[dict[str, Any]]
    steps: int


@dataclass(frozen=True, eq=False)
class _Iterate:
    a: Array
    Ga: Array
    primal: float
    gradient: Array
    gap: float
    sums: SpanSums
    drawn: int  # the pass, counted as records are

    @classmethod
    def of(cls, landmarks: Landmarks, a: Array, sums: SpanSums, drawn: int) -> _Iterate:
        Ga = landmarks.gram @ a
        primal, gradient = 0.5 * float(a @ Ga) + sums.loss, Ga - sums.pull
        white = solve_triangular(landmarks.factor, gradient, lower=True, check_finite=False)
        gap = 0.5 * float(white @ white) / max(primal, np.finfo(float).tiny)
        return cls(a, Ga, primal, gradient, gap, sums, drawn)


def solve_landmark(
    span: Span,
    landmarks: Landmarks,
    a: Array,
    *,
    tol: float,
    max_iter: int,
    seed: int,
    threads: int = 1,
    began: float | None = None,
    resume: LandmarkState | None = None,
    on_step: Callable[[dict[str, Any]], object] = lambda record: None,
    on_state: Callable[[LandmarkState], object] = lambda state: None,
) -> LandmarkSolution:
    """Minimise P over the span, from coefficients ``a`` (r,), until the gap over the span is at most ``tol`` of P.

    Parameters
    ----------
    span : Span
    landmarks : Landmarks
        Independent ones.
    a : ndarray of shape (r,)
    tol : float
    max_iter : int
        Most steps.
    seed : int
        Of the samples that preconditioners are made of.
    threads : int
        For making them; no bit depends on it.
    began : float, optional
        What `time.perf_counter` said when the seconds of the records began; now without.
    resume : LandmarkState, optional
        Go on from there, instead of ``a``.
    on_step : callable
        Told of every pass of value and gradient: iteration, gap, objective, passes so far, seconds so far.
    on_state : callable
        Given the state after every step.
    """
    newton = _Newton(span, landmarks, tol, seed, threads, on_step)
    newton.began = newton.began if began is None else began
    if resume is not None:
        a = newton.take_up(resume)
    return newton.run(a, max_iter, on_state)


@dataclass(eq=False)
class _Newton:
    span: Span
    landmarks: Landmarks
    tol: float
    seed: int
    threads: int
    on_step: Callable[[dict[str, Any]], object]
    history: list[dict[str, Any]] = field(default_factory=list)
    passes: int = 0
    steps: int = 0
    tired: bool = True
    factor: Array | None = None
    sketched: Array = field(default_factory=lambda: np.empty(0))
    drawn: int = 0
    began: float = field(default_factory=time.perf_counter)

    def take_up(self, state: LandmarkState) -> Array:
        """Go on where another run was lost; its last pass is done again."""
        *self.history, last = state.history
        self.passes, self.began = last["passes"] - 1, self.began - last["seconds"]
        self.steps = state.steps
        if len(state.sketched):
            self._make_sketch(self._look(state.sketched, state.drawn))
            self.tired = False
        return state.a

    def run(self, a: Array, max_iter: int, on_state: Callable[[LandmarkState], object]) -> LandmarkSolution:
        at = self._at(a)
        while at.gap > self.tol and self.steps < max_iter:
            after = self._step(at)
            self.steps += 1
            if not after.primal < at.primal - ROUNDING * at.primal and after.gap > 0.5 * at.gap:
                break
            at = after
            made = np.empty(0) if self.tired else self.sketched
            on_state(LandmarkState(at.a, made, self.drawn, self.steps, list(self.history)))
        return LandmarkSolution(at.a, at.primal, at.gap, at.gap <= self.tol, self.history, self.steps)

    def _look(self, a: Array, number: int) -> _Iterate:
        """Pass ``number`` over the rows, with a sample of them if the next step needs one."""
        draw = None
        if self.tired:
            seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
            draw = Draw(SKETCH * len(self.landmarks), seed)
        return _Iterate.of(self.landmarks, a, self.span.sums(a, draw), number)

    def _at(self, a: Array) -> _Iterate:
        """One pass at ``a``; it is remembered."""
        at = self._look(a, len(self.history))
        self.passes += 1
        record = {
            "iteration": len(self.history),
            "gap": at.gap,
            "objective": at.primal,
            "passes": self.passes,
            "seconds": time.perf_counter() - self.began,
        }
        self.history.append(record)
        self.on_step(record)
        return at

    def _step(self, at: _Iterate) -> _Iterate:
        if self.tired:
            self._make_sketch(at)
        d, products = self._direction(at)
        self.passes += products
        self.tired = products >= TIRED
        after = self._at(at.a + d)
        if after.primal > at.primal + 1e-4 * float(at.gradient @ d) and after.gap > self.tol:
            after = self._at(at.a + self._length(at, d) * d)
        return after

    def _make_sketch(self, at: _Iterate) -> None:
        assert at.sums.sample is not None
        self.factor = preconditioner(self.landmarks, at.sums.sample, self.threads)
        self.sketched, self.drawn = at.a, at.drawn

    def _direction(self, at: _Iterate) -> tuple[Array, int]:
        """The Newton step, as exactly as the gap asks for, and the passes it took."""
        x, r = np.zeros_like(at.a), -at.gradient
        z = cho_solve((self.factor, True), r, check_finite=False)
        p, rz = z, float(r @ z)
        enough = min(FORCING, np.sqrt(at.gap)) ** 2 * rz
        for k in range(MOST_PRODUCTS):
            if rz <= enough:
                return x, k
            Hp = self.landmarks.gram @ p + self.span.product(at.sums, p)
            step = rz / float(p @ Hp)
            x, r = x + step * p, r - step * Hp
            z = cho_solve((self.factor, True), r, check_finite=False)
            rz, before = float(r @ z), rz
            p = z + (rz / before) * p
        return x, MOST_PRODUCTS

    def _length(self, at: _Iterate, d: Array) -> float:
        inner, norm = float(at.Ga @ d), float(d @ (self.landmarks.gram @ d))

        def slopes(steps: Array) -> Array:
            self.passes += 1
            return inner + steps * norm + self.span.slopes(at.a, d, steps)

        return least_step(slopes, float(at.gradient @ d))


def warm_start(
    span: Span, query: SpanQuery, landmarks: Landmarks, n: int, seed: int, memory: int, threads: int = 1
) -> Array:
    """Coefficients (r,) that are nearly the best of every third landmark for a sample of the rows.

    They spare half of the passes over all rows; all landmarks would spare no more, and take six times as long.

    Parameters
    ----------
    span : Span
        Of ``n`` rows, asked for one pass.
    query : SpanQuery
        What ``span`` asks with.
    landmarks : Landmarks
    n, seed : int
    memory : int
        Bytes that kernel values of the sample may be kept in.
    threads : int
    """
    r = len(landmarks)
    size = start_rows(n, r)
    if size >= n // 2:
        return np.zeros(r)
    # with all coefficients zero every row is active: drawn by its weight
    sample = span.sums(np.zeros(r), Draw(size, seed)).sample
    assert sample is not None
    rows, codes, weight = sample.weighted()
    odm = query.loss.settings
    loss = LinearLoss(odm, odm.lam / odm.low**2, query.loss.positive)  # of weights that are stiffnesses already
    few = Landmarks(landmarks.kernel, landmarks.rows[::START_STRIDE], landmarks.index[::START_STRIDE])
    asked = replace(query, landmarks=query.landmarks[::START_STRIDE], loss=loss)
    some = RowSpan(asked, ArrayRows(rows), codes, weight, memory, threads)
    a = np.zeros(r)
    a[::START_STRIDE] = solve_landmark(
        some, few, np.zeros(len(few)), tol=START_TOL, max_iter=START_STEPS, seed=seed, threads=threads
    ).a
    return a


def start_rows(n: int, r: int) -> int:
    """Rows of the sample that `warm_start` learns from."""
    return min(max(8 * r, n // 8), 32 * r)


def preconditioner(landmarks: Landmarks, sample: PrioritySample, threads: int) -> Array:
    """Cholesky factor, lower, of G plus the curvature summed over sampled rows.

    In float64 whatever the rows' type: rounding would drown the small eigenvalues of G.
    """
    rows, _, weight = sample.weighted()
    right = landmarks.kernel.pack_right(landmarks.rows.astype(np.float64))

    def squares(part: tuple[Array, Array]) -> Array:
        X, w = part[0].astype(np.float64), part[1]
        values = landmarks.kernel.tile_packed(landmarks.kernel.pack_left(X), right)
        values *= np.sqrt(w)[:, None]
        return np.asarray(blas.dsyrk(1.0, values.T, lower=1))  # the transpose is as Fortran has it: no copy

    groups = min(SKETCH_GROUPS, len(rows))
    total = landmarks.gram.copy(order="F")
    if groups:
        parts = zip(np.array_split(rows, groups), np.array_split(weight, groups), strict=True)
        for part in run_threads(squares, parts, threads):
            total += part
    return cholesky(total)


def span_gap(
    losses: RowLosses, margins: Array, square_norm: float, pull: Array, landmarks: Landmarks, residual: Array
) -> Point:
    """P of a model over the span, a lower bound of every model's P from what landmarks leave of κ, and their gap.

    With ``K̂ = K_nr G⁻¹ K_rn`` the matrix ``K − K̂`` is positive semi-definite, so its entries are at most
    ``√(r_i r_j)`` of its diagonal r: ``sᵀQs ≤ ‖L⁻¹v‖² + (Σ |s_i| √r_i)²``. Rigorous, and loose unless the landmarks
    leave next to nothing.

    Parameters
    ----------
    losses : RowLosses
    margins : ndarray of shape (n,)
        ``y f(x)``, from kernel values in float64.
    square_norm : float
        ``‖w‖²`` of the model.
    pull : ndarray of shape (r,)
        ``v = K_rn (y s)`` with s the dual variables that the optimality conditions give at the margins.
    landmarks : Landmarks
    residual : ndarray of shape (n,)
        Their `Landmarks.residual`.
    """
    s = losses.dual_candidate(margins)
    white = solve_triangular(landmarks.factor, pull, lower=True)
    square = float(white @ white) + float(np.abs(s) @ np.sqrt(residual)) ** 2
    primal = 0.5 * square_norm + float(losses.losses(margins).sum())
    bound = scaled_dual(losses, s, square)
    return Point(primal, bound, max(0.0, primal - bound) / max(primal, np.finfo(float).tiny))
