"""SaddleSVC over a store by Wolfe's nearest point: seconds beside bare reads of the store by the same workers.

    python benchmarks/saddle_store.py [--rows 20000000] [--workers 2] [--limit 500MB] [--alpha .85]

Makes a SUSY-shaped store (18 features), reads it with the workers that will fit, then fits. The figure that matters is
the fit's seconds over passes x seconds of one bare read; the goal is at most 2. ``iterations`` tells how many of the
passes an iteration takes.
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
from linear_store import bare_read

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.workers import local_workers, peak_bytes


def measure(rows: int, path: str, workers: int, limit: str, settings: dict[str, Any]) -> dict[str, Any]:
    if not os.path.exists(path):
        began = time.perf_counter()
        odm.datasets.make_susy(rows, store=path)
        print(f"made {path} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    store = Store.open(path)
    with (
        dask.config.set({"dask_odm.read-into-memory": 0}),  # small stores too are passed over, not read
        local_workers(workers, memory_limit=limit) as client,
    ):
        model = odm.SaddleSVC(**settings)
        began = time.perf_counter()
        model.fit(path)
        first = time.perf_counter() - began
        reads = [bare_read(client, store, workers) for _ in range(3)]
        began = time.perf_counter()
        model.fit(path)
        seconds = time.perf_counter() - began
        reads = sorted([*reads, *(bare_read(client, store, workers) for _ in range(2))])
        peaks = list(client.run(peak_bytes).values())
    passes = model.history_[-1]["passes"]
    return {
        "rows": store.rows,
        "features": store.features,
        "gigabytes": round(store.rows * store.features * store.dtype.itemsize / 1e9, 2),
        "workers": workers,
        "limit": limit,
        "bare_read_s": reads[len(reads) // 2],
        "first_fit_s": first,
        "fit_s": seconds,
        "passes": passes,
        "iterations": model.n_iter_,
        "gap": model.dual_gap_,
        "margin": model.margin_,
        "ratio": seconds / (passes * reads[len(reads) // 2]),
        "peak_mb": [round(peak / 1e6) for peak in peaks],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--store", help="where the store is or will be kept; by default a temporary folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", default="500MB")
    parser.add_argument("--alpha", type=float, default=0.85)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--scale", choices=["minmax", "standard"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    settings = {"alpha": options.alpha, "tol": options.tol, "scale": options.scale, "solver": "mnp"}
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or os.path.join(folder, "susy.zarr")
        result = measure(options.rows, path, options.workers, options.limit, settings)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14} {value:.4g}" if isinstance(value, float) else f"{name:14} {value}")


if __name__ == "__main__":
    main()
