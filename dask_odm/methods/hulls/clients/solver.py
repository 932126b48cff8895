"""Saddle-DSVC: the steps of `dask_odm.methods.hulls.saddle_point` by a server that has w, and clients that have rows
and e.

A step is one exchange of whole hulls: the server sends the block's Δ and what normalises the last e, and every client
answers with its part of what normalises the next one, and of S e over the next block. Of reduced hulls the server looks
for the cap's factor by Newton's method, from the last one, an exchange a round. The bounds are looked at as there: the
least score of either class, or its threshold, for w and z. Steps in all coordinates are as long as there: the largest
eigenvalue of the classes' covariances, which nobody has, is found by Lanczos's method, whose products are sums of what
clients answer. Nothing that travels is longer than a block or a vector of the features' size, and no bit depends on
where a client is.

Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, section 4, whose steps
are those of blocks of one coordinate, in three exchanges; here they are fused into one, and steps move all coordinates
by default. Departures are those of `dask_odm.methods.hulls.saddle_point`.
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

PRODUCTS = 6  # for an eigenvalue: of rows' covariances they leave out a few per cent of it


@dataclass(frozen=True, eq=False)
class ServerState:
    """Where the server stands after a look at the bounds.

    Attributes
    ----------
    w : ndarray of shape (D,)
        Of rows of largest norm 1.
    shift : ndarray of shape (2,)
        What the clients' log e are short of, or have too much.
    now, before : ndarrays of shape (2, B)
        Σ e x of either class over the next block, and that of the e a step ago.
    points : ndarray of shape (2, D)
        The nearest points so far.
    thresholds : ndarray of shape (2,)
        Of the direction between them.
    upper, lower : float
        The best bounds so far.
    share, gamma : float
        δ and γ.
    coupling, caution, last : float
        As of `dask_odm.methods.hulls.saddle_point.SaddleState`.
    passes, sweeps : int
    memory : ndarray
        That of the hulls.
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
    """The nearest points of two reduced hulls of rows that clients have, in the clients' coordinates.

    Parameters
    ----------
    hulls : ClientHulls
        Of rows that are rotated and padded to a multiple of ``block_size``, where that is given.
    tol : float
        Relative gap of the bounds to reach.
    max_iter : int
        Most sweeps over all coordinates.
    block_size : int, optional
        Coordinates of a step; 1 is the paper's, None all of them.
    seed : int
        Of the order of the blocks.
    gamma : float, optional
        Weight of the entropy; by default it falls with the gap.
    long_steps : bool
        Of all coordinates: as long as the rows' covariance allows. False: as short as the paper's, whatever the rows.
    within : callable
        Takes w (D,) to the nearest one that is a direction of features: of padded ones not all are.
    resume : ServerState, optional
        Go on from there, the clients' states being those of then.
    on_step, on_state : callable
        Told of every look at the bounds, and given the state there.
    settle : callable, optional
        Proves whether the hulls meet, and gives a lower bound, where the first look found none; see
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
        # here, so that a run that goes on from its first look proves it too
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
        """Blocks of the `SWEEPS` sweeps from number ``sweeps`` on."""
        n_b = self._blocks
        return np.random.default_rng([self._seed, sweeps]).integers(n_b, size=n_b * SWEEPS)

    def begun(self) -> ServerState:
        """All rows of a class alike, and w = 0."""
        first = int(self._drawn(0)[0]) * self._block
        now = self._weighed(np.zeros(2), first, first + self._block).sums
        state = ServerState(
            np.zeros(self._size), np.zeros(2), now, now, np.zeros((2, self._size)), np.zeros(2), math.inf, 0.0,
            FIRST_SHARE, 1.0, MOST_COUPLING, FIRST_CAUTION, 0.0, 0, 0, np.empty(0), [],
        )  # fmt: skip
        return self.looked(state, 0.0)

    def swept(self, state: ServerState, sweeps: int) -> ServerState:
        """So many sweeps further."""
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
        """After a step: what normalises e, and its sums over the block that comes next."""
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
        """Shifts by which either class sums to one under its caps, and sums over a block.

        As `dask_odm.methods.hulls.problem.capped_simplex.cap_factor`: by Newton from a guess, else from the shift
        ``whole`` without caps, until no row more is at its cap.
        """
        shift = shift.copy()
        before = np.full(2, -1.0)
        settled = np.zeros(2, dtype=bool)
        for _ in range(MOST_ROUNDS):
            for k in np.flatnonzero(~settled):
                if found.counts[k] == before[k]:
                    settled[k] = True
                elif found.counts[k] == self._counts[k] or found.capped[k] >= 1.0:
                    settled[k] = before[k] >= 0  # no room is left but by rounding
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
        """The bounds at e and w, and the γ that they suggest."""
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
        """How far w and e depend on each other there, and more caution where ub rose."""
        if coupling_due(state.sweeps // SWEEPS):
            state = replace(state, coupling=self._coupling(state))
        return replace(state, caution=state.caution * more_caution(upper, state.last), last=upper)

    def _coupling(self, state: ServerState) -> float:
        """The root of the largest eigenvalue of the two classes' covariances by e, of rows of largest norm 1."""

        def product(v: Array) -> Array:
            self._hulls.passes_made += 1
            moments = np.sum(self._clients.read(spread, Spread(state.shift, v)), axis=0)
            return np.asarray((moments - (state.now @ v) @ state.now) / self._scale**2)

        start = np.random.default_rng([self._seed, state.sweeps]).standard_normal((self._size,))
        return max(math.sqrt(largest_eigenvalue(product, start, PRODUCTS)), np.finfo(float).tiny)

    def _bound(self, w: Array) -> tuple[float, Array]:
        """A lower bound of half the squared distance by a direction, and its thresholds."""
        positive, negative = self._hulls.thresholds(w)
        thresholds = np.array([positive.cut.threshold, -negative.cut.threshold])
        square = float(w @ w)
        margin = max(0.0, positive.value + negative.value)
        return (margin**2 / (2.0 * square) if square > 0 else 0.0), thresholds

    def _weighed(self, shift: Array, first: int, stop: int) -> Weighed:
        return _total(self._clients.read(weigh, Weigh(shift, first, stop)))


def _total(parts: Sequence[Weighed]) -> Weighed:
    """What all clients answered together, factors of e at log 0."""
    tops = np.max([each.tops for each in parts], axis=0)
    finite = np.where(np.isfinite(tops), tops, 0.0)
    totals = np.sum([np.exp(each.tops - finite) * each.totals for each in parts], axis=0)
    counts, capped, sums = (
        np.sum([getattr(each, name) for each in parts], axis=0) for name in ("counts", "capped", "sums")
    )
    return Weighed(counts, capped, tops, totals, sums)


def _log(totals: Array) -> Array:
    with np.errstate(divide="ignore"):  # of a client without a row of the class
        return np.asarray(np.log(totals))
