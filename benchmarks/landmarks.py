"""Ways of choosing landmarks, by what is learned from them.

    DASK_ODM_DATA=folder python benchmarks/landmarks.py [name ...] [--sizes 300 1000 2000] [--splits 3] [--json]

Protocol and settings of `real_data`. A line for every number of landmarks and way of choosing, each figure the mean
over splits: how many are independent, the share of the kernel's trace that they leave, seconds of the fit, the
objective it reaches at a gap of 1e-3 over their span, and test accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from real_data import DATA_SETS, least_seconds, stores

import dask_odm as odm
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.store.store import Store
from dask_odm.kernels import RBF
from dask_odm.kernels.landmarks import Landmarks

METHODS = ("support", "uniform", "rp")
SHARE_ROWS = 10_000


def share(store: Store, model: odm.ODMClassifier, gamma: float) -> tuple[int, float]:
    """Landmarks of a model, and the share of the trace of some rows' kernel that they leave."""
    scaling = Scaling.from_statistics(store.statistics, "minmax", centre=True)
    some = np.sort(np.random.default_rng(1).permutation(store.rows)[:SHARE_ROWS])
    landmarks = Landmarks(RBF(1.0, gamma), scaling(model.support_vectors_), model.support_)
    X = scaling(store.read_rows(some).X)
    return len(landmarks), float(landmarks.residual(X, CPU_COUNT).sum() / landmarks.kernel.diagonal(X).sum())


def measure(name: str, folder: Path, source: Path, sizes: list[int], *, splits: int) -> Iterator[dict[str, Any]]:
    """The lines of one data set."""
    chosen = {k: v for k, v in DATA_SETS[name].landmark.items() if k != "solver"}
    both = [stores(name, folder, source, seed) for seed in range(splits)]
    for count in sizes:
        for method in METHODS:
            figures = []
            for seed, (train, test) in enumerate(both):
                model = odm.ODMClassifier(
                    solver=odm.solvers.Landmark(count, choice=method), scale="minmax", random_state=seed, **chosen
                )
                seconds, _ = least_seconds(lambda model=model, train=train: model.fit(train.path), 2)
                last = model.history_[-1]
                figures.append(
                    [
                        *share(train, model, chosen["gamma"]),
                        seconds,
                        last["objective"],
                        last["gap"],
                        model.score(test.path),
                    ]
                )
            names = ("independent", "share", "fit", "objective", "gap", "accuracy")
            means = dict(zip(names, np.mean(figures, axis=0).tolist(), strict=True))
            yield {"data": name, "landmarks": count, "method": method} | means


def main(arguments: list[str] | None = None) -> int:
    """Print a table, or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DATA_SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 2000])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or DATA_SETS:
            for row in measure(name, Path(folder), Path(options.data), options.sizes, splits=options.splits):
                figures = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
                print(json.dumps(row) if options.json else " ".join(f"{v:>12}" for v in figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
