"""Linear ODM in memory beside scikit-learn's LinearSVC and, where it is installed, dask-ml's LogisticRegression.

    DASK_ODM_DATA=folder python benchmarks/linear_rivals.py [--rows 1000000] [--repeat 3]

On generated SUSY-shaped rows, and on the papers' data sets in LIBSVM form where ``DASK_ODM_DATA`` names a folder, by
the papers' protocol; λ, θ and υ are chosen on a fifth of the training rows. Seconds are the least of ``--repeat`` fits,
all in one run; rivals keep their defaults, ours goes on to a gap of 1e-6.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file
from sklearn.svm import LinearSVC

import dask_odm as odm

Data = tuple[Any, Any, Any, Any]
SETS: dict[str, tuple[tuple[str, ...], int]] = {
    "svmguide1": (("svmguide1.train", "svmguide1.test"), 4),
    "phishing": (("phishing",), 68),
    "a7a": (("a7a.train", "a7a.test"), 123),
    "cod-rna": (("cod-rna",), 8),
    "ijcnn1": (("ijcnn1.train", "ijcnn1.test"), 22),
    "skin-nonskin": (("skin-nonskin",), 3),
}


def generated(rows: int) -> Data:
    """SUSY-shaped rows in memory: train and test."""
    X, y = odm.datasets.make_susy(rows)
    test, y_test = odm.datasets.make_susy(100_000, start=1 << 40)
    mean, width = X.mean(axis=0), X.std(axis=0)
    return (X - mean) / width, (y > 0).astype(int), (test - mean) / width, (y_test > 0).astype(int)


def published(name: str, folder: Path) -> Data:
    """The papers' protocol: union of the files, a random 80/20 split, features to [0, 1] by the training rows."""
    parts = [_read(folder / f"{file}.svm.xz", SETS[name][1]) for file in SETS[name][0]]
    X, y = np.vstack([X for X, _ in parts]).astype(np.float32), np.concatenate([y for _, y in parts])
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[: int(0.8 * len(X))], order[int(0.8 * len(X)) :]
    low = X[train].min(axis=0)
    width = np.where(X[train].max(axis=0) > low, X[train].max(axis=0) - low, 1.0)
    X = (X - low) / width
    y = (y == y.max()).astype(int)  # dask-ml predicts 0 and 1 whatever the labels
    return X[train], y[train], X[test], y[test]


def _read(path: Path, n_features: int) -> tuple[Any, Any]:
    with lzma.open(path) as file:
        X, y = load_svmlight_file(file, n_features=n_features)
    return X.toarray(), y


def data_sets(rows: int, folder: str | None) -> Iterator[tuple[str, Data]]:
    yield f"susy {rows}", generated(rows)
    for name in SETS if folder else ():
        yield name, published(name, Path(str(folder)))


def choose(X: Any, y: Any) -> dict[str, float]:
    """λ, θ and υ that do best on a fifth of the training rows, by paths over λ on the rest."""
    count, best = int(0.8 * len(X)), (0.0, {})
    for theta in (0.1, 0.5, 0.8):
        for upsilon in (0.0, 0.1, 0.5):
            model = odm.ODMClassifier(kernel="linear", scale=None, theta=theta, upsilon=upsilon)
            for found in model.lam_path(X[:count], y[:count], lams=np.geomspace(1e1, 1e6, 11)):
                accuracy = found.score(X[count:], y[count:])
                if accuracy > best[0]:
                    best = accuracy, {"lam": found.lam, "theta": theta, "upsilon": upsilon}
    return best[1]


def least(fit: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Seconds of the fastest of ``repeat`` fits after one that warms up, and the model."""
    seconds, model = [], fit()
    for _ in range(repeat):
        began = time.perf_counter()
        model = fit()
        seconds.append(time.perf_counter() - began)
    return min(seconds), model


def rivals(X: Any, y: Any, settings: dict[str, float]) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """Name, fit and what turns test rows into what its predict takes."""
    yield (
        "dask_odm",
        lambda: odm.ODMClassifier(kernel="linear", scale=None, tol=1e-6, **settings).fit(X, y),
        lambda Z: Z,
    )
    yield "LinearSVC", lambda: LinearSVC(dual=False).fit(X, y), lambda Z: Z
    try:
        import dask.array as da
        from dask_ml.linear_model import LogisticRegression
    except ImportError:
        return
    chunks = -(-len(X) // 4)
    X_lazy, y_lazy = da.from_array(X, chunks=(chunks, -1)), da.from_array(y, chunks=chunks)
    for solver in ("lbfgs", "newton"):
        yield (
            f"dask-ml {solver}",
            lambda solver=solver: LogisticRegression(solver=solver).fit(X_lazy, y_lazy),
            lambda Z: da.from_array(Z, chunks=-1),
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    results = []
    for name, (X, y, X_test, y_test) in data_sets(options.rows, os.environ.get("DASK_ODM_DATA")):
        settings, first = choose(X, y), None
        print(name, X.shape, settings, file=sys.stderr)
        for rival, fit, convert in rivals(X, y, settings):
            seconds, model = least(fit, options.repeat)
            first = first or seconds
            accuracy = float((np.asarray(model.predict(convert(X_test))) == y_test).mean())
            results.append(
                {"data": name, "rival": rival, "seconds": seconds, "times": seconds / first, "accuracy": accuracy}
            )
            if not options.json:
                print(
                    f"{name:14} {rival:16} {seconds:8.3f} s {seconds / first:6.1f} x  accuracy {accuracy:.4f}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
