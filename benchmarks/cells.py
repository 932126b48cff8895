"""Cells beside landmarks, the exact machine and two SVCs: accuracy, AUC, seconds, memory, size of the model, gap.

    python benchmarks/cells.py [name ...] [--data folder] [--variants cells:4000 landmarks:1000 SVC] [--limit 600]

prints one Markdown table, a row for every data set and variant. Each row is made in a process of its own, which is
ended after ``--limit`` seconds; then its row says so. ``cells:4000:0.3`` are cells of 4,000 rows with an overlap of .3,
``landmarks:1000`` are 1,000 landmarks, ``auto`` is the default solver, ``SVC`` is scikit-learn's, and ``intelex`` is
scikit-learn-intelex's, if it is installed. ``search`` is ``ODMClassifierCV(solver="cells")``, which finds its settings.

Sets of two classes are split as `real_data` does, with its settings, which were chosen for landmarks (covtype,
susy_sub30k and cells of ijcnn1 have theirs here); sets of many classes are as in `many_classes`, in pairs, with the θ
that it chooses. All rows of a set learn from the same float32 rows, ours to the same gap and, but for those cells, with
the same settings.
Fits are timed after one of a few rows, which compiles. CPU seconds are those of the fit, of all processors. Memory is
the most that the process had (VmHWM), libraries and data included. SVCs are saved by pickle. The gap is that of what
was solved: of cells, of the decomposed problem; of landmarks, of the problem in their span if it is certified at all.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import many_classes
import numpy as np
from many_classes import clocked
from real_data import DATA_SETS, DataSet, arrays, scale_of, stores
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.svm import SVC

import dask_odm as odm
from dask_odm.engine.workers import peak_bytes

TWO_CLASSES = DATA_SETS | {
    "covtype": DataSet(
        ("covtype",),
        54,
        None,
        {"gamma": 32, "lam": 9.3e6, "upsilon": 0.1, "theta": 0.3},
        {"C": 10, "gamma": 32},
    ),
    "susy_sub30k": DataSet(
        ("susy_sub30k",),
        18,
        None,
        {"gamma": 1, "lam": 2.4e4, "upsilon": 0.2, "theta": 0.3},
        {"C": 1, "gamma": 1},
    ),
}
# settings of cells where others than those of landmarks get more rows right
CELLS = {"ijcnn1": {"gamma": 4, "lam": 3e6, "upsilon": 0.05, "theta": 0.3}}
MANY_CLASSES = {"letter": 0.1, "mnist10k": 0.5}  # θ that `many_classes` chooses
NAMES = ("covtype", "ijcnn1", "cod-rna", "skin-nonskin", "a7a", "phishing", "svmguide1", "susy_sub30k", *MANY_CLASSES)
VARIANTS = (
    "cells:2000",
    "cells:4000",
    "cells:8000",
    "cells:2000:0.3",
    "cells:4000:0.3",
    "cells:8000:0.3",
    "landmarks:1000",
    "landmarks:3000",
    "auto",
    "exact",
    "SVC",
    "intelex",
)
TOL = 1e-2
WARM_ROWS = 500
UNEVEN = 0.4  # share of the smaller of two classes below which AUC is shown
NONE = "–"
HEAD = ("data", "rows × features", "variant", "accuracy", "AUC", "fit, s", "predict, s", "fit, CPU s", "memory, MB",
        "model, MB", "gap")  # fmt: skip
Row = dict[str, Any]


def solver_of(variant: str) -> Any:
    """Return the ODM's solver that a variant names; raise ValueError if it names none."""
    kind, *sizes = variant.split(":")
    if kind == "cells" and 1 <= len(sizes) <= 2:
        return odm.solvers.Cells(int(sizes[0]), overlap=float((*sizes, 0.0)[1]))
    if kind == "landmarks" and len(sizes) == 1:
        return odm.solvers.Landmark(int(sizes[0]))
    if variant in ("auto", "exact"):
        return variant
    raise ValueError(
        f"no variant {variant!r}; there are cells:ROWS[:OVERLAP], landmarks:NUMBER, auto, exact, search, SVC, intelex"
    )


def model_of(name: str, variant: str, n: int, classes: int) -> Any:
    """Return the estimator of a variant for ``n`` rows of a data set."""
    if variant in ("SVC", "intelex"):
        kind = SVC if variant == "SVC" else import_module("sklearnex.svm").SVC
        if name in TWO_CLASSES:
            return kind(cache_size=2000, **TWO_CLASSES[name].svc)
        C, gamma = many_classes.SETTINGS[name]
        return kind(cache_size=2000, C=C, gamma=gamma)
    if variant == "search":
        return odm.ODMClassifierCV(solver="cells", scale=None, random_state=0)
    if name in TWO_CLASSES:
        tuned = CELLS.get(name) if variant.startswith("cells") else None
        own = {key: value for key, value in (tuned or TWO_CLASSES[name].landmark).items() if key != "solver"}
    else:
        own = many_classes.own_settings(name, n, classes, MANY_CLASSES[name]) | {"multi_class": "ovo"}
    return odm.ODMClassifier(**{"scale": None} | own | {"solver": solver_of(variant), "tol": TOL, "random_state": 0})


