"""The exact kernel ODM: Newton on the primal over all rows, by any of the systems of `dask_odm.methods.exact.systems`.

The loss is piecewise quadratic, so a step solves a ridge system over the active rows S, which are outside the band,

    (K_SS + D_S) a_S = t_S,   a = 0 elsewhere,   D = ρ by side,   t_i = y_i (1 ∓ θ),

as a correction of the current coefficients. A line search on P follows if a whole step does not lower P, so that P
never rises. The step is as exact as the gap requires: with residual r of the system, the gap that its inexactness
leaves is ``½ Σ_S r_i²/ρ_i``. Products are in float32. Once that gap is at most ``tol``, the scores are computed in
float64, the gap is checked against them, and later steps correct them (iterative refinement). If float32 gets no
further, products are in float64. The dual bound is the best of all steps, each scaled to the maximum of D.

The Gram matrix of up to a few thousand rows is held whole. Larger ones are never formed. From a few hundred rows on,
the solve begins with the solution of a quarter of the rows, found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError

from dask_odm.errors import InputError
from dask_odm.kernels.named import RBF
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.newton import least_row_step
from dask_odm.learning.problem.losses import ODMSettings, Point, RowLosses, relative_gap, scaled_dual
from dask_odm.learning.problem.products import Products, RowProducts, Subset, quadratic, scores_of
from dask_odm.learning.solution import OnStep, Record, SolverSettings, StepClock
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.exact.gram import GramLandmarks, HeldProducts, gram_of
from dask_odm.methods.exact.preconditioners import ActivePreconditioner
from dask_odm.methods.exact.systems import LIMITS, NODE_LIMITS, Correction, ExactLimits, GramSystem, ProductSystem
from dask_odm.typing import Array

NOT_FINITE = "the solution is not finite: rescale the rows (scale='minmax') or the weights, or choose another kernel."


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """Coefficients and scores (n,), P, D and their relative gap, and one record per step."""

    coefficients: Array
    scores: Array
    point: Point
    converged: bool
    history: list[Record]


@dataclass(frozen=True, eq=False)
class ExactState:
    """State of a solve after a step, from which it resumes to the same bits."""

    coefficients: Array  # (n,)
    scores: Array  # (n,)
    inner: Array  # of the preconditioner, (r, r), see `Woodbury`
    stiffness: Array  # of the preconditioner, (n,)
    bound: float = 0.0  # largest dual value found so far
    certified: float = 0.0  # largest dual value for the kernel in float64
    certified_gap: float = 4.0  # the last gap with scores in float64, at most 1; before the first, any gap halves it
    exactness: float = 1.0  # factor of the accuracy that the gap requires; 0 once a direct step does not lower P
    passes: float = 0.0  # kernel entries used so far, as a multiple of the whole matrix
    slow: bool = False  # whether landmarks alone were a slow preconditioner
    double_since: int = -1  # step since which products have float64 entries, as float32 got no further; −1 before
    history: list[Record] = field(default_factory=list)

    @property
    def double(self) -> bool:
        return self.double_since >= 0


def solve_exact(
    losses: RowLosses,
    products: Products,
    settings: SolverSettings,
    *,
    start: Array | None = None,
    resume: ExactState | None = None,
    threads: int = 1,
    certify: bool = True,
    limits: ExactLimits = LIMITS,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[ExactState], object] = lambda state: None,
) -> ExactSolution:
    """Minimise P over all rows until the relative gap is at most ``settings.tol``.

    ``products`` are those with the kernel of the n rows, ``start`` (n,) are coefficients to start from. ``resume`` goes
    on after that step. ``settings.max_iter`` bounds the steps; the seed chooses the rows of start and preconditioner.
    ``threads``, for everything but kernel products, never change the result. ``certify`` checks the last gap for the
    kernel in float64; without it the gap is that of the kernel as computed in float32. ``on_step`` and ``on_state`` are
    called with the record and the state of every step. The solution is not converged if ``settings.max_iter`` steps, or
    the digits of the kernel, did not suffice.
    """
    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        run = _Run(losses, products, settings, threads, certify, limits)
        state = run.begin(start, resume)
        while True:
            if resume is None or len(state.history) > len(resume.history):
                on_state(state)  # a step is saved before it is reported
                on_step(state.history[-1])
            if run.finished(state):
                return run.solution(state)
            state = run.step(state)


def solve_gram(losses: RowLosses, K: Array, settings: SolverSettings, *, start: Array | None = None) -> ExactSolution:
    """Minimise P for a float64 Gram matrix ``K`` (n, n), C-contiguous; ``start`` (n,) as for `solve_exact`."""
    source = RowProducts(Precomputed(bias=0.0, matrix=K), np.arange(float(len(K)))[:, None], 0)
    return solve_exact(losses, HeldProducts(source, K, threads=1), settings, start=start)


@dataclass(eq=False)
class _Run:
    """One solve; what changes from step to step is in its `ExactState`."""

    losses: RowLosses
    source: Products
    settings: SolverSettings
    threads: int
    certify: bool
    limits: ExactLimits

    def __post_init__(self) -> None:
        self.n = self.source.n
        self.double = False
        self.clock = StepClock()
        self.system: ProductSystem | GramSystem | None = None
        self.landmarks: GramLandmarks | None = None
        self.given = isinstance(self.source, HeldProducts)
        self.to_rounding = self.n <= self.limits.rounding_rows and not self.given  # a caller who gives K says how far
        self.d = 0 if self.given else self.source.rows(np.zeros(1, np.int64)).shape[1]
        # float64 costs little for so few rows
        self.goes_on = self.certify or self.held(double=True)
        self.tol = min(self.settings.tol, self.limits.rounding_gap) if self.to_rounding else self.settings.tol

    def held(self, *, double: bool) -> bool:
        return self.given or self.limits.holds(self.n, self.d, double=double)

    def use(self, *, double: bool) -> None:
        """Make the products and the system of the next steps, unless they are there."""
        if self.system is not None and self.double == double:
            return
        self.double = double
        # frees the matrices before for the next
        self.system = None
        self.landmarks = None
        self.products: Products = self.source
        if not self.held(double=double):
            self.system = ProductSystem(self.products, self.preconditioner, self.limits, self.threads)
        else:
            held = self.source
            if isinstance(held, HeldProducts):
                memory = np.empty(held.K.size, held.K.dtype)
            else:
                X = held.rows(np.arange(self.n))
                # one allocation for both, which the next fit reuses: new pages take longer than to fill them
                K, memory = np.empty((2, self.n, self.n), np.float64 if double else np.float32)
                gram_of(held.kernel, X, K.dtype, self.threads, K)
                held = HeldProducts(RowProducts(held.kernel, X, 0, self.threads), K, self.threads)
            self.products = held
            many = self.n >= self.limits.landmark_rows and not self.given
            self.landmarks = GramLandmarks.drawn(held.K, self.losses, self.settings.seed) if many else None
            self.system = GramSystem(held, self.landmarks, memory.reshape(-1))

    @cached_property
    def preconditioner(self) -> ActivePreconditioner:
        return ActivePreconditioner(self.products, self.losses.stiffness_low, self.settings.seed, self.threads)

    def begin(self, start: Array | None, resume: ExactState | None) -> ExactState:
        """Return the state to start or to resume from."""
        double = self.to_rounding or self.given
        self.use(double=double if resume is None else resume.double)
        if resume is not None:
            if self._preconditioned() and resume.stiffness.any():  # else the run had a matrix in memory so far
                if resume.slow:
                    _ = self.preconditioner.finer  # may replace the landmarks
                self.preconditioner.landmarks.inner = resume.inner
                self.preconditioner.landmarks.stiffness = resume.stiffness
            self.clock = StepClock(resume.history)
            return resume
        a = self._rough() if start is None else start
        share = float(np.count_nonzero(a) / self.n)
        state = ExactState(a, scores_of(self.products, a), np.eye(1), np.zeros(self.n))
        passes = share * (2 - share)
        return self._recorded(replace(state, **self._preconditioned(), passes=passes, double_since=0 if double else -1))

    def _preconditioned(self) -> dict[str, Any]:
        """Return what a state holds of the preconditioner: nothing if none has been made."""
        if "preconditioner" not in vars(self):
            return {}
        landmarks = self.preconditioner.landmarks
        return {"inner": landmarks.inner, "stiffness": landmarks.stiffness}

    def _rough(self) -> Array:
        """Return the solution of a quarter of the rows, as coefficients of all, or zeros if there are few rows."""
        a = np.zeros(self.n)
        if self.n < self.limits.start_rows:
            return a
        if self.landmarks is not None:
            with suppress(LinAlgError):
                return self.landmarks.start(self.losses)
        rng = np.random.default_rng([self.settings.seed, 1])
        index = np.sort(rng.choice(self.n, self.n // 4, replace=False))
        losses = self.losses.at(index)
        settings = replace(self.settings, tol=max(self.limits.rough, self.settings.tol))
        some = Subset(self.products, index)
        limits = replace(self.limits, rounding_rows=0)
        found = solve_exact(losses, some, settings, threads=self.threads, certify=False, limits=limits)
        a[index] = found.coefficients
        return a

    def finished(self, state: ExactState) -> bool:
        """Return whether the gap is small enough, the steps are used up, or float64 gets no further."""
        enough = state.history[-1]["gap"] <= self.tol or len(state.history) > self.settings.max_iter
        return enough or (self._stalled(state) and (state.double or not self.goes_on))

    def _stalled(self, state: ExactState) -> bool:
        """Return whether the gap has stopped shrinking, or steps were poor in spite of exact systems."""
        if state.exactness <= (0.0 if state.double else self.limits.exactest):
            return True
        patience = self.limits.patience
        since = max(0, state.double_since)
        if len(state.history) - since <= patience:
            return False
        gaps = [record["gap"] for record in state.history[since:]]
        return min(gaps[-patience:]) >= min(gaps[:-patience])

    def solution(self, state: ExactState) -> ExactSolution:
        last = state.history[-1]
        if not np.isfinite(last["objective"]):
            raise InputError(NOT_FINITE)
        point = Point(last["objective"], state.bound, last["gap"])
        reached = point.gap <= self.settings.tol
        return ExactSolution(state.coefficients, state.scores, point, reached, state.history)

    def _recorded(self, state: ExactState, primal: float | None = None) -> ExactState:
        """Return the state with its record added; if it would be the last, scores and gap are recomputed in float64."""
        found = self._with_record(state, primal)
        stalled = self._stalled(found)
        if not (self.goes_on if stalled else self.certify and self.finished(found)):
            return found
        share = np.count_nonzero(state.coefficients) / self.n
        # scores are updated step by step: in float64, too, their rounding adds up
        scores = scores_of(self.products, state.coefficients, double_precision=True)
        passes = state.passes + share * (2 - share)
        found = self._with_record(replace(state, scores=scores, bound=state.certified, passes=passes))
        gap = found.history[-1]["gap"]
        halved = gap < 0.5 * state.certified_gap
        found = replace(found, certified=found.bound, certified_gap=min(1.0, gap))
        if state.double and stalled and gap > self.tol and halved:
            # the scores had drifted, so that their steps ended: others follow from those found anew
            return replace(found, exactness=1.0, double_since=len(found.history) - 1)
        # systems of a matrix in memory are exact, so that a gap that does not halve is rounding; or the step was cut
        # short, which still lowers P
        gains = len(found.history) > 1 and found.history[-1]["objective"] < found.history[-2]["objective"]
        exact = isinstance(self.system, GramSystem) and not (state.double and gains)
        stalled = stalled or (exact and gap > self.tol and not halved)
        if stalled and state.double:
            return replace(found, exactness=0.0)
        return self._widened(found) if stalled else found

    def _widened(self, state: ExactState) -> ExactState:
        """Return the state from which products have entries in float64."""
        exactness = max(state.exactness, self.limits.exactest)
        state = replace(state, double_since=len(state.history), certified_gap=4.0, exactness=exactness)
        if np.isfinite(state.history[-1]["objective"]):
            return state
        nothing = np.zeros(self.n)
        return self._with_record(replace(state, coefficients=nothing, scores=nothing, bound=0.0, certified=0.0))

    def _with_record(self, state: ExactState, primal: float | None = None) -> ExactState:
        """Return the state with its record added; ``primal`` is its P if that is known."""
        if primal is None:
            primal = self.losses.primal(state.coefficients, state.scores)
        bound = max(state.bound, self._dual(state.coefficients, state.scores))
        square = float(state.coefficients @ state.scores)
        gap = relative_gap(primal, float(primal - bound), square) if np.isfinite(primal) else np.inf
        record = self.clock.record(len(state.history), gap, primal, float(state.passes))
        return replace(state, bound=bound, history=[*state.history, record])

    def _dual(self, a: Array, scores: Array) -> float:
        """Return D of the dual variables ``y a``, scaled to its maximum; if υ = 0, without the negative ones."""
        s = self.losses.y * a
        square = float(a @ scores)
        if self.losses.settings.upsilon == 0:
            wrong = np.flatnonzero(s < 0)
            if len(wrong):
                square -= 2 * float(a[wrong] @ scores[wrong]) - quadratic(self.products, wrong, a[wrong])
                s = np.maximum(s, 0.0)
        return scaled_dual(self.losses, s, square)

    def step(self, state: ExactState) -> ExactState:
        """Take a Newton step over the active rows; if it does not lower P, take the step of least P along it."""
        self.use(double=state.double)
        last = state.history[-1]
        held = isinstance(self.system, GramSystem)
        a = state.coefficients
        scores = state.scores
        try:
            new, after, passes, slow = self._newton(state)
        except LinAlgError as error:  # K is not finite in this precision
            if state.double or not self.goes_on:
                raise InputError(NOT_FINITE) from error
            return self._recorded(replace(state, exactness=0.0))
        primal = self.losses.primal(new, after)
        bound = state.bound  # of what the step ends at, it is found with the record
        dual = -np.inf if primal < last["objective"] else self._dual(new, after)
        # a step to the optimum itself need not lower P if that is known to the digits of float64
        optimal = self.double and primal - dual <= self.tol * primal
        if not primal < last["objective"] and not optimal:
            d = new - a
            change = after - scores
            length = least_row_step(self.losses, scores, change, float(a @ change), float(d @ change))
            new = a + length * d
            after = scores + length * change
            primal = self.losses.primal(new, after)
            bound = max(bound, dual)
            if not primal < last["objective"]:  # rounding, or not finite
                new = a
                after = scores
                primal = last["objective"]
        gained = last["objective"] - primal
        exactness = state.exactness
        if held and slow and not gained > 0:
            exactness = 0.0
        elif gained < 0.01 * last["gap"] * last["objective"]:
            # hardly any descent: the system was not solved well enough
            exactness = max(self.limits.exactest, 0.1 * exactness)
        return self._recorded(
            replace(
                state,
                coefficients=new,
                scores=after,
                **self._preconditioned(),
                bound=bound,
                exactness=exactness,
                passes=state.passes + passes,
                slow=state.slow or slow,
            ),
            primal,
        )

    def _newton(self, state: ExactState) -> tuple[Array, Array, float, bool]:
        """Return coefficients and scores of the Newton step (n,), its passes, and whether its system was slow."""
        losses = self.losses
        products = self.products
        a = state.coefficients
        scores = state.scores
        margins = losses.y * scores
        stiffness = losses.curvature(margins)
        active = np.flatnonzero(stiffness)
        leaving = np.flatnonzero((stiffness == 0) & (a != 0))
        inside = scores[active] - products.cross(active, leaving, a[leaving], double_precision=state.double)
        target = (losses.y * losses.aims(margins))[active]
        gap = state.history[-1]["gap"]
        enough = max(self.limits.forcing * min(0.1, np.sqrt(gap)) * gap, 0.1 * self.tol)
        least = 2.0 * state.history[-1]["objective"] * state.exactness * enough
        residual = target - inside - a[active] / stiffness[active]
        assert self.system is not None
        found = Correction(residual, residual, 0, False)  # of no active rows
        if len(active):
            found = self.system.solve(active, stiffness, residual, least, slow=state.slow, double=state.double)
        new = np.zeros_like(a)
        new[active] = a[active] + found.x
        moved = np.flatnonzero(new != a)
        change = (new - a)[moved]
        rest = np.arange(products.n) if found.Kx is None else np.flatnonzero(stiffness == 0)
        after = scores.copy()
        after[rest] += products.cross(rest, moved, change, double_precision=state.double)
        if found.Kx is not None:
            after[active] = inside + found.Kx
        used = found.products * len(active) ** 2 + 2 * len(active) * len(leaving) + 2 * len(rest) * len(moved)
        return new, after, used / products.n**2, found.slow


def warm_up() -> None:
    """Solve a few rows, so that all loops are compiled or loaded, and their memory is taken, before it is measured."""
    rng = np.random.default_rng(0)
    losses = RowLosses(ODMSettings(1e3, 0.5, 0.5), np.repeat([-1.0, 1.0], 16), np.ones(32))
    for dtype in (np.float32, np.float64):
        products = RowProducts(RBF(), rng.standard_normal((32, 2)).astype(dtype), 0)
        for limits in (NODE_LIMITS, ExactLimits(whole_rows=0, rounding_rows=0)):
            solve_exact(losses, products, SolverSettings(max_iter=2), limits=limits)
