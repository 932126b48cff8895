"""Saddle-DSVC: the steps of `dask_odm.methods.hulls.saddle_point` by a server with w, and clients with rows and e.

For whole hulls a step is one exchange. The server sends the block's Δ and the shifts that normalise the last e. Every
client answers with its part of the next normalisation, and of S e over the next block. For reduced hulls the server
finds the factor of the projection onto the capped simplex by Newton's method from the last one, with an exchange for
each Newton step. The bounds are those of `saddle_point`, from the least score of either class, or its threshold, for w
and z. Steps in all coordinates are as long as there. They need the largest eigenvalue of the classes' covariances,
which nobody holds. Lanczos's method finds it from products that are sums of the clients' answers. No message is longer
than a block or a vector of the features' size, and the result does not depend on where a client is.

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, section 4. The
paper's steps move one coordinate, in three exchanges. Here these are fused into one, and steps move all coordinates by
default. The other departures are those of `dask_odm.methods.hulls.saddle_point`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.linalg.krylov import largest_eigenvalue
from dask_odm.methods.hulls.clients.problem import ClientHulls
from dask_odm.methods.hulls.clients.rows import (
    Facts,
    Move,
    Moved,
    Spread,
    Weigh,
    Weighed,
    move,
    spread,
    tell_facts,
    weigh,
)
from dask_odm.methods.hulls.feasibility import Verdict
from dask_odm.methods.hulls.nearest_point import HullSolution, relative_gap
from dask_odm.methods.hulls.problem.capped_simplex import MOST_ROUNDS
from dask_odm.methods.hulls.saddle_point import (
    FIRST_CAUTION,
    FIRST_SHARE,
    MOST_COUPLING,
    SWEEPS,
    coupling_due,
    entropy_weight,
    more_caution,
    step_numbers,
)
from dask_odm.typing import Array

PRODUCTS = 6  # Lanczos products for an eigenvalue, which is then within a few per cent for covariances of rows


@dataclass(frozen=True, eq=False)
class ServerState:
    """The state of the server after the bounds were computed.

    Attributes
    ----------
    w : ndarray of shape (D,)
        For rows of largest norm 1.
    shift : ndarray of shape (2,)
        Summands that normalise the clients' log e, for either class.
    now, before : ndarrays of shape (2, B)
        Σ e x of either class over the next block, for e now and a step ago.
    points : ndarray of shape (2, D)
        The nearest points so far.
    thresholds : ndarray of shape (2,)
        Weighted quantiles of the scores along the direction between these points.
    upper, lower : float
        The best bounds so far.
    share, gamma : float
        δ and γ.
    coupling, caution, last : float
        As in `dask_odm.methods.hulls.saddle_point.SaddleState`.
    passes, sweeps : int
    memory : ndarray
        The memory of the hulls.
    history : list of dict
    """

    w: Array
    shift: Array
    now: Array
    before: Array
    points: Array
    thresholds: Array
    upper: float
    lower: float
    share: float
    gamma: float
    coupling: float
    caution: float
    last: float
    passes: int
    sweeps: int
    memory: Array
    history: list[Record]


def solve_by_clients(
    hulls: ClientHulls,
    *,
    tol: float,
    max_iter: int,
    block_size: int | None = None,
    seed: int = 0,
    gamma: float | None = None,
    long_steps: bool = True,
    within: Callable[[Array], Array] = lambda w: w,
    resume: ServerState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[ServerState], object] = lambda state: None,
    settle: Callable[[], tuple[Verdict, float]] | None = None,
) -> HullSolution:
    """Find the nearest points of two reduced hulls of rows that clients hold, in the clients' coordinates.

    Arguments that are not listed are those of `dask_odm.methods.hulls.saddle_point.solve_saddle_point`.

    Parameters
    ----------
    hulls : ClientHulls
        If ``block_size`` is given, rows are rotated, and padded to a multiple of it.
    seed : int
        Seed of the order of the blocks.
    within : callable
        Projects w (D,) onto the directions that belong to features, since padded coordinates have others, too.
    resume : ServerState, optional
        State to go on from; the clients have their states of the same moment.
    settle : callable, optional
        Tests whether the hulls overlap, and returns the verdict and a lower bound, if the first bounds are zero; see
        `dask_odm.methods.hulls.nearest_point.settle_overlap`.
    """
    verdict: Verdict | None = None
    server = _Server(hulls, block_size, seed, gamma, long_steps, within)
    log = StepLog(on_step)
    if resume is None:
        state = server.begun()
    else:
        state = resume
        log.take_up(resume.history)
        log.history = list(resume.history)
        hulls.passes_made = resume.passes
        hulls.recall(resume.memory)
    gap = relative_gap(state.upper, state.lower)
    while True:
        # here, so that a run resumed after the first bounds makes the test, too
        if settle is not None and len(log.history) == 1 and state.lower == 0:
            verdict, lower = settle()
            state = replace(state, lower=lower)
        if not (state.upper > 0 and gap > tol and state.sweeps < max_iter) or (verdict and verdict.overlap):
            break
        state = server.looked(server.swept(state, min(SWEEPS, max_iter - state.sweeps)), tol)
        gap = relative_gap(state.upper, state.lower)
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=state.sweeps, **hulls.costs)
        state = replace(state, history=list(log.history))
        on_state(state)
    if not log.history:
        log.add(gap, state.upper, state.passes, lower=state.lower, sweeps=0, **hulls.costs)
    log.settle()
    thresholds = float(state.thresholds[0]), float(state.thresholds[1])
    found = state.upper, state.lower, gap <= tol, state.lower == 0
    return HullSolution(state.points, thresholds, *found, log.history, verdict=verdict)


class _Server:
    def __init__(
        self,
        hulls: ClientHulls,
        block_size: int | None,
        seed: int,
        gamma: float | None,
        long_steps: bool,
        within: Callable[[Array], Array],
    ) -> None:
        self._hulls = hulls
        self._clients = hulls.clients
        self._seed = seed
        self._gamma = gamma
        self._within = within
        facts: list[Facts] = self._clients.read(tell_facts, None)
        self._counts: Array = np.sum([each.counts for each in facts], axis=0)
        self._size = hulls.totals.sums.shape[1]
        self._block = self._size if block_size is None else min(block_size, self._size)
        self._scale = hulls.scale or 1.0
        largest = max(each.largest for each in facts) / self._scale * math.sqrt(self._block)
        self._long = long_steps and self._fused
        self._L = max(1.0 if self._fused else min(1.0, largest), np.finfo(float).tiny)

    @property
    def _fused(self) -> bool:
        return self._block == self._size

    @property
    def _blocks(self) -> int:
        return self._size // self._block

    def _drawn(self, sweeps: int) -> Array:
        """Draw the blocks of the `SWEEPS` sweeps from number ``sweeps`` on."""
        n_b = self._blocks
        return np.random.default_rng([self._seed, sweeps]).integers(n_b, size=n_b * SWEEPS)

    def begun(self) -> ServerState:
        """Return the first state: equal e for all rows of a class, and w = 0."""
        first = int(self._drawn(0)[0]) * self._block
        now = self._weighed(np.zeros(2), first, first + self._block).sums
        state = ServerState(
            np.zeros(self._size), np.zeros(2), now, now, np.zeros((2, self._size)), np.zeros(2), math.inf, 0.0,
            FIRST_SHARE, 1.0, MOST_COUPLING, FIRST_CAUTION, 0.0, 0, 0, np.empty(0), [],
        )  # fmt: skip
        return self.looked(state, 0.0)

    def swept(self, state: ServerState, sweeps: int) -> ServerState:
        """Make so many sweeps."""
        L = min(self._L, state.caution * state.coupling)
        sigma, theta, keep, rate = step_numbers(state.gamma, L, self._blocks)
        drawn = self._drawn(state.sweeps)[: self._blocks * sweeps]
        following = np.append(drawn[1:], self._drawn(state.sweeps + sweeps)[0])
        w = state.w.copy()
        for block, coming in zip((drawn * self._block).tolist(), (following * self._block).tolist(), strict=True):
            sums = state.now + theta * (state.now - state.before)
            part = w[block : block + self._block]
            change = (part + sigma * (sums[0] - sums[1]) / self._scale) / (1 + sigma) - part
            part += change
            guess = state.shift if self._hulls.alpha is not None else np.empty(0)
            message = Move(state.shift, block, change / self._scale, coming, keep, rate, self._blocks, guess)
            state = self._normalised(state, self._clients.ask(move, message), coming)
        self._hulls.passes_made += sweeps
        return replace(state, w=w, sweeps=state.sweeps + sweeps)

    def _normalised(self, state: ServerState, answers: Sequence[Moved], coming: int) -> ServerState:
        """Normalise e after a step: find the shifts, and the sums over the next block."""
        logs = np.logaddexp.reduce([each.tops + _log(each.totals) for each in answers], axis=0)
        if self._hulls.alpha is None:
            shift = -logs
            now = np.sum([np.exp(each.tops + shift)[:, None] * each.sums for each in answers], axis=0)
        else:
            guessed = _total([each.guessed for each in answers if each.guessed is not None])
            shift, now = self._capped(state.shift, guessed, -logs, coming)
        before = state.now if self._fused else np.sum([each.before for each in answers], axis=0)
        return replace(state, shift=shift, now=now, before=before)

    def _capped(self, shift: Array, found: Weighed, whole: Array, coming: int) -> tuple[Array, Array]:
        """Find the shifts by which either class sums to one under its caps. Returns them, and the sums over a block.

        This is Newton's method of `dask_odm.methods.hulls.problem.capped_simplex.cap_factor`. It starts from a guess,
        or if that is too large from the shift ``whole`` without caps, and ends when no other row reaches its cap.
        """
        shift = shift.copy()
        before = np.full(2, -1.0)
        settled = np.zeros(2, dtype=bool)
        for _ in range(MOST_ROUNDS):
            for k in np.flatnonzero(~settled):
                if found.counts[k] == before[k]:
                    settled[k] = True
                elif found.counts[k] == self._counts[k] or found.capped[k] >= 1.0:
                    settled[k] = before[k] >= 0  # only rounding leaves any room
                    if not settled[k]:
                        shift[k], before[k] = whole[k], 0.0
                else:
                    shift[k] += math.log1p(-found.capped[k]) - found.tops[k] - math.log(found.totals[k])
                    before[k] = found.counts[k]
            if settled.all():
                break
            found = self._weighed(shift, coming, coming + self._block)
        return shift, found.sums

    def looked(self, state: ServerState, tol: float) -> ServerState:
        """Compute the bounds at e and w, and the γ that follows from them."""
        hulls = self._hulls
        points = state.now if self._fused else self._weighed(state.shift, 0, self._size).sums
        z = points[0] - points[1]
        upper, (lower, thresholds) = 0.5 * float(z @ z), self._bound(z)
        lower = max(state.lower, lower)
        if state.sweeps:
            lower = max(lower, self._bound(self._within(state.w))[0])
        if upper < state.upper:
            state = replace(state, points=points, thresholds=thresholds, upper=upper)
        share = max(min(state.share, 0.25 * relative_gap(state.upper, lower)), tol)
        gamma = self._gamma or entropy_weight(share * state.upper / self._scale**2, self._counts.tolist())
        state = replace(state, lower=lower, share=share, gamma=gamma)
        state = self._steadied(state, upper) if self._long else state
        return replace(state, passes=hulls.passes_made, memory=hulls.memory)

    def _steadied(self, state: ServerState, upper: float) -> ServerState:
        """Update the coupling and the caution, which together bound L."""
        if coupling_due(state.sweeps // SWEEPS):
            state = replace(state, coupling=self._coupling(state))
        return replace(state, caution=state.caution * more_caution(upper, state.last), last=upper)

    def _coupling(self, state: ServerState) -> float:
        """Return the root of the largest eigenvalue of the classes' covariances by e, for rows of largest norm 1."""

        def product(v: Array) -> Array:
            self._hulls.passes_made += 1
            moments = np.sum(self._clients.read(spread, Spread(state.shift, v)), axis=0)
            return np.asarray((moments - (state.now @ v) @ state.now) / self._scale**2)

        start = np.random.default_rng([self._seed, state.sweeps]).standard_normal((self._size,))
        return max(math.sqrt(largest_eigenvalue(product, start, PRODUCTS)), np.finfo(float).tiny)

    def _bound(self, w: Array) -> tuple[float, Array]:
        """Return the lower bound of half the squared distance that a direction gives, and its thresholds."""
        positive, negative = self._hulls.thresholds(w)
        thresholds = np.array([positive.cut.threshold, -negative.cut.threshold])
        square = float(w @ w)
        margin = max(0.0, positive.value + negative.value)
        return (margin**2 / (2.0 * square) if square > 0 else 0.0), thresholds

    def _weighed(self, shift: Array, first: int, stop: int) -> Weighed:
        return _total(self._clients.read(weigh, Weigh(shift, first, stop)))


def _total(parts: Sequence[Weighed]) -> Weighed:
    """Add up the answers of all clients, relative to the largest log e of either class."""
    tops = np.max([each.tops for each in parts], axis=0)
    finite = np.where(np.isfinite(tops), tops, 0.0)
    totals = np.sum([np.exp(each.tops - finite) * each.totals for each in parts], axis=0)
    counts, capped, sums = (
        np.sum([getattr(each, name) for each in parts], axis=0) for name in ("counts", "capped", "sums")
    )
    return Weighed(counts, capped, tops, totals, sums)


def _log(totals: Array) -> Array:
    with np.errstate(divide="ignore"):  # a client may have no row of the class
        return np.asarray(np.log(totals))
