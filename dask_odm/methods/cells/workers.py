"""Exact machines of the cells of one bin of rows.

The rows of a bin are divided into cells, and each cell has an exact ODM of its rows. λ is divided in proportion to the
rows' weights, so that a row weighs in its cell what it weighs in the whole. A cell of one class is a constant. In cells
that lack some of many classes, machines of these classes are constants. If cells find their own settings, λ is to a
cell's weight what it would be to that of all rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np

from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.storage.files import load_array, save_array
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.client import while_wanted
from dask_odm.engine.tasks import worker_task
from dask_odm.errors import MemoryLimitError, StoreError
from dask_odm.learning.machines import joined_attributes, train_machines
from dask_odm.learning.problem.losses import ODMSettings
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice, Machines, Recipe, Trained, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.methods.cells.growing import grow, slabs_of
from dask_odm.methods.exact.recipe import train_exact
from dask_odm.methods.left_out import OF_MACHINE, left_out_values
from dask_odm.methods.odm_fit import LastFit, ODMFit
from dask_odm.methods.pairs.recipe import train_pairs
from dask_odm.methods.search.climb import best_setting
from dask_odm.models.cell_model import CellTree
from dask_odm.typing import Array

FIGURES = ("primal", "dual", "steps", "double")  # of each machine of a cell; "double": it predicts in float64
CHOSEN = ("gamma", "share", "upsilon", "theta", "score")  # settings of a cell; "share": λ/M; score, if it searched


@dataclass(frozen=True, eq=False)
class SolvedBin:
    """Tree and machines of the cells of one bin, as arrays that a checkpoint can hold."""

    planes: Array  # of the tree, see `CellTree`
    thresholds: Array
    children: Array
    numbers: Array  # of the rows with a coefficient in the given data, in the order of the cells, (n_support,)
    coefficients: Array  # (machines, n_support)
    sizes: Array  # support rows of every cell
    intercept: Array  # (cells, machines)
    figures: Array  # (cells, machines, figures)
    counts: Array  # of every cell: rows that it learns from, classes, and rows that it predicts, (cells, 3)
    seconds: Array  # that each node of the tree took to grow
    left_rows: Array  # numbers of the rows in the given data, if they are left out, (n,)
    left: Array  # their left-out values, (machines, n)
    parameters: Array  # effective parameters of every cell
    chosen: Array  # settings of every cell, zeros if it has one class, (cells, settings)

    @property
    def tree(self) -> CellTree:
        return CellTree(self.planes, self.thresholds, self.children.astype(np.int64))

    def packed(self) -> tuple[Array, Array]:
        """Return all numbers in one array, and the shapes that they have."""
        arrays = [getattr(self, each.name) for each in fields(self)]
        shapes = np.array([[*each.shape, *[-1] * (3 - each.ndim)] for each in arrays], np.float64)
        return np.concatenate([each.ravel().astype(np.float64) for each in arrays]), shapes

    @classmethod
    def unpacked(cls, numbers: Array, shapes: Array) -> SolvedBin:
        """Return what `packed` gave; raise ValueError if shapes and numbers differ."""
        sides = [[side for side in shape if side >= 0] for shape in shapes.astype(np.int64).tolist()]
        *parts, rest = np.split(numbers, np.cumsum([math.prod(each) for each in sides]))
        if len(rest) or len(parts) != len(fields(cls)):
            raise ValueError(f"{len(numbers)} numbers of {len(parts)} arrays")
        return cls(*(part.reshape(each) for part, each in zip(parts, sides, strict=True)))


@dataclass(frozen=True, eq=False)
class KnownStatistics:
    """The whole that a bin's rows are scaled like."""

    found: Statistics

    def statistics(self, scale: str | None = None) -> Statistics:
        return self.found


@dataclass(frozen=True, eq=False)
class CellSettings:
    """What all cells share: settings of the fit, classes and total weight of the whole, and most rows of a cell.

    ``factors`` are the class weights, which the rows' weights have in them; none for real targets. A ``known`` tree of
    the last fit is followed, in which the bins have their ``places``.
    """

    fit: ODMFit  # without the solver object and the checkpoint
    factors: tuple[float, ...]
    pairs: bool
    total_weight: float
    cell_rows: int
    overlap: float
    known: CellTree | None = None
    places: Array | None = None

    @property
    def machines(self) -> int:
        classes = len(self.factors)
        if classes <= 2:
            return 1
        return classes * (classes - 1) // 2 if self.pairs else classes


