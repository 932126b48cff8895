"""Scores of settings on a few cells: exact machines with their left-out rows, or with rows that validate.

The cells are leaves of a tree that is grown on a sample of the rows. They are drawn in proportion to how mixed their
labels are, since rows are wrong where these are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.learning.problem.losses import ODMSettings
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.cells.growing import grow
from dask_odm.methods.cells.recipe import SAMPLE_ROWS
from dask_odm.methods.cells.workers import CellSettings, KnownStatistics, slabs_of, solve_cell
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.models import KernelModel
from dask_odm.typing import Array

TRIAL_TOL = 1e-2  # relative gap of a trial; settings differ by more than that
TRIAL_CELLS = 3  # cells that settings are tried on
Parts = Callable[[Array], tuple[Array, Array] | None]  # masks of rows to learn from and to validate by, or None


def chosen_cells(data: TrainingData, choice: KernelChoice, cell_rows: int, seed: int) -> list[MemoryData]:
    """Return `TRIAL_CELLS` cells of about ``cell_rows`` rows, or fewer if there are fewer cells."""
    sample = data.sample(SAMPLE_ROWS, seed)
    assert sample.held is not None
    scaled = sample.seen_by(choice).scaled
    tree, _ = grow(scaled, max(1, round(cell_rows * sample.rows / data.labelled_rows)), seed)
    cells = np.concatenate([tree(scaled[span]) for span in slabs_of(scaled)])
    codes = np.unique(sample.held.y, return_inverse=True)[1]
    counts = np.zeros((tree.count, codes.max() + 1))
    np.add.at(counts, (cells, codes), 1.0)
    mixed = counts.sum(axis=1) - counts.max(axis=1)  # rows of other classes than the most frequent one
    places = (np.arange(TRIAL_CELLS) + 0.5) / TRIAL_CELLS * max(mixed.sum(), 1.0)
    chosen = np.unique(np.minimum(np.searchsorted(np.cumsum(mixed), places), tree.count - 1))
    whole = KnownStatistics(data.statistics())
    found = []
    for held, scaled_rows in _blocks(data, choice):
        of_rows = np.concatenate([tree(scaled_rows[span]) for span in slabs_of(scaled_rows)])
        found.append([held._at(np.flatnonzero(of_rows == cell)) for cell in chosen])
    return [replace(_joined(parts), whole=whole) for parts in zip(*found, strict=True)]


def _blocks(data: TrainingData, choice: KernelChoice) -> Iterator[tuple[MemoryData, Any]]:
    """Yield all rows with their whole weights, those of a store block by block, and the rows as they are scaled."""
    if data.held is not None:
        held = data.held
        factors = tuple(1.0 for _ in held.factors)
        yield replace(held, weight=held.total_weights, factors=factors), held.seen_by(choice).scaled
        return
    assert isinstance(data, StoredData)
    scaling = data.seen_by(choice).scaling
    factors = tuple(1.0 for _ in data.class_weights)
    for block in data.store.blocks():
        keep, y, weight = data.targets(block)
        at = np.flatnonzero(keep)
        X = block.X[at].astype(data.dtype, copy=False)
        yield MemoryData(data.run, X, y[at], weight[at], factors, block.first + at, X), scaling(X)


def _joined(parts: Sequence[MemoryData]) -> MemoryData:
    """Return the rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts]) for name in ("X", "y", "weight", "kept")
    }
    return replace(parts[0], **arrays, given=arrays["X"])


@dataclass(frozen=True, eq=False)
class CellTrials:
    """Cells on which settings of one kernel are tried, each as a machine of its own; many classes against the rest.

    ``fit`` are the settings of the last fit, with the kernel of the trials.
    """

    cells: list[MemoryData]
    fit: ODMFit
    factors: tuple[float, ...]

    def scores(self, settings: Sequence[tuple[float, float, float]], parts: Sequence[Parts]) -> Array:
        """Return the accuracy (m, splits) on left-out rows for each setting (λ/M, υ, θ)."""
        work = list(product(range(len(settings)), range(len(parts)), range(len(self.cells))))

        def right(item: tuple[int, int, int]) -> tuple[float, float]:
            i, k, c = item
            return Context().run(self._right, self.cells[c], settings[i], parts[k])

        found = np.array(run_threads(right, work, CPU_COUNT)).reshape(len(settings), len(parts), -1, 2).sum(axis=2)
        return found[:, :, 0] / np.maximum(found[:, :, 1], 1e-300)

    def _right(self, cell: MemoryData, setting: tuple[float, float, float], split: Parts) -> tuple[float, float]:
        """Return the weight of left-out rows of a cell that are right, and of all that are left out."""
        share, upsilon, theta = setting
        parts = split(cell.kept)
        learning = cell if parts is None else cell._at(np.flatnonzero(parts[0]))
        if not learning.rows:
            return 0.0, 0.0
        odm = ODMSettings(share * learning.total_weight, upsilon, theta)
        solver = replace(self.fit.solver, tol=max(TRIAL_TOL, self.fit.solver.tol))
        fit = replace(self.fit, odm=odm, solver=solver, loo=parts is None)
        own = CellSettings(fit, self.factors, False, learning.total_weight, cell.rows, 0.0, False)
        solved = solve_cell(learning, own)
        validating = cell
        predicted = solved.left.T
        if parts is not None:
            validating = cell._at(np.flatnonzero(parts[1]))
            seen = learning.seen_by(fit.kernel)
            kernel = replace(seen.kernel, bias=0.0)
            support = learning.X[solved.numbers]
            model = KernelModel(kernel, seen.scaling, support, solved.coefficients, solved.intercept)
            predicted = model.machine_scores(validating.X).T
        right = np.sign(predicted[:, 0]) if len(self.factors) == 2 else predicted.argmax(axis=1)
        return float(validating.weight[right == validating.y].sum()), float(validating.weight.sum())
