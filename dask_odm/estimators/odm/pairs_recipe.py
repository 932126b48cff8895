"""The exact machines of all pairs of classes, of rows in memory: kernel values that pairs share are computed once.

The rows of a class among themselves are in every pair of it, those of two classes in one: the former are kept, and all
values are computed once, in float64 whatever the rows' type, so that the gap is certain. Each pair is a small problem
(`dask_odm.solvers.pair_newton`), and threads take pairs in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.targets import OneOfMany
from dask_odm.estimators.fitting.machines import joined_attributes, joined_warning
from dask_odm.estimators.fitting.memory_data import MemoryData, MemoryKernelData
from dask_odm.estimators.fitting.recipe import Together
from dask_odm.estimators.fitting.steps import report_step, rescaling_advised
from dask_odm.estimators.fitting.trained import Trained, require_finite_solution
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.odm.finishing import stopped_at
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.kernels.threads import single_threaded_blas, stream_threads
from dask_odm.models.kernel import KernelModel
from dask_odm.problems.odm import RowLosses
from dask_odm.solvers.pair_newton import PairSolution, solve_pair
from dask_odm.typing import Array

PAIRS_WORK = 1 << 36  # multiplications for the kernel values of all pairs: some seconds
PAIRS_BYTES = 1 << 30  # of their matrices and model, that "auto" takes where no limit is set
PAIR_ROWS = 6000  # the most rows of a pair whose kernel matrix is formed


def suits(data: TrainingData, fit: ODMFit, scheme: str) -> bool:
    """Whether all pairs are learned at once: of dense rows in memory, where no pair has many, without a checkpoint."""
    if scheme != "ovo" or fit.loo or not isinstance(data, MemoryData) or not isinstance(data.held.X, np.ndarray):
        return False
    if not fit.kernel.is_named or fit.kernel.kernel in ("linear", "precomputed") or fit.run.checkpoint is not None:
        return False
    return int(np.sort(np.bincount(data.held.y.astype(np.int64)))[-2:].sum()) <= PAIR_ROWS


def train_pairs(data: TrainingData, fit: ODMFit, machines: Sequence[OneOfMany], pairs: int) -> Trained:
    """Train a machine for every two of ``pairs`` classes."""
    assert isinstance(data, MemoryData)
    data = data.merged()
    seen = data.seen_by(fit.kernel)
    rows = [np.flatnonzero(data.held.y == code) for code in range(pairs)]
    _require(data, [len(each) for each in rows])
    found: list[PairSolution] = []
    with single_threaded_blas, rescaling_advised():
        work = _Pairs.of(seen, rows, fit)
        for solution in stream_threads(work.solved, combinations(range(pairs), 2), CPU_COUNT):
            for record in solution.history:
                report_step(record)
            found.append(solution)
    return _finish(seen, rows, found, fit)


SUITED = Together(train_pairs, suits)


def _require(data: MemoryData, counts: Sequence[int]) -> None:
    """Raise MemoryLimitError unless the kernel matrices and the model fit this process."""
    what = f"The kernel matrices of pairs of up to {sum(sorted(counts)[-2:])} rows"
    advice = "Use more memory, multi_class='ovr', or solver='landmark'."
    data.cluster.require(_needed(data, counts), 1, what, advice)


def _needed(data: MemoryData, counts: Sequence[int]) -> int:
    """Bytes of the kernel matrices and the model."""
    largest = sum(sorted(counts)[-2:])
    matrices = 8 * (sum(n * n for n in counts) + CPU_COUNT * 4 * largest**2 + data.rows * data.features)
    coefficients = 16 * len(counts) * (len(counts) - 1) // 2 * data.rows
    return matrices + coefficients


def are_quick(data: TrainingData, fit: ODMFit) -> bool:
    """Whether exact pairs take little time and memory, for data that they suit."""
    assert isinstance(data, MemoryData)
    room = PAIRS_BYTES if fit.run.memory_limit is None else min(PAIRS_BYTES, data.cluster.memory)
    fits = _needed(data, np.bincount(data.held.y.astype(np.int64)).tolist()) <= room
    return fits and data.rows**2 * (data.features + 16) // 2 <= PAIRS_WORK


@dataclass(frozen=True, eq=False)
class _Pairs:
    """What threads solve pairs from: scaled rows, weights and own kernel values, class by class."""

    seen: MemoryKernelData
    rows: list[Array]
    weights: list[Array]
    own: list[Array]
    fit: ODMFit

    @classmethod
    def of(cls, seen: MemoryKernelData, numbers: list[Array], fit: ODMFit) -> _Pairs:
        scaled: Any = seen.scaled
        weight = seen.data.held.total_weights
        rows = [scaled[each].astype(np.float64) for each in numbers]
        own = list(stream_threads(lambda X: seen.kernel.tile(X, X), rows, CPU_COUNT))
        return cls(seen, rows, [weight[each] for each in numbers], own, fit)

    def solved(self, pair: tuple[int, int]) -> PairSolution:
        """The machine of a pair."""
        y = np.repeat([-1.0, 1.0], [len(self.rows[code]) for code in pair])
        losses = RowLosses(self.fit.odm, y, np.concatenate([self.weights[code] for code in pair]))
        return solve_pair(losses, self._matrix(*pair), self.fit.solver)

    def _matrix(self, negative: int, positive: int) -> Array:
        """The kernel matrix of both classes' rows."""
        n, m = len(self.rows[negative]), len(self.rows[positive])
        K = np.empty((n + m, n + m))
        K[:n, :n], K[n:, n:] = self.own[negative], self.own[positive]
        across = self.seen.kernel.tile(self.rows[negative], self.rows[positive])
        K[:n, n:], K[n:, :n] = across, across.T
        return K


def _finish(seen: MemoryKernelData, rows: list[Array], found: list[PairSolution], fit: ODMFit) -> Trained:
    """One model of all pairs; its support is in the order of the classes, so that few machines share a part of it."""
    starts, numbers = np.cumsum([0, *map(len, rows)]), np.concatenate(rows)
    coefficients = np.zeros((len(found), len(numbers)))
    for out, solution, pair in zip(coefficients, found, combinations(range(len(rows)), 2), strict=True):
        places = np.concatenate([np.arange(starts[code], starts[code + 1]) for code in pair])
        out[places] = solution.coefficients
    require_finite_solution(coefficients)
    used = coefficients.any(axis=0)
    raw, support = seen.chosen_pivots(numbers[used])
    intercept = seen.kernel.bias * coefficients.sum(axis=1)
    kernel = replace(seen.kernel, bias=0.0)
    model = KernelModel(kernel, seen.scaling, raw, np.ascontiguousarray(coefficients[:, used]), intercept, len(rows))
    attributes = [
        {"dual_gap_": each.gap, "history_": each.history, "n_iter_": max(1, len(each.history) - 1)} for each in found
    ]
    short = [None if each.converged else _warning(each, fit) for each in found]
    return Trained(model, joined_attributes(attributes) | {"support_": support}, joined_warning(short))


def _warning(solution: PairSolution, fit: ODMFit) -> str:
    return (
        f"{stopped_at(solution.gap, fit.solver.tol)} Increase max_iter ({fit.solver.max_iter} steps), or decrease lam."
    )
