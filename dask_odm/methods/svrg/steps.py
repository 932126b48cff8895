"""Steps of SVRG and CSVRG over rows in memory, for `dask_odm.methods.svrg.solver`.

CSVRG computes its snapshots from a coreset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, PrimalSums
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.odm import ODMSettings
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array


@compiled
def stiffest_row(X: Array, codes: Array, weight: Array, stiffness: Array, bias: float) -> float:
    """Return the largest ``c ‖φ‖²`` of rows ``X`` (n, d), to which a constant feature √bias is added."""
    largest = 0.0
    weighted = weight.size > 0
    for i in range(codes.size):
        row = X[i]
        square = bias
        for j in range(row.size):
            square += float(row[j]) * float(row[j])
        c = stiffness[1] if codes[i] == 1 else stiffness[0]
        if weighted:
            c *= weight[i]
        c = 0.0 if codes[i] < 0 else c
        largest = max(largest, c * square)
    return largest


def stiffest_of(parts: Iterable[tuple[Array, Array, Array]], loss: BandLoss, bias: float) -> float:
    """Return the largest ``c ‖φ‖²`` of ``parts`` of the rows: scaled X, codes and weights."""
    return max(float(stiffest_row(*map(frozen, rows), loss.stiffness, bias)) for rows in parts)


@compiled
def take_steps(
    X: Array,
    codes: Array,
    weight: Array,
    order: Array,
    w: Array,
    snapshot: Array,
    drift: Array,
    stiffness: Array,
    band: Array,
    constant: float,
    step: float,
) -> None:
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
        change = max(low - m, 0.0) - max(low - m_there, 0.0)
        change -= upsilon * (max(m - high, 0.0) - max(m_there - high, 0.0))
        t = step * c * y * change
        for j in range(d):
            w[j] = keep * w[j] + drift[j] + t * row[j]
        if w.size > d:
            w[d] = keep * w[d] + drift[d] + t * constant


def walk_rows(
    features: FeatureMap, loss: BandLoss, n: int, rows: tuple[Array, Array, Array], order: Array, w: Array,
    snapshot: Array, dual_image: Array, step: float,
) -> None:  # fmt: skip
    """Take the steps of ``rows`` (scaled X, codes, weights) in ``order``, changing ``w`` in place.

    ``n`` is the number of all rows, of which these may be a part.
    """
    stiffness = n * loss.stiffness
    take_steps(
        *map(frozen, rows), order, w, snapshot, step * dual_image, stiffness, loss.band,
        features.constant, step,
    )  # fmt: skip


def warm_up(dtype: np.dtype[Any]) -> None:
    """Compile the loops for rows of ``dtype``, or load them from the cache."""
    rows = np.zeros((1, 1), dtype), np.zeros(1, np.int8), np.ones(1)
    steps = ArraySteps(FeatureMap(1, 1.0), BandLoss(ODMSettings(1.0, 0.0, 0.0), 1.0), *rows, seed=0)
    w = np.zeros(2)
    steps.walk(w, steps.sums(w).dual_image, 1.0 + steps.stiffest(), 0)


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

    def __init__(
        self,
        features: FeatureMap,
        loss: BandLoss,
        X: Any,
        codes: Array,
        weight: Array,
        seed: int,
        threads: int = 1,
        coreset: tuple[Array, Array] | None = None,
    ) -> None:
        self._features = features
        self._loss = loss
        self._rows = (X, codes, weight)
        self._seed = seed
        self._scaled = FeatureMap(features.d, features.bias)
        self._all = PrimalProblem.over_rows(features, loss, X, codes, weight, threads)
        self._set = None
        if coreset is not None:
            chosen, factor = coreset
            weights = factor * weight[chosen] if weight.size else factor
            self._share = len(chosen) / max(1, len(codes))
            self._set = PrimalProblem.over_rows(features, loss, X[chosen], codes[chosen], weights, threads)

    @property
    def n(self) -> int:
        return len(self._rows[1])

    @property
    def k(self) -> int:
        return self._features.k

    def sums(self, w: Array) -> PrimalSums:
        return self._all.sums(w, "none")

    def stiffest(self) -> float:
        parts = (rows for rows, _ in self._dense(np.arange(self.n)))
        return stiffest_of(parts, self._loss, self._features.bias)

    def snapshot(self, w: Array, dual_image: Array) -> tuple[Array, float]:
        if self._set is None:
            return dual_image, 0.0
        return self._set.sums(w, "none").dual_image, self._share

    def walk(self, w: Array, dual_image: Array, step: float, epoch: int) -> tuple[Array, float, int]:
        order = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(1, epoch))).permutation(self.n)
        end = w.copy()
        for rows, visits in self._dense(order):
            walk_rows(self._scaled, self._loss, self.n, rows, visits, end, w, dual_image, step)
        return end, 1.0, 0

    def _dense(self, order: Array) -> Iterator[tuple[tuple[Array, Array, Array], Array]]:
        """Yield scaled dense rows, codes and weights, with the order to visit them in, so as to follow ``order``.

        Sparse rows are made dense in that order, a bounded number at a time.
        """
        X, codes, weight = self._rows
        if not issparse(X):
            yield self._rows, order
            return
        # 4 MiB of sparse rows are made dense at a time
        size = max(1, (4 << 20) // max(1, X.shape[1] * X.dtype.itemsize))
        for start in range(0, len(order), size):
            some = order[start : start + size]
            weights = weight[some] if weight.size else weight
            yield (self._features.dense(X[some]), codes[some], weights), np.arange(len(some))


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
