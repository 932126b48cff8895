"""Saddle-SVC: the distance of two reduced hulls as a saddle point, by blocks of coordinates and multiplicative weights.

problem  ``max_w min_e  w·(Aη − Bξ) + γ H(η) + γ H(ξ) − ½‖w‖²`` over e = (η, ξ), H the negative entropy; S has columns
         y_i x_i of largest norm 1, after a random rotation that makes all coordinates alike; q = √d · max|S|, blocks of
         B of d coordinates, n_b = d/B, ``L = min(1, q √(B/d))``, τ = 1/(2L√γ), σ = √γ/(2L), θ = 1 − 1/(n_b(1 + L/√γ))
step     of a random block I, with p = Sᵀw carried along:
         ``δ = S_I (e + θ(e − e_before))``,  ``w_I⁺ = (w_I + σδ)/(1 + σ)``,  Δ = w_I⁺ − w_I,
         ``log e ← a log e − b (p + n_b S_IᵀΔ)``,  a = (n_b/τ)/(γ + n_b/τ),  b = 1/(γ + n_b/τ),  p ← p + S_IᵀΔ,
         and each class is normalised, and projected onto the caps
stop     ``(ub − lb)/ub ≤ tol``: ub of z = Aη − Bξ, lb the larger of those of w and z, looked at every `SWEEPS` sweeps

Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithms 1 and 2,
which are B = 1. Departures: all is in logarithms, since nearly all weights get too small for floats and would never
come back; the paper's γ needs β, which nobody knows, so γ = 3 δ ub/(ln n₁ + ln n₂) with δ falling with the gap; Newton
projects onto the caps; the transform is divided by √d, and rows by their largest norm, not by its square. A row of
weight c is c rows of equal e. Where all coordinates are one block, L is half the root of the largest eigenvalue of the
classes' covariances by e, which is S's norm in the entropy's metric there: a fifth of the paper's bound, and so are the
sweeps. The bounds certify whatever comes of it, and L is doubled where ub rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.linalg.jit import compiled_in_order
from dask_odm.methods.hulls.feasibility import Verdict
from dask_odm.methods.hulls.nearest_point import HullSolution, lower_bound, relative_gap, settle_overlap
from dask_odm.methods.hulls.problem.capped_simplex import cap_factor
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.typing import Array

SWEEPS = 16  # over all coordinates, between two looks at the bounds
FIRST_CAUTION = 0.5  # with it the steps are as long as those of a quadratic problem may be: τσ times coupling² is 1
RISEN = 1.5  # times the last ub, from which steps are held to be too long
MOST_COUPLING = 2.0  # above that of any rows of norm 1
FIRST_SHARE = 0.25  # δ at the start: of the gap that the entropy's term may leave


@dataclass(frozen=True, eq=False)
class SaddleState:
    """Where a run stands after a look at the bounds.

    Attributes
    ----------
    w : ndarray of shape (D,)
        Rotated and padded.
    logs : ndarray of shape (n,)
        log e of a row of weight 1, the positive class first.
    e, before : ndarrays of shape (n,)
        Now, and a step ago.
    p : ndarray of shape (n,)
        Sᵀw.
    factors : ndarray of shape (2,)
        Logarithms of what the last projections of either class multiplied by.
    points : ndarray of shape (2, d)
        The nearest points so far.
    entries : ndarray of shape (n,)
        Theirs, in the rows' order.
    thresholds : ndarray of shape (2,)
        Of the direction between them.
    upper, lower : float
        The best bounds so far.
    share, gamma : float
        δ and γ.
    passes : int
    sweeps : int
    history : list of dict
    coupling, caution : float
        Of steps in all coordinates at once, L is their product where that is less.
    last : float
        ub at the last look, 0 before the first.
    """

    w: Array
    logs: Array
    e: Array
    before: Array
    p: Array
    factors: Array
    points: Array
    entries: Array
    thresholds: Array
    upper: float
    lower: float
    share: float
    gamma: float
    passes: int
    sweeps: int
    history: list[Record]
    coupling: float = MOST_COUPLING
    caution: float = FIRST_CAUTION
    last: float = 0.0


def solver_bytes(n: int, d: int) -> int:
    """Bytes held for ``n`` rows of ``d`` features: S, what it is made of, and vectors of the rows."""
    size = 1 << max(0, d - 1).bit_length()
    return 8 * n * (3 * size + 24)


def solve_saddle_point(
    problem: HullProblem,
    *,
    tol: float,
    max_iter: int,
    block_size: int | None = None,
    seed: int = 0,
    gamma: float | None = None,
    long_steps: bool = True,
    resume: SaddleState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[SaddleState], object] = lambda state: None,
) -> HullSolution:
    """The nearest points of two reduced hulls of rows in memory.

    Parameters
    ----------
    problem : HullProblem
    tol : float
        Relative gap of the bounds to reach.
    max_iter : int
        Most sweeps over all coordinates.
    block_size : int, optional
        Coordinates of a step; 1 is the paper's, None all of them.
    seed : int
        Of the rotation and of the order of the blocks.
    gamma : float, optional
        Weight of the entropy; by default it falls with the gap.
    long_steps : bool
        Of all coordinates: as long as the rows' covariance allows. False: as short as the paper's, whatever the rows.
    resume : SaddleState, optional
        Go on from there.
    on_step, on_state : callable
        Told of every look at the bounds, and given the state there.
    """
    solver = _SaddlePoint(problem, block_size, seed, gamma, long_steps)
    log = StepLog(on_step)
    state = solver.begun() if resume is None else resume
    if resume is not None:
        log.take_up(resume.history)
        log.history = list(resume.history)
        problem.passes_made = resume.passes
    gap = relative_gap(state.upper, state.lower)
    verdict: Verdict | None = None
    while True:
        if len(log.history) == 1 and state.lower == 0:  # here, so that a run that goes on from there proves it too
            verdict, lower = settle_overlap(problem)
            state = replace(state, lower=lower, passes=problem.passes_made)
        if not (state.upper > 0 and gap > tol and state.sweeps < max_iter) or (verdict and verdict.overlap):
            break
        state = solver.looked(solver.swept(state, min(SWEEPS, max_iter - state.sweeps)), tol)
        gap = relative_gap(state.upper, state.lower)
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=state.sweeps)
        state = replace(state, history=list(log.history))
        on_state(state)
    if not log.history:
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=0)
    log.settle()
    thresholds = float(state.thresholds[0]), float(state.thresholds[1])
    found = state.upper, state.lower, gap <= tol, state.lower == 0
    return HullSolution(state.points, thresholds, *found, log.history, state.entries, verdict)


class _SaddlePoint:
    def __init__(
        self, problem: HullProblem, block_size: int | None, seed: int, gamma: float | None, long_steps: bool
    ) -> None:
        self._problem = problem
        self._seed = seed
        self._gamma = gamma
        members = problem.members
        self._order, self._counts = np.concatenate(members), tuple(map(len, members))
        signs, size = rotation(problem.d, seed)
        self._block = size if block_size is None else min(block_size, size)
        self._signs = signs
        self._d = size
        self._S = self._prepared(problem.signed_rows()[self._order])
        self._log_weight = np.log(problem.weights[self._order])
        self._log_cap = -math.log(problem.mass) if problem.mass > 0 else math.inf
        largest = float(np.abs(self._S).max(initial=0.0))
        self._long = long_steps and self._blocks == 1
        self._L = max(min(1.0, largest * math.sqrt(self._block)), np.finfo(float).tiny)

    @property
    def _blocks(self) -> int:
        return len(self._S) // self._block

    def _prepared(self, rows: Array) -> Array:
        """S of signed rows (n, d): scaled, padded, rotated, (D, n), and as many zeros as fill the last block."""
        scale = self._problem.scale or 1.0
        S = np.zeros((self._d, len(rows)))
        S[: rows.shape[1]] = rows.T / scale
        hadamard(S, self._signs)
        missing = -self._d % self._block
        return np.concatenate([S, np.zeros((missing, len(rows)))]) if missing else S

    def _direction(self, w: Array) -> Array:
        """w in the features' coordinates: the rotation is its own inverse, but for the signs."""
        back = w[: self._d, None].copy()
        hadamard(back, np.ones(self._d))
        return np.asarray((self._signs * back[:, 0])[: self._problem.d])

    def begun(self) -> SaddleState:
        """All rows of a class alike, and w = 0."""
        n = len(self._order)
        totals = self._problem.totals.weight
        logs = -np.log(np.repeat(totals, self._counts))
        e = np.exp(logs + self._log_weight)
        zeros = np.zeros(len(self._S))
        points = np.zeros((2, self._problem.d))
        state = SaddleState(
            zeros, logs, e, e.copy(), np.zeros(n), np.zeros(2), points, np.zeros(n), np.zeros(2), math.inf, 0.0,
            FIRST_SHARE, 1.0, self._problem.passes_made, 0, [],
        )  # fmt: skip
        return self.looked(state, 0.0)

    def swept(self, state: SaddleState, sweeps: int) -> SaddleState:
        """So many sweeps further, each of as many random blocks as there are."""
        n_b = self._blocks
        L = min(self._L, state.caution * state.coupling)
        drawn = np.random.default_rng([self._seed, state.sweeps]).integers(n_b, size=n_b * sweeps)
        arrays = tuple(part.copy() for part in (state.w, state.logs, state.e, state.before, state.p, state.factors))
        numbers = np.array([*step_numbers(state.gamma, L, n_b), self._log_cap])
        take_steps(self._S, *arrays, self._log_weight, self._counts[0], drawn, self._block, numbers)
        w, logs, e, before, p, factors = arrays
        problem = self._problem
        problem.passes_made += sweeps
        return replace(state, w=w, logs=logs, e=e, before=before, p=p, factors=factors, sweeps=state.sweeps + sweeps)

    def looked(self, state: SaddleState, tol: float) -> SaddleState:
        """The bounds at e and w, and the γ that they suggest."""
        problem = self._problem
        entries = np.zeros(len(state.e))
        entries[self._order] = state.e
        points = problem.points(entries)
        z = points[0] - points[1]
        vertex = problem.vertex(z)
        upper = 0.5 * float(z @ z)
        lower = max(state.lower, lower_bound(z, vertex))
        if state.sweeps:
            w = self._direction(state.w)
            lower = max(lower, lower_bound(w, problem.vertex(w)))
        if upper < state.upper:
            state = replace(state, points=points, entries=entries, thresholds=np.array(vertex.thresholds), upper=upper)
        share = max(min(state.share, 0.25 * relative_gap(state.upper, lower)), tol)
        gamma = self._gamma or entropy_weight(share * state.upper / (problem.totals.square or 1.0), self._counts)
        state = replace(state, lower=lower, share=share, gamma=gamma, passes=problem.passes_made)
        return self._steadied(state, upper) if self._long else state

    def _steadied(self, state: SaddleState, upper: float) -> SaddleState:
        """How far w and e depend on each other there, and more caution where ub rose: steps were too long."""
        if coupling_due(state.sweeps // SWEEPS):
            state = replace(state, coupling=self._coupling(state.e))
        return replace(state, caution=state.caution * more_caution(upper, state.last), last=upper)

    def _coupling(self, e: Array) -> float:
        """The root of the largest eigenvalue of the two classes' covariances by e: of S, in the entropy's metric."""
        total = np.zeros((len(self._S), len(self._S)))
        start = 0
        for count in self._counts:
            rows = self._S[:, start : start + count]
            own = e[start : start + count]
            mean = rows @ own
            rooted = rows * np.sqrt(own)
            total += rooted @ rooted.T - mean[:, None] * mean
            start += count
        return max(math.sqrt(max(0.0, float(np.linalg.eigvalsh(total)[-1]))), np.finfo(float).tiny)


def coupling_due(looks: int) -> bool:
    """Whether the coupling is found again at a look at the bounds: later on it hardly changes."""
    return not looks & (looks - 1)


def more_caution(upper: float, last: float) -> float:
    """What the caution is multiplied by: 2 where the upper bound rose, since steps were too long."""
    return 2.0 if 0 < RISEN * last < upper else 1.0


def step_numbers(gamma: float, L: float, n_b: int) -> tuple[float, float, float, float]:
    """σ, θ, a and b of steps in n_b blocks."""
    root = math.sqrt(gamma)
    tau = 1 / (2 * L * root)
    whole = gamma + n_b / tau
    return root / (2 * L), 1 - 1 / (n_b * (1 + L / root)), (n_b / tau) / whole, 1 / whole


def entropy_weight(left: float, counts: Sequence[int]) -> float:
    """The γ whose entropies are worth three times ``left`` of half the squared distance, of so many rows a class."""
    return max(3 * left / max(math.log(2), sum(map(math.log, counts))), np.finfo(float).tiny)


def rotation(d: int, seed: int) -> tuple[Array, int]:
    """Random signs of the coordinates, as many as the power of two that is not below ``d``."""
    size = 1 << max(0, d - 1).bit_length()
    return np.random.default_rng(seed).choice([-1.0, 1.0], size), size


def hadamard(columns: Array, signs: Array) -> None:
    """Change the signs of the rows of ``columns`` (D, n), D a power of two, and take Walsh and Hadamard's transform.

    It is divided by √D, and so a rotation, and its own inverse.
    """
    d, n = columns.shape
    columns *= signs[:, None]
    half = 1
    while half < d:
        pairs = columns.reshape(d // (2 * half), 2, half, n)
        left = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = left
        half *= 2
    columns /= math.sqrt(d)


@compiled_in_order
def take_steps(
    S: Array, w: Array, logs: Array, e: Array, before: Array, p: Array, factors: Array, log_weight: Array,
    first_negative: int, drawn: Array, block: int, numbers: Array,
) -> None:  # fmt: skip
    """A step for every one of the blocks ``drawn``; the arrays of a `SaddleState` are written over."""
    sigma, theta, a, b, log_cap = numbers
    n = logs.size
    n_b = S.shape[0] // block
    log_caps = log_weight + log_cap
    for k in drawn:
        rows = S[k * block : (k + 1) * block]
        delta = np.dot(rows, e + theta * (e - before))
        part = w[k * block : (k + 1) * block]
        change = (part + sigma * delta) / (1 + sigma) - part
        part += change
        moved = np.dot(change, rows)
        for i in range(n):
            logs[i] = a * logs[i] - b * (p[i] + n_b * moved[i])
            p[i] += moved[i]
            before[i] = e[i]
        for c in range(2):
            start, stop = (0, first_negative) if c == 0 else (first_negative, n)
            normalise(logs[start:stop], e[start:stop], log_weight[start:stop])
            if log_cap < np.inf:
                shifted = logs[start:stop] + log_weight[start:stop]
                factors[c] = cap_factor(shifted, log_caps[start:stop], factors[c])
                for i in range(start, stop):
                    logs[i] = min(logs[i] + factors[c], log_cap)
                    e[i] = np.exp(logs[i] + log_weight[i])


@compiled_in_order
def normalise(logs: Array, e: Array, log_weight: Array) -> None:
    """Make e = exp(logs + log_weight) sum to one."""
    top = (logs + log_weight).max()
    total = 0.0
    for i in range(logs.size):
        e[i] = np.exp(logs[i] + log_weight[i] - top)
        total += e[i]
    shift = top + np.log(total)
    for i in range(logs.size):
        e[i] /= total
        logs[i] -= shift
