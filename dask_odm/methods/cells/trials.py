"""Cells on which settings are tried.

The cells are leaves of a tree that is grown on a sample of the rows. They are drawn in proportion to how mixed their
labels are, since rows are wrong where these are mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_odm.learning.training.memory_data import MemoryData, MemoryKernelData
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.growing import grow, slabs_of


def chosen_cells(
    data: TrainingData, sample: MemoryKernelData, choice: KernelChoice, cell_rows: int, count: int = AUTO.trial_cells
) -> list[MemoryData]:
    """Return ``count`` cells of about ``cell_rows`` rows, or fewer if there are fewer cells.

    Of a cell that has more than twice as many, because nothing divides equal rows, twice as many are drawn. ``sample``
    is that of `sampled`.
    """
    scaled = sample.scaled
    seed = data.run.seed
    tree, _, _ = grow(scaled, max(1, round(cell_rows * sample.data.rows / data.labelled_rows)), seed)
    cells = np.concatenate([tree(scaled[span]) for span in slabs_of(scaled)])
    codes = np.unique(sample.data.y, return_inverse=True)[1]
    counts = np.zeros((tree.count, codes.max() + 1))
    np.add.at(counts, (cells, codes), 1.0)
    mixed = counts.sum(axis=1) - counts.max(axis=1)  # rows of other classes than the most frequent one
    places = (np.arange(count) + 0.5) / count * max(mixed.sum(), 1.0)
    drawn = np.minimum(np.searchsorted(np.cumsum(mixed), places), tree.count - 1)
    chosen = np.unique(drawn)
    found = []
    for held, scaled_rows in data.scaled_blocks(choice):
        of_rows = np.concatenate([tree(scaled_rows[span]) for span in slabs_of(scaled_rows)])
        found.append([held._at(np.flatnonzero(of_rows == cell)) for cell in chosen])
    return [replace(_join(parts), whole=data).sample(2 * cell_rows, seed) for parts in zip(*found, strict=True)]


def _join(parts: Sequence[MemoryData]) -> MemoryData:
    """Return the rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts]) for name in ("X", "y", "weight", "kept")
    }
    return replace(parts[0], **arrays, given=arrays["X"])
