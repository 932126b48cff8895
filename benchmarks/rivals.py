"""ODM beside every other way to learn such data on one CPU, all tuned alike: a table, and error against time.

    DASK_ODM_DATA=folder python benchmarks/rivals.py table [name ...] [--methods word ...] [--out rivals.jsonl]
    DASK_ODM_DATA=folder python benchmarks/rivals.py curves [name ...] [--image rivals.svg] [--out rivals.jsonl]

Both measure what the file ``--out`` does not have yet, so that a run may be cut and go on, and then show what it has;
with ``--shown`` they only show it.

For every seed, settings are the best of ``--tries`` points of a Latin hypercube on logarithmic scales. They are learned
from `TUNED_ROWS` of the training rows and judged on `JUDGED_ROWS` others; what has not begun after `TUNING_SECONDS` is
not tried. Methods that differ by how they solve one problem share their settings. Then all training rows are learned,
at most ``--rows``. The curves have the first seed at several sizes: landmarks, rows of a cell, components, trees, or
rows of a sample.

Each method has a process of its own, which is ended after ``--limit`` seconds. It takes one seed after the other, and
begins none after `SEED_SECONDS`. A seed draws the split where none is published, the tries, and what a method draws.
Features are scaled to [0, 1], then all by one number. All methods learn from the same float32 rows, after a fit of a
few, which compiles and loads. Memory is the most that the process had by the end of the first prediction, libraries
and data included. ODM's log loss is of probabilities by leave-one-out, from a second fit that is not timed,
if the first took less than half of `SEED_SECONDS`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from cells import NAMES, own_process, prepare
from many_classes import clocked
from rivals_shown import plot, strongest, table
from scipy.stats.qmc import LatinHypercube
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from small_data import machine

import dask_odm as odm
from dask_odm.engine.workers import peak_bytes

SETS = tuple(name for name in NAMES if name not in ("phishing", "svmguide1"))
TUNED_ROWS = 2500
JUDGED_ROWS = 2500
TUNED_SIZE = 300  # at most; more components take most of the time
TUNING_SECONDS = 20.0  # of a method and seed
SEED_SECONDS = 20.0  # after which a process begins no other seed
WARM_ROWS = 1200  # below some 1,000, exact fits need not all of their loops
TEST_ROWS = 30_000  # an SVC takes minutes to predict all that covtype leaves
ALL = 0  # the size of a method that has none, or learns from all rows
GROWTH = 1.5  # of a sample that is to take a number of seconds
Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A way to learn.

    ``make`` takes a size, the number of rows, a seed, and settings, whose ends ``space`` has. ``size`` is that of the
    table, ``sizes`` are those of the curves. ``tuned_as`` names a method whose settings are taken.
    """

    make: Callable[..., Any]
    space: dict[str, tuple[float, float]]
    size: int = ALL
    sizes: tuple[int, ...] = ()
    tuned_as: str | None = None
    samples: bool = False  # the size is a number of rows to learn from
    in_time: bool = False  # learns from as many rows as the seconds of "ODM" allow
    most: float = np.inf  # training rows; a larger set is not learned


def _odm(solver: Callable[[int], Any]) -> Callable[..., Any]:
    """Return what makes an ODM. λ is given by row, so that it means the same for any number of rows."""
    return lambda size, rows, seed, lam, **own: odm.ODMClassifier(
        lam=lam * rows, scale=None, solver=solver(size), random_state=seed, **own
    )


def _svc(library: str) -> Callable[..., Any]:
    return lambda size, rows, seed, **own: import_module(library).SVC(cache_size=2000, **own)


def _nystroem(last: Any) -> Callable[..., Any]:
    return lambda size, rows, seed, gamma, C: make_pipeline(
        Nystroem(gamma=gamma, n_components=min(size, rows), random_state=seed), clone(last).set_params(C=C)
    )


def _fourier(size: int, rows: int, seed: int, gamma: float, alpha: float) -> Any:
    features = RBFSampler(gamma=gamma, n_components=size, random_state=seed)
    return make_pipeline(features, SGDClassifier("log_loss", alpha=alpha, average=True, n_jobs=-1, random_state=seed))


