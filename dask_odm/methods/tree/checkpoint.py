"""Checkpoints of a tree: the solutions of its last finished level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dask_odm.learning.problem.odm import Point
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.checkpoints import Fit, open_steps, require_state
from dask_odm.typing import Array

FIGURES = 14  # columns of `LevelState.figures`


@dataclass(frozen=True, eq=False)
class LevelState:
    """A finished level of a tree."""

    level: int
    dual: Array  # dual variables of all nodes, one node after the other, (n_machines, n)
    # of every node: its number of dual variables, weight, rows, sweeps, steps, convergence and seconds, then its points
    # at the start and at the solution, and ½‖w‖², (nodes, FIGURES)
    figures: Array
    history: list[dict[str, Any]]  # records of the levels up to this one

    @classmethod
    def of(cls, level: int, solutions: list[Solution], history: list[dict[str, Any]]) -> LevelState:
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
        """Return whether this is a level of a tree, see `TreeCheckpoint.require`."""
        if not 0 <= self.level < levels or len(self.history) != self.level + 1:
            return False
        rows = sizes(self.level)
        if self.figures.shape != (len(rows), FIGURES) or self.dual.ndim != 2 or not len(self.dual):
            return False
        columns = slice(0, 3, 2) if all_rows else slice(0, 1)
        same = (self.figures[:, columns] == np.array(rows)[:, None]).all() and self.dual.shape[1] == sum(rows)
        return bool(same and (self.figures[:, 2] <= rows).all() and (self.figures[:, :7] >= 0).all())


@dataclass(frozen=True, eq=False)
class TreeCheckpoint:
    """The checkpoint to which a tree's fit writes its levels, and the level from which it resumes, if any."""

    fit: Fit
    state: LevelState | None
    save_state: Callable[[LevelState], None]

    @classmethod
    def open(cls, name: str, data: Callable[[], str], fit: Fit) -> TreeCheckpoint | None:
        """Return the checkpoint of a tree, or None if the fit asks for none; otherwise as `open_steps`."""
        return None if fit.run.checkpoint is None else cls(fit, *open_steps(name, data, fit, LevelState))

    @property
    def start(self) -> tuple[int, list[Solution]] | None:
        """Number and solutions of the level from which the fit resumes."""
        return None if self.state is None else (self.state.level, self.state.solutions())

    @property
    def history(self) -> list[dict[str, Any]]:
        return [] if self.state is None else self.state.history

    def require(self, levels: int, sizes: Callable[[int], list[int]], *, all_rows: bool = True) -> None:
        """Raise StoreError unless the fit resumes from a level of its own tree of ``levels`` levels.

        ``sizes(number)`` returns the rows of every node of a level. Without ``all_rows``, lower levels may have dropped
        some.
        """
        sound = self.state is None or self.state.is_level(levels, sizes, all_rows=all_rows)
        require_state(self.fit, sound)

    def save(self, number: int, fetch: Callable[[], list[Solution]], history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint by level ``number``."""
        self.save_state(LevelState.of(number, fetch(), history))
