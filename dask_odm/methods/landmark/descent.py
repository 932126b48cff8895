"""Dual coordinate descent for machines of many classes, over Nyström features of rows in memory.

With weights w of the features φ, a row's margin is ``m = y w·φ``. Without its own dual variable s it would be ``g = m −
‖φ‖² s``. The dual is largest in s at::

    s ← c (1−θ−g) / (1 + ‖φ‖² c)          if g < 1−θ          c the row's stiffness
        υ c (1+θ−g) / (1 + ‖φ‖² υ c)      if g > 1+θ
        0                                 otherwise

and w moves by ``y φ`` times the change, which goes 1.4 times as far if s keeps its sign. A sweep visits the rows in
random order; the same order each time takes three times the sweeps. Rows without a dual variable are visited ever more
rarely. Some 20 sweeps reach a gap of 1e-2, with 1/50 of the multiplications that all inner products of the
features take.

Reading features from memory dominates the cost. So a group of machines that share classes sweeps together: a row's
features are read once for all of them, whose weights stay in the second-level cache. Groups depend on the number of
classes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.solution import SolverSettings
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.landmark.machines import MachineQuery
from dask_odm.methods.pairs.descent import row_gap
from dask_odm.typing import Array

SHARED = 4  # classes on either side of the pairs of a group, or machines against the rest that a group has
PATIENCE = 10  # sweeps that must take away a third of the gap; else Newton's steps are quicker
REST = 4  # sweeps, and half as many as there were, until a row without a dual variable is visited again


@dataclass(frozen=True, eq=False)
class FeatureDescent:
    """Rows in memory with their Nyström ``features`` (n, r), ``codes`` of classes (n,) and weights (n,), or none.

    The ``query`` has the signs and stiffnesses of the machines. ``solver`` has the relative gap to reach, the most
    sweeps, and the seed of the order of the rows. The number of ``threads`` never changes the result.
    """

    query: MachineQuery
    features: Array
    codes: Array
    weight: Array
    solver: SolverSettings
    threads: int

    def run(self, pairs: int) -> list[PrimalSolution[None]]:
        """Return the weights (r,) of each machine's features, with P, gap and the sweeps taken.

        Machines are all ``pairs`` of classes, or one for each class if that is 0. Gaps hold for features in float64.
        """
        groups = self._groups(pairs)
        largest = sorted(groups, key=len, reverse=True)  # first, so that threads end together
        parts = run_threads(self._solved, largest, self.threads)
        found = dict(zip(chain.from_iterable(largest), chain.from_iterable(parts), strict=True))
        return [found[j] for j in range(len(found))]

    def _groups(self, pairs: int) -> list[list[int]]:
        machines = self.query.stiffness.shape[1]
        keys = [(a // SHARED, b // SHARED) for a, b in combinations(range(pairs), 2)]
        keys = keys or [(j // SHARED, 0) for j in range(machines)]
        return [[j for j in range(machines) if keys[j] == key] for key in dict.fromkeys(keys)]

    def _solved(self, group: list[int]) -> list[PrimalSolution[None]]:
        query = self.query.of_machines(np.array(group))
        learned = np.array([len(own) > 0 for own in query.machines])
        rows = np.flatnonzero(learned[self.codes])
        weight = self.weight[rows] if self.weight.size else np.ones(len(rows))
        run = _Group(self.features, rows, self.codes[rows], weight, query)
        k = len(group)
        rng = np.random.default_rng(self.solver.seed)
        live = np.ones(k, bool)
        gaps = np.ones(k)
        found: dict[int, PrimalSolution[None]] = {}
        for sweep in range(1, self.solver.max_iter + 1):
            stale = run.sweep(rng.permutation(len(rows)), sweep, live)
            slow = np.zeros(k, bool)
            if sweep % PATIENCE == 0:
                slow = ~(stale <= 0.7 * gaps)
                gaps = stale
            # margins of the sweep are of changing weights, which is most often to their gap's disadvantage
            ended = live & ((stale <= 1.5 * self.solver.tol) | slow | (sweep == self.solver.max_iter))
            if not ended.any():
                continue
            W, primal, gap = run.judge(ended)
            for j in np.flatnonzero(ended):
                converged = bool(gap[j] <= self.solver.tol)
                if converged or slow[j] or sweep == self.solver.max_iter:
                    found[int(j)] = PrimalSolution(W[j], float(primal[j]), float(gap[j]), converged, [], sweep)
                    live[j] = False
            if not live.any():
                break
        return [found[j] for j in range(k)]


class _Group:
    """State of a group of k machines: weights W (k, r) and coefficients A (rows, k) in the features' dtype."""

    def __init__(self, features: Array, rows: Array, codes: Array, weight: Array, query: MachineQuery) -> None:
        k = query.stiffness.shape[1]
        self.features = features
        self.codes = codes
        settings = query.settings
        self.band = np.array([settings.low, settings.high, settings.upsilon])
        self.W = np.zeros((k, features.shape[1]), features.dtype)
        self.A = np.zeros((len(rows), k), features.dtype)
        self.rest = np.zeros((len(rows), k), np.int32)  # sweep in which a row is visited again
        self.norms = np.empty(len(rows))
        _square_norms(features, rows, self.norms)
        self.rows = rows, codes, weight, query.signs, query.stiffness

    def sweep(self, order: Array, number: int, live: Array) -> Array:
        """Visit the rows in ``order``; return every machine's relative gap, by margins as they were when visited."""
        sums = np.zeros((2, len(live)))
        _sweep(self.features, *self.rows, self.norms, self.band, order, number, live, self.W, self.A, self.rest, sums)
        return sums[1] / np.maximum(sums[0] + 0.5 * np.einsum("ij,ij->i", self.W, self.W, dtype=np.float64), 1e-300)

    def judge(self, some: Array) -> tuple[Array, Array, Array]:
        """Return weights (k, r), P and gaps (k,) of ``some`` machines in float64, and visit all their rows next.

        Features in float32 are off by 2⁻²⁴ of their length, and so inner products by twice that. Gaps are the largest
        that this allows.
        """
        W = np.zeros(self.W.shape)
        sums = np.zeros((2, len(some)))
        error = 2.0**-23 * float(self.norms.max(initial=0.0)) * (self.features.dtype == np.float32)
        spread = error * np.abs(self.A).sum(axis=0, dtype=np.float64)
        _judge(self.features, *self.rows, self.band, some, spread, self.A, W, sums)
        self.W[some] = W[some]
        self.rest[:, some] = 0
        primal = sums[0] + 0.5 * np.einsum("ij,ij->i", W, W)
        return W, primal, sums[1] / np.maximum(primal, np.finfo(float).tiny)


