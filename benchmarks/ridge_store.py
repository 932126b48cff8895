"""Ridge regression over a store in one pass: seconds beside a bare read of the store by the same workers.

    python benchmarks/ridge_store.py [--rows 20000000] [--partitions 1 10] [--loo]

Makes a store of 18 features and real targets, reads it with the workers that will fit, then fits. The figure that
matters is the fit's seconds over passes x seconds of one bare read; the goal is at most 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
from linear_store import bare_read

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.workers import local_workers, peak_bytes

FEATURES, BLOCK = 18, 500_000
REPEATS = 5


def make(path: str, rows: int) -> None:
    """Write rows with a linear target and noise, block by block."""
    true = np.random.default_rng(0).normal(size=FEATURES)
    with StoreWriter(path, dtype="float32") as writer:
        for start in range(0, rows, BLOCK):
            rng = np.random.default_rng([1, start])
            X = rng.standard_normal((min(BLOCK, rows - start), FEATURES), dtype=np.float32)
            writer.append(X, X @ true + rng.normal(size=len(X)))
        writer.finish(None, source="ridge_store.py")


def measure(store: Store, client: Any, workers: int, model: Any) -> dict[str, Any]:
    """The middle of several fits and bare reads that take turns, after a fit that compiles."""
    model.fit(store.path)
    fits, reads = [], []
    for _ in range(REPEATS):
        reads.append(bare_read(client, store, workers))
        began = time.perf_counter()
        model.fit(store.path)
        fits.append(time.perf_counter() - began)
    fit, read = sorted(fits)[REPEATS // 2], sorted(reads)[REPEATS // 2]
    passes = model.history_[-1]["passes"]
    return {
        "rows": store.rows,
        "gigabytes": round(store.rows * store.features * store.dtype.itemsize / 1e9, 2),
        "shards": model.n_partitions,
        "fit_s": fit,
        "bare_read_s": read,
        "passes": passes,
        "rounds": model.n_iter_,
        "ratio": fit / (passes * read),
        "peak_mb": [round(peak / 1e6) for peak in client.run(peak_bytes).values()],
        "r2": model.score(store) if store.rows <= 10**6 else None,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--store", help="where the store is or will be kept; by default a temporary folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", default="500MB")
    parser.add_argument("--partitions", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--loo", action="store_true", help="choose lam by leaving one out, in one more pass")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or os.path.join(folder, "ridge.zarr")
        if not os.path.exists(path):
            began = time.perf_counter()
            make(path, options.rows)
            print(f"made {path} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        store = Store.open(path)
        with local_workers(options.workers, memory_limit=options.limit) as client:
            for count in options.partitions:
                strength = 30.0 if count > 1 else 0.0
                model = odm.MDDRidge(
                    "loo" if options.loo else 1e-2, n_partitions=count, discrepancy=strength, random_state=0
                )
                found = measure(store, client, options.workers, model)
                if options.json:
                    print(json.dumps(found), flush=True)
                else:
                    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
