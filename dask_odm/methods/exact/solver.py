"""The exact kernel ODM: Newton on the primal over all rows. Large Gram matrices are never formed whole.

The loss is piecewise quadratic, so a step solves a ridge system over the active rows S, which are outside the band,

    (K_SS + D_S) a_S = t_S,   a = 0 elsewhere,   D = ρ by side,   t_i = y_i (1 ∓ θ),

by conjugate gradients from the current coefficients, preconditioned by landmarks (`Woodbury`). If these leave much of a
narrow kernel, a block preconditioner is used (`CellBlocks`). Rows that split into kernel components are multiplied and
preconditioned per component (`dask_odm.methods.exact.kernel_components`, `PartBlocks`). A line search on P follows, so
that P never rises. The step is as exact as the gap requires: with residual r of the system, the gap that its
inexactness leaves is ``½ Σ_S r_i²/ρ_i``. Products are in float32. Once that gap is at most ``tol``, the scores are
computed in float64, the gap is checked against them, and later steps correct them (iterative refinement). The dual
bound is the best of all steps, each scaled to the maximum of D.

Without a better start, the solve begins with the solution of a quarter of the rows, found in the same way. If the
kernel is narrow and λ large, steps from afar move rows out of the band as fast as others enter it. Then the problem is
solved for growing values of λ, each solution being the start of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.line_search import least_row_step
from dask_odm.learning.problem.bounds import scaled_dual
from dask_odm.learning.problem.odm import Point, RowLosses
from dask_odm.learning.problem.products import Products, Subset, quadratic, scores_of
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.step_log import OnStep, Record, step_record
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.exact.active_set import solve_dense
from dask_odm.methods.exact.active_system import SLOW, FaceSolver
from dask_odm.methods.exact.block_preconditioner import CELL_ROWS, cell_bytes
from dask_odm.methods.exact.gram_newton import ROUGH, SUBSET, ExactSolution, gram_bytes, solve_rows
from dask_odm.methods.exact.kernel_components import set_apart, share_of
from dask_odm.methods.exact.preconditioners import FacePreconditioner, drawn_landmarks, landmark_count
from dask_odm.typing import Array

FORCING = 0.003  # an inexact step may leave a gap of this times min(0.1, √gap) · gap; more makes rows change sides
LITTLE = 0.01  # a step that gains a smaller share of the gap is poor
EXACTEST = 1e-8  # least exactness: no system is solved further than this times what the gap requires
TRIED = 2  # steps after which a large gap calls for smaller λ first
EASED = (1e-4, 1e-2)  # shares of λ that are solved on the way to it
NEAR = 0.001  # exactness on that way, where a small share of P is a large share of the least P


@dataclass(frozen=True)
class ExactLimits:
    """Sizes and counts at which one way of solving takes over from another.

    Parameters
    ----------
    whole_rows, whole_numbers : int
        Most rows, and numbers in them, whose Gram matrix is held whole and solved first.
    dense_rows : int
        Most of these rows that are solved in float64 by Cholesky alone if nothing else converged.
    direct_rows : int
        Most active rows for which Cholesky may take over from slow conjugate gradients.
    products : int
        Most products of one system.
    patience : int
        Steps that may pass without a smaller gap.
    far : float
        Largest gap after `TRIED` steps that does not call for smaller λ first.
    """

    whole_rows: int = 3072
    whole_numbers: int = 1 << 22
    dense_rows: int = 1024
    direct_rows: int = 4096
    products: int = 400
    patience: int = 10
    far: float = 0.5

    def are_whole(self, n: int, d: int) -> bool:
        """Return whether the matrix of ``n`` rows of ``d`` features is held whole."""
        return n <= self.whole_rows and n * d <= self.whole_numbers


LIMITS = ExactLimits()


@dataclass(frozen=True, eq=False)
class ExactState:
    """State of a solve after a step, from which it resumes to the same bits.

    Attributes
    ----------
    coefficients, scores : ndarrays of shape (n,)
    inner, stiffness : ndarrays of shape (r, r) and (n,)
        State of the preconditioner, see `Woodbury`.
    bound, certified : float
        Largest dual value found so far, and the largest for the kernel in float64.
    exactness : float
        Factor of the accuracy that the gap requires.
    passes : float
        Kernel entries used so far, as a multiple of the whole matrix.
    near : bool
        Whether the block preconditioner is used because landmarks alone were slow.
    double_since : int
        Step since which products have float64 entries because float32 got no further; −1 before.
    history : list of dict
    """

    coefficients: Array
    scores: Array
    inner: Array
    stiffness: Array
    bound: float = 0.0
    certified: float = 0.0
    exactness: float = 1.0
    passes: float = 0.0
    near: bool = False
    double_since: int = -1
    history: list[Record] = field(default_factory=list)

    @property
    def double(self) -> bool:
        return self.double_since >= 0


def solver_bytes(n: int, d: int, itemsize: int) -> int:
    """Return the peak bytes of a solve, without rows and what products take."""
    whole = gram_bytes(n, d) if LIMITS.are_whole(n, d) else 0  # freed again before the rest
    if n <= LIMITS.dense_rows:
        return max(whole, 5 * 8 * n * n)
    r = landmark_count(n)
    m = min(n, LIMITS.direct_rows)
    preconditioner = 4 * n * r + 8 * 8 * r * r + 3 * 1024 * (d + r) * itemsize + cell_bytes(n, r, d)
    return max(whole, preconditioner + 8 * m * (m + 2 * d) + 40 * 8 * n)


def part_room(n: int) -> int:
    """Return the bytes for factors of components: those of landmarks, blocks and Cholesky, which are not made then."""
    return n * (4 * landmark_count(n) + 8 * CELL_ROWS) + 8 * min(n, LIMITS.direct_rows) ** 2


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

    Parameters
    ----------
    losses : RowLosses
    products : Products
        Products with the kernel of the n rows.
    settings : SolverSettings
        ``max_iter`` bounds the steps; the seed chooses the rows of start and preconditioner.
    start : ndarray of shape (n,), optional
        Coefficients to start from.
    resume : ExactState, optional
        Go on after that step.
    threads : int
        For everything but kernel products.
    certify : bool
        Check the last gap for the kernel in float64. Without it the gap is that of the kernel as computed in float32.
    limits : ExactLimits
    on_step, on_state : callable
        Called with the record and with the state of every step.
    """
    with single_threaded_blas:
        if resume is None and limits.are_whole(products.n, products.rows(np.zeros(1, np.int64)).shape[1]):
            found = _solve_whole(losses, products, settings, start, threads)
            if found.converged:
                for record in found.history:
                    on_step(record)
                return found
            start = found.coefficients
        if products.n <= limits.dense_rows:
            return _solve_dense(losses, products, settings, on_step)
        run = _ExactRun(losses, set_apart(products), settings, threads, certify, limits)
        state = run.begin(start, resume)
        while True:
            if resume is None or len(state.history) > len(resume.history):
                on_state(state)  # a step is saved before it is reported
                on_step(state.history[-1])
            if run.finished(state):
                return run.solution(state)
            state = run.step(state)


