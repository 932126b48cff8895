"""Checkpoints of a tree: the solutions of its last finished level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dask_odm.learning.problem.odm import Point
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.checkpoints import Fit, open_steps
from dask_odm.typing import Array

History = list[dict[str, Any]]
OnLevel = Callable[[int, Callable[[], list[Solution]], History], object]
LEVEL_FIGURES = 14  # columns of `LevelState.figures`


@dataclass(frozen=True, eq=False)
class LevelState:
    """A finished level of a tree."""

    level: int
    dual: Array  # dual variables of all nodes, one node after the other, (n_machines, n)
    # of every node: its number of dual variables, weight, rows, sweeps, steps, convergence and seconds, then its points
    # at the start and at the solution, and ½‖w‖², (nodes, LEVEL_FIGURES)
    figures: Array
    history: History  # records of the levels up to this one

    @classmethod
    def of(cls, level: int, solutions: list[Solution], history: History) -> LevelState:
        figures = []
        for each in solutions:
            counts = each.dual.shape[1], each.weight, each.rows, each.sweeps, each.steps
            points = *astuple(each.start), *astuple(each.point)
            figures.append([*counts, each.converged, each.seconds, *points, each.half_norm])
        dual = np.concatenate([each.dual for each in solutions], axis=1)
        return cls(level, dual, np.array(figures, dtype=np.float64), history)

    def solutions(self) -> list[Solution]:
        ends = np.cumsum(self.figures[:-1, 0]).astype(np.int64)
        found = []
        for dual, figures in zip(np.split(self.dual, ends, axis=1), self.figures.tolist(), strict=True):
            _, weight, rows, sweeps, steps, converged, seconds = figures[:7]
            points = Point(*figures[7:10]), Point(*figures[10:13])
            found.append(
                Solution(
                    dual.copy(), weight, int(rows), *points,
                    int(sweeps), int(steps), bool(converged), seconds, half_norm=figures[13],
                )
            )  # fmt: skip
        return found

    def is_level(self, levels: int, sizes: Callable[[int], list[int]], *, all_rows: bool) -> bool:
        """Return whether this is a level of a tree of ``levels`` levels.

        ``sizes(number)`` returns the rows of every node of a level. Without ``all_rows``, lower levels may have dropped
        some.
        """
        if not 0 <= self.level < levels or len(self.history) != self.level + 1:
            return False
        rows = sizes(self.level)
        if self.figures.shape != (len(rows), LEVEL_FIGURES) or self.dual.ndim != 2 or not len(self.dual):
            return False
        columns = slice(0, 3, 2) if all_rows else slice(0, 1)
        same = (self.figures[:, columns] == np.array(rows)[:, None]).all() and self.dual.shape[1] == sum(rows)
        return bool(same and (self.figures[:, 2] <= rows).all() and (self.figures[:, :7] >= 0).all())


def open_levels(name: str, data: Callable[[], str], fit: Fit) -> tuple[LevelState | None, OnLevel]:
    """Return the level from which a tree's fit resumes, if any, and a function that saves a finished level.

    Solutions are fetched only if the fit asks for a checkpoint. Raises StoreError as `open_steps`.
    """
    state, save = open_steps(name, data, fit, LevelState)

    def on_level(number: int, fetch: Callable[[], list[Solution]], history: History) -> None:
        if fit.run.checkpoint is not None:
            save(LevelState.of(number, fetch(), history))

    return state, on_level
