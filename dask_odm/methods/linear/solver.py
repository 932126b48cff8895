"""Semismooth Newton on the primal of a linear model: one pass over the rows per step.

step   ``(I + Σ c_i φ_i φ_iᵀ) Δ = −∇P(w)``, by Cholesky up to `EXACT_FEATURES` weights, and beyond by conjugate
       gradients with a diagonal preconditioner. With very many rows the Hessian is that of a sample, while value and
       gradient are of all rows (subsampled Newton: Roosta-Khorasani and Mahoney, 2019)
stall  if steps cease to help, the Hessian is summed over all rows; if they cease again, all sums are in float64
stop   by a gap that is summed in float64

Nearby problems, such as the settings of a search, can share their Hessians (`UpdatedProblem`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from dask_odm.learning.newton import Iterate, Newton, PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES, PrimalProblem, PrimalSums, Query
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.solution import OnStep, Record, StepLog
from dask_odm.linalg.row_passes import Passes, RowBlock, ThreadPasses
from dask_odm.linalg.systems import conjugate_gradients, solve_positive
from dask_odm.typing import Array

State = Iterate[PrimalSums]


@dataclass(frozen=True, eq=False)
class NewtonState:
    """State of a run after a step, from which it can resume.

    ``double_precision`` says whether passes are in float64 by now. The Hessian is summed over one row in
    ``hessian_stride``.
    """

    w: Array
    double_precision: bool
    hessian_stride: int
    steps: int
    history: list[Record]


def solve_newton(
    problem: PrimalProblem,
    w: Array,
    *,
    tol: float,
    max_iter: int,
    exact: bool | None = None,
    double_precision: bool = False,
    certify: bool = True,
    start: PrimalSums | None = None,
    resume: NewtonState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[NewtonState], object] = lambda state: None,
) -> PrimalSolution[PrimalSums]:
    """Minimise P from ``w`` (k,) in up to ``max_iter`` steps, to the relative duality gap ``tol``.

    ``exact`` takes steps by Cholesky of the Hessian; by default up to `EXACT_FEATURES` weights. ``double_precision``
    computes all passes in float64, else only those for which float32 has too few digits are. ``certify`` sums the last
    gap again in float64. ``start`` are the sums at ``w``, if they are known, which saves the first pass. ``resume`` is
    gone on from instead of ``w``. ``on_step`` is called with the record of every pass, ``on_state`` with the state
    after every step that is kept.
    """
    exact = problem.k <= EXACT_FEATURES if exact is None else exact
    stride = 1 if double_precision else problem.hessian_stride
    newton = _LinearNewton(tol, StepLog(on_step), problem, exact, double_precision, stride, certify, on_state)
    if resume is not None:
        newton.resume(resume)
        w = resume.w
    return newton.run(w, max_iter, start)


@dataclass(eq=False)
class _LinearNewton(Newton[PrimalSums]):
    problem: PrimalProblem
    exact: bool
    double: bool
    stride: int
    certify: bool
    on_state: Callable[[NewtonState], object]

    def resume(self, state: NewtonState) -> None:
        self.take_up(state.history, state.steps)
        self.double = state.double_precision
        self.stride = state.hessian_stride

    def save(self, at: State) -> None:
        self.on_state(NewtonState(at.x, self.double, self.stride, self.steps, list(self.log.history)))

    def look(self, x: Array, number: int, known: PrimalSums | None) -> State:
        if known is None:
            kind = "full" if self.exact else "diagonal"
            known = self.problem.sums(x, kind, double_precision=self.double, hessian_stride=self.stride)
        return Iterate.of(x, x, known, number)

    def confirmed(self, at: State) -> State:
        """Return the same w with sums in float64. If that gap is not small enough, all later passes are in float64."""
        if self.double or not self.certify:
            return at
        self.passes += 1
        sums = self.problem.sums(at.x, "none", double_precision=True, hessian_stride=1)
        exact: State = Iterate.of(at.x, at.x, replace(sums, curvature=at.sums.curvature), at.number)
        self.log.amend(gap=exact.gap, objective=exact.primal, passes=self.passes)
        if exact.gap > self.tol:
            self.double = True
            self.stride = 1
        return exact

    def direction(self, at: State) -> Array:
        if not self.exact:
            return self._inexact_direction(at)
        hessian = at.sums.curvature.copy()
        hessian.flat[:: len(hessian) + 1] += 1.0
        first_ridge = float(np.finfo(np.float32).eps) * float(np.trace(hessian)) / len(hessian)
        return -solve_positive(hessian, at.gradient, first_ridge)

    def _inexact_direction(self, at: State) -> Array:
        """Return the step by conjugate gradients, solved to a share of the gradient that depends on the gap."""
        inverse = 1.0 / (1.0 + at.sums.curvature)
        x, _, products = conjugate_gradients(
            lambda p: p + self.problem.product(at.x, p, double_precision=self.double),
            -at.gradient,
            lambda r: inverse * r,
            most=500,
            forcing=min(1e-1, np.sqrt(at.gap)) ** 2,
        )
        self.passes += products
        return x

    def gram_times(self, v: Array) -> Array:
        return v

    def loss_slopes(self, at: State, direction: Array, steps: Array) -> Array:
        return self.problem.slopes(at.x, direction, steps, double_precision=self.double)

    def rounds(self, at: State, after: State, slope: float) -> bool:
        # a smaller decrease cannot be seen in P
        return abs(slope) < 1e-7 * at.primal

    def accepted(self, at: State, after: State) -> State:
        kept = after if after.primal <= at.primal or after.gap < at.gap else at
        # a step that leaves more of the gap, and gains little of P, has too coarse a Hessian or float type
        still = after.gap > 0.25 * at.gap and abs(after.primal - at.primal) < 0.1 * at.primal
        if kept is at or (still and after.gap > self.tol):
            if self.stride > 1:
                self.stride = 1  # the sample has too few active rows: take the same w again, over all rows
                return self.at(kept.x)
            if not self.double:
                self.double = True  # float32 has no digits left: take the same w again, in float64
                return self.at(kept.x)
        # a step that rounding swallows leaves all as it was, and so would every one after it
        self.stuck = kept is at or (self.double and np.array_equal(kept.x, at.x))
        return kept


@dataclass(frozen=True, eq=False)
class Changes:
    """Sums over rows whose curvature holds only the change from known curvatures, and the new ones, group by group."""

    sums: PrimalSums
    curvatures: list[list[Array]]

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.sums + other.sums, self.curvatures + other.curvatures)


class ChangesQuery(Query):
    """A `Query` over blocks that are taken whole."""

    def changes(self, blocks: Iterable[RowBlock], known: Sequence[Array] = ()) -> Changes:
        """Sum over the blocks, with only the change of the Hessian if the curvatures of their rows are ``known``."""
        sums = []
        curvatures = []
        for i, block in enumerate(blocks):
            X = self.features.block(block.X)
            value, dual, c = self.loss.evaluate(self.features.scores(X, self.w), block.y, block.weight)
            if known:
                more = c - known[i]
                more[np.abs(more) <= 1e-5 * c] = 0.0  # a smaller change of a row's curvature is rounding
                second = self._second(X, np.maximum(more, 0.0)) - self._second(X, np.maximum(-more, 0.0))
            else:
                second = self._second(X, c)
            sums.append(PrimalSums(value, self.features.weighted_sum(X, dual), second))
            curvatures.append(c)
        return Changes(reduce(add, sums), [curvatures])


class UpdatedProblem(PrimalProblem):
    """A `PrimalProblem` whose Hessian is updated from point to point instead of summed anew, for rows in memory.

    The curvature of a row's loss is piecewise constant. From one point to the next most rows keep theirs, and a new
    weight of all losses only scales it. So the Hessian at a point is the last one times that factor, plus the products
    of the rows that crossed an end of the band: a few in a hundred from step to step, and from setting to setting. It
    is always in the rows' own type: for gaps that are not small.
    """

    _loss: BandLoss

    def __init__(self, features: FeatureMap, loss: BandLoss, passes: Passes) -> None:
        super().__init__(features, loss, passes)
        self._at: Array | None = None  # weights at which the sums are known
        self._last: PrimalSums | None = None
        self._known: list[list[Array]] = []  # curvatures of the rows in the last sums

    @classmethod
    def of_rows(
        cls, features: FeatureMap, loss: BandLoss, X: Any, y: Array, weight: Array, threads: int = 1
    ) -> UpdatedProblem:
        """Build the problem like `over_rows`, in fewer and larger blocks."""
        most = 4  # groups of at least 1,000 rows: each has a Hessian to be added
        step = max(1000, -(-X.shape[0] // most))
        return cls(features, loss, ThreadPasses.cut(X, y, weight, step, most, threads))

    def weigh(self, loss: BandLoss) -> None:
        """Replace the loss by another one."""
        factor = float(loss.stiffness.sum() / self._loss.stiffness.sum())
        self._loss = loss
        self._at = None
        if self._last is not None:
            self._last = self._last.times(factor)
            self._known = [[c * c.dtype.type(factor) for c in group] for group in self._known]

    def sums(self, w: Array, curvature: str, *, double_precision: bool = False, hessian_stride: int = 1) -> PrimalSums:
        """Return `Query.sums` of all rows."""
        if curvature != "full":
            return super().sums(w, curvature, double_precision=double_precision, hessian_stride=hessian_stride)
        if self._last is None or w is not self._at:
            query = ChangesQuery(self._features, self._loss, w)
            found: Changes = self._passes.run(query, ChangesQuery.changes, of_groups=self._known)
            sums = found.sums
            if self._last is not None:
                sums = replace(sums, curvature=self._last.curvature + sums.curvature)
            self._at, self._last, self._known = w, sums, found.curvatures
        return self._last