class _ExactRun:
    """One solve; what changes from step to step is in its `ExactState`."""

    def __init__(
        self,
        losses: RowLosses,
        products: Products,
        settings: SolverSettings,
        threads: int,
        certify: bool,
        limits: ExactLimits,
    ) -> None:
        self.losses = losses
        self.products = products
        self.settings = settings
        self.threads = threads
        self.certify, self.limits, self.leads, self.share = certify, limits, True, share_of(products)
        self.began = time.perf_counter()

    def begin(self, start: Array | None, resume: ExactState | None) -> ExactState:
        """Make the preconditioner; return the state to start or to resume from."""
        n = self.products.n
        rng = np.random.default_rng(self.settings.seed)
        index = drawn_landmarks(n, rng)
        self.preconditioner = FacePreconditioner(
            self.products, index, self.settings.seed, self.threads, room=part_room(n)
        )
        limits = self.limits
        self.systems = FaceSolver(self.products, self.preconditioner, limits.direct_rows, limits.products)
        if resume is not None:
            self.preconditioner.go_on(resume.inner, resume.stiffness)
            self.began -= resume.history[-1]["seconds"]
            return resume
        parts = self.preconditioner.parts
        if start is None and parts is not None and parts.are_small(np.arange(n)):
            start = np.zeros(n)  # a system of all rows costs no more than a rough start
        a = self._rough(rng) if start is None else start
        share = float(np.count_nonzero(a) / n)
        state = ExactState(a, scores_of(self.products, a), *self.preconditioner.state)
        return self._recorded(replace(state, passes=self.share * share * (2 - share)))

    def _rough(self, rng: np.random.Generator) -> Array:
        """Return the solution of a quarter of the rows, as coefficients of all."""
        n = self.products.n
        index = np.sort(rng.choice(n, n // SUBSET, replace=False))
        losses = RowLosses(self.losses.settings, self.losses.y[index], self.losses.weight[index])
        settings = replace(self.settings, tol=max(ROUGH, self.settings.tol))
        some = Subset(self.products, index)
        a = np.zeros(n)
        a[index] = solve_exact(
            losses, some, settings, threads=self.threads, certify=False, limits=self.limits
        ).coefficients
        return a

    def finished(self, state: ExactState) -> bool:
        """Return whether the gap is small enough, the steps are used up, or float64 gets no further."""
        enough = state.history[-1]["gap"] <= self.settings.tol or len(state.history) > self.settings.max_iter
        return enough or (self._stalled(state) and (state.double or not self.certify))

    def _stalled(self, state: ExactState) -> bool:
        """Return whether the gap has stopped shrinking, or float32 steps were poor in spite of exact systems."""
        if not state.double and state.exactness <= EXACTEST:
            return True
        patience = self.limits.patience
        gaps = [record["gap"] for record in state.history[max(0, state.double_since) :]]
        return len(gaps) > patience and min(gaps[-patience:]) >= min(gaps[:-patience])

    def solution(self, state: ExactState) -> ExactSolution:
        last = state.history[-1]
        point = Point(last["objective"], state.bound, last["gap"])
        return ExactSolution(state.coefficients, state.scores, point, point.gap <= self.settings.tol, state.history)

    def _recorded(self, state: ExactState) -> ExactState:
        """Return the state with its record added; if it would be the last, scores and gap are recomputed in float64."""
        found = self._with_record(state)
        stalled = self._stalled(found)
        if not self.certify or not (stalled or self.finished(found)):
            return found
        share = np.count_nonzero(state.coefficients) / self.products.n
        # scores are updated step by step: in float64, too, their rounding adds up
        scores = scores_of(self.products, state.coefficients, double_precision=True)
        passes = state.passes + share * (2 - share)
        found = self._with_record(replace(state, scores=scores, bound=state.certified, passes=passes))
        since = len(found.history) if stalled and not state.double else state.double_since
        return replace(found, certified=found.bound, double_since=since)

    def _with_record(self, state: ExactState) -> ExactState:
        a = state.coefficients
        scores = state.scores
        primal = self.losses.primal(a, scores)
        _require_finite(primal)
        bound = max(state.bound, self._dual(a, scores))
        gap = float(max(0.0, primal - bound) / max(primal, np.finfo(float).tiny))
        seconds = time.perf_counter() - self.began
        record = step_record(len(state.history), gap, primal, float(state.passes), seconds)
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
        if self.leads and len(state.history) == TRIED + 1 and state.history[-1]["gap"] > self.limits.far:
            return self._led_up(state)
        here = np.stack([state.coefficients, state.scores])
        new, passes, slow = self._newton(state)
        there = new
        last = state.history[-1]
        if not self.losses.primal(*new) < last["objective"]:
            d = new - here
            length = least_row_step(self.losses, here[1], d[1], float(here[0] @ d[1]), float(d[0] @ d[1]))
            there = here + length * d
        inner, stiffness = self.preconditioner.state
        gained = last["objective"] - self.losses.primal(*there)
        # hardly any descent: the system was not solved well enough
        poor = gained < LITTLE * last["gap"] * last["objective"]
        return self._recorded(
            replace(
                state,
                coefficients=there[0],
                scores=there[1],
                inner=inner,
                stiffness=stiffness,
                bound=max(state.bound, self._dual(*new)),
                exactness=max(EXACTEST, state.exactness * (0.1 if poor else 1.0)),
                passes=state.passes + passes,
                near=state.near or slow,
            )
        )

    def _led_up(self, state: ExactState) -> ExactState:
        """Return the state reached by solving for growing λ, with few rows changing sides each time."""
        led = replace(state, exactness=NEAR)
        for share in EASED:
            odm = self.losses.settings
            settings = replace(self.settings, tol=max(ROUGH, self.settings.tol))
            losses = RowLosses(replace(odm, lam=share * odm.lam), self.losses.y, self.losses.weight)
            run = _ExactRun(losses, self.products, settings, self.threads, False, self.limits)
            run.preconditioner = self.preconditioner
            run.systems = self.systems
            run.leads = False
            led = run._recorded(replace(led, bound=0.0, exactness=NEAR, history=[]))
            while not run.finished(led):
                led = run.step(led)
        return self._recorded(replace(led, bound=state.bound, exactness=NEAR, history=state.history))

    def _newton(self, state: ExactState) -> tuple[Array, float, bool]:
        """Return coefficients and scores of the Newton step (2, n), its passes, and whether its system was slow."""
        losses = self.losses
        products = self.products
        a = state.coefficients
        scores = state.scores
        margins = losses.y * scores
        stiffness = losses.curvature(margins)
        face = np.flatnonzero(stiffness)
        leaving = np.flatnonzero((stiffness == 0) & (a != 0))
        inside = scores[face] - products.cross(face, leaving, a[leaving], double_precision=state.double)
        target = (losses.y * np.where(margins < 1.0, losses.settings.low, losses.settings.high))[face]
        gap = state.history[-1]["gap"]
        exactness = state.exactness
        enough = exactness * max(FORCING * min(0.1, np.sqrt(gap)) * gap, 0.1 * self.settings.tol)
        least = 2.0 * state.history[-1]["objective"] * enough
        residual = target - inside - a[face] / stiffness[face]
        x, Kx, count = self.systems.solve(face, stiffness, residual, least, near=state.near, double=state.double)
        new = np.zeros_like(a)
        after = np.empty_like(a)
        new[face], after[face] = a[face] + x, inside + Kx
        rest = np.flatnonzero(stiffness == 0)
        moved = np.flatnonzero(new != a)
        after[rest] = scores[rest] + products.cross(rest, moved, (new - a)[moved], double_precision=state.double)
        used = count * len(face) ** 2 + 2 * len(face) * len(leaving) + 2 * len(rest) * len(moved)
        return np.stack([new, after]), self.share * used / products.n**2, count >= SLOW


def _require_finite(primal: float) -> None:
    if not np.isfinite(primal):
        raise InputError(
            "the solution is not finite: rescale the rows (scale='minmax') or the weights, or choose another kernel."
        )


def _solve_whole(
    losses: RowLosses, products: Products, settings: SolverSettings, start: Array | None, threads: int
) -> ExactSolution:
    """Solve a few rows with their whole matrix; the result is not converged if that is not precise enough."""
    X = products.rows(np.arange(products.n))
    return solve_rows(losses, products.kernel, X, settings, start=start, threads=threads)


def _solve_dense(losses: RowLosses, products: Products, settings: SolverSettings, on_step: OnStep) -> ExactSolution:
    """Solve a few rows to rounding, in float64; a start is of no use."""
    began = time.perf_counter()
    everyone = np.arange(products.n)
    X = products.rows(everyone).astype(np.float64)
    K = products.kernel.tile(X, X)
    K = 0.5 * (K + K.T)
    a, steps = solve_dense(losses, K, np.zeros(products.n))
    scores = K @ a
    s = losses.y * a
    margins = losses.y * scores
    primal = losses.primal(a, scores)
    _require_finite(primal)
    gap = float(losses.row_gaps(s, margins).sum()) / max(primal, np.finfo(float).tiny)
    if gap > settings.tol:  # not converged: other dual variables may give a better bound, and at worst 0
        s = losses.dual_candidate(margins)
        bound = scaled_dual(losses, s, float((losses.y * s) @ (K @ (losses.y * s))))
        gap = min(gap, (primal - bound) / max(primal, np.finfo(float).tiny))
    record = step_record(0, gap, primal, float(steps + 1), time.perf_counter() - began)
    on_step(record)
    return ExactSolution(a, scores, Point(primal, primal * (1 - gap), gap), gap <= settings.tol, [record])
