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
from scipy.linalg import solve_triangular

from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.problems.primal import LinearLoss
from dask_odm.problems.span import Draw, RowSpan, Span, SpanSums
from dask_odm.solvers.line_search import least_step
from dask_odm.solvers.sketch import SKETCH, SketchedHessian, solve_factored, times_symmetric
from dask_odm.typing import Array

TIRED = 15  # iterations of conjugate gradients after which the preconditioner is made anew
MOST_PRODUCTS = 300
START_TOL = 1.0  # of the sample's problem: its rows are few enough to be wrong by as much
START_STEPS = 20
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
    newton = _SpanNewton(span, landmarks, tol, seed, threads, on_step)
    newton.began = newton.began if began is None else began
    if resume is not None:
        a = newton.take_up(resume)
    return newton.run(a, max_iter, on_state)


@dataclass(eq=False)
class _SpanNewton:
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
    sketched: Array = field(default_factory=lambda: np.empty(0))
    drawn: int = 0
    began: float = field(default_factory=time.perf_counter)
    sketch: SketchedHessian = field(init=False)

    def __post_init__(self) -> None:
        self.sketch = SketchedHessian(self.landmarks, self.threads)

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
        self.sketch.make(at.sums.sample)
        self.sketched, self.drawn = at.a, at.drawn

    def _direction(self, at: _Iterate) -> tuple[Array, int]:
        """The Newton step, as exactly as the gap asks for, and the passes it took."""
        x, r = np.zeros_like(at.a), -at.gradient
        z = self.sketch.solve(r)
        p, rz = z, float(r @ z)
        enough = min(FORCING, np.sqrt(at.gap)) ** 2 * rz
        for k in range(MOST_PRODUCTS):
            if rz <= enough:
                return x, k
            Hp = times_symmetric(self.landmarks.gram, p) + self.span.product(at.sums, p)
            step = rz / float(p @ Hp)
            x, r = x + step * p, r - step * Hp
            z = self.sketch.solve(r)
            rz, before = float(r @ z), rz
            p = z + (rz / before) * p
        return x, MOST_PRODUCTS

    def _length(self, at: _Iterate, d: Array) -> float:
        inner, norm = float(at.Ga @ d), float(d @ (self.landmarks.gram @ d))

        def slopes(steps: Array) -> Array:
            self.passes += 1
            return inner + steps * norm + self.span.slopes(at.a, d, steps)

        return least_step(slopes, float(at.gradient @ d))


def rough_solution(
    span: Span, landmarks: Landmarks, n: int, size: int, seed: int, memory: int, threads: int = 1
) -> Array:
    """Coefficients (r,) that are nearly the best for a sample of the rows, or for all of them where these are few.

    Parameters
    ----------
    span : Span
        Of ``n`` rows, asked for one pass if a sample is drawn.
    landmarks : Landmarks
    n, size, seed : int
        Rows, those of a sample, and what it is drawn by.
    memory : int
        Bytes that kernel values of the sample may be kept in.
    threads : int
    """
    zero, some = np.zeros(len(landmarks)), span
    if 2 * size < n:
        # with all coefficients zero every row is active: drawn by its weight
        sample = span.sums(zero, Draw(size, seed)).sample
        assert sample is not None
        rows, codes, weight = sample.weighted()
        query, odm = span.query, span.query.loss.settings
        loss = LinearLoss(odm, odm.lam / odm.low**2, query.loss.positive)  # of weights that are stiffnesses already
        some = RowSpan(replace(query, loss=loss), ArrayRows(rows), codes, weight, memory, threads)
    return solve_landmark(some, landmarks, zero, tol=START_TOL, max_iter=START_STEPS, seed=seed, threads=threads).a


def with_support(span: Span, landmarks: Landmarks, a: Array, count: int, seed: int) -> Landmarks:
    """``landmarks``, and others up to ``count``, drawn by the dual variables of the rows at coefficients ``a``.

    The solution is a sum over the rows that have a dual variable. One pass over the rows of ``span``.
    """
    other = np.random.SeedSequence(seed, spawn_key=(1,))  # than those of samples
    drawn = span.support(a, Draw(count, int(other.generate_state(1)[0])))
    new = np.flatnonzero(~np.isin(drawn.numbers, landmarks.index))[: count - len(landmarks)]
    rows, index = (
        np.concatenate(pair) for pair in ((landmarks.rows, drawn.rows[new]), (landmarks.index, drawn.numbers[new]))
    )
    order = np.argsort(index)
    return Landmarks.of(landmarks.kernel, rows[order], index[order])


def carried_over(few: Landmarks, a: Array, landmarks: Landmarks) -> Array:
    """Coefficients of ``landmarks`` (r,) for the function next to that of ``few`` with coefficients ``a``."""
    values = landmarks.kernel.tile(landmarks.rows.astype(np.float64), few.rows.astype(np.float64)) @ a
    return solve_factored(landmarks.factor, values)


def start_rows(n: int, r: int) -> int:
    """Rows of the sample that `rough_solution` learns from."""
    return min(max(8 * r, n // 8), 32 * r)
