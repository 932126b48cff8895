"""Kernel ODM over stores larger than the workers' memory, by landmarks: seconds against rows, and peak memory.

Makes stores of noisy shells (18 features) of several sizes and fits each by the same workers, to the same gap. Time
should grow as the rows do: the figure that shows it is seconds a pass and a million rows, of the passes after the
first record. Small stores go by passes too, which a user's would not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

import dask
from sklearn.base import clone

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.workers import local_workers, peak_bytes

FEATURES = 18
SETTINGS = {"lam": 1e5, "upsilon": 0.2, "theta": 0.2}


def made(rows: int, chunk_rows: int | None, folder: str) -> str:
    """Return the path of a store of shells, which is made if it is not there."""
    path = os.path.join(folder, f"shells-{rows}.zarr")
    if not os.path.exists(path):
        began = time.perf_counter()
        odm.datasets.make_shells(rows, FEATURES, store=path)
        print(f"made {path} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    if chunk_rows is None:
        return path
    finer = os.path.join(folder, f"shells-{rows}-{chunk_rows}.zarr")
    if not os.path.exists(finer):
        odm.ingest(odm.open_store(path), finer, chunk_rows=chunk_rows)
    return finer


def measure(path: str, workers: int, limit: str, settings: dict[str, Any], test: str) -> dict[str, Any]:
    store = Store.open(path)
    rows = store.rows
    model = odm.ODMClassifier(random_state=0, **SETTINGS | settings)
    with local_workers(workers, memory_limit=limit) as client:
        clone(model).fit(test)  # which compiles
        began, own, busy = time.perf_counter(), time.process_time(), client.run(time.process_time)
        model.fit(path)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        busy = {worker: after - busy[worker] for worker, after in client.run(time.process_time).items()}
        peaks = list(client.run(peak_bytes).values())
    first, last = model.history_[0], model.history_[-1]
    passes = last["passes"] - first["passes"]
    return {
        "rows": rows,
        "chunks": store.n_chunks,
        "landmarks": len(model.support_),
        "workers": workers,
        "limit": limit,
        "fit_s": seconds,
        "cpu_s": sum(busy.values()),
        "client_cpu_s": own,
        "passes": last["passes"],
        "steps": model.n_iter_,
        "gap": last["gap"],
        "s_per_pass_and_million": (last["seconds"] - first["seconds"]) / passes / rows * 1e6,
        "accuracy": model.score(test),
        "peak_mb": [round(peak / 1e6) for peak in peaks],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--folder", help="where the stores are or will be kept; by default a temporary folder")
    parser.add_argument("--chunk-rows", type=int, help="by default as many as a store has by default")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--gamma", type=float, default=0.03)
    parser.add_argument("--scale", default="standard")
    parser.add_argument("--metric", choices=["diagonal", "full"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        test = os.path.join(folder, "shells-test.zarr")
        if not os.path.exists(test):
            odm.datasets.make_shells(min(100_000, options.rows[0]), FEATURES, start=max(options.rows), store=test)
        dask.config.set({"dask_odm.read-into-memory": 0})
        solver = odm.solvers.Landmark(options.landmarks)
        own = {"solver": solver, "gamma": options.gamma, "scale": options.scale, "metric": options.metric}
        for rows in options.rows:
            path = made(rows, options.chunk_rows, folder)
            for workers in options.workers:
                row = measure(path, workers, options.limit, own, test)
                if options.json:
                    print(json.dumps(row), flush=True)
                else:
                    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
                    print(", ".join(shown), flush=True)


if __name__ == "__main__":
    main()