def solve_bin(bin_rows: MemoryData, settings: CellSettings, number: int, threads: int) -> SolvedBin:
    """Divide the rows of a bin into cells, and solve them by ``threads`` threads, which changes no bit."""
    seed = int(np.random.SeedSequence([settings.fit.run.seed, number]).generate_state(1)[0])
    scaled = bin_rows.seen_by(settings.fit.kernel).scaled
    place = -1 if settings.places is None else int(settings.places[number])
    tree, widths, seconds = grow(scaled, settings.cell_rows, seed, settings.known if place >= 0 else None, place)
    spans = slabs_of(scaled)
    cells = np.concatenate([tree(scaled[s]) for s in spans])
    margins = settings.overlap * widths
    near = np.concatenate([np.add(tree.pairs(scaled[s], margins), (s.start, 0)) for s in spans])
    ends = np.cumsum(np.bincount(near[:, 1], minlength=tree.count))
    index = np.split(near[np.argsort(near[:, 1], kind="stable"), 0], ends[:-1])  # those near a cell learn with it
    own = [cells[each] == c for c, each in enumerate(index)]  # which of them the cell predicts
    del cells, near  # of all rows, beside what solving cells takes
    order = sorted(range(tree.count), key=lambda c: -len(index[c]))  # long ones first

    def solved(c: int) -> SolvedCell:
        for _ in while_wanted([c]):
            cell = bin_rows._at(index[c])
        return Context().run(solve_cell, cell, settings)  # nobody hears of its steps

    found = dict(zip(order, run_threads(solved, order, threads), strict=True))
    solutions = [found[c] for c in range(tree.count)]
    support = np.concatenate([each[cell.numbers] for each, cell in zip(index, solutions, strict=True)])
    left_rows = np.empty(0, np.int64)
    left = np.concatenate([cell.left for cell in solutions], axis=1)
    if settings.fit.loo:
        left_rows = bin_rows.kept[np.concatenate([each[mine] for each, mine in zip(index, own, strict=True)])]
        left = left[:, np.concatenate(own)]
    return SolvedBin(
        tree.planes,
        tree.thresholds,
        tree.children,
        bin_rows.kept[support],
        np.concatenate([cell.coefficients for cell in solutions], axis=1),
        np.array([len(cell.numbers) for cell in solutions]),
        np.stack([cell.intercept for cell in solutions]),
        np.stack([cell.figures for cell in solutions]),
        np.array([(*cell.counts, np.count_nonzero(mine)) for cell, mine in zip(solutions, own, strict=True)]),
        seconds,
        left_rows,
        left,
        np.array([cell.parameters for cell in solutions]),
        np.stack([cell.chosen for cell in solutions]),
    )


@dataclass(frozen=True, eq=False)
class StoredBins:
    """Bins whose rows are partitions on disk, and what all of them are solved by; each with so many ``threads``.

    ``start`` says how the files begin, beside the partitions, that have what each bin starts from, if there are any.
    """

    partitions: StoredPartitions
    whole: KnownStatistics
    settings: CellSettings
    threads: int
    start: str = ""


@worker_task
def solve_stored_bin(bins: StoredBins, number: int) -> SolvedBin:
    """Solve the cells of a bin, and save its raw support rows beside the partitions, for `read_support`."""
    partitions, whole, settings = bins.partitions, bins.whole, bins.settings
    y, weight = partitions.labels(number, number + 1)
    numbers = partitions.row_numbers(number, number + 1)
    order = np.argsort(numbers)
    y, weight, numbers = y[order], weight[order], numbers[order]
    X = partitions.raw(number, number + 1, np.arange(len(y)))[order]
    del order
    factors = tuple(1.0 for _ in settings.factors)
    rows = MemoryData(settings.fit.run, X, y, weight, factors, numbers, X, whole=whole)
    if bins.start:
        first, *coefficients = load_array(f"{bins.start}{number}.npy")
        last = LastFit(first.astype(np.int64), None, np.array(coefficients))
        settings = replace(settings, fit=replace(settings.fit, last=last))
    with single_threaded_blas:
        solved = solve_bin(rows, settings, number, bins.threads)
    save_array(_support_path(partitions, number), X[np.searchsorted(numbers, solved.numbers)])
    return solved


