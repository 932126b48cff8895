"""Linear ODM over a store by streaming Newton: seconds beside bare reads of the store by the same workers.

Makes a SUSY-shaped store (18 features), reads it with the workers that will fit, then fits to the asked-for gap.
The figure that matters is the fit's seconds over passes x seconds of one bare read; the goal is at most 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.passes import chunk_groups
from dask_odm.engine.workers import local_workers, peak_bytes


def read_chunks(store: Store, chunks: range) -> int:
    """Read X and y of ``chunks``, checksums and all, into one buffer."""
    buffer = store.buffer()
    return sum(len(store.read(i, buffer).X) for i in chunks)


def bare_read(client: Any, store: Store, tasks: int) -> float:
    """Seconds of one read of all chunks by ``tasks`` tasks."""
    groups = chunk_groups(store.n_chunks)
    each = max(1, len(groups) // tasks)
    parts = [range(groups[i].start, groups[min(i + each, len(groups)) - 1].stop) for i in range(0, len(groups), each)]
    began = time.perf_counter()
    assert sum(client.gather([client.submit(read_chunks, store, part, pure=False) for part in parts])) == store.rows
    return time.perf_counter() - began


def measure(rows: int, path: str, workers: int, limit: str, tol: float, scale: str | None) -> dict[str, Any]:
    if not os.path.exists(path):
        began = time.perf_counter()
        odm.datasets.make_susy(rows, store=path)
        print(f"made {path} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    store = Store.open(path)
    with local_workers(workers, memory_limit=limit) as client:
        model = odm.ODMClassifier(kernel="linear", lam=1e4, tol=tol, scale=scale)
        began = time.perf_counter()
        model.fit(path)
        first = time.perf_counter() - began
        reads = sorted(bare_read(client, store, workers) for _ in range(3))
        began = time.perf_counter()
        model.fit(path)
        seconds = time.perf_counter() - began
        peaks = list(client.run(peak_bytes).values())
    passes = model.history_[-1]["passes"]
    return {
        "rows": store.rows,
        "features": store.features,
        "gigabytes": round(store.rows * store.features * store.dtype.itemsize / 1e9, 2),
        "workers": workers,
        "limit": limit,
        "bare_read_s": reads[1],
        "first_fit_s": first,
        "fit_s": seconds,
        "newton_s": model.history_[-1]["seconds"],
        "passes": passes,
        "gap": model.dual_gap_,
        "ratio": seconds / (passes * reads[1]),
        "peak_mb": [round(peak / 1e6) for peak in peaks],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--store", help="where the store is or will be kept; by default a temporary folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", default="500MB")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--scale", choices=["minmax", "standard"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or os.path.join(folder, "susy.zarr")
        result = measure(options.rows, path, options.workers, options.limit, options.tol, options.scale)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14} {value:.4g}" if isinstance(value, float) else f"{name:14} {value}")


if __name__ == "__main__":
    main()
