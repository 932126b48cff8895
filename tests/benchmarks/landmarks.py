"""Which landmarks: uniform ones beside a randomly pivoted Cholesky's, by what they leave and what is learned from them.

    DASK_ODM_DATA=folder python tests/benchmarks/landmarks.py [name ...] [--sizes 300 1000 2000] [--json]

Protocol and settings of `real_data`. A line for every number of landmarks and way of choosing: how many are
independent, the share of the kernel's trace that they leave, seconds of choosing and of Newton's method after it, the
objective it reaches at a gap of 1e-3 over their span, and test accuracy. "rp/20" pivots on 20 rows a landmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from real_data import DATA_SETS, stores

from dask_odm.data.scaling import Scaling
from dask_odm.data.store import Store
from dask_odm.kernels import RBF
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose_randomly, choose_uniform
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.linear import LinearLoss
from dask_odm.problems.odm import ODMSettings
from dask_odm.problems.span import RowSpan, SpanQuery
from dask_odm.solvers.landmark import solve_landmark

SAMPLE = 20  # rows a landmark that "rp/20" chooses from
SHARE_ROWS = 10_000


def choose(method: str, kernel: RBF, X: np.ndarray, count: int, seed: int) -> Landmarks:
    """Landmarks of scaled rows."""
    if method == "uniform":
        return choose_uniform(kernel, X, count, seed)
    rows = None if method == "rp" else SAMPLE * count
    return choose_randomly(kernel, X, count, seed, rows=rows, threads=CPU_COUNT)


def solve(landmarks: Landmarks, X: np.ndarray, y: np.ndarray, settings: ODMSettings, tol: float) -> Any:
    """The solution over the span of the landmarks."""
    query = SpanQuery(landmarks.kernel, landmarks.rows, LinearLoss(settings, float(len(y))))
    with single_threaded_blas:
        span = RowSpan(query, ArrayRows(X), (y > 0).astype(np.int8), np.empty(0), 4 << 30, CPU_COUNT)
        start = np.zeros(len(landmarks))
        return solve_landmark(span, landmarks, start, tol=tol, max_iter=30, seed=0, threads=CPU_COUNT)


def rows_of(store: Store, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """Scaled rows and labels ±1."""
    whole = store.read_rows(np.arange(store.rows))
    return scaling(whole.X), np.where(whole.y == 1, 1.0, -1.0)


def measure(
    name: str, folder: Path, source: Path, sizes: list[int], methods: list[str], *, seed: int
) -> Iterator[dict[str, Any]]:
    """The lines of one data set."""
    train, test = stores(name, folder, source, seed)
    scaling = Scaling.from_statistics(train.statistics, "minmax", centre=True)
    (X, y), (T, t) = rows_of(train, scaling), rows_of(test, scaling)
    chosen = DATA_SETS[name].landmark
    kernel = RBF(1.0, chosen["gamma"])
    settings = ODMSettings(chosen["lam"], chosen["upsilon"], chosen["theta"])
    some = X[np.random.default_rng(1).permutation(len(X))[:SHARE_ROWS]]
    solve(choose_uniform(kernel, X, 50, seed), X[:2000], y[:2000], settings, 1e-1)  # compiles
    for count in sizes:
        for method in methods:
            began = time.perf_counter()
            landmarks = choose(method, kernel, X, count, seed)
            between = time.perf_counter()
            solution = solve(landmarks, X, y, settings, 1e-3)
            ended = time.perf_counter()
            scores = kernel.tile(T, landmarks.rows).astype(np.float64) @ solution.a
            yield {
                "data": name,
                "landmarks": count,
                "method": method,
                "independent": len(landmarks),
                "share": float(landmarks.residual(some, CPU_COUNT).sum() / kernel.diagonal(some).sum()),
                "choose": between - began,
                "solve": ended - between,
                "objective": solution.history[-1]["objective"],
                "gap": solution.gap,
                "accuracy": float(np.mean(np.where(scores > 0, 1.0, -1.0) == t)),
            }


def main(arguments: list[str] | None = None) -> int:
    """Print a table, or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DATA_SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 2000])
    parser.add_argument("--methods", nargs="+", default=["uniform", "rp", "rp/20"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or DATA_SETS:
            for row in measure(
                name, Path(folder), Path(options.data), options.sizes, options.methods, seed=options.seed
            ):
                figures = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
                print(json.dumps(row) if options.json else " ".join(f"{v:>12}" for v in figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
