"""Stochastic variance-reduced gradients (SVRG) for the linear kernel: epochs of one full pass and many small steps.

minimise    ``P(w) = mean of p_i(w)``, ``p_i(w) = ½‖w‖² + n loss_i(y_i w·φ_i)`` over n rows
epoch       ``v`` = Σ y s φ at the snapshot w̃, so that ``∇P(w̃) = w̃ − v``; then, row by row in a random order,
            ``w ← w − η (∇p_i(w) − ∇p_i(w̃) + ∇P(w̃)) = (1 − η) w + η v + η (q_i(w) − q_i(w̃)) φ_i``
            with ``q_i = n y_i s_i``: O(d) a step of a dense row, O(entries) of a sparse one (`sparse_steps`)
stop        ``½‖∇P(w̃)‖² ≤ tol · P(w̃)``, the duality gap, which the full pass gives in float64. A run that starts at
            zero makes one epoch at least

Sources: Johnson and Zhang, *Accelerating Stochastic Gradient Descent using Predictive Variance Reduction*, 2013;
step size "bb": Tan, Ma, Dai and Qian, *Barzilai-Borwein Step Size for Stochastic Gradient Descent*, 2016. Rows are
visited without replacement. A `StochasticProblem` takes the steps: over rows in memory (`ArraySteps`, also with the
snapshots of CSVRG), or on a ring of workers (`dask_odm.papers.dsvrg.workers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.errors import InputError
from dask_odm.learning.newton import Iterate, PrimalSolution
from dask_odm.learning.problem.band import band_slope
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, PrimalSums
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.learning.solution import OnStep, Record, SolverSettings, StepClock
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.papers.dsvrg.sparse_steps import SparseWalk, square_norms
from dask_odm.typing import Array

# η of "auto" in units of 1/L. Of .02 to 4 it took the fewest epochs on ijcnn1, cod-rna and phishing, λ from 1e2 to 1e5
AUTO_FACTOR = 0.25
STALL_EPOCHS = 5  # CSVRG stops if none of so many last epochs makes progress


@dataclass(frozen=True, eq=False)
class SVRGState:
    """The state at the start of an epoch, which serves as warm start and as checkpoint.

    ``w`` (k,) is the snapshot. ``before`` (2, k) are last epoch's snapshot and gradient there; (0, k) at the start.
    ``smoothness`` is L, if it was computed. ``passes`` and ``hops`` are totals so far, and ``history`` has
    the records of the epochs before.
    """

    epoch: int
    w: Array
    before: Array
    smoothness: float | None = None
    passes: float = 0.0
    hops: int = 0
    history: list[Record] = field(default_factory=list)

    @classmethod
    def start(cls, w: Array) -> SVRGState:
        return cls(0, w, np.empty((0, len(w))))


class StochasticProblem(Protocol):
    """The sums and steps that SVRG needs; the rows themselves stay with the problem."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    def sums(self, w: Array) -> PrimalSums:
        """Sum the loss and the image of the dual variables at w in float64: one pass."""

    def stiffest(self) -> float:
        """Return the largest second derivative of any row's loss in w, ``c_i ‖φ_i‖²``: one pass."""

    def snapshot(self, w: Array, dual_image: Array) -> tuple[Array, float]:
        """Return the image that the steps use at the snapshot ``w``, and the passes it cost.

        ``dual_image`` is the exact one, of all rows.
        """

    def walk(self, w: Array, dual_image: Array, step: float, epoch: int) -> tuple[Array, float, int]:
        """Take an epoch's steps from the snapshot ``w``. Returns the last w, the steps in passes, and the hops."""


