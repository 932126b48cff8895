"""Saddle-SVC and Saddle-DSVC: the nearest points of two reduced hulls as a saddle point, by multiplicative weights.

problem  ``max_w min_e  w·(Aη − Bξ) + γ H(η) + γ H(ξ) − ½‖w‖²`` over e = (η, ξ), H the negative entropy; S has columns
         y_i x_i of largest norm 1, for steps in blocks after a random rotation that makes all coordinates alike;
         q = √d · max|S|, blocks of B of d coordinates, n_b = d/B, ``L = min(1, q √(B/d))``, τ = 1/(2L√γ),
         σ = √γ/(2L), θ = 1 − 1/(n_b(1 + L/√γ))
step     of a random block I, with p = Sᵀw carried along:
         ``δ = S_I (e + θ(e − e_before))``,  ``w_I⁺ = (w_I + σδ)/(1 + σ)``,  Δ = w_I⁺ − w_I,
         ``log e ← a log e − b (p + n_b S_IᵀΔ)``,  a = (n_b/τ)/(γ + n_b/τ),  b = 1/(γ + n_b/τ),  p ← p + S_IᵀΔ,
         and each class is normalised, and projected onto its capped simplex
stop     ``(ub − lb)/ub ≤ tol``: ub of z = Aη − Bξ, lb the larger of those of w and z, computed every `SWEEPS` sweeps

A server has w, and clients have rows and e; in memory there is one client, this process. For whole hulls a step is one
exchange. The server sends the block's Δ and the shifts that normalise the last e. Every client answers with its part of
the next normalisation, and of S e over the next block. For reduced hulls the server finds the shifts that project onto
the capped simplex by Newton's method from the last ones, with an exchange for each Newton step. No message is longer
than a block or a few vectors of the features' size, and the result does not depend on where a client is.

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithms 1
and 2 and section 4. The paper's steps move one coordinate, in three exchanges, which are fused into one here; by
default steps move all coordinates. Other departures:

- All weights are in logarithms, since nearly all of them get too small for floats and could never grow again.
- The paper's γ needs β, which nobody knows. Here γ = 3 δ ub/(ln n₁ + ln n₂), and δ falls with the gap.
- Rows are divided by their largest norm, not by its square.
- A row of weight c is c rows of equal e.
- If all coordinates are one block, L is half the root of the largest eigenvalue of the classes' covariances by e, which
  is S's norm in the entropy's metric there. That is a fifth of the paper's bound, and the sweeps are a fifth, too.
  Lanczos's method finds it from products that are sums of the clients' answers. The bounds certify the result all the
  same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dask_odm.learning.solution import OnStep, Record, StepLog
from dask_odm.linalg.systems import largest_eigenvalue
from dask_odm.papers.saddle.client_hulls import ClientHulls
from dask_odm.papers.saddle.client_rows import Weighed, move, spread, sum_block, sum_uncapped, tell_facts, weigh
from dask_odm.papers.saddle.feasibility import Verdict, lower_bound, settle_overlap
from dask_odm.papers.saddle.nearest_point import HullSolution, relative_gap
from dask_odm.typing import Array

SWEEPS = 16  # sweeps over all coordinates between two computations of the bounds


@dataclass(frozen=True, eq=False)
class SaddleState:
    """The state of the server after the bounds were computed.

    ``w`` (D,) is for rows of largest norm 1. ``shift`` (2,) are summands that normalise the clients' log e of either
    class. ``now`` and ``before`` (2, B) are Σ e x over the next block, for e now and a step ago. ``points`` (2, D) are
    the nearest so far, ``upper`` and ``lower`` the best bounds, ``memory`` is that of the hulls.

    ``share`` is δ, the share of the gap that the entropy's term may leave, and ``gamma`` γ. For steps in all
    coordinates L is at most ``coupling``; the first one is that of any rows of norm 1.

    Only a checkpoint has ``logs`` and ``p`` (n,), log e and p of all clients, one after the other. The rows of client i
    are ``bounds[i]:bounds[i + 1]``.
    """

    w: Array
    shift: Array
    now: Array
    before: Array
    points: Array
    memory: Array
    history: list[Record]
    passes: int = 0
    sweeps: int = 0
    upper: float = math.inf
    lower: float = 0.0
    share: float = 0.25
    gamma: float = 1.0
    coupling: float = 1.0
    logs: Array = field(default_factory=lambda: np.empty(0))
    p: Array = field(default_factory=lambda: np.empty(0))
    bounds: Array = field(default_factory=lambda: np.empty(0))


def solve_saddle_point(
    hulls: ClientHulls,
    *,
    tol: float,
    max_iter: int,
    gamma: float | None = None,
    resume: SaddleState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[SaddleState], object] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls of rows that clients hold, in the clients' coordinates.

    The run ends at a relative gap of ``tol``, or after ``max_iter`` sweeps over all coordinates. ``gamma`` is the
    weight of the entropy; by default it falls with the gap. ``resume`` is a state to go on from, with the clients'
    states of the same moment. ``on_step`` and ``on_state`` are called with the record, and with the state, whenever the
    bounds are computed.
    """
    server = _Server(hulls, gamma)
    log = StepLog(on_step)
    if resume is None:
        state = server.begun()
    else:
        state = resume
        log.take_up(resume.history)
        log.history = list(resume.history)
        hulls.passes_made = resume.passes
        hulls.memory = resume.memory
    verdict: Verdict | None = None
    gap = relative_gap(state.upper, state.lower)
    while True:
        if len(log.history) == 1 and state.lower == 0:  # here, so that a resumed run makes the test, too
            verdict, lower = settle_overlap(hulls.by_passes)
            state = replace(state, lower=lower)
        if not (state.upper > 0 and gap > tol and state.sweeps < max_iter) or (verdict and verdict.overlap):
            break
        state = server.looked(server.swept(state, min(SWEEPS, max_iter - state.sweeps)), tol)
        gap = relative_gap(state.upper, state.lower)
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=state.sweeps, **hulls.costs)
        state = replace(state, history=list(log.history))
        if on_state is not None:
            on_state(state)
    if not log.history:
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=0, **hulls.costs)
    log.settle()
    bounds = state.upper, state.lower, gap <= tol, state.lower == 0
    return HullSolution(state.points, None, *bounds, log.history, verdict=verdict)