def descent_bytes(n: int, r: int, width: int, itemsize: int) -> int:
    """Return the bytes that a descent of ``n`` rows holds, if up to ``width`` machines learn from one class."""
    return n * (r * itemsize + width * (itemsize + 4) + 5 * 8)


@compiled
def _square_norms(features: Array, rows: Array, norms: Array) -> None:
    for i in range(rows.size):
        row = features[rows[i]]
        total = 0.0
        for j in range(row.size):
            total += row[j] * row[j]
        norms[i] = total


@compiled
def _sweep(
    features: Array, rows: Array, codes: Array, weight: Array, signs: Array, stiffness: Array, norms: Array,
    band: Array, order: Array, number: int, live: Array, W: Array, A: Array, rest: Array, sums: Array,
) -> None:  # fmt: skip
    """Visit rows in ``order``; update ``W``, ``A`` and ``rest``, and add losses and gaps of all rows to ``sums``."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    zero = W[0, 0] - W[0, 0]
    for i in order:
        row = features[rows[i]]
        code = codes[i]
        norm = norms[i]
        for k in range(live.size):
            c = stiffness[code, k] * weight[i]
            if c == 0.0 or not live[k] or rest[i, k] > number:
                continue
            w = W[k]
            score = zero
            for j in range(row.size):
                score += row[j] * w[j]
            y = signs[code, k]
            margin = y * score
            s = y * A[i, k]
            over = upsilon * c
            below = max(low - margin, 0.0)
            above = max(margin - high, 0.0)
            sums[0, k] += 0.5 * (c * below * below + over * above * above)
            sums[1, k] += row_gap(s, margin, c, over, low, high)
            g = margin - norm * s
            new = 0.0
            if g < low:
                new = c * (low - g) / (1.0 + norm * c)
            elif g > high:
                new = over * (high - g) / (1.0 + norm * over)
            change = new - s
            if (new + 0.4 * change) * new > 0.0:
                change *= 1.4
            if change != 0.0:
                step = A.dtype.type(y * change)
                A[i, k] += step
                for j in range(row.size):
                    w[j] += step * row[j]
            elif s == 0.0:
                rest[i, k] = number + REST + number // 2


@compiled
def _judge(
    features: Array, rows: Array, codes: Array, weight: Array, signs: Array, stiffness: Array, band: Array,
    some: Array, spread: Array, A: Array, W: Array, sums: Array,
) -> None:  # fmt: skip
    """Add ``Aᵀφ`` to ``W`` (k, r), and losses and gaps to ``sums``, in float64, for ``some`` machines."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    for i in range(rows.size):
        row = features[rows[i]]
        for k in range(some.size):
            a = np.float64(A[i, k])
            if some[k] and a != 0.0:
                w = W[k]
                for j in range(row.size):
                    w[j] += a * row[j]
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
            over = upsilon * c
            below = max(low - margin, 0.0)
            above = max(margin - high, 0.0)
            sums[0, k] += 0.5 * (c * below * below + over * above * above)
            near = row_gap(s, margin - spread[k], c, over, low, high)
            far = row_gap(s, margin + spread[k], c, over, low, high)
            sums[1, k] += max(near, far)
