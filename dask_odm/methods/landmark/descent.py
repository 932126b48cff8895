"""Dual coordinate descent for machines of many classes, over Nyström features of rows in memory.

With weights w of the features φ, a row's margin is ``m = y w·φ``. Without its own dual variable s it would be ``g = m −
‖φ‖² s``. The dual is largest in s at::

    s ← c (1−θ−g) / (1 + ‖φ‖² c)          if g < 1−θ          c the row's stiffness
        υ c (1+θ−g) / (1 + ‖φ‖² υ c)      if g > 1+θ
        0                                 otherwise

and w moves by ``y φ`` times the change, which goes 1.4 times as far if s keeps its sign. A sweep visits the rows in
random order; the same order each time takes three times the sweeps. Rows without a dual variable are visited ever more
rarely. Some 10 sweeps reach a gap of 1e-2.

All features have a large component f along their mean, a unit vector e: the intercept, above all. If ``w·e`` moved with
every change, all rows would respond to each, with two to three times as many changes in all. So pairs of classes
replace it by a b that is fixed during a sweep: the margin is ``y (w·φ + (b − w·e) f)``, and ``‖φ‖² − f²`` takes the
place of ``‖φ‖²``. After the sweep b moves towards w·e as in `dask_odm.methods.pairs.descent`. The weights
``w + (b − w·e) e`` have a gap of ``½ (b − w·e)²`` and those of the rows. Machines against the rest, in which one class
has few of the rows, would take twice the sweeps by it.

Reading features from memory dominates the cost. So a group of machines that share classes sweeps together: a row's
features are read once for all of them, whose weights stay in the second-level cache. Those of the next row are fetched
meanwhile, which the processor would not do by itself, as the order is random. Groups depend on the number of classes
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.band import band_square, best_dual, row_gap
from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.problem.nystrom_features import span_images, span_scores
from dask_odm.learning.solution import SolverSettings
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.linalg.transpose import fetch
from dask_odm.methods.landmark.feature_newton import FeatureNewton
from dask_odm.methods.landmark.machines import MachineQuery
from dask_odm.typing import Array

REST = 4  # sweeps, and half as many as there were, until a row without a dual variable is visited again


@dataclass(frozen=True)
class DescentTuning:
    """How machines descend together, and when Newton's steps are quicker."""

    shared: int = 4  # most classes on each side of a group's pairs; without pairs, most machines of a group
    patience: int = 10  # sweeps that must take away a third of the gap, after as many before
    response: float = 0.3  # share of the response of independent rows that b is assumed to meet at first
    rows: int = 4096  # whose features a thread measures at a time


DESCENT = DescentTuning()


class _Known(NamedTuple):
    """What all groups know: the features of the rows, the errors of some, and a vector (r,) that may be zero, the axis.

    ``norms`` (n,) are the squared lengths of the features, and ``along`` (n,) their components along the axis.
    """

    features: Array
    errors: Array
    axis: Array
    norms: Array
    along: Array