@dataclass(frozen=True, eq=False)
class SVRG:
    """The epochs of SVRG, for any problem that takes the steps.

    ``name`` is the solver's in messages, and ``solver.max_iter`` counts epochs. ``step_size`` is η. "auto" is
    `AUTO_FACTOR` / L; L is the largest second derivative of any p_i, that is 1 + λ max(c̃_i ‖φ_i‖²)/(1−θ)² with weights
    c̃ of mean 1. "bb" is Barzilai and Borwein's ``‖Δw‖² / (n Δwᵀ∇)``, ∇ being the change of the gradient between
    snapshots, up to 1/L: twice that took three times the epochs or did not converge, and four times diverged.

    If ``biased``, it also stops when the gap stalls. ``on_step`` is called after every full pass with a record:
    iteration, gap, objective, passes, seconds and hops so far; ``on_state`` after every epoch with the state at the
    start of the next one.
    """

    name: str
    problem: StochasticProblem
    solver: SolverSettings
    step_size: float | str = "auto"
    biased: bool = False
    on_step: OnStep = lambda record: None
    on_state: Callable[[SVRGState], object] = lambda state: None

    def run(self, state: SVRGState | None = None) -> PrimalSolution[PrimalSums]:
        """Run epochs from ``state``, by default from zero. Raises InputError if too long steps make them diverge."""
        state = SVRGState.start(np.zeros(self.problem.k)) if state is None else state
        clock = StepClock(state.history)
        history = list(state.history)
        # steps that diverge overflow, which `_at` finds; BLAS is limited once, since every entry looks for libraries
        with np.errstate(over="ignore", invalid="ignore"), single_threaded_blas:
            while True:
                at = self._at(state, history, clock)
                converged = at.gap <= self.solver.tol
                ended = state.epoch >= self.solver.max_iter or not math.isfinite(at.gap)
                enough = converged and (state.epoch or at.x.any())  # w = 0 classifies nothing, however small the gap
                if enough or ended or (self.biased and _stalls(history)):
                    return PrimalSolution(at.x, at.primal, at.gap, converged, history, len(history) - 1, at.sums)
                state = replace(self._epoch(state, at), history=list(history))
                self.on_state(state)

    def _at(self, state: SVRGState, history: list[Record], clock: StepClock) -> Iterate[PrimalSums]:
        """Make the full pass at the snapshot, and record it."""
        at: Iterate[PrimalSums] = Iterate.of(state.w, state.w, self.problem.sums(state.w))
        if history and not at.primal <= 10.0 * history[0]["objective"]:
            raise self._diverged(state, history[-1], at.primal)
        record = clock.record(state.epoch, at.gap, at.primal, state.passes + 1.0, hops=state.hops)
        history.append(record)
        self.on_step(record)
        return at

    def _epoch(self, state: SVRGState, at: Iterate[PrimalSums]) -> SVRGState:
        """Take the steps from one snapshot to the next."""
        dual_image, passes = self.problem.snapshot(at.x, at.x - at.gradient)
        if isinstance(self.step_size, str) and state.smoothness is None:
            state = replace(state, smoothness=self._smoothness())
            passes = passes + 1.0
        here = np.stack([at.x, at.x - dual_image])
        w, walked, hops = self.problem.walk(at.x, dual_image, self._step_size(state, here), state.epoch)
        passes += state.passes + 1.0 + walked
        return SVRGState(state.epoch + 1, w, here, state.smoothness, passes, state.hops + hops)

    def _smoothness(self) -> float:
        return 1.0 + self.problem.n * self.problem.stiffest()

    def _step_size(self, state: SVRGState, here: Array) -> float:
        if not isinstance(self.step_size, str):
            return float(self.step_size)
        assert state.smoothness is not None
        auto = AUTO_FACTOR / state.smoothness
        longest = 1.0 / state.smoothness
        if self.step_size == "auto" or not len(state.before):
            return auto
        moved, turned = here - state.before
        curved = self.problem.n * float(moved @ turned)
        return min(float(moved @ moved) / curved, longest) if curved > 0 else auto

    def _diverged(self, state: SVRGState, last: Record, primal: float) -> InputError:
        step = self.step_size
        safe = AUTO_FACTOR / (self._smoothness() if state.smoothness is None else state.smoothness)
        way = f"step_size='auto', which is {safe:.2g} here" if step != "auto" else f"a step_size below {safe:.2g}"
        took = f"step_size={step!r}" if isinstance(step, str) else f"step_size={step:g}"
        return InputError(
            f"solver={self.name!r} diverged in epoch {state.epoch}: {took} took the objective from "
            f"{last['objective']:.6g} to {primal:.6g}. Use {way}, or solver='newton', which needs none."
        )


