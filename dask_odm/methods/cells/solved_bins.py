"""The bins of a fit that are solved, with their records and their checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np

from dask_odm.events import Meter
from dask_odm.learning.solution import Record, StepClock
from dask_odm.learning.training.recipe import report_step
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.cells.workers import CHOSEN, FIGURES, CellSettings, SolvedBin
from dask_odm.typing import Array

STEPS = 16  # lines of the history, and checkpoints, of a fit, about
Keep = Callable[[int, SolvedBin], None]  # is called with number and solution of each bin, in any order


@dataclass(frozen=True, eq=False)
class CellsState:
    """Bins that are solved, as a checkpoint has them: the packed numbers and shapes of each, one after the other."""

    bins: Array  # numbers of the bins, ascending
    sizes: Array  # packed numbers of each
    numbers: Array
    shapes: Array  # (bins, arrays, 3)
    history: list[Record]

    @classmethod
    def of(cls, solved: dict[int, SolvedBin], history: list[Record]) -> CellsState:
        packed = [solved[k].packed() for k in sorted(solved)]
        sizes = np.array([float(len(numbers)) for numbers, _ in packed])
        numbers = np.concatenate([numbers for numbers, _ in packed])
        return cls(np.array(sorted(solved), np.float64), sizes, numbers, np.stack([s for _, s in packed]), history)

    def solved(self) -> dict[int, SolvedBin]:
        """Return the bins; raise ValueError if numbers and shapes do not fit each other."""
        ends = np.cumsum(self.sizes).astype(np.int64)
        numbers = np.split(self.numbers, ends)
        if len(numbers[-1]) or not len(self.bins) == len(self.sizes) == len(self.shapes):
            raise ValueError(f"{len(self.numbers)} numbers of {len(self.bins)} bins")
        bins = self.bins.astype(np.int64).tolist()
        found = zip(bins, numbers, self.shapes, strict=False)  # nothing is left of the numbers
        return {k: SolvedBin.unpacked(own, shapes) for k, own, shapes in found}


class BinLog:
    """Solved bins, and records of all of them so far: one for every so many bins, in the order of the bins.

    A record is saved and then reported once all of its bins are solved. ``rows`` are those of all ``count`` bins, and
    ``save`` writes the checkpoint, if there is one.
    """

    def __init__(
        self, count: int, rows: int, clock: StepClock, save: Callable[[CellsState], None] | None = None
    ) -> None:
        self.solved: dict[int, SolvedBin] = {}
        self.history: list[Record] = []
        self._count = count
        self._rows = rows
        self._clock = clock
        self._save = save
        self._every = -(-count // STEPS)

    def resume(self, state: CellsState, settings: CellSettings, data: TrainingData) -> bool:
        """Take the bins and records of a checkpoint; return whether they are of this fit."""
        try:
            self.solved, self.history = state.solved(), list(state.history)
        except (ValueError, IndexError):
            return False
        self._clock = StepClock(self.history)
        told = range(min(self._every * len(self.history), self._count))
        sound = all(k < self._count and _fits(each, settings, data) for k, each in self.solved.items())
        return sound and all(k in self.solved for k in told)

    @contextmanager
    def kept(self) -> Iterator[Keep]:
        """Provide a function that adds a solved bin, from whatever thread."""
        self._tell()  # of bins that a checkpoint has, but not yet a record of
        with Meter("cells", self._count, "bins") as meter:
            meter.add(len(self.solved))
            lock = threading.Lock()
            ended = False
            context = copy_context()  # in which records are heard

            def keep(k: int, each: SolvedBin) -> None:
                nonlocal ended
                with lock:
                    if ended:  # by what a callback raised: nothing is told after that
                        return
                    ended = True
                    self.solved[k] = each
                    meter.add()
                    context.run(self._tell)
                    ended = False

            yield keep

    def _tell(self) -> None:
        """Add the records of the bins that are solved now; save them, and report them."""
        before = len(self.history)
        while (told := self._every * len(self.history)) < self._count:
            after = min(told + self._every, self._count)
            if not all(k in self.solved for k in reversed(range(told, after))):  # the last are mostly solved last
                break
            bins = [self.solved[k] for k in range(after)]
            self.history.append(_record(self._clock, bins, len(self.history), self._rows))
        if len(self.history) > before and self._save is not None:
            self._save(CellsState.of(self.solved, self.history))  # all of them, which takes longer the more there are
        for record in self.history[before:]:
            report_step(record)


def _fits(solved: SolvedBin, settings: CellSettings, data: TrainingData) -> bool:
    """Return whether a bin of a checkpoint has the shapes of one of this fit."""
    cells = solved.thresholds.size + 1
    machines = settings.machines
    support = solved.numbers.size
    left = solved.left_rows.size
    shapes = {
        "planes": (cells - 1, data.features),
        "numbers": (support,),
        "coefficients": (machines, support),
        "sizes": (cells,),
        "intercept": (cells, machines),
        "figures": (cells, machines, len(FIGURES)),
        "counts": (cells, 3),
        "seconds": (cells - 1,),
        "left_rows": (left,),
        "left": (machines, left),
        "parameters": (cells,),
        "chosen": (cells, len(CHOSEN)),
    }
    try:
        solved.tree.require_sound()
    except ValueError:
        return False
    if any(getattr(solved, name).shape != shape for name, shape in shapes.items()):
        return False
    given = data.row_numbers[0]
    numbers = np.concatenate([solved.numbers, solved.left_rows])
    inside = not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < given)
    whole = solved.sizes.sum() == support and bool((solved.sizes >= 0).all() and (solved.chosen >= 0).all())
    return inside and whole


def gaps_of(bins: list[SolvedBin]) -> tuple[Array, Array, Array]:
    """Return P and D of every machine over all cells, and the gap of every cell's worst machine."""
    figures = np.concatenate([each.figures for each in bins])
    primal = figures[:, :, 0]
    short = np.maximum(primal - figures[:, :, 1], 0.0)
    gaps = (short / np.maximum(primal, np.finfo(np.float64).tiny)).max(axis=1)
    return primal.sum(axis=0), short.sum(axis=0), gaps


def _record(clock: StepClock, bins: list[SolvedBin], number: int, rows: int) -> Record:
    """Return the record of the bins that are solved so far."""
    primal, short, gaps = gaps_of(bins)
    counts = np.concatenate([each.counts for each in bins])
    done = int(counts[:, 0].sum())
    gap = float((short / np.maximum(primal, np.finfo(np.float64).tiny)).max())
    return clock.record(
        number,
        gap,
        float(primal.sum()),
        done / rows,
        rows=done,
        cells=len(counts),
        mean_rows=float(counts[:, 0].mean()),
        mean_classes=float(counts[:, 1].mean()),
        worst_gap=float(gaps.max()),
        mean_gap=float(gaps.mean()),
    )