def _trees(size: int, rows: int, seed: int, max_leaf_nodes: float, **own: float) -> Any:
    return HistGradientBoostingClassifier(max_iter=size, max_leaf_nodes=round(max_leaf_nodes), random_state=seed, **own)


GAMMA = (2.0**-2, 2.0**7)
WITH_C = {"gamma": GAMMA, "C": (2.0**-3, 2.0**7)}
OURS = {"gamma": GAMMA, "lam": (2.0**-4, 2.0**6)}  # two, as of its kernel rivals; θ and υ are the default
TREES = {"learning_rate": (0.03, 0.5), "max_leaf_nodes": (8.0, 256.0), "l2_regularization": (1e-4, 10.0)}
LINEAR_SVC = LinearSVC(dual=False, random_state=0)
LOGISTIC = LogisticRegression(max_iter=500)
METHODS = {
    "ODM": Method(_odm(lambda size: "auto"), OURS),
    "ODM exact": Method(_odm(lambda size: "exact"), OURS, tuned_as="ODM", most=20_000),
    "ODM landmarks": Method(_odm(odm.solvers.Landmark), OURS, 1000, (100, 300, 1000, 3000), "ODM"),
    "ODM cells": Method(
        _odm(lambda size: odm.solvers.Cells(size or None)), OURS, ALL, (500, 1000, 2000, 4000, 8000, ALL), "ODM"
    ),
    "SVC": Method(_svc("sklearn.svm"), WITH_C),
    "intelex SVC": Method(_svc("sklearnex.svm"), WITH_C, ALL, (1000, 3000, 10_000, 30_000, ALL), "SVC", samples=True),
    "intelex SVC, in ODM's time": Method(_svc("sklearnex.svm"), WITH_C, tuned_as="SVC", in_time=True),
    "Nyström, LinearSVC": Method(_nystroem(LINEAR_SVC), WITH_C, 300, (100, 300, 1000)),
    "Nyström, LogisticRegression": Method(_nystroem(LOGISTIC), WITH_C, 1000, (100, 300, 1000, 3000)),
    "RBFSampler, SGD": Method(_fourier, {"gamma": GAMMA, "alpha": (1e-7, 1e-3)}, 1000, (300, 1000, 3000)),
    "HistGradientBoosting": Method(_trees, TREES, 100, (30, 100, 300, 1000)),
    "LinearSVC": Method(lambda size, rows, seed, C: clone(LINEAR_SVC).set_params(C=C), {"C": (2.0**-4, 2.0**8)}),
    "LogisticRegression": Method(
        lambda size, rows, seed, C: clone(LOGISTIC).set_params(C=C), {"C": (2.0**-4, 2.0**12)}
    ),
}


def tune(paths: list[str], name: str, tries: int) -> Row:
    """Return a method's best settings for every split."""
    return {"settings": [_tuned(path, METHODS[name], seed, tries) for seed, path in enumerate(paths)]}