def read_support(partitions: StoredPartitions, number: int, into: Array) -> None:
    """Read the raw support rows of a bin that was solved."""
    into[:] = load_array(_support_path(partitions, number))


def _support_path(partitions: StoredPartitions, number: int) -> str:
    return os.path.join(partitions.path, f"support-{number}.npy")


def save_support(partitions: StoredPartitions, number: int, solved: SolvedBin) -> None:
    """Save the raw support rows of a bin of a checkpoint, which is a partition on disk, as `solve_stored_bin` does.

    Raises StoreError if it lacks one of them, as of a checkpoint that is not what it says.
    """
    numbers = partitions.row_numbers(number, number + 1)
    order = np.argsort(numbers)
    places = order[np.searchsorted(numbers, solved.numbers, sorter=order) % len(order)]
    if not np.array_equal(numbers[places], solved.numbers):
        raise StoreError(f"the checkpoint has support rows of another bin in bin {number}; remove it, and fit again.")
    rows = partitions.raw(number, number + 1, np.arange(len(numbers)))
    save_array(_support_path(partitions, number), rows[places])


@dataclass(frozen=True, eq=False)
class SolvedCell:
    """Machines of one cell, those of classes that it lacks included, which are constants."""

    numbers: Array  # of support rows in the cell, (n_support,)
    coefficients: Array  # (machines, n_support)
    intercept: Array  # (machines,)
    figures: Array  # (machines, figures)
    counts: tuple[int, int]  # rows and classes
    left: Array  # left-out value of every row, of pairs also for rows of other classes, (machines, rows)
    parameters: float
    chosen: Array  # (settings,)


def solve_cell(cell: MemoryData, settings: CellSettings) -> SolvedCell:
    """Solve the machines of one cell."""
    alone = replace(cell, given=cell.X, kept=np.arange(cell.rows))  # as if there were no other rows
    if settings.factors:
        codes = (cell.y > 0).astype(np.int64) if len(settings.factors) == 2 else cell.y.astype(np.int64)
        present = np.unique(codes).tolist()
        places, signs, constants = _machines(settings, present)
        own = np.searchsorted(present, codes)
        y = np.where(own == 1, 1.0, -1.0) if len(present) == 2 else own.astype(np.float64)
        # rows of a cell have class weights in theirs
        plain = cell.weight / np.array(settings.factors)[codes]
        alone = replace(alone, y=y, factors=(1.0,) * len(present), plain_weight=plain)
    else:
        present, places, signs, constants = [], np.zeros(1, np.int64), np.ones(1), np.zeros(1)
    none = np.empty(0, np.int64)
    left = np.tile(constants[:, None], cell.rows) if settings.fit.loo else np.empty((settings.machines, 0))
    figures = np.zeros((settings.machines, len(FIGURES)))
    if len(present) == 1:
        empty = np.empty((settings.machines, 0))
        return SolvedCell(none, empty, constants, figures, (cell.rows, 1), left, 0.0, np.zeros(len(CHOSEN)))
    if settings.fit.kernel.of_distances and not cell.stays_sparse and cell.statistics().ranks is None:
        # rows of a cell far from the mean of all are close to each other: from there, float32 loses their distances
        whole = replace(cell.statistics(), mean=np.asarray(cell.X.mean(axis=0, dtype=np.float64)))
        alone = replace(alone, whole=KnownStatistics(whole))
    try:
        fit, score = _fit_of(alone, settings, present)
        if fit.groups is not None:
            fit = replace(fit, groups=fit.groups[cell.kept])
        if fit.last is not None:
            before = signs[:, None] * fit.last.coefficients_at(cell.kept)[places]
            fit = replace(fit, last=LastFit(alone.kept, alone.X, before[:1] if len(present) <= 2 else before))
        trained = _train_cell(alone, fit, settings.pairs)
    except MemoryLimitError as error:
        raise MemoryLimitError(
            f"a cell has {cell.rows} rows (cell_rows={settings.cell_rows}; nothing divides equal rows, and cells that "
            f"overlap have more): {error}"
        ) from error
    model: Any = trained.model
    odm = fit.odm
    chosen = np.array([model.kernel.gamma, odm.lam / alone.total_weight, odm.upsilon, odm.theta, score])
    support = trained.attributes["support_"]
    coefficients = np.zeros((settings.machines, len(support)))
    coefficients[places] = signs[:, None] * model.machine_coefficients
    intercept = constants.copy()
    intercept[places] = signs * model.intercept
    figures[places] = _figures(trained, len(places))
    require_finite_solution(figures[:, 0])
    if settings.fit.loo:
        left[places] = np.nan_to_num(signs[:, None] * trained.attributes[OF_MACHINE][0])
    parameters = trained.attributes.get("loo_parameters_", 0.0)
    counts = (cell.rows, len(present))
    return SolvedCell(support, coefficients, intercept, figures, counts, left, parameters, chosen)


