"""Many classes beside scikit-learn's SVC and LinearSVC: accuracy, seconds of fit and prediction, support.

    DASK_ODM_DATA=folder python benchmarks/many_classes.py [satimage usps letter mnist10k news20] [--repeat 3]
    python benchmarks/many_classes.py eight rare many
    DASK_ODM_DATA=folder python benchmarks/many_classes.py letter eight many --workers 2 [--limit 1GB]

Features are scaled to [0, 1] by the training rows (mnist10k: divided by 255); news20 is sublinear tf-idf. The
published test parts are predicted; of letter, the last 4,000 rows. C and γ are `SETTINGS`' for both, and λ is ``2 C n
(1−θ)² / k`` of n rows and k classes, by which the squared loss of a row of a pair weighs C/2. θ is the one of `THETAS`
that does best on a fifth of the training rows, learned from the others (of news20 it is 0). Three sets are generated,
and learned by default and over landmarks with a θ of .3: eight classes of three clouds each in 20 dimensions, seven
clouds of very uneven classes in 9, the rarest with six of 43,500 rows, and 200 clouds of 100 rows in 20. Fits of both
alternate, and seconds are the least of ``--repeat``: on the clock, and of all processors (cpu), which a busy machine
leaves nearly as they are. With ``--workers``, so many learn over a store and 1,000 landmarks, and the most memory that
each had is shown.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.datasets import load_svmlight_file
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC, LinearSVC

import dask_odm as odm
from dask_odm.engine.workers import local_workers, peak_bytes

GENERATED = {"eight": (40_000, 10_000), "rare": (43_500, 14_500), "many": (20_000, 20_000)}  # rows of both parts
SETTINGS = {
    "satimage": (10.0, 2.0), "usps": (10.0, 0.04), "letter": (10.0, 8.0), "mnist10k": (10.0, 0.025),
    **dict.fromkeys(GENERATED, (10.0, 2.0)),
}  # fmt: skip
FEATURES = {
    "satimage": 36,
    "usps": 256,
    "letter": 16,
    "mnist10k": 784,
    "news20": 130107,
    "eight": 20,
    "rare": 9,
    "many": 20,
}
RARE = (0.784, 0.155, 0.0565, 0.003, 0.00085, 0.00025, 0.00014)  # shares of the classes
LETTER_TRAIN = 16_000
THETAS = (0.1, 0.3, 0.5)
BAND = {"upsilon": 0.2, "tol": 1e-2}
AT_LANDMARKS = ("satimage", "usps")  # sets that are learned over landmarks, too, by pairs and against the rest
HEAD = "data               model                   accuracy    fit s  fit cpu  predict s  predict cpu  support"


def read(name: str, features: int, folder: Path | None = None) -> tuple[Any, Any]:
    """CSR rows and labels of ``name.svm.xz`` in a folder, by default that which DASK_ODM_DATA names."""
    with lzma.open(Path(folder or os.environ["DASK_ODM_DATA"], f"{name}.svm.xz")) as stream:
        X, y = load_svmlight_file(stream, n_features=features)
    return X, y


def generated(name: str, rows: int) -> tuple[Any, Any]:
    """Rows and labels of clouds around centres."""
    rng = np.random.default_rng(0)
    if name == "eight":
        centres, spread = rng.normal(size=(24, FEATURES[name])), 0.9
        cloud = rng.integers(len(centres), size=rows)
        y = cloud % 8
    elif name == "many":
        centres, spread = rng.normal(size=(200, FEATURES[name])), 0.5
        cloud = y = rng.permutation(rows) % len(centres)
    else:
        centres, spread = 1.6 * rng.normal(size=(len(RARE), FEATURES[name])), 1.0
        cloud = y = rng.choice(len(RARE), p=np.array(RARE) / sum(RARE), size=rows)
        y[: len(RARE)] = np.arange(len(RARE))
    return centres[cloud] + spread * rng.normal(size=(rows, FEATURES[name])), y


def load(name: str, folder: Path | None = None) -> tuple[Any, Any, Any, Any]:
    """Training rows and labels, test rows and labels."""
    if name in GENERATED:
        first, others = GENERATED[name]
        X, y = generated(name, first + others)
        parts = X[:first], y[:first], X[first:], y[first:]
    elif name == "letter":
        X, y = read(name, FEATURES[name], folder)
        parts = X[:LETTER_TRAIN], y[:LETTER_TRAIN], X[LETTER_TRAIN:], y[LETTER_TRAIN:]
    else:
        stem = "news20bydate" if name == "news20" else name
        parts = *read(f"{stem}.train", FEATURES[name], folder), *read(f"{stem}.test", FEATURES[name], folder)
    X, y, test, y_test = parts
    if name == "news20":
        weigh = TfidfTransformer(sublinear_tf=True).fit(X)
        return csr_array(weigh.transform(X)), y, csr_array(weigh.transform(test)), y_test
    X, test = (each.toarray() if issparse(each) else each for each in (X, test))
    low, high = (0.0, 255.0) if name == "mnist10k" else (X.min(axis=0), X.max(axis=0))
    width = np.where(np.asarray(high - low) > 0, high - low, 1.0)
    return (X - low) / width, y, (test - low) / width, y_test


def own_settings(name: str, n: int, k: int, theta: float) -> dict[str, Any]:
    """ODM's parameters for n rows of k classes."""
    C, gamma = SETTINGS[name]
    lam = 2.0 * C * n / k * (1 - theta) ** 2
    return {"gamma": gamma, "lam": lam, "theta": theta, "scale": None, "random_state": 0, **BAND}