@dataclass(frozen=True, eq=False)
class FeatureDescent:
    """Rows in memory with their Nyström ``features`` (n, r), ascending ``codes`` of classes (n,), and weights or none.

    ``errors`` (m, r) are those of the features of some rows; no row is taken to have more than twice the largest.
    The ``query`` has the signs and stiffnesses of the machines. ``solver`` has the relative gap to reach, the most
    sweeps, and the seed of the order of the rows. The number of ``threads`` never changes the result.
    """

    query: MachineQuery
    features: Array
    errors: Array
    codes: Array
    weight: Array
    solver: SolverSettings
    threads: int

    def run(self, pairs: int) -> list[PrimalSolution[None]]:
        """Return the weights (r,) of each machine's features, with P, gap and the sweeps taken.

        Machines are all ``pairs`` of classes, or one for each class if that is 0. Gaps hold for exact features.
        """
        groups = self._groups(pairs)
        largest = sorted(groups, key=len, reverse=True)  # first, so that threads end together
        parts = run_threads(partial(self._solved, known=self._known(pairs > 0)), largest, self.threads)
        found = dict(zip(chain.from_iterable(largest), chain.from_iterable(parts), strict=True))
        return [found[j] for j in range(len(found))]

    def finished(self, found: list[PrimalSolution[None]]) -> list[PrimalSolution[None]]:
        """Return ``found`` solutions of all machines, or what Newton's method makes of those that are not converged."""
        with single_threaded_blas:
            return run_threads(lambda j: self._finished(j, found[j]), range(len(found)), self.threads)

    def _finished(self, machine: int, found: PrimalSolution[None]) -> PrimalSolution[None]:
        """Return the solution of Newton's method from what descent ``found`` of a machine, if it left something."""
        left = self.solver.max_iter - found.steps
        if found.converged or not left:
            return found
        query = self.query
        own = np.flatnonzero(query.stiffness[:, machine])
        spans = [slice(*np.searchsorted(self.codes, [code, code + 1])) for code in own]
        codes = np.concatenate([self.codes[span] for span in spans])
        weight = np.concatenate([self.weight[span] for span in spans]) if self.weight.size else 1.0
        losses = RowLosses(query.settings, query.signs[codes, machine], query.stiffness[codes, machine] * weight)
        newton = FeatureNewton([self.features[span] for span in spans], losses, self.errors)
        solution = newton.solve(found.x, self.solver.tol, left)
        return replace(solution, steps=found.steps + solution.steps)

    def _known(self, has_axis: bool) -> _Known:
        """Measure the features of all rows; with an axis, along their mean, or with zero in its place."""
        n, r = self.features.shape
        axis = self._axis() if has_axis else np.zeros(r)
        norms, along = np.empty((2, n))

        def measure(start: int) -> None:
            some = slice(start, start + DESCENT.rows)
            norms[some] = np.einsum("ij,ij->i", self.features[some], self.features[some], dtype=np.float64)
            span_scores(self.features[some], axis, along[some])

        run_threads(measure, range(0, n, DESCENT.rows), self.threads)
        return _Known(self.features, self.errors, axis, norms, along)

    def _axis(self) -> Array:
        """Return the unit vector (r,) along the mean of the features."""
        some = self.features[:: max(1, len(self.features) // 1024)]
        mean = some.mean(axis=0, dtype=np.float64)
        return np.asarray(mean / max(float(np.linalg.norm(mean)), np.finfo(float).tiny))

    def _groups(self, pairs: int) -> list[list[int]]:
        machines = self.query.stiffness.shape[1]
        # one group would have most pairs of up to eight classes, and one of two threads nothing to do
        across = DESCENT.shared if pairs > 2 * DESCENT.shared else DESCENT.shared // 2
        keys = [(a // DESCENT.shared, b // across) for a, b in combinations(range(pairs), 2)]
        keys = keys or [(j // DESCENT.shared, 0) for j in range(machines)]
        return [[j for j in range(machines) if keys[j] == key] for key in dict.fromkeys(keys)]

    def _solved(self, group: list[int], known: _Known) -> list[PrimalSolution[None]]:
        query = self.query.of_machines(np.array(group))
        learned = np.array([len(own) > 0 for own in query.machines])
        rows = np.flatnonzero(learned[self.codes])
        weight = self.weight[rows] if self.weight.size else np.ones(len(rows))
        run = _Group(known, rows, self.codes[rows], weight, query)
        k = len(group)
        rng = np.random.default_rng(self.solver.seed)
        left = np.ones(k, bool)
        swept = left.copy()  # those left whose gap, as far as a sweep tells, is not small enough
        slow = np.zeros(k, bool)
        sweeps = np.zeros(k, np.int64)
        gaps = np.full(k, np.inf)
        found: dict[int, PrimalSolution[None]] = {}
        for sweep in range(1, self.solver.max_iter + 1):
            stale = run.sweep(rng.permutation(len(rows)), sweep, swept)
            sweeps += swept
            compared = swept & (sweeps % DESCENT.patience == 0)
            slow |= compared & ~(stale <= 0.7 * gaps)
            gaps[compared] = stale[compared]
            # margins of the sweep are of changing weights, which is most often to their gap's disadvantage
            swept &= ~((stale <= 1.2 * self.solver.tol) | slow)
            if swept.any() and sweep < self.solver.max_iter:
                continue
            W, primal, gap = run.judge(left)  # of all at once, since reading the features takes most of the time
            for j in np.flatnonzero(left):
                converged = bool(gap[j] <= self.solver.tol)
                if converged or slow[j] or sweep == self.solver.max_iter:
                    found[int(j)] = PrimalSolution(W[j], float(primal[j]), float(gap[j]), converged, [], int(sweeps[j]))
                    left[j] = False
            if not left.any():
                break
            swept = left.copy()
        return [found[j] for j in range(k)]


class _Group:
    """State of a group of k machines: weights W (k, r) and coefficients A (rows, k) in the features' dtype.

    ``b`` (k,) are in the place of the weights' components along the axis.
    """

    def __init__(self, known: _Known, rows: Array, codes: Array, weight: Array, query: MachineQuery) -> None:
        k = query.stiffness.shape[1]
        features = known.features
        self.known = known
        self.rows = rows, codes, weight, query.signs, query.stiffness
        self.lengths = known.norms[rows], known.along[rows]
        settings = query.settings
        self.band = np.array([settings.low, settings.high, settings.upsilon])
        self.W = np.zeros((k, features.shape[1]), features.dtype)
        self.A = np.zeros((len(rows), k), features.dtype)
        self.rest = np.zeros((len(rows), k), np.int32)  # sweep in which a row is visited again
        # how far b moves before the next sweep, and how far it was from its place after the last one
        self.b, self.move, self.lag = np.zeros((3, k))
        self.share = np.full(k, DESCENT.response)

    def sweep(self, order: Array, number: int, live: Array) -> Array:
        """Visit the rows in ``order``; return every machine's relative gap, by margins as they were when visited."""
        sums = np.zeros((3, len(live)))
        self.b[live] += self.move[live]
        total = self.W @ self.known.axis
        _sweep(
            self.known.features, *self.rows, *self.lengths, self.band, order, number, live, self.b, total, self.W,
            self.A, self.rest, sums,
        )  # fmt: skip
        loss, lacking, response = sums
        lag = total - self.b
        square = np.einsum("ij,ij->i", self.W, self.W, dtype=np.float64) - total**2 + self.b**2
        gap = (lacking + 0.5 * lag**2) / np.maximum(loss + 0.5 * square, np.finfo(float).tiny)
        share = self.share * np.where(self.lag == 0.0, 1.0, np.where(lag * self.lag > 0.0, 0.65, 1.5))
        np.copyto(self.share, np.clip(share, 0.02, 1.0), where=live)
        np.copyto(self.move, lag / (1.0 + self.share * response), where=live)
        np.copyto(self.lag, lag, where=live)
        return gap

    def judge(self, some: Array) -> tuple[Array, Array, Array]:
        """Return weights (k, r), P and gaps (k,) of ``some`` machines in float64, and visit all their rows next.

        Margins may be off by twice as much as those of any row whose features' errors are known, and the weights that
        follow from the dual variables by the largest sum of such errors. Gaps are the largest that this allows.
        """
        known = self.known
        W = np.zeros(self.W.shape)
        sums = np.zeros((2, len(some)))
        span_images(known.features, (self.A * some).astype(np.float64), W, self.rows[0])
        self.W[some] = W[some]
        self.rest[:, some] = 0
        lag = self.b - W @ known.axis
        W += lag[:, None] * known.axis
        spread = 2.0 * np.abs(known.errors @ W.T).max(axis=0, initial=0.0)
        longest = 2.0 * float(np.sqrt(np.square(known.errors).sum(axis=1).max(initial=0.0)))
        off = np.abs(lag) + longest * np.abs(self.A).sum(axis=0, dtype=np.float64)
        _judge(known.features, *self.rows, self.band, some, spread, self.A, W, sums)
        primal = sums[0] + 0.5 * np.einsum("ij,ij->i", W, W)
        return W, primal, (sums[1] + 0.5 * off**2) / np.maximum(primal, np.finfo(float).tiny)


@compiled
def _sweep(
    features: Array, rows: Array, codes: Array, weight: Array, signs: Array, stiffness: Array, norms: Array,
    along: Array, band: Array, order: Array, number: int, live: Array, b: Array, total: Array, W: Array, A: Array,
    rest: Array, sums: Array,
) -> None:  # fmt: skip
    """Visit rows in ``order``; update ``W``, ``A`` and ``rest``, and add losses and gaps of all rows to ``sums``.

    ``total`` (k,) are the components of ``W`` along the axis, in whose place rows see ``b``. ``sums`` (3, k) also take
    how far ``total`` falls if b rises by 1 and each row responds independently.
    """
    low = band[0]
    high = band[1]
    upsilon = band[2]
    zero = W[0, 0] - W[0, 0]
    due = np.zeros(order.size, np.bool_)
    for i in range(order.size):
        for k in range(live.size):
            due[i] |= live[k] and rest[i, k] <= number and stiffness[codes[i], k] > 0.0
    visited = np.empty(order.size + 1, np.int64)
    count = 0
    for i in order:
        visited[count] = i
        count += due[i]
    visited[count] = visited[0]
    line = 64 // W.itemsize
    for at in range(count):
        i = visited[at]
        row = features[rows[i]]
        ahead = rows[visited[at + 1]]
        fetched = 0
        code = codes[i]
        component = along[i]
        norm = norms[i] - component * component
        for k in range(live.size):
            c = stiffness[code, k] * weight[i]
            if c == 0.0 or not live[k] or rest[i, k] > number:
                continue
            # some of the next row for each machine, since fetching all at once would wait for the memory
            upto = min(row.size, fetched + 16 * line)
            while fetched < upto:
                fetch(features, ahead, fetched)
                fetched += line
            w = W[k]
            score = zero
            for j in range(row.size):
                score += row[j] * w[j]
            y = signs[code, k]
            margin = y * (score + (b[k] - total[k]) * component)
            s = y * A[i, k]
            sums[0, k] += 0.5 * c * band_square(margin, low, high, upsilon)
            sums[1, k] += row_gap(s, margin, c, low, high, upsilon)
            new = best_dual(margin - norm * s, norm, c, low, high, upsilon)
            curved = c if new > 0.0 else (upsilon * c if new < 0.0 else 0.0)
            sums[2, k] += curved / (1.0 + norm * curved) * component * component
            change = new - s
            if (new + 0.4 * change) * new > 0.0:
                change *= 1.4
            if change != 0.0:
                step = A.dtype.type(y * change)
                A[i, k] += step
                total[k] += step * component
                for j in range(row.size):
                    w[j] += step * row[j]
            elif s == 0.0:
                rest[i, k] = number + REST + number // 2


@compiled
def _judge(
    features: Array, rows: Array, codes: Array, weight: Array, signs: Array, stiffness: Array, band: Array,
    some: Array, spread: Array, A: Array, W: Array, sums: Array,
) -> None:  # fmt: skip
    """Add losses and gaps with weights ``W`` (k, r) to ``sums``, in float64, for ``some`` machines."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    for i in range(rows.size):
        row = features[rows[i]]
        for k in range(some.size):
            c = stiffness[codes[i], k] * weight[i]
            if c == 0.0 or not some[k]:
                continue
            w = W[k]
            score = 0.0
            for j in range(row.size):
                score += row[j] * w[j]
            y = signs[codes[i], k]
            margin = y * score
            s = y * A[i, k]
            sums[0, k] += 0.5 * c * band_square(margin, low, high, upsilon)
            near = row_gap(s, margin - spread[k], c, low, high, upsilon)
            far = row_gap(s, margin + spread[k], c, low, high, upsilon)
            sums[1, k] += max(near, far)
