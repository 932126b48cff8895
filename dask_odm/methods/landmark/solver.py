"""Newton on the primal of the Nyström problem: O(n r) per pass instead of O(n²).

A step solves ``(G + Kᵀ diag(c) K) Δ = −∇P`` by conjugate gradients. The preconditioner is the same matrix summed over a
sample of the active rows, drawn in proportion to their curvature c. A solve takes four to six steps from zero. An exact
line search replaces a unit step that does not lower P, and a short step is followed by a new preconditioner. Sums are
in float64 from the start, so the run ends once P ceases to fall. The `SpanProblem` has the rows.

If landmarks are nearly dependent and λ is large, sums in their coefficients α lose the small eigenvalues of G. The
sketched Hessian notices (`SketchedHessian.whitened`), and the step is then solved in the coordinates ``β = Lᵀα``,
``G = LLᵀ``, of an orthonormal basis: ``(1 + L⁻¹ Kᵀ diag(c) K L⁻ᵀ) Δβ = −L⁻¹∇P``, from the same kernel values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import blas, solve_triangular

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.newton import Iterate, Newton, PrimalSolution
from dask_odm.learning.solution import OnStep, Record, StepClock, StepLog
from dask_odm.linalg.csr_rows import stacked_rows
from dask_odm.linalg.systems import conjugate_gradients
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import Draw, SpanSums
from dask_odm.methods.landmark.sketch import SKETCH, STEP, PrioritySample, SketchedHessian, solve_factored
from dask_odm.typing import Array

SpanIterate = Iterate[SpanSums]
FIRST_STRIDE = 4  # a fit begins with one landmark in so many


@dataclass(frozen=True, eq=False)
class LandmarkState:
    """State of a run after a step, from which it can resume.

    ``sketched`` (r,), or empty, are the coefficients at which the preconditioner was made, from rows drawn in pass
    ``drawn``. ``double_precision`` says whether P is in float64 by now.
    """

    a: Array
    sketched: Array
    double_precision: bool
    drawn: int
    steps: int
    history: list[Record]


def solve_landmark(
    span: SpanProblem,
    landmarks: Landmarks,
    a: Array,
    *,
    tol: float,
    max_iter: int,
    seed: int,
    threads: int = 1,
    confirm: bool = True,
    clock: StepClock | None = None,
    resume: LandmarkState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[LandmarkState], object] = lambda state: None,
) -> PrimalSolution[SpanSums]:
    """Minimise P over linearly independent ``landmarks`` from ``a`` (r,), until the Nyström problem's gap is ``tol``.

    It takes up to ``max_iter`` steps. ``seed`` draws samples for preconditioners, which ``threads`` make; their number
    never changes the result. ``confirm`` checks the gap against float64, which a mere start does not need. Records
    count the seconds of ``clock``. If ``resume`` is given, it is the start instead of ``a``. ``on_step`` is called with
    the record of every pass of value and gradient, ``on_state`` with the state after every step.
    """
    sketch = SketchedHessian(landmarks, threads)
    newton = _SpanNewton(tol, StepLog(on_step, clock), span, landmarks, seed, confirm, on_state, sketch)
    if resume is not None:
        newton.resume(resume)
        a = resume.a
    return replace(newton.run(a, max_iter), sums=None)  # sums are as large as the rows' curvatures and a sample


@dataclass(eq=False)
class _SpanNewton(Newton[SpanSums]):
    span: SpanProblem
    landmarks: Landmarks
    seed: int
    confirm: bool
    on_state: Callable[[LandmarkState], object]
    sketch: SketchedHessian
    judge: SpanProblem = field(init=False)  # of P, its gradient and slopes; systems are those of the span
    sketched: Array = field(default_factory=lambda: np.empty(0), init=False)  # coefficients of the preconditioner
    drawn: int = field(default=0, init=False)  # pass that drew the sample for it
    sample: PrioritySample | None = field(default=None, init=False)
    tired: bool = field(default=True, init=False)  # whether the next step needs another preconditioner

    def __post_init__(self) -> None:
        self.judge = self.span

    def resume(self, state: LandmarkState) -> None:
        self.take_up(state.history, state.steps)
        if state.double_precision:
            self.judge = self.span.in_float64()
        if len(state.sketched):
            self._make_sketch(self.look(state.sketched, state.drawn, None))
            self.tired = False

    def save(self, at: SpanIterate) -> None:
        made = np.empty(0) if self.tired else self.sketched
        self.on_state(LandmarkState(at.x, made, self.double, self.drawn, self.steps, list(self.log.history)))

    @property
    def double(self) -> bool:
        """Whether P and its gradient are of kernel values in float64."""
        return self.judge.query.dtype == np.float64

    def look(self, x: Array, number: int, known: SpanSums | None) -> SpanIterate:
        """Take a pass at ``x``, and draw a sample of the rows if the next step needs one."""
        draw = None
        if self.tired:
            seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
            draw = Draw(sketch_rows(self.span.passes.rows, len(self.landmarks)), seed)
        sums = self.judge.sums(x, draw) if known is None else known
        return Iterate.of(x, self.landmarks.gram @ x, sums, number, self._whitened)

    def _whitened(self, gradient: Array) -> Array:
        return np.asarray(solve_triangular(self.landmarks.factor, gradient, lower=True, check_finite=False))

    def _make_sketch(self, at: SpanIterate) -> None:
        """Make the preconditioner from the sample that was drawn at ``at``."""
        assert at.sums.sample is not None
        self.sample = at.sums.sample
        self.sketch.make(self.sample)
        self.sketched = at.x
        self.drawn = at.number

    def direction(self, at: SpanIterate) -> Array:
        if self.tired:
            self._make_sketch(at)
        factor = self.landmarks.factor
        whitened = self.sketch.whitened  # then the system is that of the coordinates Lᵀα

        def coefficients(p: Array) -> Array:
            return np.asarray(blas.dtrsv(factor, p, lower=1, trans=1)) if whitened else p

        def apply(p: Array) -> Array:
            image = self.span.product(at.sums, coefficients(p))
            if whitened:
                return np.asarray(p + blas.dtrsv(factor, image, lower=1))
            # half of the Gram matrix is read, since reading it from memory takes the time
            return np.asarray(blas.dsymv(1.0, self.landmarks.gram.T, p) + image)

        left = min(0.1, float(np.sqrt(at.gap))) ** 2  # share of the gradient's squared norm, and so of the gap
        if at.gap > self.tol:
            left = max(left, 0.1 * self.tol / at.gap)  # less would not be noticed
            if left * at.gap <= 10.0 * self.tol:  # some more products cost less than another step
                left = min(left, 0.3 * self.tol / at.gap)
        step, _, products = conjugate_gradients(
            apply,
            -(blas.dtrsv(factor, at.gradient, lower=1) if whitened else at.gradient),
            self.sketch.solve,
            most=300,
            forcing=left,
        )
        self.passes += products
        # after so many products a new preconditioner costs less than the next system's
        self.tired = products >= 15
        return coefficients(step)

    def _length(self, at: SpanIterate, direction: Array, slope: float) -> float:
        length = super()._length(at, direction, slope)
        # this step met curvatures far from those of the preconditioner
        self.tired = self.tired or length < 0.1
        return length

    def gram_times(self, v: Array) -> Array:
        return self.landmarks.gram @ v

    def loss_slopes(self, at: SpanIterate, direction: Array, steps: Array) -> Array:
        return self.judge.slopes(at.x, direction, steps)

    def rounds(self, at: SpanIterate, after: SpanIterate, slope: float) -> bool:
        return after.gap <= self.tol

    def accepted(self, at: SpanIterate, after: SpanIterate) -> SpanIterate:
        # a step that gains less than this share of P has reached the end of float64
        if after.primal < at.primal - 1e-13 * at.primal or after.gap <= 0.5 * at.gap:
            return after
        self.stuck = self.sketched is at.x
        if self.stuck:
            return at
        self.tired = True  # by the preconditioner of an earlier iterate the system may not have been solved
        self.passes += 1
        return self.look(at.x, at.number, None)

    def confirmed(self, at: SpanIterate) -> SpanIterate:
        """Return the same coefficients with a gap that holds in float64.

        The gap is enlarged by the effect of float32 rounding on a sample of the rows. If that pushes it above ``tol``,
        another step in float32 follows as long as these help and a gap of zero would have been well below. Otherwise P
        and its gradient are in float64 from then on; the Hessian of a step stays in float32.
        """
        if not self.confirm or self.double:
            return at
        if self.sample is None or self.doubts(at):
            self._make_sketch(at)
            self.tired = False
        gap, least = self._enlarged(at)
        helps = self.steps > 0 and at.gap <= 0.25 * self.log.history[-2]["gap"] and least <= 0.25 * self.tol
        if not (gap if at.gap <= self.tol and not helps else least) <= self.tol:
            self.judge = self.span.in_float64()
            self.tired = True
            self.passes += 1
            at = self.look(at.x, at.number, None)
        else:
            at = replace(at, gap=gap)
        self.log.amend(gap=at.gap, objective=at.primal, passes=self.passes)
        return at

    def doubts(self, at: SpanIterate) -> bool:
        # a new preconditioner has what tells whether further steps in float32 would be in vain
        return self.confirm and not self.double and self.tired and self.tol < at.gap < 1.0

    def _enlarged(self, at: SpanIterate) -> tuple[float, float]:
        """Return the gap at ``at``, and a gap of zero, plus what kernel values in float64 may add to it and to P.

        With the dual variables u of the rounded scores, D is that of the float64 problem over the landmarks. So the gap
        there is ``½ ‖L⁻¹(Gα − Kᵀu)‖² + Σ_i loss_i(f_i) + loss_i*(−u_i) + u_i f_i`` with K and f in float64. The second
        sum is 0 for rounded scores. Kernel values are those of the sketch's sample of the rows.
        """
        assert self.sample is not None
        rows, y, weight = self.sample.weighted()
        query = self.span.query
        loss = query.loss.of_stiff_rows()

        few = STEP // 4  # so that the float64 values of these rows do not add to the peak of memory

        def difference(start: int) -> tuple[Array, float, float]:
            some = slice(start, start + few)
            rounded = query.tile(rows[some])
            exact = self.sketch.values(rows[some])
            scores = rounded @ at.x
            exact_scores = exact @ at.x
            curvature = loss.evaluate(scores, y[some], weight[some])[2]
            # a row above the band was drawn by less than its stiffness
            drawn = weight[some]
            stiffness = drawn * np.divide(drawn, curvature, out=np.ones_like(drawn), where=curvature > 0)
            total, dual, _ = loss.evaluate(scores, y[some], stiffness)
            more = loss.evaluate(exact_scores, y[some], stiffness)[0] - total
            exact -= rounded
            return exact.T @ dual, more + float(dual @ (exact_scores - scores)), more

        image, young, more = np.zeros(len(at.x)), 0.0, 0.0
        for part in run_threads(difference, range(0, len(rows), few), self.sketch.threads):
            image, young, more = image + part[0], young + part[1], more + part[2]
        white = self._whitened(image)
        root = np.sqrt(0.5 * float(white @ white))
        added = young + abs(more)
        found = [((np.sqrt(gap * at.primal) + root) ** 2 + added) / at.primal for gap in (at.gap, 0.0)]
        return float(found[0]), float(found[1])


def rough_solution(
    span: SpanProblem, landmarks: Landmarks, n: int, size: int, seed: int, memory: int, threads: int = 1
) -> Array:
    """Return coefficients (r,) that are nearly optimal for a sample of the rows, or for all rows if these are few.

    ``span`` is the problem over ``n`` rows. It takes one pass if a sample of ``size`` rows is drawn. ``memory`` bounds
    the bytes of kernel values of the sample that are kept.
    """
    zero = np.zeros(len(landmarks))
    some = span
    if 2 * size < n:
        # with all coefficients zero every row is active, and drawn by its weight
        sample = span.sums(zero, Draw(size, seed)).sample
        assert sample is not None
        rows, y, weight = sample.weighted()
        query = replace(span.query, loss=span.query.loss.of_stiff_rows())  # the weights are stiffnesses already
        some = SpanProblem.over_rows(query, rows, y, weight, memory, threads)
    # to a gap of 1: the few rows of a sample make its problem as wrong as that
    found = solve_landmark(some, landmarks, zero, tol=1.0, max_iter=20, seed=seed, threads=threads, confirm=False)
    return found.x


def with_support(span: SpanProblem, landmarks: Landmarks, a: Array, count: int, seed: int) -> Landmarks:
    """Return ``landmarks`` and others, up to ``count``, drawn by the rows' dual variables at coefficients ``a``.

    The solution is a sum over rows that have a dual variable. Takes one pass over the rows of ``span``.
    """
    other = np.random.SeedSequence(seed, spawn_key=(1,))  # another seed than those of samples
    drawn = span.support(a, Draw(count, int(other.generate_state(1)[0])))
    new = np.flatnonzero(~np.isin(drawn.numbers, landmarks.index))[: count - len(landmarks)]
    rows = stacked_rows([landmarks.rows, drawn.rows[new]])
    index = np.concatenate([landmarks.index, drawn.numbers[new]])
    order = np.argsort(index)
    return Landmarks.of(landmarks.kernel, rows[order], index[order])


def carried_over(few: Landmarks, a: Array, landmarks: Landmarks) -> Array:
    """Return coefficients of ``landmarks`` (r,) for the function nearest to that of ``few`` with coefficients ``a``."""
    values = landmarks.kernel.tile(landmarks.rows.astype(np.float64), few.rows.astype(np.float64)) @ a
    return solve_factored(landmarks.factor, values)


def start_rows(n: int, r: int) -> int:
    """Return the number of rows in the sample of `rough_solution`."""
    return min(max(8 * r, n // 8), 32 * r)


def sketch_rows(n: int, r: int) -> int:
    """Return the number of rows in the sample of a preconditioner.

    By s rows a landmark each product leaves about 1/√s of what is to be solved. So more are worth their r² products
    each where passes are long, and no more are drawn than take the memory of the sample of `rough_solution`.
    """
    return max(SKETCH * r, min(round(16 * n**0.5), 3 * start_rows(n, r) // 4))
