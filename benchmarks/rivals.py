"""Every way to learn a narrow or a wide boundary on one CPU, tuned alike: figures, and error against time.

    DASK_ODM_DATA=folder python benchmarks/rivals.py [name ...] [--methods word ...] [--out rivals.jsonl] [--seeds 3]
    python benchmarks/rivals.py --table --out rivals.jsonl            # what is in the file, as Markdown
    python benchmarks/rivals.py --plot rivals.png --out rivals.jsonl  # error against seconds, a panel for each set

Every method is tuned by the same number of random ``--tries``, each learned from the same rows of the training split
(at most ``TUNED_ROWS``) and judged on the same others. With the settings found it learns all rows at several sizes of
its knob: landmarks, rows of a cell, components, trees, or rows of a sample for the machines that cannot take all. Each
fit has a process of its own, which is ended after ``--limit`` seconds. Finished ones are kept in the file, so that a
run may be cut and go on. A seed draws the split where none is published, the tries, and what a method draws.

Sets are scaled to [0, 1]. Memory is the most that the process had, libraries and data included. Log loss is of
probabilities where a method has them; ours have them from leave-one-out, by a second fit that is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cells import NAMES, own_process, prepare, table_head
from many_classes import clocked
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

import dask_odm as odm
from dask_odm.engine.workers import peak_bytes

TUNED_ROWS = 6000
JUDGED_ROWS = 3000
WARM_ROWS = 500
SETS = tuple(name for name in NAMES if name not in ("phishing", "svmguide1"))
matplotlib.use("agg")
GROUP = ("data", "method", "knob")
COSTS = ("fit", "predict", "memory")
FIGURES = ("accuracy", "balanced", "auc", "log loss", *COSTS)
TUNING = -1  # the knob of the row that has the settings found
Settings = dict[str, float]
Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """How a method is made of settings, a size of its knob, the rows to learn, and a seed, and where settings lie.

    ``spaces`` are the ends of the settings, drawn evenly on a logarithmic scale. ``samples`` says that the knob is the
    number of rows that are drawn to learn from.
    """

    make: Callable[[Settings, int, int, int], Any]
    spaces: dict[str, tuple[float, float]]
    knobs: tuple[int, ...]
    samples: bool = False

    def drawn(self, rng: np.random.Generator) -> Settings:
        return {
            name: float(np.exp(rng.uniform(np.log(low), np.log(high)))) for name, (low, high) in self.spaces.items()
        }


def _odm(solver: Callable[[int], Any]) -> Callable[[Settings, int, int, int], Any]:
    """Return what makes an ODM whose λ is given by row, so that it means the same for any number of rows."""

    def make(settings: Settings, knob: int, rows: int, seed: int) -> Any:
        theta = min(settings["theta"], 0.9)
        return odm.ODMClassifier(
            gamma=settings["gamma"], lam=settings["lam"] * rows, theta=theta, solver=solver(knob), tol=1e-2,
            random_state=seed,
        )  # fmt: skip

    return make


def _svc(settings: Settings, knob: int, rows: int, seed: int) -> Any:
    kind = SVC if find_spec("sklearnex") is None else import_module("sklearnex.svm").SVC
    return kind(C=settings["C"], gamma=settings["gamma"], cache_size=2000)


def _nystroem(last: Callable[[float, int], Any]) -> Callable[[Settings, int, int, int], Any]:
    def make(settings: Settings, knob: int, rows: int, seed: int) -> Any:
        features = Nystroem(gamma=settings["gamma"], n_components=min(knob, rows), random_state=seed)
        return make_pipeline(features, last(settings["C"], seed))

    return make


def _fourier(settings: Settings, knob: int, rows: int, seed: int) -> Any:
    features = RBFSampler(gamma=settings["gamma"], n_components=knob, random_state=seed)
    return make_pipeline(features, SGDClassifier("log_loss", alpha=settings["alpha"], n_jobs=-1, random_state=seed))


def _trees(settings: Settings, knob: int, rows: int, seed: int) -> Any:
    return HistGradientBoostingClassifier(
        learning_rate=settings["learning_rate"], max_leaf_nodes=round(settings["leaves"]), max_iter=knob,
        l2_regularization=settings["l2"], random_state=seed,
    )  # fmt: skip


GAMMA = (2.0**-8, 2.0**7)
C = (2.0**-4, 2.0**8)
OURS = {"gamma": GAMMA, "lam": (2.0**-2, 2.0**7), "theta": (0.05, 0.8)}
METHODS = {
    "ODM": Method(_odm(lambda knob: "auto"), OURS, (0,)),
    "ODM landmarks": Method(_odm(odm.solvers.Landmark), OURS, (100, 300, 1000, 3000)),
    "ODM cells": Method(_odm(odm.solvers.Cells), OURS, (500, 1000, 2000, 4000, 8000)),
    "SVC": Method(_svc, {"gamma": GAMMA, "C": C}, (1000, 3000, 10_000, 30_000, 100_000, 1_000_000), samples=True),
    "Nystroem, LinearSVC": Method(
        _nystroem(lambda c, seed: LinearSVC(C=c, dual=False, random_state=seed)),
        {"gamma": GAMMA, "C": C},
        (100, 300, 1000, 3000),
    ),
    "Nystroem, LogisticRegression": Method(
        _nystroem(lambda c, seed: LogisticRegression(C=c, max_iter=500)), {"gamma": GAMMA, "C": C}, (100, 300, 1000)
    ),
    "RBFSampler, SGD": Method(_fourier, {"gamma": GAMMA, "alpha": (1e-8, 1e-3)}, (300, 1000, 3000)),
    "HistGradientBoosting": Method(
        _trees, {"learning_rate": (0.03, 0.5), "leaves": (8, 256), "l2": (1e-4, 10.0)}, (30, 100, 300, 1000)
    ),
    "linear": Method(
        lambda settings, knob, rows, seed: LogisticRegression(C=settings["C"], max_iter=500), {"C": (2.0**-6, 2.0**12)},
        (0,),
    ),
}  # fmt: skip


def tuned(name: str, X: Any, y: Any, seed: int, tries: int) -> Settings:
    """Return the best of so many ``tries`` of settings of a method, learned from some rows and judged on others."""
    method = METHODS[name]
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    judged = order[: min(JUDGED_ROWS, len(y) // 3)]
    learned = order[len(judged) :][:TUNED_ROWS]
    rng = np.random.default_rng([seed, 2])
    best: tuple[float, Settings] = (-1.0, {})
    knob = min(method.knobs[-1], len(learned)) if method.samples else min(method.knobs, key=lambda k: abs(k - 300))
    for _ in range(tries):
        settings = method.drawn(rng)
        model = method.make(settings, knob, len(learned), seed)
        share = float((model.fit(X[learned], y[learned]).predict(X[judged]) == y[judged]).mean())
        best = max(best, (share, settings), key=lambda pair: pair[0])
    return best[1]


def measure(path: Path, name: str, knob: int, seed: int, settings: Settings) -> Row:
    """Fit and predict in this process, on the split that `prepare` wrote."""
    with np.load(path) as kept:
        X, y, test, y_test = (kept[part] for part in ("X", "y", "test", "y_test"))
    method = METHODS[name]
    if method.samples and knob < len(y):
        some = np.random.default_rng([seed, 3]).permutation(len(y))[:knob]
        X, y = X[some], y[some]
    model = method.make(settings, knob, len(y), seed)
    few = np.random.default_rng(seed).permutation(len(y))[:WARM_ROWS]
    clone(model).fit(X[few], y[few]).predict(test[:2])
    _, fit, _ = clocked(lambda: model.fit(X, y))
    labels, predict, _ = clocked(lambda: model.predict(test))
    row = {
        "accuracy": float((labels == y_test).mean()),
        "balanced": float(balanced_accuracy_score(y_test, labels)),
        "fit": fit,
        "predict": predict,
        "memory": peak_bytes() / 1e6,
    }
    if len(model.classes_) == 2:
        scores = model.decision_function if hasattr(model, "decision_function") else model.predict_proba
        found = scores(test)
        row["auc"] = float(roc_auc_score(y_test, found if found.ndim == 1 else found[:, 1]))
    if isinstance(model, odm.ODMClassifier):
        model = clone(model).set_params(loo=True).fit(X, y)
    if hasattr(model, "predict_proba"):
        row["log loss"] = float(log_loss(y_test, model.predict_proba(test), labels=model.classes_))
    return row


def run(names: Iterable[str], options: argparse.Namespace) -> None:
    """Make what is not in the file yet, set by set."""
    done = {(e["data"], e["method"], e["knob"], e["seed"]): e for e in rows_of(options.out)}
    with options.out.open("a") as file:

        def made(row: Row, arguments: list[str], limit: float) -> Row:
            """Return a row of the file, which a process of this script adds if it is missing."""
            key = row["data"], row["method"], row["knob"], row["seed"]
            if key not in done:
                done[key] = row | own_process([__file__, *arguments], limit)
                file.write(json.dumps(done[key]) + "\n")
                file.flush()
            return done[key]

        for name, seed in product(names, range(options.seeds)):
            with tempfile.TemporaryDirectory() as folder:
                path = _cut(prepare(name, Path(folder), Path(options.data), seed), options.rows)
                for method in options.methods:
                    _run_method(path, method, seed, options, made)


def _cut(path: Path, most: int) -> Path:
    """Keep at most so many rows of a split, for a try."""
    with np.load(path) as kept:
        parts = dict(kept)
    some = np.random.default_rng(0).permutation(len(parts["y"]))[:most]
    np.savez(path, X=parts["X"][some], y=parts["y"][some], test=parts["test"][:most], y_test=parts["y_test"][:most])
    return path


def _run_method(path: Path, method: str, seed: int, options: argparse.Namespace, made: Callable[..., Row]) -> None:
    """Tune a method on a split, and measure it at every size of its knob until one does not end in time."""
    with np.load(path) as kept:
        rows = len(kept["y"])
    knobs = METHODS[method].knobs
    if METHODS[method].samples:
        knobs = (*(knob for knob in knobs if knob < rows), rows)
    row = {"data": path.stem, "method": method, "seed": seed}
    settings = made(
        row | {"knob": TUNING},
        ["--tune", str(path), method, str(seed), str(options.tries)],
        options.tries * options.limit,
    ).get("settings")
    if settings is None:
        return
    for knob in knobs:
        arguments = ["--one", str(path), method, str(knob), str(seed), json.dumps(settings)]
        if "failed" in made(row | {"knob": knob}, arguments, options.limit):
            return


def rows_of(path: Path) -> list[Row]:
    """Return what was measured so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(path: Path) -> Any:
    """Return the fits that ended, as a frame with a row for each, grouped over the seeds."""
    frame = pd.DataFrame([row for row in rows_of(path) if "accuracy" in row])
    return frame.reindex(columns=[*GROUP, *FIGURES]).groupby(list(GROUP), sort=False)