def _stalls(history: Sequence[Record]) -> bool:
    """Return whether the last `STALL_EPOCHS` failed to get clearly below the least gap before them."""
    gaps = [record["gap"] for record in history]
    recent = gaps[-STALL_EPOCHS:]
    before = gaps[:-STALL_EPOCHS]
    # progress is a gap a tenth below the least one before those epochs
    return bool(before) and min(recent) > 0.9 * min(before)


# Steps over rows in memory --------------------------------------------------------------------------------------------


def stiffest_of(parts: Iterable[tuple[Any, Array, Array]], loss: BandLoss, features: FeatureMap) -> float:
    """Return the largest ``c ‖φ‖²`` of ``parts`` of the rows: X, scaled if it is dense, codes and weights."""

    def largest(X: Any, y: Array, weight: Array) -> float:
        squares = square_norms(X, features) if issparse(X) else np.einsum("ij,ij->i", X, X, dtype=np.float64)
        return float((loss.row_stiffness(y, weight) * (squares + features.bias)).max())

    return max(largest(*part) for part in parts)


@compiled
def take_steps(
    X: Array, codes: Array, weight: Array, order: Array, w: Array, snapshot: Array, drift: Array, stiffness: Array,
    band: Array, constant: float, step: float,
) -> None:  # fmt: skip
    """Take one step for each row of ``order``, changing ``w`` (k,) in place.

    ``drift`` is η v, ``stiffness`` n times the loss's, and ``step`` η. The constant feature, if k > d, is last.
    """
    low = band[0]
    high = band[1]
    upsilon = band[2]
    d = X.shape[1]
    weighted = weight.size > 0
    keep = 1.0 - step
    for at in range(order.size):
        i = order[at]
        row = X[i]
        score = there = 0.0
        for j in range(d):
            score += w[j] * row[j]
            there += snapshot[j] * row[j]
        if w.size > d:
            score += constant * float(w[d])
            there += constant * float(snapshot[d])
        c = stiffness[1] if codes[i] == 1 else stiffness[0]
        if weighted:
            c *= weight[i]
        y = 1.0 if codes[i] == 1 else -1.0
        m = y * score
        m_there = y * there
        change = band_slope(m, low, high, upsilon) - band_slope(m_there, low, high, upsilon)
        t = step * c * y * change
        for j in range(d):
            w[j] = keep * w[j] + drift[j] + t * row[j]
        if w.size > d:
            w[d] = keep * w[d] + drift[d] + t * constant


def walk_rows(
    features: FeatureMap,
    loss: BandLoss,
    n: int,
    parts: Iterable[tuple[tuple[Any, Array, Array], Array]],
    snapshot: Array,
    dual_image: Array,
    step: float,
    start: Array | None = None,
) -> Array:
    """Take the steps of ``parts`` of ``n`` rows from ``start``, by default the snapshot, and return the last w (k,).

    A part is X, scaled if it is dense and raw if it is sparse, with codes and weights, and the order to visit them in.
    """
    w = np.array(snapshot if start is None else start)
    of_sparse: SparseWalk | None = None
    for (X, codes, weight), order in parts:
        if issparse(X):
            of_sparse = of_sparse or SparseWalk(features, loss, n, w, snapshot, dual_image, step)
            of_sparse.take(X, codes, weight, order)
        else:
            scaled = frozen(X), frozen(codes), frozen(weight), order, w, snapshot, step * dual_image
            take_steps(*scaled, n * loss.stiffness, loss.band, features.constant, step)
    return w if of_sparse is None else of_sparse.end()


