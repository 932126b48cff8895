"""Settings that every solver takes, the records of its steps, the same for all, and the solution that it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from dask_odm.html import card, folded, table
from dask_odm.learning.problem.losses import Point
from dask_odm.typing import Array

Record = dict[str, Any]
OnStep = Callable[[Record], object]


@dataclass(frozen=True)
class SolverSettings:
    """When to stop, and the seed of every random choice.

    ``tol`` bounds the relative duality gap (P − D)/P; ``max_iter`` bounds the rounds of a solver.
    """

    tol: float = 1e-3
    max_iter: int = 200
    seed: int = 0


class History(list[Record]):
    """Records of the steps of a fit, in order: a list that a notebook shows as tables."""

    def _repr_html_(self) -> str:
        first, last = (self[0], self[-1]) if self else ({}, {})
        facts = [(name, first.get(key)) for name, key in (("Solver", "solver"), ("Why", "why"))]
        facts.append(("Seconds", None if "machine" in last else last.get("seconds")))  # each machine counts its own
        tables = []
        for columns, records in groupby(self, lambda record: [key for key in record if key not in ("solver", "why")]):
            rows = [[record[key] for key in columns] for record in records]
            tables.append(folded(f"{len(rows)} records", table(columns, rows)))
        return card("Steps of the fit", facts, *tables)


class StepClock:
    """The clock of a solve, which makes the records of its steps.

    Seconds count from now, or go on from the last record of the ``history`` of a lost run.
    """

    def __init__(self, history: Sequence[Record] = ()) -> None:
        self._began = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def record(self, iteration: int, gap: float, objective: float, passes: float, **more: Any) -> Record:
        """Return the record of a step: its number, relative duality gap, P, passes over the rows and seconds so far."""
        figures = {"iteration": iteration, "gap": gap, "objective": objective, "passes": passes}
        return figures | {"seconds": self.seconds} | more


def record_after(ahead: Sequence[Record], record: Record) -> Record:
    """Return ``record`` with its counts continued from the last of the records ``ahead``, if there are any."""
    if not ahead:
        return record
    figures = {name: ahead[-1][name] + record[name] for name in ("passes", "seconds")}
    return record | figures | {"iteration": record["iteration"] + len(ahead)}


class StepLog:
    """Records of a run in order. Each is reported once it is certain.

    ``on_step`` is called with every record when the next one is added, unless that one is held; `settle` reports all at
    once. ``clock`` begins now by default.
    """

    def __init__(self, on_step: OnStep, clock: StepClock | None = None) -> None:
        self._on_step = on_step
        self._told = 0
        self.history: list[Record] = []
        self.clock = clock or StepClock()

    def take_up(self, history: Sequence[Record]) -> Record:
        """Resume from the ``history`` of a lost run, without its last record, which is returned to be made again."""
        *before, last = history
        self.history, self._told = list(before), len(before)
        self.clock = StepClock(history)
        return last

    def add(self, gap: float, objective: float, passes: float, *, hold: bool = False, **more: Any) -> None:
        """Add a record. Earlier ones are reported first, unless ``hold`` leaves them to `settle`."""
        if not hold:
            self.settle()
        self.history.append(self.clock.record(len(self.history), gap, objective, passes, **more))

    def amend(self, **figures: Any) -> None:
        """Change figures of the last record, which was not reported yet."""
        self.history[-1] = self.history[-1] | figures

    def settle(self) -> None:
        """Report all records that were not yet reported. They will not change."""
        for record in self.history[self._told :]:
            self._told += 1
            self._on_step(record)


@dataclass(frozen=True, eq=False)
class Solution:
    """Dual variables of one partition: result, warm start of the parent and checkpoint in one record."""

    dual: Array  # signed dual variables s, float64 (n_machines, n); one machine for two classes
    weight: float  # sum of the partition's row weights, the m_k for which s was solved
    rows: int  # of the partition
    start: Point  # primal, its lower bound and their gap at the warm start, before solving
    point: Point  # primal of this solution, the best lower bound found by the dual, and their gap
    sweeps: int = 0  # Newton steps to a gap of ``tol``
    steps: int = 0  # Newton steps until rounding stops them
    converged: bool = True  # whether ``point.gap`` reached the tolerance
    seconds: float = 0.0  # wall time of the solve
    half_norm: float = -1.0  # ½‖w‖² if the solve ended with kernel values in float64, else −1

    def rescaled(self, weight: float) -> Array:
        """Return ``dual`` as a start for a problem of total ``weight``: s ∝ 1/m by the optimality conditions.

        Both papers start from the plain concatenation of the children's dual variables. Each child was solved with ρ ∝
        m_k, so that start is too large by the fan-in, and worse than zeros.
        """
        return self.dual * (self.weight / weight)

    def without_dual(self) -> Solution:
        """Return the solution without its dual variables, which is cheap to send."""
        return replace(self, dual=np.empty((len(self.dual), 0)))