def table(path: Path) -> str:
    """Return means over the seeds, with standard errors of the figures that are no times, as Markdown."""
    groups = measured(path)
    means, errors = groups.mean(), groups.sem()
    lines = [table_head((*GROUP, *FIGURES))]
    for key in means.index:
        cells = [
            "–" if np.isnan(mean) else f"{mean:.3g}" if name in COSTS else f"{mean:.4f} ± {errors.loc[key, name]:.4f}"
            for name, mean in means.loc[key].items()
        ]
        lines.append(f"| {' | '.join(map(str, [*key, *cells]))} |")
    return "\n".join(lines)


def plot(path: Path, image: str) -> None:
    """Draw the error against the seconds of fitting, both on logarithmic scales, a panel for each data set."""
    means = measured(path).mean().reset_index()
    sets = means["data"].unique()
    figure, panels = plt.subplots(-(-len(sets) // 2), 2, figsize=(11, 3.6 * -(-len(sets) // 2)), squeeze=False)
    for panel in panels.flat[len(sets) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, sets, strict=False):
        for color, method in enumerate(METHODS):
            points = means[(means["data"] == name) & (means["method"] == method)].sort_values("fit")
            panel.plot(points["fit"], 1.0 - points["accuracy"], "o-", color=f"C{color}", label=method, markersize=4)
        panel.set(xscale="log", yscale="log", title=name, xlabel="seconds of fitting", ylabel="error")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="lower center", ncols=5)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(image, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=f"default: {'; '.join(METHODS)}")
    parser.add_argument("--out", type=Path, default=Path("rivals.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=20, help="settings that a method is tuned by")
    parser.add_argument("--rows", type=int, default=1 << 40, help="at most so many rows, for a try")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a fit")
    parser.add_argument("--table", action="store_true", help="only print what is in the file")
    parser.add_argument("--plot", metavar="FILE", help="only draw what is in the file")
    parser.add_argument("--tune", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.tune or options.one:
        warnings.simplefilter("ignore")
    if options.tune:
        path, method, seed, tries = options.tune
        with np.load(path) as kept:
            print(json.dumps({"settings": tuned(method, kept["X"], kept["y"], int(seed), int(tries))}))
        return
    if options.one:
        path, method, knob, seed, settings = options.one
        print(json.dumps(measure(Path(path), method, int(knob), int(seed), json.loads(settings))))
        return
    if unknown := (set(options.names) - set(SETS)) | (set(options.methods) - set(METHODS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.plot:
        plot(options.out, options.plot)
        return
    if not options.table:
        if options.data is None:
            parser.error("name the folder of the data with --data or DASK_ODM_DATA")
        run(options.names or SETS, options)
    print(table(options.out))


if __name__ == "__main__":
    main(sys.argv[1:])
