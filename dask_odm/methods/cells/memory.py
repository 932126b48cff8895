"""Memory of cells: bytes of bins of rows while their trees grow, and while their cells are solved."""

from __future__ import annotations

from dataclasses import dataclass

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.kernels.shape import Shape
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.exact.memory import leaving_bytes
from dask_odm.methods.exact.recipe import fit_bytes, most_fit_bytes
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.search.axes import TUNING
from dask_odm.methods.search.trials import trial_bytes

# Numbers of 8 bytes beside a row's features. While the tree grows and rows are dealt to cells: target, weight and row
# number as read and in order, place in a cell, pairs of row and cell; 7 were measured, and 14 of cells that overlap by
# 0.3. While cells are solved: target, weight, row number, places in cells; 4 and 6, besides what machines find.
GROWN_NUMBERS = 16
HELD_NUMBERS = 8


def grown_row_bytes(data: TrainingData) -> int:
    """Return the bytes of a row as it is read, in order and scaled, and of its numbers while a tree is grown."""
    return 3 * data.features * data.dtype.itemsize + GROWN_NUMBERS * 8


def sample_rows(data: TrainingData) -> int:
    """Return how many rows a sample has at most, about, so that each of their copies has `COPIED_BYTES`."""
    return max(1, 3 * COPIED_BYTES // grown_row_bytes(data))


@dataclass(frozen=True)
class CellMemory:
    """Bytes of cells of ``data``, each with so many ``machines``."""

    data: TrainingData
    fit: ODMFit
    machines: int = 1

    @property
    def features(self) -> int:
        """Bytes of the features of a row."""
        return self.data.features * self.data.dtype.itemsize

    @property
    def solved_row(self) -> int:
        """A row of a bin while its cells are solved: scaled too, numbers, and what is found."""
        found = self.machines * (2 if self.fit.loo else 1)  # a coefficient, and a left-out value
        return 2 * self.features + (HELD_NUMBERS + found) * 8

    def bin(self, rows: int, threads: int, cell_rows: int, each: int = 1) -> int:
        """A bin of ``rows`` while its tree grows, or while each of ``threads`` solves a cell by ``each`` threads."""
        of_thread = self.cell(min(cell_rows, rows), each)
        return max(self._made(rows, grown_row_bytes(self.data)), self.solved(rows) + threads * of_thread)

    def solved(self, rows: int) -> int:
        """The ``rows`` of a bin while its cells are solved."""
        return self._made(rows, self.solved_row)

    def cell(self, rows: int, threads: int = 1) -> int:
        """A cell of up to ``rows``: its rows, as they are and scaled, and its machines."""
        trial = trial_bytes(rows, TUNING.more_landmarks) if self.fit.axes is not None else 0
        bytes_of = fit_bytes if rows >= self.data.labelled_rows else most_fit_bytes  # a cell of all rows has no fewer
        shape = Shape(self.fit.kernel.alike, rows, self.data.features, self.data.dtype.itemsize, threads)
        left_out = leaving_bytes(shape) if self.fit.loo else 0
        return self._made(rows, 2 * self.features + 12 * 8) + max(bytes_of(shape), trial, left_out)

    def _made(self, rows: int, each: int) -> int:
        """``rows`` of so many bytes each, without copies that are not made: of all in memory, and large scaled ones."""
        copy = rows * self.features
        return rows * each - copy * (int(self.data.in_memory and rows >= self.data.rows) + int(copy > COPIED_BYTES))
