"""The demonstration: a real data set from file to predictions, then one larger than its workers' memory.

Every step calls a public function, so this is also an example of how to combine them. Nothing is printed here:
`run_demo` calls a function with every line to show.
"""

from __future__ import annotations

import csv
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dask_odm as odm
from dask_odm.diagnostics.evaluation import Evaluation, evaluate
from dask_odm.diagnostics.plotting import PlottingUnavailableError, plot_margin_distribution
from dask_odm.diagnostics.predictions import write_predictions
from dask_odm.diagnostics.summaries import size_text
from dask_odm.engine.workers import local_workers, peak_bytes
from dask_odm.errors import InputError
from dask_odm.progress import format_history

Say = Callable[[str], object]
TEST_START = 1_048_576_000  # the first test row of the endless sequence, far after the training rows


@dataclass(frozen=True)
class Size:
    """Size of the second data set, and the workers that it is trained on.

    ``worker_memory`` is the limit of each worker, which Dask's nanny enforces. ``parameters`` are those of
    `ODMClassifier`.
    """

    rows: int = 88_000
    test_rows: int = 1_000
    features: int = 4_000
    workers: int = 2
    worker_memory: str = "460MB"
    parameters: dict[str, Any] = field(
        default_factory=lambda: {"solver": odm.solvers.SODM(512, stop_at=128), "lam": 1e3, "random_state": 0}
    )

    @property
    def nbytes(self) -> int:
        """Bytes of the training rows."""
        return 4 * self.rows * self.features


def run_demo(folder: str | os.PathLike[str], say: Say, size: Size | None = None) -> dict[str, Any]:
    """Run the demonstration in ``folder``, and return its measurements as plain values.

    The folder is made if needed; files of an earlier run are replaced. ``say`` is called with every line to show.
    Raises InputError if the folder cannot be made, or its disk has too little room.
    """
    size = size or Size()
    root = os.path.abspath(folder)
    started = time.perf_counter()
    _make_folder(root, 4 * size.nbytes)
    say("1. A real data set: breast cancer (Wisconsin), bundled with scikit-learn\n")
    real = _real(root, say)
    say("\n2. A data set larger than its workers' memory\n")
    larger = _larger(root, say, size)
    seconds = time.perf_counter() - started
    say(f"\nStores, models and the plot are in {root} ({seconds:.0f} s).")
    return {"folder": root, "real": real, "larger": larger, "seconds": seconds}


def _make_folder(root: str, room: int) -> None:
    try:
        os.makedirs(root, exist_ok=True)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise InputError(f"cannot use the folder '{root}': {error.strerror}.") from error
    if free < room:
        raise InputError(f"'{root}' has {size_text(free)} of free disk, but the demo needs {size_text(room)}.")


def _real(root: str, say: Say) -> dict[str, Any]:
    """Run a real data set from file to store, fit, model, predictions and evaluation."""
    started = time.perf_counter()
    source, store, model, out = (
        os.path.join(root, f"breast-cancer{end}") for end in (".csv", ".zarr", "-model.zarr", "-predictions.csv")
    )
    _write_csv(source)
    train, test = odm.ingest(source, store, label="diagnosis", test_size=0.25, seed=0, overwrite=True)
    odm.ODMClassifier(scale="minmax", random_state=0).fit(train.path).save(model, overwrite=True)
    loaded = odm.load_model(model)
    write_predictions(loaded, test, out, overwrite=True)
    found = evaluate(loaded, test)
    say(f"{os.path.basename(source)} → {train.rows} training and {test.rows} test rows of {train.features} features")
    return _facts(loaded, found, train, say, started) | {"predictions": out, "model": model}


def _write_csv(path: str) -> None:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*data.feature_names, "diagnosis"])
        for row, code in zip(data.data.tolist(), data.target, strict=True):
            writer.writerow([*row, data.target_names[code]])


def _larger(root: str, say: Say, size: Size) -> dict[str, Any]:
    """Generate a large data set, train on workers that cannot hold it, save, load, evaluate and plot."""
    path = os.path.join(root, "larger.zarr")
    model = os.path.join(root, "larger-model.zarr")
    say(f"generating {size_text(size.nbytes)} …")
    train: Any = odm.datasets.make_shells(size.rows, size.features, store=path, overwrite=True)
    test: Any = odm.datasets.make_shells(
        size.test_rows, size.features, start=TEST_START, store=os.path.join(root, "larger-test.zarr"), overwrite=True
    )
    say(f"training on {train.rows} rows of {train.features} features, with {size.workers} workers …")
    started = time.perf_counter()
    classifier = odm.ODMClassifier(**size.parameters)
    with local_workers(size.workers, 1, size.worker_memory) as client:
        limit = min(worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
        before = client.run(os.getpid)
        classifier.fit(train.path)
        peaks = client.run(peak_bytes)
        same = client.run(os.getpid) == before
    classifier.save(model, overwrite=True)
    loaded = odm.load_model(model)
    found = evaluate(loaded, test, keep_margins=True)
    memory = {"limit": limit, "peaks": sorted(peaks.values()), "data": size.nbytes, "workers_lived": same}
    facts = _facts(loaded, found, train, say, started) | {"memory": memory, "model": model}
    for number, peak in enumerate(memory["peaks"], 1):
        say(f"worker {number}: peak {size_text(peak)} of its limit of {size_text(limit)} ({peak / limit:.0%})")
    say(f"the data are {size.nbytes / (limit * size.workers):.1f} times what all workers together may use")
    return facts | {"plot": _plot(os.path.join(root, "margins.png"), found, say)}


def _facts(model: Any, found: Evaluation, train: odm.Store, say: Say, started: float) -> dict[str, Any]:
    """Show the model's table of levels or steps and its accuracy, and return the results."""
    seconds = time.perf_counter() - started
    say(f"{format_history(model.history_)}\n")
    if np.isnan(model.dual_gap_):
        say("the tree ended above one partition: gaps are of its partitions, not of the whole problem")
    say(f"accuracy {found.accuracy:.4f} on {found.rows} rows that were left out, {seconds:.1f} s")
    return {
        "store": train.path,
        "rows": train.rows,
        "features": train.features,
        "history": model.history_,
        "gap": model.dual_gap_,
        "accuracy": found.accuracy,
        "seconds": seconds,
    }


def _plot(path: str, found: Evaluation, say: Say) -> str | None:
    try:
        axes = plot_margin_distribution(np.concatenate(found.margins or []), found.theta or 0.0)
    except PlottingUnavailableError as error:
        say(f"no plot: {error}")
        return None
    figure: Any = axes.figure
    figure.savefig(path)
    say(f"margins of the test rows: {path}")
    return path
