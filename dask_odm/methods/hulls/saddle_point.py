"""Saddle-SVC: the nearest points of two reduced hulls as a saddle point, by block steps and multiplicative weights.

problem  ``max_w min_e  w·(Aη − Bξ) + γ H(η) + γ H(ξ) − ½‖w‖²`` over e = (η, ξ), H the negative entropy; S has columns
         y_i x_i of largest norm 1, after a random rotation that makes all coordinates alike; q = √d · max|S|, blocks of
         B of d coordinates, n_b = d/B, ``L = min(1, q √(B/d))``, τ = 1/(2L√γ), σ = √γ/(2L), θ = 1 − 1/(n_b(1 + L/√γ))
step     of a random block I, with p = Sᵀw carried along:
         ``δ = S_I (e + θ(e − e_before))``,  ``w_I⁺ = (w_I + σδ)/(1 + σ)``,  Δ = w_I⁺ − w_I,
         ``log e ← a log e − b (p + n_b S_IᵀΔ)``,  a = (n_b/τ)/(γ + n_b/τ),  b = 1/(γ + n_b/τ),  p ← p + S_IᵀΔ,
         and each class is normalised, and projected onto its capped simplex
stop     ``(ub − lb)/ub ≤ tol``: ub of z = Aη − Bξ, lb the larger of those of w and z, computed every `SWEEPS` sweeps

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithms 1
and 2, which are B = 1. Departures:

- All weights are in logarithms, since nearly all of them get too small for floats and could never grow again.
- The paper's γ needs β, which nobody knows. Here γ = 3 δ ub/(ln n₁ + ln n₂), and δ falls with the gap.
- Newton's method projects onto the capped simplex.
- The transform is divided by √d, and rows by their largest norm, not by its square.
- A row of weight c is c rows of equal e.
- If all coordinates are one block, L is half the root of the largest eigenvalue of the classes' covariances by e, which
  is S's norm in the entropy's metric there. That is a fifth of the paper's bound, and the sweeps are a fifth, too. The
  bounds certify the result all the same, and L is doubled when ub rises.
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

SWEEPS = 16  # sweeps over all coordinates between two computations of the bounds
FIRST_CAUTION = 0.5  # makes steps as long as those of a quadratic problem may be: τσ times coupling² is 1
RISEN = 1.5  # an ub above so many times the last one means that steps are too long
MOST_COUPLING = 2.0  # above the coupling of any rows of norm 1
FIRST_SHARE = 0.25  # δ at the start: share of the gap that the entropy's term may leave


@dataclass(frozen=True, eq=False)
class SaddleState:
    """The state of a run after the bounds were computed, which is the checkpoint.

    Attributes
    ----------
    w : ndarray of shape (D,)
        Rotated and padded.
    logs : ndarray of shape (n,)
        log e of a row of weight 1, the positive class first.
    e, before : ndarrays of shape (n,)
        e now, and a step ago.
    p : ndarray of shape (n,)
        Sᵀw.
    factors : ndarray of shape (2,)
        Logarithms of the factors of the last projection, for either class.
    points : ndarray of shape (2, d)
        The nearest points so far.
    entries : ndarray of shape (n,)
        η and ξ of these points, in the rows' order.
    thresholds : ndarray of shape (2,)
        Weighted quantiles of the scores along the direction between these points.
    upper, lower : float
        The best bounds so far.
    share, gamma : float
        δ and γ.
    passes : int
    sweeps : int
    history : list of dict
    coupling, caution : float
        For steps in all coordinates at once L is at most their product.
    last : float
        ub when the bounds were last computed, 0 before.
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
    """Return the bytes held for ``n`` rows of ``d`` features: S, the rows it is made from, and vectors of n numbers."""
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
    """Find the nearest points of two reduced hulls of rows in memory.

    Parameters
    ----------
    problem : HullProblem
    tol : float
        Relative gap of the bounds to reach.
    max_iter : int
        Most sweeps over all coordinates.
    block_size : int, optional
        Coordinates of a step: 1 is the paper's, None means all of them.
    seed : int
        Seed of the rotation and of the order of the blocks.
    gamma : float, optional
        Weight of the entropy; by default it falls with the gap.
    long_steps : bool
        Make steps in all coordinates as long as the rows' covariance allows, not as short as the paper's.
    resume : SaddleState, optional
        State to go on from.
    on_step, on_state : callable
        Called with the record, and with the state, whenever the bounds are computed.
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
        if len(log.history) == 1 and state.lower == 0:  # here, so that a resumed run makes the test, too
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
        """Return S (D, n) of signed rows (n, d), scaled, padded and rotated. Zeros fill the last block."""
        scale = self._problem.scale or 1.0
        S = np.zeros((self._d, len(rows)))
        S[: rows.shape[1]] = rows.T / scale
        hadamard(S, self._signs)
        missing = -self._d % self._block
        return np.concatenate([S, np.zeros((missing, len(rows)))]) if missing else S

    def _direction(self, w: Array) -> Array:
        """Return w in the features' coordinates. Apart from the signs, the rotation is its own inverse."""
        back = w[: self._d, None].copy()
        hadamard(back, np.ones(self._d))
        return np.asarray((self._signs * back[:, 0])[: self._problem.d])

    def begun(self) -> SaddleState:
        """Return the first state: equal e for all rows of a class, and w = 0."""
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
        """Make so many sweeps, each over as many random blocks as there are blocks."""
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
        """Compute the bounds at e and w, and the γ that follows from them."""
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
        """Update the coupling and the caution, which together bound L."""
        if coupling_due(state.sweeps // SWEEPS):
            state = replace(state, coupling=self._coupling(state.e))
        return replace(state, caution=state.caution * more_caution(upper, state.last), last=upper)

    def _coupling(self, e: Array) -> float:
        """Return S's norm in the entropy's metric: the root of the top eigenvalue of the classes' covariances by e."""
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
    """Whether the coupling is computed anew after so many computations of the bounds: at powers of two, and at 0."""
    return not looks & (looks - 1)


def more_caution(upper: float, last: float) -> float:
    """Return the factor of the caution: 2 if the upper bound rose, because steps were too long, else 1."""
    return 2.0 if 0 < RISEN * last < upper else 1.0


def step_numbers(gamma: float, L: float, n_b: int) -> tuple[float, float, float, float]:
    """Return σ, θ, a and b of steps in n_b blocks."""
    root = math.sqrt(gamma)
    tau = 1 / (2 * L * root)
    whole = gamma + n_b / tau
    return root / (2 * L), 1 - 1 / (n_b * (1 + L / root)), (n_b / tau) / whole, 1 / whole


def entropy_weight(left: float, counts: Sequence[int]) -> float:
    """Return the γ at which the entropies of so many rows of each class are worth three times ``left``.

    ``left`` is in the units of half the squared distance.
    """
    return max(3 * left / max(math.log(2), sum(map(math.log, counts))), np.finfo(float).tiny)


def rotation(d: int, seed: int) -> tuple[Array, int]:
    """Draw random signs of the coordinates; their number is ``d`` rounded up to a power of two, returned with them."""
    size = 1 << max(0, d - 1).bit_length()
    return np.random.default_rng(seed).choice([-1.0, 1.0], size), size


def hadamard(columns: Array, signs: Array) -> None:
    """Multiply the rows of ``columns`` (D, n) by ``signs``, and apply the Walsh-Hadamard transform, in place.

    D is a power of two. The transform is divided by √D, which makes it orthogonal and its own inverse.
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
    """Take a step for each of the blocks ``drawn``, overwriting the arrays of a `SaddleState`."""
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
    """Set e to exp(logs + log_weight), normalised to sum to one, and shift ``logs`` accordingly."""
    top = (logs + log_weight).max()
    total = 0.0
    for i in range(logs.size):
        e[i] = np.exp(logs[i] + log_weight[i] - top)
        total += e[i]
    shift = top + np.log(total)
    for i in range(logs.size):
        e[i] /= total
        logs[i] -= shift