def prepare(name: str, folder: Path, source: Path, seed: int = 0) -> Path:
    """Write a data set's split, scaled, for the processes that learn from it, and return its file."""
    if name in MANY_CLASSES:
        X, y, test, y_test = many_classes.load(name, source)
    else:
        train, held_out = stores(name, folder, source, seed, TWO_CLASSES)
        scale = scale_of(train)
        (X, y), (test, y_test) = arrays(train, *scale), arrays(held_out, *scale)
    path = folder / f"{name}.npz"
    np.savez(path, X=X.astype(np.float32), y=y, test=test.astype(np.float32), y_test=y_test)
    return path


def measure(path: Path, variant: str) -> Row:
    """Fit, predict and save in this process, on the split that `prepare` wrote."""
    with np.load(path) as kept:
        X, y, test, y_test = (kept[part] for part in ("X", "y", "test", "y_test"))
    shares = np.unique(y, return_counts=True)[1] / len(y)
    model = model_of(path.stem, variant, len(y), len(shares))
    few = np.random.default_rng(0).permutation(len(y))[:WARM_ROWS]
    clone(model).fit(X[few], y[few]).predict(test[:2])
    _, fit, cpu = clocked(lambda: model.fit(X, y))
    labels, predict, _ = clocked(lambda: model.predict(test))
    row = {
        "size": f"{len(y):,} × {X.shape[1]}",
        "accuracy": float((labels == y_test).mean()),
        "fit": fit,
        "predict": predict,
        "cpu": cpu,
        "memory": peak_bytes(),
        "model": saved_bytes(model, path.parent),
        "gap": getattr(model, "dual_gap_", None),
    }
    if len(shares) == 2 and shares.min() < UNEVEN:
        row["auc"] = float(roc_auc_score(y_test, model.decision_function(test)))
    return row


def saved_bytes(model: Any, folder: Path) -> int:
    """Bytes that a model takes on disk."""
    if not hasattr(model, "save"):
        return len(pickle.dumps(model))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        model.save(Path(place, "model.zarr"))
        return sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())


def own_process(arguments: list[str], limit: float) -> Row:
    """Return the JSON object that a Python process prints last, or what it ``failed`` for.

    The process, with all that it started, is ended after ``limit`` seconds.
    """
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {limit:g} s"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return {"failed": (errors.strip().splitlines() or [f"ended with status {process.returncode}"])[-1]}
    found: Row = json.loads(out.splitlines()[-1])
    return found


def row_of(path: Path, variant: str, limit: float) -> Row:
    """Measure a variant in a process of its own."""
    if variant == "intelex" and find_spec("sklearnex") is None:
        return {"failed": "scikit-learn-intelex is not installed"}
    return own_process([__file__, "--one", str(path), variant], limit)


def shown(name: str, variant: str, row: Row) -> str:
    """Return a row of the table."""
    if "failed" in row:
        cells = [name, NONE, variant, row["failed"].replace("|", "/"), *[NONE] * 7]
        return f"| {' | '.join(cells)} |"
    cells = [
        name,
        row["size"],
        variant,
        f"{row['accuracy']:.4f}",
        f"{row['auc']:.4f}" if "auc" in row else NONE,
        *(f"{row[key]:.3g}" for key in ("fit", "predict", "cpu")),
        *(f"{row[key] / 1e6:.3g}" for key in ("memory", "model")),
        shown_gap(row["gap"]),
    ]
    return f"| {' | '.join(cells)} |"


def shown_gap(gap: float | None) -> str:
    """Return a gap as a table has it."""
    return NONE if gap is None or not np.isfinite(gap) else f"{gap:.1e}"


def table_head(columns: tuple[str, ...]) -> str:
    """Return the first two lines of a Markdown table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a row's process")
    parser.add_argument("--one", nargs=2, metavar=("FILE", "VARIANT"), help="measure one row, in this process")
    options = parser.parse_args(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(Path(options.one[0]), options.one[1])))
        return
    if options.data is None:
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown data sets: {', '.join(sorted(unknown))}")
    try:
        for variant in set(options.variants) - {"SVC", "intelex", "search"}:
            solver_of(variant)
    except ValueError as error:
        parser.error(str(error))
    print(table_head(HEAD), flush=True)
    for name in options.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            path = prepare(name, Path(folder), Path(options.data))
            for variant in options.variants:
                print(shown(name, variant, row_of(path, variant, options.limit)), flush=True)


if __name__ == "__main__":
    main()
