"""Every solver over λ and γ: seconds, steps, passes and gap, beside scikit-learn's SVC at the same C.

    python benchmarks/flat.py [name ...] [--data folder] [--solvers exact landmarks:1000] [--lams .1 1 10 100 1000]
    python benchmarks/flat.py svmguide1 --solvers exact --lams 1 100    # half a minute

prints a Markdown table with a row for every set, solver, multiple of a good γ and λ/n, as they are measured, and then
one of how even they are: the processor seconds of the slowest λ/n from .1 to 1,000 as a multiple of the median, and the
most as a multiple of SVC's. With ``--figure flat.png`` and matplotlib it draws the seconds over λ/n.

Sets are those of `cells` and `many_classes`, and ``text`` is made up; at most ``--rows`` rows are learned from. SVC has
C = λ/(2n), for linear solvers it is LinearSVC. Solvers are named as in `cells` (``landmarks:1000``, ``cells:4000``,
``exact``, ``auto``), or by their word in `ODMClassifier` (``sodm``, ``cascade:4`` of 4 partitions;
linear: ``newton``, ``dsvrg``).
``mnp``, ``gilbert`` and ``saddle`` are hulls with ``alpha = n/λ``, at most 1, ``ridge`` and ``kernel-ridge`` have
``lam = n/λ``. Each fit is made in a process of its own, after one of a few rows that compiles, and ended after
``--limit`` seconds. Fits of less than a second are repeated twice, and the least is shown. Steps and passes are sums
over the machines of many classes, the gap is the largest of what they solve; a pass is one over all rows, or for
``exact`` over the whole kernel matrix.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from itertools import groupby, product
from pathlib import Path
from typing import Any

import joblib
import many_classes
import numpy as np
from cells import TWO_CLASSES, WARM_ROWS, own_process, prepare, shown_gap, solver_of, table_head
from many_classes import clocked
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.svm import SVC, LinearSVC
from small_data import text

import dask_odm as odm

WORDS = 8_315  # features of the text that is made up
TEXT_ROWS = 10_000
GAMMA = {name: each.svc["gamma"] for name, each in TWO_CLASSES.items()} | {
    name: gamma for name, (_, gamma) in many_classes.SETTINGS.items()
}
GAMMA |= {"text": 1.0, "news20": 1.0}
LAMS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 1e4)
JUDGED = (0.1, 1000.0)  # least and largest λ/n of the table of how even seconds are
LINEAR = ("newton", "dsvrg", "svrg", "csvrg", "mnp", "gilbert", "saddle", "ridge")
HULLS = ("mnp", "gilbert", "saddle")
TREES = {"sodm": odm.solvers.SODM, "cascade": odm.solvers.Cascade, "dip": odm.solvers.DiP, "dc": odm.solvers.DC}
HEAD = ("data", "rows × features", "solver", "γ / good", "λ/n", "seconds", "CPU s", "steps", "passes", "gap",
        "accuracy", "SVC, s", "SVC, CPU s", "SVC, accuracy")  # fmt: skip
EVEN_HEAD = ("data", "solver", "γ / good", "fits", "slowest / median CPU s", "most / SVC's CPU s")
Row = dict[str, Any]


def load(name: str, rows: int, folder: Path, source: Path | None) -> Path:
    """Write the rows to learn from and to predict of a set, scaled, and return their file."""
    if name == "text":
        X, y = text(TEXT_ROWS, WORDS)
        some = 4 * TEXT_ROWS // 5
        parts = X[:some], y[:some], X[some:], y[some:]
    elif name in TWO_CLASSES:
        assert source is not None
        with np.load(prepare(name, folder, source)) as kept:
            parts = tuple(kept[part] for part in ("X", "y", "test", "y_test"))
    else:
        parts = many_classes.load(name, source)
    X, y, test, y_test = parts
    few = np.random.default_rng(0).permutation(len(y))[:rows]
    X, test = (each if issparse(each) else each.astype(np.float32) for each in (X, test))
    path = folder / f"{name}.joblib"
    joblib.dump((X[few], y[few], test, y_test), path)
    return path


def model_of(solver: str, gamma: float, share: float, n: int, tol: float) -> Any:
    """Return the estimator that a word names, for ``n`` rows and λ = ``share`` · n."""
    if solver in ("SVC", "LinearSVC"):
        C = share / 2.0
        return SVC(C=C, gamma=gamma, cache_size=2000) if solver == "SVC" else LinearSVC(C=C, random_state=0)
    if solver in HULLS:
        return odm.SaddleSVC(alpha=min(1.0, 1.0 / share), solver=solver, scale=None, tol=tol, random_state=0)
    if solver == "ridge":
        return odm.MDDRidge(lam=1.0 / share, scale=None)
    if solver == "kernel-ridge":
        return odm.MDDKernelRidge(lam=1.0 / share, gamma=gamma, n_landmarks=1000, scale=None, random_state=0)
    kernel: dict[str, Any] = {"kernel": "linear"} if solver in LINEAR else {"gamma": gamma}
    kind, *size = solver.split(":")
    chosen = TREES[kind](n_partitions=int(*size)) if size and kind in TREES else solver_of(solver) if size else solver
    common: dict[str, Any] = {"theta": 0.1, "upsilon": 0.2, "scale": None, "random_state": 0}
    return odm.ODMClassifier(solver=chosen, lam=share * n, tol=tol, **kernel, **common)


def measure(path: str, solver: str, gamma: float, share: float, tol: float) -> Row:
    """Fit and predict in this process, on the rows that `load` wrote."""
    warnings.simplefilter("ignore")
    X, y, test, y_test = joblib.load(path)
    model = model_of(solver, gamma, share, len(y), tol)
    if solver.endswith("ridge"):
        y, y_test = (2.0 * (each == y.max()) - 1.0 for each in (y, y_test))
    few = np.r_[np.unique(y, return_index=True)[1], : min(WARM_ROWS, len(y))]  # of every class
    for warm in ("exact", "landmark", "cells", "auto") if solver == "auto" else (model.get_params().get("solver"),):
        clone(model).set_params(**{"solver": warm} if warm else {}).fit(X[few], y[few]).predict(test[:2])
    _, seconds, cpu = clocked(lambda: model.fit(X, y))
    for _ in range(2 if seconds < 1.0 else 0):
        _, *again = clocked(lambda: model.fit(X, y))
        seconds, cpu = min(seconds, again[0]), min(cpu, again[1])
    found = model.predict(test)
    right = np.sign(found) == y_test if solver.endswith("ridge") else found == y_test
    history = list(getattr(model, "history_", []))
    machines = [list(each) for _, each in groupby(history, lambda record: record.get("machine"))]
    return {
        "size": f"{len(y):,} × {X.shape[1]:,}",
        "seconds": seconds,
        "cpu": cpu,
        "steps": sum(len(each) - 1 for each in machines),
        "passes": sum(each[-1].get("passes", 0.0) for each in machines),
        "gap": max((each[-1].get("gap", np.nan) for each in machines), default=None),
        "accuracy": float(np.mean(right)),
        "chosen": history[0].get("solver", "") if history else "",
    }


def shown(name: str, solver: str, multiple: float, share: float, row: Row, rival: Row) -> str:
    """Return a row of the table."""
    if "seconds" in row:
        label = f"{solver} ({row['chosen']})" if solver == "auto" else solver
        own = [f"{row['seconds']:.2f}", f"{row['cpu']:.2f}", f"{row['steps']}", f"{row['passes']:.1f}"]
        own += [shown_gap(row["gap"]), f"{row['accuracy']:.4f}"]
    else:
        label, own = solver, [row["failed"].replace("|", "/"), *["–"] * 5]
    other = ["–"] * 3
    if "seconds" in rival:
        other = [f"{rival['seconds']:.2f}", f"{rival['cpu']:.2f}", f"{rival['accuracy']:.4f}"]
    elif rival:
        other[0] = rival["failed"]
    return f"| {' | '.join([name, row.get('size', '–'), label, f'{multiple:g}', f'{share:g}', *own, *other])} |"


def even(key: tuple[str, str, float], rows: dict[float, tuple[Row, Row]]) -> str:
    """Return a row of the second table: how much longer the slowest fit takes than the median one."""
    judged = [pair for share, pair in rows.items() if JUDGED[0] <= share <= JUDGED[1]]
    own = [row.get("cpu", np.inf) for row, _ in judged]
    beside = [row.get("cpu", np.inf) / rival["cpu"] for row, rival in judged if "cpu" in rival]
    cells = [key[0], key[1], f"{key[2]:g}", str(len(own)), f"{max(own) / np.median(own):.1f}" if own else "–"]
    return f"| {' | '.join([*cells, f'{max(beside):.1f}' if beside else '–'])} |"


def draw(found: dict[tuple[str, str, float], dict[float, tuple[Row, Row]]], path: str) -> None:
    """Draw the seconds over λ/n, a panel for every set, at the γ nearest to the good one."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _, _ in found))
    nearest = min({multiple for _, _, multiple in found}, key=lambda each: abs(np.log(each)))
    panels = Figure((4.0 * len(names), 3.2), layout="constrained").subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        curves = {solver: rows for (each, solver, at), rows in found.items() if (each, at) == (name, nearest)}
        for solver, rows in curves.items():
            axes.plot(list(rows), [own.get("seconds", np.nan) for own, _ in rows.values()], ".-", label=solver)
        rivals = [rival.get("seconds", np.nan) for _, rival in next(iter(curves.values())).values()]
        axes.plot(list(next(iter(curves.values()))), rivals, "k:", label="SVC")
        axes.set(title=name, xlabel="λ/n", ylabel="seconds", xscale="log", yscale="log")
        axes.legend(fontsize="small")
    panels[0].figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["svmguide1", "phishing", "letter", "text"], help=", ".join(GAMMA))
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    parser.add_argument("--solvers", nargs="+", default=["exact", "landmarks:1000", "cells:4000", "auto"])
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS, help="values of λ/n")
    parser.add_argument("--gammas", type=float, nargs="+", default=[1.0], help="multiples of a good γ: .25 1 4")
    parser.add_argument("--rows", type=int, default=8_000, help="most rows to learn from")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of a process")
    parser.add_argument("--no-rival", action="store_true", help="leave SVC out")
    parser.add_argument("--figure", help="file of a picture of the seconds")
    parser.add_argument("--one", nargs=5, help="measure one fit, in this process")
    options = parser.parse_args(arguments)
    if options.one:
        path, solver, *numbers = options.one
        print(json.dumps(measure(path, solver, *map(float, numbers))))
        return
    if unknown := set(options.names) - set(GAMMA):
        parser.error(f"unknown data sets: {', '.join(sorted(unknown))}")
    if options.data is None and set(options.names) - {"text", *many_classes.GENERATED}:
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    found: dict[tuple[str, str, float], dict[float, tuple[Row, Row]]] = {}
    fits: dict[tuple[str, ...], Row] = {}  # SVC's are shown beside those of several solvers
    print(table_head(HEAD), flush=True)
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            path = str(load(name, options.rows, Path(folder), options.data and Path(options.data)))
            for solver, multiple, share in product(options.solvers, options.gammas, options.lams):
                settings = [str(each) for each in (multiple * GAMMA[name], share, options.tol)]
                others = [] if options.no_rival else ["LinearSVC" if solver in LINEAR else "SVC"]
                for each in (solver, *others):
                    key = (name, each, *settings)
                    fits[key] = fits.get(key) or own_process([__file__, "--one", path, *key[1:]], options.limit)
                row, rival = fits[name, solver, *settings], fits.get((name, *others, *settings), {})
                found.setdefault((name, solver, multiple), {})[share] = row, rival
                print(shown(name, solver, multiple, share, row, rival), flush=True)
    print(f"\n{table_head(EVEN_HEAD)}")
    for key, rows in found.items():
        print(even(key, rows))
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
