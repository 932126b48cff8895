"""Recipe of exact machines for all pairs of classes, over rows in memory. Kernel values that pairs share are computed
once.

Kernel values within a class are used by every pair of it, and are kept. Values between two classes are used by one
pair. All are computed in the rows' dtype, or in float64 for polynomials. For float32 rows the gap is the largest that
rounding allows, by the error on a sample of rows. Each pair is a small problem, solved by
`dask_odm.methods.pairs.descent`, and if that stops short of ``tol``, by Newton in float64 (`solve_gram`).
Threads take pairs in turn. If values in float32 would not have the gap of some pair, the model predicts in float64.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.memory import taken
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.sparse_tiles import Tiles, tiles_of
from dask_odm.learning.machines import joined_attributes, joined_warning
from dask_odm.learning.problem.band import TINY
from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.solution import SolverSettings, record_after
from dask_odm.learning.training.memory_data import MemoryData, MemoryKernelData
from dask_odm.learning.training.recipe import (
    Trained,
    report_step,
    require_finite_solution,
    rescaling_advised,
    stopped_at,
)
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.linalg.transpose import turn_rows
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.exact.solver import ExactSolution, solve_gram
from dask_odm.methods.exact.systems import LIMITS
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.pairs.descent import PairValues, descend_pair
from dask_odm.models.pair_model import PairModel, machines_of_class
from dask_odm.typing import Array

SOLUTION_BYTES = 3 << 10  # of each pair, beside its numbers: the records of its steps, above all


def suits_pairs(data: TrainingData, fit: ODMFit) -> bool:
    """Return whether all pairs are learned at once: small pairs, rows in memory, and no checkpoint.

    Sparse rows whose products are no sparse ones are made dense if that takes little memory.
    """
    if not isinstance(data, MemoryData):
        return False
    made_dense = issparse(data.X) and not data.stays_sparse
    if made_dense and data.rows * data.features * data.dtype.itemsize > AUTO.dense_bytes:
        return False
    if not fit.kernel.is_named or fit.kernel.kernel in ("linear", "precomputed"):
        return False
    if fit.run.checkpoint is not None and not fit.loo:  # with ``loo``, machines learn one by one
        return False
    return _sizes(data)[1] <= AUTO.pair_rows


def train_pairs(data: TrainingData, fit: ODMFit, pairs: int, *, at_rest: bool = True) -> Trained | None:
    """Train a machine for every two of ``pairs`` classes; return None if the data do not suit.

    With ``at_rest``, rows may be shifted so that most values are 0, which is quicker; the model has that scaling.
    """
    if not pairs or fit.loo or not suits_pairs(data, fit):
        return None
    assert isinstance(data, MemoryData)
    advice = "Use more memory, multi_class='ovr', or solver='landmark'."
    needed, largest = _needed(data, fit), _sizes(data)[1]
    data.cluster.require(needed, 1, f"The kernel matrices of pairs of up to {largest} rows", advice)
    going_on = 1 + min(CPU_COUNT - 1, max(0, data.cluster.memory - needed) // _newton_bytes(largest))  # threads
    given = data
    data = data if data.stays_sparse or not issparse(data.X) else replace(data, X=data.X.toarray())
    data = data.merged()
    statistics = data.statistics(fit.kernel.scale)
    scaling = fit.kernel.scaling(statistics)
    if at_rest and fit.kernel.kernel == "rbf" and not issparse(data.X):
        # a least or largest value that most rows have becomes 0
        scaling = scaling.at_rest(data.X, statistics)
    seen = data.seen_by(fit.kernel, scaling)
    rows = [np.flatnonzero(data.y == code) for code in range(pairs)]
    with rescaling_advised():
        work = _Pairs(seen, rows, fit)
        every = list(combinations(range(pairs), 2))
        found = dict(zip(every, run_threads(work.descended, every, CPU_COUNT), strict=True))
        short = [pair for pair, solution in found.items() if not solution.converged]
        ended = run_threads(lambda pair: work.ended(pair, found[pair]), short, going_on)
        found |= {pair: solution for pair, (solution, _) in zip(short, ended, strict=True)}
        for record in chain.from_iterable(solution.history for solution in found.values()):
            report_step(record)
    double = _dtype(data, fit) != data.dtype or any(double for _, double in ended)
    return _finish(given, seen, rows, list(found.values()), double, fit)


def by_classes(trained: Trained, data: TrainingData) -> Trained:
    """Return machines of pairs that have learned one by one, each from rows of its own classes, as a `PairModel`."""
    model: Any = trained.model
    at, y, _ = data.taking_part
    numbers = data.row_numbers[1]
    support = trained.attributes["support_"]
    codes = y[np.searchsorted(at if numbers is None else numbers[at], support)]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(model.pairs + 1))
    parts = [
        model.coefficients[np.ix_(machines_of_class(code, model.pairs), order[slice(*ends)])]
        for code, ends in enumerate(pairwise(starts))
    ]
    own = vars(model) | {"support": taken(model.support, order), "coefficients": np.hstack(parts), "starts": starts}
    found = PairModel(**{each.name: own[each.name] for each in fields(PairModel)})
    return replace(trained, model=found, attributes=trained.attributes | {"support_": support[order]})


def _dtype(data: MemoryData, fit: ODMFit) -> np.dtype[Any]:
    """Return the dtype of kernel values: float64 for polynomials, whose rounding no sample bounds."""
    return np.dtype(np.float64) if fit.kernel.kernel == "poly" else data.dtype


def _sizes(data: MemoryData) -> tuple[list[int], int]:
    """Return the number of rows of every class, and of the largest pair."""
    counts = np.bincount(data.y.astype(np.int64)).tolist()
    return counts, sum(sorted(counts)[-2:])


def _newton_bytes(rows: int) -> int:
    """Return the bytes of a pair that goes on by Newton's method."""
    return 4 * 8 * rows**2


