"""The demonstration: a real data set from file to predictions, then one larger than its workers' memory.

Every step calls a public function, so this is also an example of how to combine them. Nothing is printed here:
`run_demo` calls a function with every line to show.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from dask.utils import format_bytes

import dask_odm as odm
from dask_odm.diagnostics.evaluation import Evaluation, evaluate
from dask_odm.diagnostics.plotting import PlottingUnavailableError, plot_margin_distribution
from dask_odm.diagnostics.predictions import write_predictions
from dask_odm.diagnostics.summaries import folder_bytes
from dask_odm.engine.workers import local_workers, peak_bytes
from dask_odm.errors import InputError
from dask_odm.progress import format_history

Say = Callable[[str], object]


def run_demo(
    folder: str | os.PathLike[str], say: Say, *, rows: int = 88_000, features: int = 4_000, workers: int = 2,
    worker_memory: str = "460MB", partitions: int = 512,
) -> dict[str, Any]:  # fmt: skip
    """Run the demonstration in ``folder``, and return its measurements as plain values.

    The folder is made if needed; files of an earlier run are replaced. ``say`` is called with every line to show. The
    second data set has ``rows`` of ``features``, and is larger than the memory of its ``workers``, which Dask's nanny
    enforces. Raises InputError if the folder cannot be made, or its disk has too little room.
    """
    root = os.path.abspath(folder)
    started = time.perf_counter()
    room = 4 * 4 * rows * features
    try:
        os.makedirs(root, exist_ok=True)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise InputError(f"cannot use the folder '{root}': {error.strerror}.") from error
    if free < room:
        raise InputError(f"'{root}' has {format_bytes(free)} of free disk, but the demo needs {format_bytes(room)}.")
    say("1. A real data set: breast cancer (Wisconsin), bundled with scikit-learn\n")
    real = _real(root, say)
    say("\n2. A data set larger than its workers' memory\n")
    solver = odm.solvers.SODM(partitions, stop_at=partitions // 4)
    larger = _larger(root, say, rows, features, workers, worker_memory, solver)
    seconds = time.perf_counter() - started
    say(f"\nDone in {seconds:.0f} s. Open these, in {root}:")
    opened = {
        real["report"]: "how good the first model is, and whether to trust it (dask-odm report writes such a page)",
        larger["plot"]: "margins of test rows of the second, beside the band in which a row costs nothing",
        real["predictions"]: "what the first model predicts",
    }
    for path, what in opened.items():
        if path is not None:
            say(f"  {os.path.basename(path)}: {what}")
    say(f"The folder takes {format_bytes(folder_bytes(root))}; remove it when you are done.")
    return {"folder": root, "real": real, "larger": larger, "seconds": seconds}


def _real(root: str, say: Say) -> dict[str, Any]:
    """Run a real data set from file to store, fit, model, predictions, evaluation and report."""
    from sklearn.datasets import load_breast_cancer

    ends = (".csv", ".zarr", "-model.zarr", "-predictions.csv", ".html")
    source, store, model, out, page = (os.path.join(root, f"breast-cancer{end}") for end in ends)
    data = load_breast_cancer(as_frame=True)
    data.frame.assign(diagnosis=data.target_names[data.target]).drop(columns="target").to_csv(source, index=False)
    train, test = odm.ingest(source, store, label="diagnosis", test_size=0.25, overwrite=True)
    say(f"{os.path.basename(source)} → {train.rows} training and {test.rows} test rows of {train.features} features")
    odm.ODMClassifier(scale="minmax", random_state=0).fit(train.path).save(model, overwrite=True)
    write_predictions(odm.load_model(model), test, out, overwrite=True)
    facts, _ = _facts(model, test, say)
    odm.report(odm.load_model(model), test, page, overwrite=True)
    return facts | {"predictions": out, "report": page}


def _larger(
    root: str, say: Say, rows: int, features: int, workers: int, worker_memory: str, solver: Any
) -> dict[str, Any]:
    """Generate a large data set, train on workers that cannot hold it, save, load, evaluate and plot."""
    path, held_out, model = (os.path.join(root, f"larger{end}.zarr") for end in ("", "-test", "-model"))
    nbytes = 4 * rows * features
    say(f"generating {format_bytes(nbytes)} …")
    train: Any = odm.datasets.make_shells(rows, features, store=path, overwrite=True)
    test: Any = odm.datasets.make_shells(1_000, features, start=rows, store=held_out, overwrite=True)
    say(f"training on {rows} rows of {features} features, with {workers} workers …")
    classifier = odm.ODMClassifier(lam=1e3, scale=None, solver=solver, random_state=0)
    with local_workers(workers, 1, worker_memory) as client, dask.config.set({"temporary-directory": root}):
        limit = min(worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
        before = client.run(os.getpid)
        classifier.fit(train.path)
        peaks = sorted(client.run(peak_bytes).values())
        same = client.run(os.getpid) == before
    classifier.save(model, overwrite=True)
    facts, found = _facts(model, test, say)
    for number, peak in enumerate(peaks, 1):
        say(f"worker {number}: peak {format_bytes(peak)} of its limit of {format_bytes(limit)} ({peak / limit:.0%})")
    say(f"the data are {nbytes / (limit * workers):.1f} times what all workers together may use")
    memory = {"limit": limit, "peaks": peaks, "data": nbytes, "workers_lived": same}
    return facts | {"memory": memory, "plot": _plot(os.path.join(root, "margins.png"), found, say)}


def _facts(path: str, test: Any, say: Say) -> tuple[dict[str, Any], Evaluation]:
    """Show a saved model's table of levels or steps and its accuracy, and return the results."""
    model = odm.load_model(path)
    found = evaluate(model, test, keep_margins=True)
    if np.isnan(model.dual_gap_):
        say("not certified: gaps are of the partitions of a level, and that of the whole problem is not known")
    say(f"{format_history(model.history_)}\n")
    say(f"accuracy {found.accuracy:.4f} on {test.rows} rows that were left out")
    facts = {"model": path, "history": model.history_, "gap": model.dual_gap_, "accuracy": found.accuracy}
    return facts, found


def _plot(path: str, found: Evaluation, say: Say) -> str | None:
    try:
        figure: Any = plot_margin_distribution(np.concatenate(found.margins or []), found.theta).figure
    except PlottingUnavailableError as error:
        say(f"no plot: {error}")
        return None
    figure.savefig(path)
    say(f"margins of the test rows: {path}")
    return path
