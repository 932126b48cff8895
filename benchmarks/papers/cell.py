"""One cell of a benchmark, run in a process of its own: ``python -m benchmarks.papers.cell < cell.json``.

The process fits a few rows first, so that loops are compiled or loaded. It writes a JSON object a line to stdout: what
was measured, and for a tree a second one, of what its levels would have been as models: it is trained again, stopped at
each, which does not count.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.methods import ALL_METHODS, TUNED_ROWS, Settings, bands, candidates, tuner
from benchmarks.papers.sets import Split, split_of
from dask_odm.diagnostics.summaries import plain
from dask_odm.events import Event, IterationFinished, LevelFinished, PartitionSolved, Progress
from dask_odm.papers.sodm.workers import TreeSettings

WARM_ROWS = 200
PREDICTED_ROWS = 8192  # at a time


@dataclass(frozen=True)
class Cell:
    """What is measured: a method on a split of a data set, or (``method`` "tune") the choice of settings for a family.

    Attributes
    ----------
    data : str
    seed : int
        Of the split, and of the method.
    method, kernel : str
    rows : int or None
        Rows of the data set that are taken.
    cores : int or None
        Cores the process may use; None: all.
    """

    data: str
    seed: int
    method: str
    kernel: str
    rows: int | None = None
    cores: int | None = None

    @property
    def key(self) -> str:
        """What tells it from others."""
        return json.dumps(list(asdict(self).values()))


class Clock:
    """A listener that keeps when levels, steps and phases ended, in seconds since it was made."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.prepared: float | None = None
        self.levels: list[dict[str, Any]] = []
        self.steps: list[tuple[float, float, float]] = []
        self.phases: dict[str, list[float]] = {}

    def __call__(self, event: Event) -> None:
        now = time.perf_counter() - self.began
        if isinstance(event, Progress):
            self.phases.setdefault(event.phase, [now, now])[1] = now
        if isinstance(event, PartitionSolved) and self.prepared is None:
            self.prepared = max(0.0, now - event.seconds)
        if isinstance(event, IterationFinished):
            self.prepared = now if self.prepared is None else self.prepared
            self.steps.append((now, event.gap, event.objective))
        if isinstance(event, LevelFinished):
            self.levels.append({**asdict(event), "ended": now})

    def facts(self, seconds: float) -> dict[str, Any]:
        """Seconds before the first partition or step, and from there on; all of them where nothing was told."""
        before = 0.0 if self.prepared is None else self.prepared
        phases = {name: end - begin for name, (begin, end) in self.phases.items()}
        return {"prepare": before, "solve": seconds - before, "phases": phases, "steps": self.steps}


def run_cell(cell: Cell, settings: Settings, split: Split) -> Iterator[dict[str, Any]]:
    """What a cell measures, one or two records."""
    if cell.method == "tune":
        yield {"settings": choose(cell.kernel.partition(" ")[0], cell.kernel.partition(" ")[2], split, cell.seed)}
        return
    method, rows = ALL_METHODS[cell.method], len(split.y)

    def make(n: int = rows) -> Any:
        return method.make(cell.kernel, settings, n, cell.seed)

    few = np.random.default_rng(0).permutation(rows)[:WARM_ROWS]
    make(len(few)).fit(split.X[few], split.y[few]).predict(split.X_test[:2])
    model = make()
    clock = Clock()
    if method.family == "odm":
        model.set_params(callbacks=[clock])
    cpu = time.process_time()
    clock.began = time.perf_counter()
    model.fit(split.X, split.y)
    seconds = time.perf_counter() - clock.began
    cpu = time.process_time() - cpu
    began = time.perf_counter()
    accuracy = accuracy_of(model, split)
    found = {
        "fit": seconds,
        "cpu": cpu,
        "predict": time.perf_counter() - began,
        "accuracy": accuracy,
        **clock.facts(seconds),
    }
    found |= {"gap": getattr(model, "dual_gap_", None), "peak_bytes": peak_bytes(), "levels": clock.levels}
    support = getattr(model, "support_", None)
    yield {"settings": settings, "train_rows": rows, "support": None if support is None else len(support), **found}
    if method.levels and len(clock.levels) > 1:
        yield {"level_accuracy": level_accuracy(make, clock.levels, accuracy, split)}


def level_accuracy(make: Callable[[], Any], levels: list[dict[str, Any]], last: float, split: Split) -> list[float]:
    """Test accuracy of the tree stopped at each of its levels; of the last it is known."""
    found = []
    bounds = TreeSettings(make().solver.fan_in).levels(levels[0]["partitions"])
    for level in range(len(levels) - 1):  # by what the tree has there: a level of clusters may have fewer nodes
        model = make().set_params(solver__stop_at=len(bounds[level]) - 1)
        found.append(accuracy_of(model.fit(split.X, split.y), split))
    return [*found, last]


def accuracy_of(model: Any, split: Split) -> float:
    """Share of test rows whose label is right."""
    starts = range(0, len(split.y_test), PREDICTED_ROWS)
    right = [np.count_nonzero(model.predict(split.X_test[i : i + PREDICTED_ROWS]) == _part(split, i)) for i in starts]
    return float(sum(right) / len(split.y_test))


def _part(split: Split, start: int) -> Any:
    return split.y_test[start : start + PREDICTED_ROWS]


def choose(family: str, kernel: str, split: Split, seed: int) -> Settings:
    """The settings with which most rows of the validation part are right: the first of equals."""
    order = np.random.default_rng([seed, 2]).permutation(len(split.y))[:TUNED_ROWS]
    validation = order[: len(order) // 5]
    train = order[len(order) // 5 :]
    part = Split(split.X[train], split.y[train], split.X[validation], split.y[validation])
    make = tuner(family, kernel)
    best = None
    most = -1.0

    def tried(settings: Settings) -> float:
        return accuracy_of(make(kernel, settings, len(train), seed).fit(part.X, part.y), part)

    for settings in candidates(family, kernel):
        score = tried(settings)
        if score > most:
            best = settings
            most = score
    assert best is not None
    for settings in bands(best) if family == "odm" else ():
        score = tried(settings)
        if score > most:
            best = settings
            most = score
    return best


def peak_bytes() -> int | None:
    """The most memory that this process held, where the system tells."""
    if sys.platform == "linux":  # ru_maxrss would be that of the process that started this one, if it is more
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), None)
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main() -> None:
    """Run the cell that stdin describes."""
    asked = json.load(sys.stdin)
    cell = Cell(**asked["cell"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        split = split_of(cell.data, cell.seed, asked["folder"], Path(asked["cache"]), rows=cell.rows)
        for record in run_cell(cell, asked["settings"], split):
            said = sorted({str(each.message) for each in caught if each.category.__name__ == "ConvergenceWarning"})
            sys.stdout.write(json.dumps(plain({**record, "warnings": said}), allow_nan=False) + "\n")
            sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and thread pools of libraries need not be waited for


if __name__ == "__main__":
    main()