def _needed(data: MemoryData, fit: ODMFit) -> int:
    """Return the bytes of the kernel matrices and the model, and of one pair that goes on."""
    counts, largest = _sizes(data)
    own = _dtype(data, fit).itemsize * sum(n * n for n in counts)
    rows = 4 * 8 * data.rows * data.row_width
    coefficients = 4 * 8 * len(counts) * data.rows  # and scores of the pairs, their places in the model, the model
    pairs = SOLUTION_BYTES * len(counts) * (len(counts) - 1) // 2
    if fit.loo:  # machines one by one, each with a value, a class and a weight of all rows, which are then joined
        coefficients = 8 * 8 * data.row_numbers[0] * len(counts) * (len(counts) - 1) // 2
    return own + _newton_bytes(largest) + rows + coefficients + pairs


def are_quick(data: TrainingData, fit: ODMFit) -> bool:
    """Return whether exact pairs take little time and memory, for data that suit them."""
    assert isinstance(data, MemoryData)
    room = AUTO.pairs_bytes if fit.run.memory_limit is None else min(AUTO.pairs_bytes, data.cluster.memory)
    return _needed(data, fit) <= room and data.rows**2 * (data.row_width + 16) // 2 <= AUTO.pairs_work


class _Pairs:
    """Data from which threads solve pairs, by class: row numbers, rows packed for either side, weights, kernel values.

    The kernel and its values are without ``bias``, and ``error`` bounds the rounding of a value.
    """

    def __init__(self, seen: MemoryKernelData, numbers: list[Array], fit: ODMFit) -> None:
        scaled: Any = seen.scaled
        weight = seen.data.total_weights
        self.dtype = dtype = _dtype(seen.data, fit)
        self.odm = fit.odm
        self.settings = fit.solver
        if len(scaled) <= LIMITS.rounding_rows:  # of all classes, of which there may be thousands of pairs
            self.settings = replace(fit.solver, tol=min(fit.solver.tol, LIMITS.rounding_gap))
        self.tol = fit.solver.tol
        self.kernel = replace(seen.kernel, bias=0.0)
        self.bias = seen.kernel.bias
        self.tiles = tiles = tiles_of(self.kernel, scaled)
        self.scaled = scaled
        self.numbers = numbers
        self.weights = [weight[each] for each in numbers]

        self.packed = run_threads(lambda each: self._packed(each, dtype), numbers, CPU_COUNT)
        self.own: list[Array] = run_threads(lambda sides: tiles.tile_packed(*sides), self.packed, CPU_COUNT)
        self.error = _rounding(self.kernel, tiles, scaled) if dtype == np.float32 else 0.0

    def descended(self, pair: tuple[int, int]) -> ExactSolution:
        """Return where descent ends for one pair of classes."""
        found = descend_pair(self._losses(pair), self._values(*pair), self.settings.tol, self.settings.seed)
        return replace(found, converged=found.point.gap <= self.settings.tol)

    def ended(self, pair: tuple[int, int], descended: ExactSolution) -> tuple[ExactSolution, bool]:
        """Go on in float64 from where descent ended for a pair.

        Also return whether a model must predict in float64 to have the gap.
        """
        losses = self._losses(pair)
        (left, _), own = self._wide(pair[0])
        (_, right), other = self._wide(pair[1])
        across = self.tiles.tile_packed(left, right)
        K = PairValues(own, other, across, across.T, self.bias).matrix()
        found = solve_pair(losses, K, self.settings, descended)
        double = False
        if self.dtype == np.float32:
            values = self._values(*pair)
            # a model has the rows that it predicts on the left, which rounds differently in float32
            self.tiles.tile_packed(self.packed[pair[1]][0], self.packed[pair[0]][1], values.back)
            found, double = as_predicted(losses, values, found, self.tol)
        return replace(found, converged=found.point.gap <= self.tol), double

    def _packed(self, numbers: Array, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Return rows packed for the left and the right side of a tile."""
        X = self.scaled[numbers].astype(dtype, copy=False)
        return self.tiles.pack_left(X), self.tiles.pack_right(X)

    def _wide(self, code: int) -> tuple[tuple[Any, Any], Array]:
        """Return the packed rows of a class and their kernel values, in float64."""
        if self.dtype == np.float64:
            return self.packed[code], self.own[code]
        sides = self._packed(self.numbers[code], np.dtype(np.float64))
        return sides, self.tiles.tile_packed(*sides)

    def _losses(self, pair: tuple[int, int]) -> RowLosses:
        y = np.repeat([-1.0, 1.0], [len(self.numbers[code]) for code in pair])
        return RowLosses(self.odm, y, np.concatenate([self.weights[code] for code in pair]))

    def _values(self, negative: int, positive: int) -> PairValues:
        """Return the kernel values of a pair."""
        across = self.tiles.tile_packed(self.packed[negative][0], self.packed[positive][1])
        n, m = across.shape
        back = np.empty((m, n), across.dtype)
        turn_rows(across, np.empty(0, np.int64), 0, n, np.zeros(m, across.dtype), back)
        return PairValues(self.own[negative], self.own[positive], across, back, self.bias, self.error)


def solve_pair(losses: RowLosses, K: Array, settings: SolverSettings, start: ExactSolution) -> ExactSolution:
    """Minimise P over rows with the float64 kernel matrix ``K`` (n, n), from where descent ended.

    Descent has found nearly all of the active rows, so that a few steps do. The records of ``start`` come first.
    """
    found = solve_gram(losses, K, settings, start=start.coefficients)
    return replace(found, history=[*start.history, *(record_after(start.history, record) for record in found.history)])


def as_predicted(losses: RowLosses, values: PairValues, found: ExactSolution, tol: float) -> tuple[ExactSolution, bool]:
    """Return a float64 solution with its gap if the model predicts in the dtype of ``values``, and False.

    The gap is the largest for scores as far from those in float64 as any is with ``values``. If it would exceed
    ``tol``, return the solution with its own gap, and True: the model must predict in float64.
    """
    spread = float(np.abs(values.product(found.coefficients) - found.scores).max())
    slopes = np.abs(losses.dual_candidate(losses.y * found.scores))
    rise = spread * float(slopes.sum()) + 0.5 * spread**2 * float(losses.stiffness_low.sum())
    gap = found.point.gap + rise / max(found.point.primal, TINY)
    if gap > max(tol, found.point.gap):
        return found, True
    history = [*found.history[:-1], found.history[-1] | {"gap": gap}]
    return replace(found, point=replace(found.point, gap=gap), history=history), False


def _rounding(kernel: Kernel, tiles: Tiles, rows: Any) -> float:
    """Return a bound of the rounding of kernel values of float32 ``rows``: twice the largest error on 256 of them."""
    some = rows[:: max(1, len(rows) // 256)]
    if isinstance(some, np.ndarray):
        some = np.ascontiguousarray(some)
    exact = kernel.tile(some.astype(np.float64), some.astype(np.float64))
    rounded = tiles.tile_packed(tiles.pack_left(some), tiles.pack_right(some))
    return 2.0 * float(np.abs(rounded - exact).max())


def _finish(
    given: MemoryData, seen: MemoryKernelData, rows: list[Array], found: list[ExactSolution], double: bool, fit: ODMFit
) -> Trained:
    """Build one model of all pairs, with rows as they were ``given``.

    Its support is in the order of the classes, so that few machines share a part of it.
    """
    numbers = np.concatenate(rows)
    starts = np.cumsum([0, *map(len, rows)])
    places = [np.r_[starts[a] : starts[a + 1], starts[b] : starts[b + 1]] for a, b in combinations(range(len(rows)), 2)]
    used = np.zeros(len(numbers), dtype=bool)
    for here, solution in zip(places, found, strict=True):
        require_finite_solution(solution.coefficients)
        used[here] |= solution.coefficients != 0.0
    support = seen.data.kept[numbers[used]]
    raw = given.raw(np.searchsorted(given.kept, support))
    column = np.r_[0, np.cumsum(used)]  # of the support
    coefficients = np.zeros((len(rows) - 1, len(support)))
    for (a, b), here, solution in zip(combinations(range(len(rows)), 2), places, found, strict=True):
        n = len(rows[a])
        coefficients[b - 1, column[starts[a]] : column[starts[a + 1]]] = solution.coefficients[:n][used[here[:n]]]
        coefficients[a, column[starts[b]] : column[starts[b + 1]]] = solution.coefficients[n:][used[here[n:]]]
    intercept = seen.kernel.bias * np.array([solution.coefficients.sum() for solution in found])
    kernel = replace(seen.kernel, bias=0.0)
    model = PairModel(kernel, seen.scaling, raw, coefficients, intercept, len(rows), double, starts=column[starts])
    attributes = [
        {"dual_gap_": each.point.gap, "history_": each.history, "n_iter_": max(1, len(each.history) - 1)}
        for each in found
    ]
    advice = f"Increase max_iter ({fit.solver.max_iter} steps), or decrease lam."
    short = [None if each.converged else f"{stopped_at(each.point.gap, fit.solver.tol)} {advice}" for each in found]
    return Trained(model, joined_attributes(attributes) | {"support_": support}, joined_warning(short))
