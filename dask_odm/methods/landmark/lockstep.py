"""Newton's method in lockstep, for all machines of many classes over shared landmarks.

In the coordinates ``β = Lᵀα`` of an orthonormal basis of the landmarks' span, ``G = LLᵀ``, a machine minimises
``P(β) = ½‖β‖² + Σ_i loss_i``. Its Newton step solves ``(1 + L⁻¹ Kᵀ diag(c) K L⁻ᵀ) Δ = −∇P`` by conjugate gradients.
Every machine goes its own way, and leaves when it is done. But a pass serves all machines that are not done: their
sums, and the products of their conjugate gradients, are matrix products with the same kernel values. Their
preconditioners are made of means over the classes (`dask_odm.methods.landmark.class_means`), which the machines share.

If a step does not lower P as much as the slope there promises, the machine's next try is a shorter step, which P's
derivatives at both ends suggest. Rows in float32 have sums in float32 at first. When these no longer help, or say that
a machine is done, it goes on with kernel values in float64. Those of products stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.solution import OnStep, Record, StepClock
from dask_odm.linalg.systems import Triangle, times_lower, times_transpose
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.methods.landmark.class_means import ClassMeans, are_stale
from dask_odm.methods.landmark.machines import MachineProblem, MachineSums
from dask_odm.typing import Array

MOST_PRODUCTS = 300  # of the conjugate gradients of a step
SHARED_ROWS = 64  # machines whose coordinates a thread changes at a time


@dataclass(frozen=True, eq=False)
class LockstepState:
    """State of all machines (m) between two passes, from which a run can resume.

    ``at`` (m, r) are the coordinates of the best points so far, with their ``primal`` and ``gap``. The next pass looks
    at ``at + length · direction``, of which P has the ``slope`` at ``at``. A ``length`` of 0 looks at ``at`` itself.
    ``open`` is 1 for machines that are not done in this precision. ``made`` (m, classes) are the curvatures of the
    machines' preconditioners, zero before the first. ``looks`` counts passes for sums, and ``passes`` those for
    products, too. ``history`` has a record of each look at all machines.
    """

    at: Array
    direction: Array
    length: Array
    slope: Array
    primal: Array
    gap: Array
    steps: Array
    open: Array
    made: Array
    double_precision: bool
    looks: int
    passes: int
    history: list[Record]

    @classmethod
    def begin(cls, at: Array, classes: int, *, double_precision: bool) -> LockstepState:
        """Return the state in which machines are at the coordinates ``at`` (m, r)."""
        m = len(at)
        arrays: dict[str, Any] = {name: np.zeros(m) for name in ("length", "slope", "primal", "gap", "steps")}
        return cls(
            at=at, direction=np.zeros_like(at), open=np.ones(m), made=np.zeros((m, classes)), **arrays,
            double_precision=double_precision, looks=0, passes=0, history=[],
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Look:
    """Points ``x`` (k, r) of the open machines ``live`` (k,), with their sums, gradients, P and gaps."""

    live: Array
    x: Array
    sums: MachineSums
    gradient: Array
    primal: Array
    gap: Array


@dataclass(eq=False)
class Lockstep:
    """One run of all machines, each until its gap over the span of the landmarks is at most ``tol`` of P.

    A machine takes up to ``max_iter`` steps. After each pass for sums, ``on_state`` is called with the state, and then
    ``on_step`` with a record of all machines: the largest gap, the sum of P, and how many are not done. ``inverse``
    (r, r) is L⁻¹, for conjugate gradients. Without ``means`` these have no preconditioner. The number of ``threads``
    never changes the result.
    """

    problem: MachineProblem
    landmarks: Landmarks
    inverse: Array
    means: ClassMeans | None
    tol: float
    max_iter: int
    threads: int = 1
    on_step: OnStep = lambda record: None
    on_state: Callable[[LockstepState], object] = lambda state: None
    clock: StepClock = field(default_factory=StepClock)
    factors: dict[int, Triangle | None] = field(default_factory=dict, init=False)  # of preconditioners, by machine

    def __post_init__(self) -> None:
        self.landmarks.prepare()

    def run(self, start: Array, state: LockstepState | None) -> tuple[list[PrimalSolution[None]], list[Record]]:
        """Minimise from coordinates ``start`` (m, r), or go on from a ``state``.

        Return the solution of every machine, in coordinates, and the records of all. Solutions have no records of their
        own.
        """
        classes, m = self.problem.query.stiffness.shape
        exact = self.problem.query.span.dtype == np.float64
        s = state or LockstepState.begin(start, classes, double_precision=exact)
        with single_threaded_blas:
            while True:
                while s.open.any():
                    s = self._pass(s)
                if s.double_precision:
                    break
                s = replace(s, open=np.ones(m), length=np.zeros(m), double_precision=True)
        found: list[PrimalSolution[None]] = []
        figures = s.primal.tolist(), s.gap.tolist(), s.steps.tolist()
        for x, primal, gap, steps in zip(s.at, *figures, strict=True):
            found.append(PrimalSolution(x, primal, gap, gap <= self.tol, [], int(steps)))
        return found, s.history

    def _pass(self, s: LockstepState) -> LockstepState:
        """Look at the next points of all open machines, and choose the points after them."""
        at = self._look(s)
        seconds = self.clock.seconds
        better, done = self._judged(s, at)
        s = _with_points(s, at, better)
        done |= s.steps[at.live] >= self.max_iter
        s.open[at.live[done]] = 0.0
        figures = float(s.gap.max()), float(s.primal.sum()), s.passes + 1
        record = self.clock.record(s.looks, *figures, seconds=seconds, machines=int(s.open.sum()))
        s = replace(s, looks=s.looks + 1, passes=s.passes + 1, history=[*s.history, record])
        s = self._shortened(s, at, ~better & ~done)
        s = self._directed(s, at, np.flatnonzero(better & ~done))
        self.on_state(s)
        self.on_step(record)
        return s

    def _look(self, s: LockstepState) -> _Look:
        live = np.flatnonzero(s.open)
        x = s.at[live] + s.length[live, None] * s.direction[live]
        sums = self.problem.sums(live, self._coefficients(x), double=s.double_precision)
        gradient = x - self._whitened(sums.image)
        primal = 0.5 * _dots(x, x) + sums.loss
        gap = 0.5 * _dots(gradient, gradient) / np.maximum(primal, np.finfo(float).tiny)
        return _Look(live, x, sums, gradient, primal, gap)

    def _judged(self, s: LockstepState, at: _Look) -> tuple[Array, Array]:
        """Return which machines are to take the points that were looked at, and which are done in this precision."""
        length = s.length[at.live]
        before = s.primal[at.live]
        slope = s.slope[at.live]
        first = length == 0.0
        digits = 1e-13 if s.double_precision else 1e-6  # share of P that is rounding
        with np.errstate(invalid="ignore"):  # what is not finite is no better
            # Armijo's condition, or an end whose P differs by rounding
            better = first | (at.primal <= before + 1e-4 * length * slope) | (at.gap <= self.tol)
            halved = at.gap <= 0.5 * s.gap[at.live]
            idle = ~first & ~halved & (before - at.primal <= digits * before)
            if not s.double_precision:  # near the end, Newton's steps do better than this unless rounding is in the way
                idle |= ~first & ~halved & (at.gap <= 0.1)
            lost = (length < 1e-6) | (-length * slope <= digits * before)
        # zero classifies nothing, so at least one step is taken from there
        reached = (at.gap <= self.tol) & (~first | at.x.any(axis=1))
        return better, np.where(better, reached | idle, lost) | ~np.isfinite(at.gap)

    def _shortened(self, s: LockstepState, at: _Look, some: Array) -> LockstepState:
        """Shorten the steps of ``some`` machines to where a parabola with P's slopes at both ends is least."""
        machines = at.live[some]
        end = _dots(at.gradient[some], s.direction[machines])
        share = s.slope[machines] / np.minimum(s.slope[machines] - end, -np.finfo(float).tiny)
        length = s.length.copy()
        length[machines] *= np.clip(share, 0.1, 0.9)
        return replace(s, length=length)

    def _directed(self, s: LockstepState, at: _Look, some: Array) -> LockstepState:
        """Find the next steps of ``some`` machines, from the points that were looked at."""
        if not len(some):
            return s
        machines = at.live[some]
        s = self._preconditioned(s, machines, at.sums.curvatures[some])
        found, products = self._steps(at, some)
        direction, length, slope = s.direction.copy(), s.length.copy(), s.slope.copy()
        direction[machines] = found
        length[machines] = 1.0
        slope[machines] = _dots(at.gradient[some], found)
        return replace(s, direction=direction, length=length, slope=slope, passes=s.passes + int(products.max()))

    def _preconditioned(self, s: LockstepState, machines: Array, curvatures: Array) -> LockstepState:
        """Make preconditioners for ``machines`` whose ``curvatures`` (k, classes) are far from those of the last."""
        if self.means is None:
            return s
        made = s.made.copy()
        stale = are_stale(curvatures, made[machines])
        made[machines[stale]] = curvatures[stale]
        lost = [machine for machine in machines if machine not in self.factors]  # by a run that went on
        needed = np.union1d(machines[stale], np.array(lost, machines.dtype))
        for machine in needed.tolist():  # before the new ones are made beside them
            self.factors.pop(machine, None)
        self.factors |= dict(zip(needed.tolist(), self.means.factors(made[needed]), strict=True))
        return replace(s, made=made)

    def _solved(self, r: Array, machines: Array) -> Array:
        """Return the inverse of each machine's preconditioner times its row of ``r`` (k, r)."""
        z = r.copy()

        def solve(i: int) -> None:
            factor = self.factors.get(int(machines[i]))
            if factor is not None:
                row = r[i : i + 1].astype(self.problem.query.span.dtype)
                factor.solve(row)
                factor.solve_transposed(row)
                z[i] = row

        run_threads(solve, range(len(machines)), self.threads)
        return z

    def _steps(self, at: _Look, some: Array) -> tuple[Array, Array]:
        """Return the Newton steps (k, r) of ``some`` machines, and the number of products that each took (k,).

        Conjugate gradients, as exactly as each machine's gap requires. Kernel values may be float32, but not their
        sums: a large λ would leave the directions in which the Hessian is near 1 to their rounding.
        """
        gap = at.gap[some]
        gradient = at.gradient[some]
        left = np.minimum(0.1, np.sqrt(gap)) ** 2  # share of the gradient's squared norm, and so of the gap
        left = np.where(gap > self.tol, np.maximum(left, 0.1 * self.tol / np.maximum(gap, self.tol)), left)
        found = np.zeros(gradient.shape)
        scale = np.sqrt(_dots(gradient, gradient))  # so that preconditioners may be in float32
        scale[scale == 0.0] = 1.0
        r = -gradient / scale[:, None]
        x = np.zeros_like(r)
        places: Array = np.arange(len(some))
        machines = at.live[some]
        p = z = self._solved(r, machines)
        rr, rz = _dots(r, r), _dots(r, z)
        enough = left * rr
        products: Array = np.zeros(len(some), np.int64)
        while products.max() < MOST_PRODUCTS:
            busy = rr > enough
            if not busy.all():
                found[places[~busy]] = x[~busy]
                places, x, r, p, rz, enough = (each[busy] for each in (places, x, r, p, rz, enough))
            if not len(places):
                break
            Ap = p + self._images(at, p, some[places])
            products[places] += 1
            length = (rz / _dots(p, Ap))[:, None]
            x += length * p
            r -= length * Ap
            z = self._solved(r, machines[places])
            rr, rz, last = _dots(r, r), _dots(r, z), rz
            p = z + (rz / last)[:, None] * p
        found[places] = x
        return found * scale[:, None], products

    def _images(self, at: _Look, p: Array, some: Array) -> Array:
        """Return ``L⁻¹ Kᵀ diag(c) K L⁻ᵀ p`` of each row of ``p``."""
        coefficients = self._each(p, lambda rows: times_lower(rows, self.inverse))
        image = self.problem.product(at.live, at.sums, coefficients, some)
        return self._each(image, lambda rows: times_transpose(rows, self.inverse))

    def _coefficients(self, x: Array) -> Array:
        """Return the coefficients ``L⁻ᵀ β`` of landmarks for coordinates β, row by row, in float64."""
        factor = self.landmarks.factor
        return self._each(x, lambda rows: solve_triangular(factor, rows.T, lower=True, trans=1, check_finite=False).T)

    def _whitened(self, images: Array) -> Array:
        """Return ``L⁻¹ k`` of each row k of ``images``, in float64."""

        def white(rows: Array) -> Array:
            found = rows.copy()
            self.landmarks.whiten(found)
            return found

        return self._each(images, white)

    def _each(self, rows: Array, function: Callable[[Array], Array]) -> Array:
        """Return ``function`` of all rows, some at a time by threads."""
        starts = range(0, len(rows), SHARED_ROWS)
        parts = run_threads(lambda start: function(rows[start : start + SHARED_ROWS]), starts, self.threads)
        return np.concatenate(parts)


def _with_points(s: LockstepState, at: _Look, better: Array) -> LockstepState:
    """Return the state in which machines that are ``better`` there have moved to where they looked."""
    machines = at.live[better]
    taken = {name: getattr(s, name).copy() for name in ("at", "primal", "gap", "steps", "open")}
    taken["at"][machines] = at.x[better]
    taken["primal"][machines] = at.primal[better]
    taken["gap"][machines] = at.gap[better]
    taken["steps"][machines] += s.length[machines] > 0.0
    return replace(s, **taken)


def _dots(A: Array, B: Array) -> Array:
    """Return the inner products of the rows of ``A`` and ``B``, float64 (m,)."""
    return np.einsum("ij,ij->i", A, B, dtype=np.float64)
