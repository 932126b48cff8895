"""Accuracy, gap and seconds on the papers' data sets, beside scikit-learn's SVC in the same run.

    DASK_ODM_DATA=folder python benchmarks/real_data.py [name ...] [--splits 3] [--repeat 3] [--json | --tune]

ODM by the tree (without prefix) and by landmarks. The protocol is the papers': union of train and test files, an
80/20 random split, features scaled to [0, 1]. All classifiers learn from the same rows; every figure is the mean over
``--splits`` splits, which differ by more than classifiers do. Seconds are the least of ``--repeat`` fits in this
process, after one that compiles the loops (its seconds are shown as "cold"). ``--tune`` shows how the settings of the
landmark solver were found: on a fifth of the training rows of each split, which is not trained on; of those about as
good the fastest are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import SVC

import dask_odm as odm
from dask_odm.data.store.store import Store


@dataclass(frozen=True)
class DataSet:
    """Files, features, and settings of ODM by tree (None: not measured), by landmarks or another solver, and of SVC.

    ``finer`` are settings of more landmarks.
    """

    files: tuple[str, ...]
    n_features: int
    odm: dict[str, float] | None
    landmark: dict[str, Any]
    svc: dict[str, float]
    finer: dict[str, Any] | None = None


DATA_SETS = {
    "svmguide1": DataSet(
        ("svmguide1.train", "svmguide1.test"),
        4,
        {"gamma": 16, "lam": 1e4, "upsilon": 0.3, "theta": 0.1},
        {"gamma": 2, "lam": 1e6, "upsilon": 0.2, "theta": 0.3, "solver": odm.solvers.Landmark(150)},
        {"C": 10, "gamma": 16},
    ),
    "phishing": DataSet(
        ("phishing",),
        68,
        {"gamma": 0.1, "lam": 1e5, "upsilon": 0.2, "theta": 0.3},
        {"solver": "exact", "gamma": 0.3, "lam": 3e4, "upsilon": 0.2, "theta": 0.1},
        {"C": 10, "gamma": 0.3},
    ),
    "a7a": DataSet(
        ("a7a.train", "a7a.test"),
        123,
        {"gamma": 0.05, "lam": 1e4, "upsilon": 0.2, "theta": 0.3},
        {"gamma": 0.03, "lam": 9e3, "upsilon": 0.0125, "theta": 0.3, "solver": odm.solvers.Landmark(500)},
        {"C": 1, "gamma": 0.05},
    ),
    "cod-rna": DataSet(
        ("cod-rna",),
        8,
        {"gamma": 4, "lam": 1e5, "upsilon": 0.5, "theta": 0.1},
        {"gamma": 4, "lam": 1e6, "upsilon": 0.05, "theta": 0.3, "solver": odm.solvers.Landmark(700)},
        {"C": 10, "gamma": 4},
    ),
    "ijcnn1": DataSet(
        ("ijcnn1.train", "ijcnn1.test"),
        22,
        None,  # the root of its tree would take minutes
        {"gamma": 4, "lam": 3e6, "upsilon": 0.0125, "theta": 0.6, "solver": odm.solvers.Landmark(1000)},
        {"C": 10, "gamma": 8},
        finer={"gamma": 5, "lam": 1.5e6, "upsilon": 0.1, "theta": 0.6, "solver": odm.solvers.Landmark(2100)},
    ),
    "skin-nonskin": DataSet(
        ("skin-nonskin",),
        3,
        None,
        {"gamma": 128, "lam": 1e5, "upsilon": 0.05, "theta": 0.3, "solver": odm.solvers.Landmark(300)},
        {"C": 10, "gamma": 64},
    ),
}


STEPS = {"gamma": (0.5, 0.7, 1.4, 2.0), "lam": (0.3, 3.0), "upsilon": (0.25, 4.0), "theta": (1 / 3, 2.0)}
MOST = {"upsilon": 1.0, "theta": 0.9}


def tune(name: str, folder: Path, source: Path, splits: int) -> dict[str, Any]:
    """Settings that classify most of a fifth of the training rows, by steps from those given, one at a time."""
    rows = []
    for seed in range(splits):
        train = stores(name, folder, source, seed)[0]
        whole = train.read_rows(np.random.default_rng(seed).permutation(train.rows))
        rows.append(((whole.X[: train.rows // 5], whole.y[: train.rows // 5]), (whole.X, whole.y)))

    def score(settings: dict[str, Any]) -> float:
        model = odm.ODMClassifier(scale="minmax", random_state=0, **{"solver": "landmark", "tol": 1e-2, **settings})
        return float(np.mean([model.fit(X[len(v) :], y[len(v) :]).score(V, v) for (V, v), (X, y) in rows]))

    best = dict(DATA_SETS[name].landmark)
    accuracy, moved = score(best), True
    while moved:
        moved = False
        for parameter, factors in STEPS.items():
            for factor in factors:
                tried = {**best, parameter: min(MOST.get(parameter, np.inf), best[parameter] * factor)}
                found = score(tried)
                if found > accuracy:
                    best, accuracy, moved = tried, found, True
                    print(f"{name} {accuracy:.4f} {best}", flush=True)
                    break
    return best


def stores(
    name: str, folder: Path, source: Path, seed: int, sets: Mapping[str, DataSet] = DATA_SETS
) -> tuple[Store, Store]:
    """Ingest the files of a data set into a training and a test store."""
    files = [source / f"{file}.svm.xz" for file in sets[name].files]
    return odm.ingest(
        files,
        folder / f"{name}.{seed}.train.zarr",
        n_features=sets[name].n_features,
        test_size=0.2,
        test_store=folder / f"{name}.{seed}.test.zarr",
        seed=seed,
    )


def scale_of(train: Store) -> tuple[np.ndarray, np.ndarray]:
    """Least values of the training rows' features, and their ranges; 1 for features of one value."""
    low, high = train.statistics.minimum, train.statistics.maximum
    return low, np.where(high > low, high - low, 1.0)