def _machines(settings: CellSettings, present: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return machines that a cell with the classes ``present`` learns, and the constants of all machines.

    Of the former: their numbers among all machines, and signs, since two classes have one machine for both.
    """
    classes = len(settings.factors)
    if classes == 2:
        return np.array([0]), np.ones(1), np.full(1, 2.0 * present[-1] - 1.0 if len(present) == 1 else 0.0)
    if not settings.pairs:
        signs = np.array([-1.0, 1.0]) if len(present) == 2 else np.ones(len(present))
        constants = np.full(classes, -1.0)
        constants[present[: len(present) == 1]] = 1.0
        return np.array(present), signs, constants
    of_pairs = list(combinations(range(classes), 2))
    places = [i for i, pair in enumerate(of_pairs) if set(pair) <= set(present)]
    constants = np.array([float(b in present) - float(a in present) for a, b in of_pairs])
    return np.array(places, np.int64), np.ones(len(places)), constants


def _fit_of(alone: MemoryData, settings: CellSettings, present: Sequence[int]) -> tuple[ODMFit, float]:
    """Return the settings by which a cell learns, and their score if it has found them itself, else 0."""
    fit = settings.fit
    odm = fit.odm
    if fit.axes is None:
        return replace(fit, odm=replace(odm, lam=odm.lam * (alone.total_weight / settings.total_weight))), 0.0
    searched = alone
    if present:  # class weights do not count in the score
        factors = tuple(settings.factors[code] for code in present)
        searched = replace(alone, weight=alone.row_weights(), plain_weight=None, factors=factors)
    found, score = best_setting(searched, fit.kernel, fit.axes, fit.run)
    own = ODMSettings(found.share * alone.total_weight, found.upsilon, found.theta)
    return replace(fit, odm=own, kernel=replace(fit.kernel, gamma=found.gamma)), score


def _train_cell(alone: MemoryData, fit: ODMFit, pairs: bool) -> Trained:
    if len(alone.factors) <= 2:
        return CellRecipe().train(alone, fit)
    return train_machines(Choice("exact", "", CellRecipe()), alone, fit, "ovo" if pairs else "ovr", _combined)


class CellRecipe(Recipe[ODMFit]):
    """Exact machines of a cell, with left-out values that are joined over all cells later."""

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_exact(data, fit, left_out_values)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_pairs(data, fit, pairs, at_rest=False)


def _combined(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the attributes of a cell's machines, and stack their left-out values."""
    found = joined_attributes([{k: v for k, v in each.items() if k != OF_MACHINE} for each in machines])
    if OF_MACHINE not in machines[0]:
        return found
    values = np.stack([each[OF_MACHINE][0] for each in machines])
    return found | {OF_MACHINE: (values,), "loo_parameters_": float(np.sum(found["loo_parameters_"]))}


def _figures(trained: Trained, machines: int) -> Array:
    """Return P, D and the steps of each machine, and whether the model predicts in float64, (machines, figures)."""
    last: dict[int, dict[str, Any]] = {}
    for record in trained.history:
        last[record.get("machine", 0)] = record
    model: Any = trained.model
    if machines > len(last):  # two classes of several have one machine for both
        last = dict.fromkeys(range(machines), last[0])
    double = float(model.double_precision)
    rows = ((each["objective"], each["gap"], each["iteration"]) for _, each in sorted(last.items()))
    return np.array([(primal, primal * (1.0 - gap), steps, double) for primal, gap, steps in rows])