def _tuned(path: str, method: Method, seed: int, tries: int) -> dict[str, float]:
    """Return the settings of most right answers, learned from some training rows and judged on others."""
    X, y, _, _ = split_of(path)
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    judged = order[: min(JUDGED_ROWS, len(y) // 2)]
    learned = order[len(judged) :][:TUNED_ROWS]
    low, high = np.log(list(method.space.values())).T
    drawn = LatinHypercube(len(low), rng=np.random.default_rng([seed, 2])).random(tries)
    found: list[tuple[float, dict[str, float]]] = []
    began = time.perf_counter()
    for point in np.exp(low + (high - low) * drawn).tolist():
        if found and time.perf_counter() - began > TUNING_SECONDS:
            break
        settings = dict(zip(method.space, point, strict=True))
        model = method.make(min(method.size, TUNED_SIZE), len(learned), seed, **settings).fit(X[learned], y[learned])
        found.append((model.score(X[judged], y[judged]), settings))
    return max(found, key=lambda pair: pair[0])[1]


def measure(paths: list[str], name: str, size: int, settings: list[dict[str, float]], budgets: list[float]) -> Row:
    """Return a method's figures for every split, as far as `SEED_SECONDS` allow.

    ``budgets`` are the seconds for methods ``in_time``.
    """
    rows: list[Row] = []
    began = time.perf_counter()
    for seed, path in enumerate(paths):
        if rows and time.perf_counter() - began > SEED_SECONDS:
            break
        X, y, test, y_test = split_of(path)
        some = np.random.default_rng([seed, 3]).permutation(len(y))
        few = some[:WARM_ROWS]
        _warm(METHODS[name].make(size, len(few), seed, **settings[seed]), X[few], y[few])
        model = METHODS[name].make(size, len(y), seed, **settings[seed])
        if METHODS[name].in_time:
            model, some, fit = _fit_in_time(model, X, y, some, budgets[seed])
        else:
            some = some[:size] if METHODS[name].samples and size != ALL else np.arange(len(y))
            _, fit, _ = clocked(lambda model=model, X=X[some], y=y[some]: model.fit(X, y))
        row = {"seed": seed, "rows": len(some), "fit": fit} | _figures(model, test, y_test)
        if isinstance(model, odm.ODMClassifier) and size == METHODS[name].size and fit < SEED_SECONDS / 2:
            model = clone(model).set_params(loo=True).fit(X, y)
        if hasattr(model, "predict_proba"):
            row["log loss"] = float(log_loss(y_test, model.predict_proba(test), labels=model.classes_))
        rows.append(row)
    for row in rows[1:]:
        del row["memory"]  # of a process that has learned before
    return {"rows": rows}


def _warm(model: Any, X: Any, y: Any) -> None:
    """Compile and load what fits need; that of ODM by default may be of any of three kinds."""
    kinds = ("exact", odm.solvers.Landmark(100), odm.solvers.Cells(400))
    for solver in kinds if getattr(model, "solver", None) == "auto" else ():
        clone(model).set_params(solver=solver).fit(X, y).predict(X)
    clone(model).fit(X, y).predict(X)


def _fit_in_time(model: Any, X: Any, y: Any, order: Any, budget: float) -> tuple[Any, Any, float]:
    """Fit ever larger samples, and return the last model that took at most a budget, its rows and its seconds."""
    rows, best = WARM_ROWS, None
    while True:
        tried, some = clone(model), order[:rows]
        _, seconds, _ = clocked(lambda tried=tried, X=X[some], y=y[some]: tried.fit(X, y))
        if best is not None and seconds > budget:
            return best
        best = tried, some, seconds
        if rows >= len(order) or GROWTH * seconds > budget:
            return best
        rows = round(GROWTH * rows)


def _figures(model: Any, test: Any, y_test: Any) -> Row:
    """Return figures of predictions, and the most memory so far."""
    labels, predict, _ = clocked(lambda: model.predict(test))
    found = {
        "accuracy": float((labels == y_test).mean()),
        "balanced": float(balanced_accuracy_score(y_test, labels)),
        "predict": predict,
        "memory": peak_bytes() / 1e6,
    }
    if len(model.classes_) == 2:
        scores = (model.decision_function if hasattr(model, "decision_function") else model.predict_proba)(test)
        found["AUC"] = float(roc_auc_score(y_test, scores if scores.ndim == 1 else scores[:, 1]))
    return found


def split_of(path: str) -> tuple[Any, Any, Any, Any]:
    """Return training rows and labels, test rows and labels."""
    with np.load(path) as kept:
        return kept["X"], kept["y"], kept["test"], kept["y_test"]


def splits(name: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Write the split of every seed, with at most so many rows, scaled so that 1 is the γ that "scale" stands for."""
    paths = []
    for seed in range(options.seeds):
        place = folder / str(seed)
        place.mkdir()
        path = prepare(name, place, Path(options.data), seed)
        X, y, test, y_test = split_of(str(path))
        rng = np.random.default_rng([seed, 0])
        some, others = rng.permutation(len(y))[: options.rows], rng.permutation(len(y_test))[:TEST_ROWS]
        scale = np.sqrt(X.shape[1] * X.var(dtype=float)).astype(X.dtype)
        np.savez(path, X=X[some] / scale, y=y[some], test=test[others] / scale, y_test=y_test[others])
        paths.append(str(path))
    return paths


def run(names: Iterable[str], options: argparse.Namespace) -> None:
    """Measure what the file does not have."""
    for name in names:
        wanted = missing(name, options)
        if wanted:
            with tempfile.TemporaryDirectory() as folder:
                _run_set(name, splits(name, Path(folder), options), wanted, options)


def missing(name: str, options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the methods and sizes to be measured on a data set, without sizes after one that failed."""
    kept = {(row["method"], row["size"]): row for row in lines_of(options.out, name) if "method" in row}
    found = []
    for method in options.methods:
        for size in (METHODS[method].size,) if options.what == "table" else METHODS[method].sizes:
            if (method, size) not in kept:
                found.append((method, size))
            elif "failed" in kept[method, size]:
                break
    return found


def _run_set(name: str, paths: list[str], wanted: list[tuple[str, int]], options: argparse.Namespace) -> None:
    """Tune and measure methods on a data set."""
    settings = tuned(name, paths, [METHODS[method].tuned_as or method for method, _ in wanted], options)
    rows = len(split_of(paths[0])[1])
    failed = set()
    for method, size in wanted:
        if method in failed:
            continue
        kind = METHODS[method]
        ours = [line["fit"] for line in lines_of(options.out, name) if line.get("method") == "ODM" and "fit" in line]
        some = paths[: len(ours)] if kind.in_time else paths if size == kind.size else paths[:1]
        if rows > kind.most:
            found: Row = {"failed": f"not for more than {kind.most:,} rows"}
        elif method not in settings or not some:
            found = {"failed": "not tuned" if some else "ODM's time is not known"}
        else:
            found = _child("measure", options.limit, some, method, size, settings[method], ours)
        keep(options.out, *({"data": name, "method": method, "size": size} | row for row in found.get("rows", [found])))
        if "failed" in found:
            failed.add(method)


def tuned(name: str, paths: list[str], methods: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return settings of every split, by method; they are found side by side, since nothing is timed."""
    kept = {line["tuned"] for line in lines_of(options.out, name) if "tuned" in line}
    limit = TUNING_SECONDS * len(paths) + options.limit

    def find(method: str) -> Row:
        return {"data": name, "tuned": method} | _child("tune", limit, paths, method, options.tries)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(find, [method for method in dict.fromkeys(methods) if method not in kept]):
            keep(options.out, line)
    found = {line["tuned"]: line["settings"] for line in lines_of(options.out, name) if "settings" in line}
    return {name: found[kind.tuned_as or name] for name, kind in METHODS.items() if (kind.tuned_as or name) in found}


def _child(work: str, limit: float, *arguments: Any) -> Row:
    """Return what `tune` or `measure` finds in a process of its own."""
    return own_process([__file__, "--child", work, json.dumps(arguments)], limit)


def keep(path: Path, *lines: Row) -> None:
    """Add lines to the file."""
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def lines_of(path: Path, name: str | None = None) -> list[Row]:
    """Return settings and figures that the file has of a data set, or all its lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if name in (None, line.get("data"))]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and show."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--child"]:
        warnings.simplefilter("ignore")
        print(json.dumps({"tune": tune, "measure": measure}[given[1]](*json.loads(given[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "curves"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=f"default: {'; '.join(METHODS)}")
    parser.add_argument("--out", type=Path, default=Path("rivals.jsonl"))
    parser.add_argument("--image", type=Path, default=Path("rivals.svg"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=8, help="settings that a method is tuned by")
    parser.add_argument("--rows", type=int, default=120_000, help="training rows, at most")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a process")
    parser.add_argument("--shown", action="store_true", help="measure nothing, only show what the file has")
    options = parser.parse_args(given)
    if unknown := (set(options.names) - set(SETS)) | (set(options.methods) - set(METHODS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not options.shown:
        if options.data is None:
            parser.error("name the folder of the data with --data or DASK_ODM_DATA")
        if not options.out.exists():
            keep(options.out, {"machine": f"{os.cpu_count()} cores; {machine()}"})
        run(options.names or SETS, options)
    lines = lines_of(options.out)
    rows = [line for line in lines if "method" in line]
    if options.what == "curves":
        plot(rows, options.image)
        return
    rows = [row for row in rows if row["size"] == METHODS[row["method"]].size]
    print(lines[0]["machine"], table(rows), strongest(rows), sep="\n\n")


if __name__ == "__main__":
    main()
