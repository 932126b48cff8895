"""Newton on the primal with the whole Gram matrix in memory: the exact ODM of up to a few thousand rows.

The loss is piecewise quadratic, so a step solves ``(K_SS + D_S) a_S = t_S`` over the active rows S (see
`dask_odm.methods.exact.solver`), in the dtype of the matrix. In float32, a step is solved as a correction of the
current coefficients, so that rounding errors shrink with the steps. Once the gap is small enough, ``certify``
recomputes the scores in float64, and steps go on from these until the gap holds there too (iterative refinement).

From about a thousand rows on, if the landmarks' Nyström residual is small, conjugate gradients solve the systems as
exactly as the gap requires, starting from the Nyström solution (`GramSpan`). Otherwise, and once they were slow,
Cholesky solves the systems, starting from the solution of a quarter of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, lapack

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Room
from dask_odm.kernels.user_kernels import CallableKernel
from dask_odm.learning.line_search import few_rows_step, least_row_step
from dask_odm.learning.problem.bounds import scaled_dual
from dask_odm.learning.problem.odm import Point, RowLosses
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.linalg.dense import factored
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.krylov import conjugate_gradients
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.methods.exact.gram_landmarks import SHARE, GramSpan
from dask_odm.typing import Array

SUBSET = 4  # one row in so many is solved for the start
FEW = 400  # fewer rows start from zero
TO_ROUNDING = 256  # most rows that are solved in float64, which takes no longer for them
ROUNDING = 1e-14  # gap that float64 cannot tell from zero
NEAR = 1e-3  # gap below which steps may be tiny, which only the slower line search resolves
ROUGH = 0.03  # gap to which the start is solved
TILE = 256  # rows and columns per tile in float64; a tile stays in the cache
ITERATED = 900  # fewest rows whose systems are solved by conjugate gradients
HARD = 10.0  # largest Nyström residual, times the stiffness, for conjugate gradients
FORCING = 0.01  # an inexact step may leave a gap of this times min(0.1, √gap) · gap
ROWS_PER_PRODUCT = 40  # rows per product, after which Cholesky would have been as fast
PART = 512  # rows of a product that a thread takes at a time
DRIFT = 1e-11  # share of P by which carried scores may be off before they are recomputed
IMPROVED = 0.5  # share of the last certified gap; if the next is larger, rounding stalls it
KEPT_BYTES = 20 << 20  # most bytes of a buffer that is kept for the next solve
KEPT_ROOMS = 2
TINY = np.finfo(float).tiny
_rooms: list[Room] = []

Image = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """Coefficients and scores (n,), P, D and their relative gap, and one record per step."""

    coefficients: Array
    scores: Array
    point: Point
    converged: bool
    history: list[Record]


@contextmanager
def _room() -> Iterator[Room]:
    """Lend memory to one solve. Small buffers are kept for later ones, since the first touch of fresh pages is slow."""
    try:
        room = _rooms.pop()
    except IndexError:
        room = Room()
    try:
        yield room
    finally:
        if room.nbytes <= KEPT_BYTES and len(_rooms) < KEPT_ROOMS:
            _rooms.append(room)


def gram_bytes(n: int, d: int) -> int:
    """Return the peak bytes of `solve_rows`: the matrix, a system of that size, landmarks, and rows in both dtypes."""
    entry = 8 if n <= TO_ROUNDING else 4
    return 2 * entry * n * n + 3 * entry * n * (n // SHARE) + 48 * n * (d + 10) + 40 * 8 * n


def gram_of(kernel: Kernel, X: Array, out: Array, threads: int = 1) -> Array:
    """Compute the Gram matrix of the rows ``X`` (n, d) into ``out`` (n, n), and return it."""
    dtype = np.result_type(X, out) if isinstance(kernel, CallableKernel) else out.dtype
    rows = X.astype(dtype, copy=False)
    left, right = kernel.pack_left(rows), kernel.pack_right(rows)

    def fill(start: int) -> None:
        part = slice(start, min(start + PART, len(X)))
        with np.errstate(over="ignore", invalid="ignore"):  # set per thread
            if rows.dtype == out.dtype:
                kernel.tile_packed(left[part], right, out[part])
            else:
                out[part] = kernel.tile_packed(left[part], right)

    with single_threaded_blas:
        run_threads(fill, range(0, len(X), PART), threads)
    return out


def scores_in_float64(kernel: Kernel, X: Array, a: Array, threads: int = 1) -> Array:
    """Return ``K a`` (n,) with kernel values in float64, to certify a gap. No values are kept.

    The kernel value of two rows with coefficients is computed once for both scores.
    """
    used = np.count_nonzero(a)
    order = np.argsort(a == 0, kind="stable")  # rows with coefficients first
    rows, weights, out = X[order].astype(np.float64, copy=False), a[order], np.zeros(len(X))
    spans = [slice(first, min(first + TILE, used)) for first in range(0, used, TILE)]
    left, rights = kernel.pack_left(rows), [kernel.pack_right(rows[span]) for span in spans]

    def score(start: int) -> Array:
        """Return what the rows from ``start`` on add to their own scores and those of earlier rows."""
        part = slice(start, min(start + TILE, len(X)))
        found = np.zeros(part.stop)
        with np.errstate(over="ignore", invalid="ignore"):  # set per thread
            for span, right in zip(spans, rights, strict=True):
                if span.start > start:
                    break
                tile = kernel.tile_packed(left[part], right)
                found[part] += tile @ weights[span]
                if span.start < start < used:
                    found[span] += weights[part] @ tile
        return found

    with single_threaded_blas:
        parts = run_threads(score, range(0, len(X), TILE)[::-1], threads)  # the longest rows first
    for part in parts:
        out[: len(part)] += part
    scores = np.empty(len(X))
    scores[order] = out
    return scores


def solve_rows(
    losses: RowLosses,
    kernel: Kernel,
    X: Array,
    settings: SolverSettings,
    *,
    start: Array | None = None,
    threads: int = 1,
) -> ExactSolution:
    """Minimise P with the Gram matrix of the rows ``X`` (n, d), and certify the gap for the kernel in float64.

    Up to `TO_ROUNDING` rows are solved in float64 to rounding; more rows have a float32 matrix. See `solve_gram`.
    """
    few = len(X) <= TO_ROUNDING
    n = len(X)
    goal = replace(settings, tol=min(settings.tol, ROUNDING)) if few else settings

    def certify(a: Array) -> Array:
        return scores_in_float64(kernel, X, a, threads)

    with _room() as room:
        K = gram_of(kernel, X, room.take((n, n), np.dtype(np.float64 if few else np.float32)), threads)
        found = solve_gram(losses, K, goal, certify=None if few else certify, start=start, threads=threads)
    return replace(found, converged=found.point.gap <= settings.tol)


def solve_gram(
    losses: RowLosses,
    K: Array,
    settings: SolverSettings,
    *,
    certify: Image | None = None,
    start: Array | None = None,
    threads: int = 1,
    on_step: OnStep = lambda record: None,
) -> ExactSolution:
    """Minimise P over all rows until the relative gap is at most ``settings.tol``.

    Parameters
    ----------
    losses : RowLosses
    K : float32 or float64 ndarray of shape (n, n)
        The Gram matrix, C-contiguous.
    settings : SolverSettings
        ``max_iter`` bounds the steps; the seed chooses the rows of the start.
    certify : callable, optional
        Returns ``K a`` (n,) for coefficients (n,) with the kernel in float64. The final gap is that of these scores, or
        without ``certify`` that of ``K`` itself.
    start : ndarray of shape (n,), optional
        Coefficients to start from.
    threads : int
        Their number never changes the result.
    on_step : callable
        Called with every record.

    Returns
    -------
    ExactSolution
        Not converged if ``max_iter`` steps, or the precision of the matrix, did not suffice.
    """
    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"), _room() as room:
        run = _GramRun(losses, K, settings, threads, StepLog(on_step), room)
        return run.solved(run.rough() if start is None else start, certify)


class _GramRun:
    """One solve: the coefficients ``a``, their scores, and the factor of the last system as long as it is valid."""

    def __init__(
        self, losses: RowLosses, K: Array, settings: SolverSettings, threads: int, log: StepLog, room: Room
    ) -> None:
        self.losses = losses
        self.K = K
        self.settings = settings
        self.threads = threads
        self.log = log
        self.stiffness, self.factor, self.room = np.zeros(0), np.zeros((0, 0), K.dtype), room
        self.span = self.landmarks()

    def landmarks(self) -> GramSpan | None:
        """Choose the landmark rows of the preconditioner.

        Returns None for small problems, or if their Nyström residual is too large.
        """
        n = len(self.losses.y)
        if n < ITERATED:
            return None
        index = np.sort(np.random.default_rng(self.settings.seed).choice(n, n // SHARE, replace=False))
        with suppress(LinAlgError):
            span = GramSpan(self.K, index)
            if float(self.losses.stiffness_low.max()) * span.left(self.K.diagonal()) < HARD:
                return span
        return None

    def rough(self) -> Array:
        """Return coefficients to start from: the Nyström solution, the solution of a quarter of the rows, or zeros."""
        n = len(self.losses.y)
        a = np.zeros(len(self.losses.y))
        if n < FEW:
            return a
        if self.span is not None:
            with suppress(LinAlgError):
                return self.span.start(self.losses)
        index = np.sort(np.random.default_rng(self.settings.seed).choice(n, n // SUBSET, replace=False))
        losses = RowLosses(self.losses.settings, self.losses.y[index], self.losses.weight[index])
        settings = replace(self.settings, tol=max(ROUGH, self.settings.tol))
        a[index] = solve_gram(losses, self.K[index[:, None], index], settings, threads=self.threads).coefficients
        return a

    def solved(self, a: Array, certify: Image | None) -> ExactSolution:
        """Alternate Newton steps and certificates until the certified gap is small or no longer shrinks."""
        tol = self.settings.tol
        held = np.inf
        self.hold(a, self.image(a))
        self.record(self.image)
        while True:
            self.descend()
            if certify is not None:
                self.hold(self.a, certify(self.a))
                self.record(certify)
            else:
                self.renew()
            gap = self.log.history[-1]["gap"]
            if gap <= tol or not gap < IMPROVED * held or len(self.log.history) > self.settings.max_iter:
                break
            held = gap
        self.log.settle()
        last = self.log.history[-1]
        point = Point(last["objective"], self.bound, last["gap"])
        return ExactSolution(self.a, self.scores, point, gap <= tol, self.log.history)

    def hold(self, a: Array, scores: Array) -> None:
        """Set coefficients and recomputed scores; the dual bound so far is dropped."""
        self.a, self.scores, self.bound, self.primal = a, scores, 0.0, self.losses.primal(a, scores)

    def renew(self) -> None:
        """Recompute the scores if, updated step by step, they have drifted from ``K a``.

        They drift if coefficients on the way were far larger than the last.
        """
        scores = self.image(self.a)
        primal = self.losses.primal(self.a, scores)
        bound = self.dual(self.a, scores, self.image)
        if max(abs(primal - self.primal), self.bound - bound) > DRIFT * primal:
            self.hold(self.a, scores)
            self.record(self.image)

    def descend(self) -> None:
        """Take Newton steps until the gap is small, or P falls no further."""
        history = self.log.history
        tol = self.settings.tol
        while history[-1]["gap"] > tol and len(history) <= self.settings.max_iter:
            if not self.step():
                break
            self.record(self.image)

    def image(self, a: Array) -> Array:
        """Return ``K a``, float64 (n,); sums over a row are in the dtype of the matrix."""
        out, v = np.zeros(len(a)), a.astype(self.K.dtype)

        def multiply(first: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # set per thread
                out[first : first + PART] = self.K[first : first + PART] @ v

        if a.any():
            run_threads(multiply, range(0, len(a), PART), self.threads if len(a) > 2 * PART else 1)
        return out

    def record(self, image: Image) -> None:
        """Record P and the current gap; ``image`` multiplies by ``K`` in the precision of the scores."""
        self.bound = max(self.bound, self.dual(self.a, self.scores, image))
        gap = max(0.0, self.primal - self.bound) / max(self.primal, TINY)
        self.log.add(gap if np.isfinite(self.primal) else np.inf, self.primal, float(len(self.log.history) + 1))

    def dual(self, a: Array, scores: Array, image: Image) -> float:
        """Return D of the dual variables ``y a``, scaled to its maximum; if υ = 0, without the negative ones."""
        s = self.losses.y * a
        square = float(a @ scores)
        if self.losses.settings.upsilon == 0 and (s < 0).any():
            s = np.maximum(s, 0.0)
            square = float((self.losses.y * s) @ image(self.losses.y * s))
        return scaled_dual(self.losses, s, square)

    def step(self) -> bool:
        """Take a Newton step, or the step of least P along it; return whether P fell."""
        losses = self.losses
        a = self.a
        scores = self.scores
        margins = losses.y * scores
        stiffness = losses.curvature(margins)
        face = np.flatnonzero(stiffness)
        leaving = np.where(stiffness == 0, a, 0.0)
        staying = a - leaving
        inside = scores - self.image(leaving) if leaving.any() else scores
        target = losses.y * np.where(margins < 1.0, losses.settings.low, losses.settings.high)
        residual = (target - inside)[face] - a[face] / stiffness[face]
        if not np.isfinite(residual).all():
            return False
        found = self.iterated(stiffness, face, residual)
        if found is None:
            if not self.factorise(stiffness, face):
                return False
            found = self.correction(stiffness[face], residual)
        new = staying
        new[face] += found
        after = scores + self.image(new - a)
        primal = losses.primal(new, after)
        if not primal < self.primal:
            d = new - a
            change = after - scores
            self.bound = max(self.bound, self.dual(new, after, self.image))
            least = few_rows_step if self.log.history[-1]["gap"] > NEAR else least_row_step
            length = least(losses, scores, change, float(a @ change), float(d @ change))
            new = a + length * d
            after = scores + length * change
            primal = losses.primal(new, after)
        falls = primal < self.primal
        if falls:
            self.a = new
            self.scores = after
            self.primal = primal
        elif self.span is not None:
            self.span = None  # a step that is solved more exactly may still lower P
            return self.step()
        return falls

    def iterated(self, stiffness: Array, face: Array, residual: Array) -> Array | None:
        """Return ``(K_SS + D_S)⁻¹ residual`` by conjugate gradients, or None if they are slow."""
        if self.span is None:
            return None
        # dropped unless this solve is fast
        span = self.span
        self.span = None
        gap, root, b = self.log.history[-1]["gap"], np.sqrt(stiffness), np.zeros(len(stiffness))
        b[face] = root[face] * residual
        least = 2.0 * self.primal * max(FORCING * min(0.1, np.sqrt(gap)) * gap, 0.1 * self.settings.tol)
        most = len(stiffness) // ROWS_PER_PRODUCT
        with suppress(LinAlgError):
            x, products = conjugate_gradients(
                lambda p: p + root * self.image(root * p), b, span.preconditioner(stiffness), least=least, most=most
            )
            if products < most and np.isfinite(x).all():
                self.span = span
                found: Array = (root * x)[face]
                return found
        return None

    def factorise(self, stiffness: Array, face: Array) -> bool:
        """Factor ``1 + √c K √c`` over the active rows, unless it is the last factor.

        Returns whether the matrix is positive definite.
        """
        if np.array_equal(stiffness, self.stiffness):
            return True
        m = len(face)
        dtype = self.K.dtype
        system = self.room.take((m, m), dtype)
        root = np.sqrt(stiffness[face]).astype(dtype)
        self.stiffness = np.zeros(0)
        gather(self.K, face, root, system, self.threads)
        if not factored(system, self.threads):
            return False
        self.stiffness = stiffness
        self.factor = system
        return True

    def correction(self, stiffness: Array, residual: Array) -> Array:
        """Return ``(K_SS + D_S)⁻¹ residual``, scaled by √stiffness on both sides, which suits any λ."""
        root = np.sqrt(stiffness)
        solve = lapack.spotrs if self.factor.dtype == np.float32 else lapack.dpotrs
        found: Array = root * solve(self.factor.T, root * residual, lower=0)[0]
        return found


def gather(K: Array, face: Array, root: Array, out: Array, threads: int) -> None:
    """Write the lower half of ``1 + √c K √c`` over the active rows to ``out``; ``root`` (m,) is √c."""
    starts = range(0, len(face), PART)[::-1]  # the longest rows first

    def fill(start: int) -> None:
        _gather(K, face, root, out, start, min(start + PART, len(face)))

    run_threads(fill, starts, threads if len(face) > 2 * PART else 1)


@compiled
def _gather(K: Array, face: Array, root: Array, out: Array, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = K[face[i]]
        scale = root[i]
        into = out[i]
        for j in range(i + 1):
            into[j] = scale * root[j] * row[face[j]]
        into[i] += 1