def warm_up(dtype: np.dtype[Any], *, sparse: bool = False) -> None:
    """Compile the loops for dense or ``sparse`` rows of ``dtype``, or load them from the cache."""
    X = np.zeros((1, 1), dtype)
    rows = csr_array(X) if sparse else X, np.zeros(1, np.int8), np.ones(1)
    steps = ArraySteps(FeatureMap(1, 1.0), BandLoss(ODMSettings(1.0, 0.0, 0.0), 1.0), *rows, seed=0)
    w = np.zeros(2)
    steps.walk(w, steps.sums(w).dual_image, 1.0 + steps.stiffest(), 0)


@dataclass(frozen=True, eq=False)
class ArraySteps:
    """SVRG or CSVRG steps over rows in memory.

    Dense rows ``X`` (n, d) are already scaled, and their feature map has no scaling; sparse rows are raw. An empty
    ``weight`` stands for weights of 1. ``seed`` draws the order of the rows, ``threads`` share a full pass.

    With a ``coreset``, a small weighted set of rows, the snapshots are those of CSVRG. This is an interpretation, since
    the paper that SODM cites for CSVRG was not at hand. SVRG's snapshot has the dual image v, a sum over all rows.
    CSVRG estimates it by

        ``ṽ(w̃) = Σ_strata (n_s/m_s) Σ_{i in the set, of stratum s} y_i s_i(w̃) φ_i``

    The set has m_s of the n_s rows of stratum s, drawn once, without replacement. The estimate is unbiased over draws,
    but all epochs use the same set. Steps are taken over all rows. So the iteration rests at ``w = ṽ(w)``, which is the
    optimum of the set's own weighted problem and not that of all rows. It stalls at a gap that is smaller for a larger
    set. With every row in the set it equals SVRG bit by bit. The coreset consists of the set's rows (m,), ascending,
    and n_s/m_s of each (m,), as `draw_coreset` draws them.
    """

    features: FeatureMap
    loss: BandLoss
    X: Any
    codes: Array
    weight: Array
    seed: int
    threads: int = 1
    coreset: tuple[Array, Array] | None = None

    @property
    def n(self) -> int:
        return len(self.codes)

    @property
    def k(self) -> int:
        return self.features.k

    @cached_property
    def _all(self) -> PrimalProblem:
        return PrimalProblem.over_rows(self.features, self.loss, self.X, self.codes, self.weight, self.threads)

    @cached_property
    def _set(self) -> PrimalProblem:
        assert self.coreset is not None
        chosen, factor = self.coreset
        weight = factor * self.weight[chosen] if self.weight.size else factor
        rows = self.X[chosen], self.codes[chosen], weight
        return PrimalProblem.over_rows(self.features, self.loss, *rows, self.threads)

    def sums(self, w: Array) -> PrimalSums:
        return self._all.sums(w, "none")

    def stiffest(self) -> float:
        return stiffest_of([(self.X, self.codes, self.weight)], self.loss, self.features)

    def snapshot(self, w: Array, dual_image: Array) -> tuple[Array, float]:
        if self.coreset is None:
            return dual_image, 0.0
        return self._set.sums(w, "none").dual_image, len(self.coreset[0]) / self.n

    def walk(self, w: Array, dual_image: Array, step: float, epoch: int) -> tuple[Array, float, int]:
        order = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, epoch))).permutation(self.n)
        rows = self.X, self.codes, self.weight
        return walk_rows(self.features, self.loss, self.n, [(rows, order)], w, dual_image, step), 1.0, 0


def draw_coreset(strata: Array, size: int, seed: int) -> tuple[Array, Array]:
    """Draw the rows of a coreset. Returns them in ascending order, with the factor n_s/m_s of each row's stratum.

    A stratum's share of ``size`` is its share of the rows, but at least one row.
    """
    sizes = np.bincount(strata)
    wanted = np.minimum(sizes, np.maximum(np.rint(size * sizes / len(strata)).astype(np.int64), 1))
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    drawn = [rng.choice(np.flatnonzero(strata == s), wanted[s], replace=False) for s in np.flatnonzero(sizes)]
    chosen = np.sort(np.concatenate(drawn))
    return chosen, (sizes / np.maximum(wanted, 1))[strata[chosen]]