def chosen_theta(name: str, X: Any, y: Any) -> float:
    """The θ of the best exact pairs on a fifth of the rows, learned from the others."""
    X, X_out, y, y_out = train_test_split(X.astype(np.float32), y, test_size=0.2, random_state=0, stratify=y)
    n, k = len(y), len(np.unique(y))

    def score(theta: float) -> float:
        model = odm.ODMClassifier(solver="exact", multi_class="ovo", **own_settings(name, n, k, theta))
        return float(model.fit(X, y).score(X_out, y_out))

    return max(THETAS, key=score)


def models(name: str, n: int, k: int, theta: float) -> list[tuple[str, Any, Any]]:
    """Names, estimators and the number type of their rows."""
    if name == "news20":
        linear = odm.ODMClassifier("linear", lam=float(n), theta=0.0, upsilon=0.2, random_state=0)
        return [("LinearSVC", LinearSVC(), np.float64), ("ODM linear", linear, np.float64)]
    (C, gamma), own = SETTINGS[name], own_settings(name, n, k, theta)
    rival = ("SVC", SVC(C=C, gamma=gamma), np.float64)
    if name in GENERATED:
        at_landmarks = odm.ODMClassifier(solver="landmark", **own)
        return [rival, ("ODM", odm.ODMClassifier(**own), np.float32), ("ODM 1000 landmarks", at_landmarks, np.float32)]
    found = [
        rival,
        ("ODM exact, ovo", odm.ODMClassifier(solver="exact", multi_class="ovo", **own), np.float32),
    ]
    schemes = ("ovo", "ovr") if name in AT_LANDMARKS else ()
    for scheme in schemes:
        model = odm.ODMClassifier(solver="landmark", multi_class=scheme, **own)
        found.append((f"ODM 1000 landmarks, {scheme}", model, np.float32))
    return found


def clocked(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What ``work`` returns, seconds on the clock and of processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def measure(name: str, data: tuple[Any, Any, Any, Any], repeat: int, few: int) -> None:
    """Print a line for every model; the compiled loops are warm, by a fit of ``few`` rows."""
    X, y, test, y_test = data
    theta = 0.3 if name in GENERATED else chosen_theta(name, X, y) if name in SETTINGS else 0.0
    found = models(name, len(y), len(np.unique(y)), theta)
    best = np.full((len(found), 4), np.inf)
    right = {}
    for _, model, dtype in found:
        model.fit(X[:few].astype(dtype), y[:few])
    for first in range(repeat):
        for j in range(len(found)):
            i = (first + j) % len(found)  # whoever comes after a long fit of another finds memory and caches cold
            label, model, dtype = found[i]
            rows, others = X.astype(dtype), test.astype(dtype)
            _, *fit = clocked(lambda model=model, rows=rows: model.fit(rows, y))
            labels, *predict = clocked(lambda model=model, others=others: model.predict(others))
            best[i] = np.minimum(best[i], [*fit, *predict])
            right[label] = float((labels == y_test).mean())
    for (label, model, _), seconds in zip(found, best, strict=True):
        kept = len(getattr(model, "support_", ()))
        figures = f"{right[label]:8.4f} {seconds[0]:8.2f} {seconds[1]:8.2f} {seconds[2]:10.3f} {seconds[3]:12.3f}"
        print(f"{name:18s} {label:23s} {figures} {kept:8d}", flush=True)
    print(f"{name}: theta {theta}", file=sys.stderr)


def measure_store(name: str, data: tuple[Any, Any, Any, Any], workers: int, limit: str) -> None:
    """Print a line of a fit by workers over a store."""
    X, y, test, y_test = data
    model = odm.ODMClassifier(solver="landmark", **own_settings(name, len(y), len(np.unique(y)), 0.3))
    with tempfile.TemporaryDirectory() as folder, dask.config.set({"dask_odm.read-into-memory": 0}):
        store = odm.ingest((X.astype(np.float32), y), f"{folder}/{name}.zarr")
        with local_workers(workers, memory_limit=limit) as client:
            _, seconds, _ = clocked(lambda: model.fit(store))
            peaks = ", ".join(f"{peak / 1e6:.0f}" for peak in client.run(peak_bytes).values())
    right = float((model.predict(test.astype(np.float32)) == y_test).mean())
    print(f"{name:18s} {f'{workers} workers, MB: {peaks}':30s} {right:8.4f} {seconds:8.2f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", help=f"Some of {', '.join(FEATURES)}; by default all.")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, help="learn over a store")
    parser.add_argument("--limit", default="1GB", help="memory of a worker")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(HEAD)
    unknown = [name for name in asked.sets if name not in FEATURES]
    if unknown:
        parser.error(f"no data set {unknown[0]!r} is known; choose from {', '.join(FEATURES)}")
    for name in asked.sets or [name for name in FEATURES if name not in GENERATED]:
        if asked.workers:
            measure_store(name, load(name), asked.workers, asked.limit)
        else:
            measure(name, load(name), asked.repeat, 500)


if __name__ == "__main__":
    main()