class _Server:
    def __init__(self, hulls: ClientHulls, gamma: float | None) -> None:
        self._hulls = hulls
        self._seed = hulls.preparation.seed
        self._gamma = gamma
        *counts, largest = np.transpose(hulls.ask(tell_facts))
        self._counts = np.array([each.sum() for each in counts])
        self._size = hulls.preparation.size
        self._block = hulls.preparation.block
        self._blocks = self._size // self._block
        self._fused = self._blocks == 1  # whether a step moves all coordinates
        self._scale = hulls.scale or 1.0
        entry = float(largest.max()) / self._scale
        self._L = max(1.0 if self._fused else min(1.0, entry * math.sqrt(self._block)), np.finfo(float).tiny)

    def _drawn(self, sweeps: int) -> Array:
        """Draw the blocks of the `SWEEPS` sweeps from number ``sweeps`` on."""
        return np.random.default_rng([self._seed, sweeps]).integers(self._blocks, size=self._blocks * SWEEPS)

    def begun(self) -> SaddleState:
        """Return the first state: equal e for all rows of a class, and w = 0."""
        first = int(self._drawn(0)[0]) * self._block
        shift = -np.log(self._hulls.by_passes.totals.weight)
        now = self._sums(shift, first, first + self._block)
        points = np.zeros((2, self._size))
        return self.looked(SaddleState(np.zeros(self._size), shift, now, now, points, np.empty(0), []), 0.0)

    def swept(self, state: SaddleState, sweeps: int) -> SaddleState:
        """Make ``sweeps`` sweeps, each over as many random blocks as the coordinates have."""
        n_b = self._blocks
        L = min(self._L, state.coupling) if self._fused else self._L
        root = math.sqrt(state.gamma)
        sigma = root / (2 * L)
        theta = 1 - 1 / (n_b * (1 + L / root))
        slowness = n_b * 2 * L * root  # n_b/τ
        keep = slowness / (state.gamma + slowness)
        rate = 1 / (state.gamma + slowness)
        drawn = self._drawn(state.sweeps)[: n_b * sweeps]
        following = np.append(drawn[1:], self._drawn(state.sweeps + sweeps)[0])
        w = state.w.copy()
        for block, coming in zip((drawn * self._block).tolist(), (following * self._block).tolist(), strict=True):
            sums = state.now + theta * (state.now - state.before)
            part = w[block : block + self._block]
            change = (part + sigma * (sums[0] - sums[1]) / self._scale) / (1 + sigma) - part
            part += change
            guess = state.shift if self._hulls.by_passes.alpha is not None else np.empty(0)
            message = state.shift, block, change / self._scale, coming, keep, rate, n_b, guess
            state = self._normalised(state, self._hulls.step(move, *message), coming)
        self._hulls.passes_made += sweeps
        return replace(state, w=w, sweeps=state.sweeps + sweeps)

    def _normalised(self, state: SaddleState, answers: Sequence[Weighed], coming: int) -> SaddleState:
        """Normalise e after a step: find the shifts, and the sums over the next block."""
        if self._hulls.by_passes.alpha is None:
            shift = -np.logaddexp.reduce([each.free for each in answers], axis=0)
            now = np.sum([np.exp(each.free + shift)[:, None] * each.sums for each in answers], axis=0)
        else:
            shift, now = self._capped(state.shift, _total(answers), coming)
        before = state.now if self._fused else np.sum([each.before for each in answers], axis=0)
        return replace(state, shift=shift, now=now, before=before)

    def _capped(self, shift: Array, found: Weighed, coming: int) -> tuple[Array, Array]:
        """Find the shifts by which either class sums to one under its caps. Returns them, and the sums over a block.

        That is the projection in relative entropy: log c with ``Σ min(cap_i, c e_i) = 1``. Newton's steps stay below
        the root after the first one, and end there. They start from a guess, or if that is too large from the shift
        without caps, and end when no other row reaches its cap.
        """
        block = coming, coming + self._block
        shift = shift.copy()
        before = np.full(2, -1.0)
        settled = np.zeros(2, dtype=bool)
        for _ in range(200):  # a few are enough, as each caps one more row at least
            for k in np.flatnonzero(~settled):
                if found.counts[k] == before[k]:
                    settled[k] = True
                elif found.counts[k] == self._counts[k] or found.capped[k] >= 1.0:
                    settled[k] = before[k] >= 0  # only rounding leaves any room
                    if not settled[k]:
                        uncapped = self._hulls.ask(sum_uncapped)
                        shift[k] = -np.logaddexp.reduce([each[k] for each in uncapped])
                        before[k] = 0.0
                else:
                    shift[k] += math.log1p(-found.capped[k]) - found.free[k]
                    before[k] = found.counts[k]
            if settled.all():
                break
            # sums come along with every answer, since an exchange costs more; not so in this process
            asked = (0, 0) if self._hulls.count == 1 else block
            found = _total(self._hulls.ask(weigh, shift, *asked))
        return shift, self._sums(shift, *block) if self._hulls.count == 1 else found.sums

    def looked(self, state: SaddleState, tol: float) -> SaddleState:
        """Compute the bounds at e and w, and the γ that follows from them."""
        hulls = self._hulls
        points = state.now if self._fused else self._sums(state.shift, 0, self._size)
        z = points[0] - points[1]
        upper = 0.5 * float(z @ z)
        lower = max(state.lower, lower_bound(z, hulls.least(z)))
        if state.sweeps:
            w = hulls.preparation.within(state.w)
            lower = max(lower, lower_bound(w, hulls.least(w)))
        if upper < state.upper:
            state = replace(state, points=points, upper=upper)
        share = max(min(state.share, 0.25 * relative_gap(state.upper, lower)), tol)
        entropies = max(math.log(2), float(np.log(self._counts).sum()))
        # the γ at which the entropies of both classes are worth three times what may be left, before scaling
        worth = max(3 * (share * state.upper) / self._scale**2 / entropies, np.finfo(float).tiny)
        gamma = self._gamma or worth
        state = replace(state, lower=lower, share=share, gamma=gamma)
        looks = state.sweeps // SWEEPS
        if self._fused and not looks & (looks - 1):  # at the looks 0, 1, 2, 4, 8 and so on
            state = replace(state, coupling=self._coupling(state))
        return replace(state, passes=hulls.passes_made, memory=hulls.memory)

    def _coupling(self, state: SaddleState, products: int = 6) -> float:
        """Return half the root of the largest eigenvalue of the classes' covariances by e, for rows of largest norm 1.

        Steps are then as long as those of a quadratic problem may be: τσ is 1 over the eigenvalue. Of covariances of
        rows, so many ``products`` of Lanczos's method give it within a few per cent.
        """

        def product(v: Array) -> Array:
            moments = np.sum(self._hulls.read(spread, state.shift, v), axis=0)
            return (moments - (state.now @ v) @ state.now) / self._scale**2

        start = np.random.default_rng([self._seed, state.sweeps]).standard_normal((self._size,))
        return max(0.5 * math.sqrt(largest_eigenvalue(product, start, products)), np.finfo(float).tiny)

    def _sums(self, shift: Array, first: int, stop: int) -> Array:
        """Return Σ e x of both classes over a block, (2, B), for e normalised by ``shift``."""
        return np.sum(self._hulls.ask(sum_block, shift, first, stop), axis=0)


def _total(parts: Sequence[Weighed]) -> Weighed:
    """Add up the answers of all clients."""
    free = np.logaddexp.reduce([each.free for each in parts], axis=0)
    counts, capped, sums = (sum(getattr(each, name) for each in parts) for name in ("counts", "capped", "sums"))
    return Weighed(counts, capped, free, sums)