def arrays(store: Store, low: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows scaled to [0, 1] by the training store, and labels, for scikit-learn."""
    blocks = list(zip(*[(b.X.copy(), b.y) for b in store.blocks()], strict=True))
    return (np.concatenate(blocks[0]) - low) / width, store.labels(np.concatenate(blocks[1]))


def least_seconds(fit: Any, repeat: int) -> tuple[float, Any]:
    """Shortest of ``repeat`` runs, and the last result."""
    best = np.inf
    for _ in range(repeat):
        began = time.perf_counter()
        result = fit()
        best = min(best, time.perf_counter() - began)
    return best, result


def measure(name: str, folder: Path, source: Path, *, repeat: int, splits: int, rival: bool = True) -> dict[str, Any]:
    """One row of the table."""
    rows = [_measure(name, folder, source, repeat, seed, rival) for seed in range(splits)]
    figures = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {"data": name, "splits": splits} | figures


def _measure(name: str, folder: Path, source: Path, repeat: int, seed: int, rival: bool) -> dict[str, float]:
    """The figures of one split."""
    train, test = stores(name, folder, source, seed)
    row: dict[str, float] = {"rows": train.rows, "features": train.features}
    if DATA_SETS[name].odm is not None:
        row |= _odm("", {"solver": "sodm", **DATA_SETS[name].odm}, train, test, repeat, seed)
    row |= _odm("landmark_", {"solver": "landmark", **DATA_SETS[name].landmark}, train, test, repeat, seed)
    finer = DATA_SETS[name].finer
    if finer is not None:
        row |= _odm("finer_", {"solver": "landmark", **finer}, train, test, repeat, seed)
    return row | (_svc(name, train, test, repeat) if rival else {})


def _odm(prefix: str, settings: dict[str, Any], train: Store, test: Store, repeat: int, seed: int) -> dict[str, Any]:
    model = odm.ODMClassifier(scale="minmax", random_state=seed, **settings)
    cold, _ = least_seconds(lambda: model.fit(train.path), 1)
    seconds, _ = least_seconds(lambda: model.fit(train.path), repeat)
    predict, accuracy = least_seconds(lambda: model.score(test.path), repeat)
    figures = {
        "accuracy": accuracy,
        "gap": model.history_[-1]["gap"],
        "support": len(model.support_),
        "cold": cold,
        "fit": seconds,
        "predict": predict,
    }
    return {prefix + name: figure for name, figure in figures.items()}


def _svc(name: str, train: Store, test: Store, repeat: int) -> dict[str, Any]:
    low, width = scale_of(train)
    X, y = arrays(train, low, width)
    svc = SVC(cache_size=2000, **DATA_SETS[name].svc)
    again = repeat if len(X) < 20_000 else 1
    seconds, _ = least_seconds(lambda: svc.fit(X, y), again)
    predict, accuracy = least_seconds(lambda: svc.score(*arrays(test, low, width)), again)
    return {"svc_accuracy": accuracy, "svc_fit": seconds, "svc_predict": predict, "svc_support": len(svc.support_)}


def main(arguments: list[str] | None = None) -> int:
    """Print the figures, or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DATA_SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tune", action="store_true", help="look for settings instead")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    unknown = set(options.names) - set(DATA_SETS)
    if unknown:
        parser.error(f"unknown data sets: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or DATA_SETS:
            if options.tune:
                tune(name, Path(folder), Path(options.data), options.splits)
                continue
            row = measure(name, Path(folder), Path(options.data), repeat=options.repeat, splits=options.splits)
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                "\n".join(
                    f"{key:>18} {value:.4g}" if isinstance(value, float) else f"{key:>18} {value}"
                    for key, value in row.items()
                ),
                "\n",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
