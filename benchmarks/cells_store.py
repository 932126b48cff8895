"""Cells over stores of millions of rows: seconds, rows a second, memory, accuracy beside the best that there is.

    python benchmarks/cells_store.py [--rows 5000000 10000000] [--workers 1 2 3] [--folder folder] [--core-each]

Makes stores of a chessboard's rows (20 features, 50 squares along each side, `make_chessboard`), on which the best
classifier is right for .95 of the rows, and fits each by so many worker processes under a limit of memory. Each row
of the Markdown table is made in a process of its own, and timed after a fit of a few rows, which compiles. Memory is
the most that each worker had, and the client, which gets the model. Accuracy is of rows that follow those of the
largest store. CPU seconds are of all workers, and of the client, during the fit. The digest is of what was learned
and predicted (`fingerprints`), which is the same whatever the number of workers. ``--variants landmarks:3000``
measures landmarks instead; variants are named as in `cells`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
from cells import NONE, TOL, own_process, shown_gap, solver_of, table_head
from fingerprints import fingerprint
from sklearn.base import clone

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.workers import local_workers, peak_bytes

BEST = 0.95  # accuracy of Bayes' rule
BOARD = {"n_features": 20, "n_squares": 50, "accuracy": BEST}
SETTINGS = {"gamma": 8.0, "upsilon": 0.2, "theta": 0.3, "scale": None}
WEIGHT = 0.1  # of a row, λ / M
DIGEST_ROWS = 2000
FEW_ROWS = 20_000  # of a fit before the one that is timed, as in a session that has fitted something
HEAD = ("rows", "variant", "workers", "fit, s", "CPU of workers, s", "CPU of the client, s", "rows/s", "support", "gap",
        "accuracy", "best", "memory of workers, MB", "of the client, MB", "digest")  # fmt: skip
Row = dict[str, Any]


def make(path: Path, rows: int, start: int = 0) -> None:
    """Write a store of a chessboard's rows, unless it is there."""
    if not path.exists():
        began = time.perf_counter()
        odm.datasets.make_chessboard(rows, start=start, store=path, **BOARD)
        print(f"made {path} in {time.perf_counter() - began:.1f} s", file=sys.stderr)


def measure(path: str, few: str, test: str, variant: str, workers: int, memory: str) -> Row:
    """Fit one store by workers of this process, after a ``few`` rows, and predict the test store here."""
    dask.config.set({"dask_odm.read-into-memory": 0})
    rows = Store.open(path).rows
    model = odm.ODMClassifier(solver=solver_of(variant), lam=WEIGHT * rows, tol=TOL, random_state=0, **SETTINGS)
    with local_workers(workers, memory_limit=memory) as client:
        clone(model).fit(few)
        began, own = time.perf_counter(), time.process_time()
        busy = sum(client.run(time.process_time).values())
        model.fit(path)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        busy = sum(client.run(time.process_time).values()) - busy
        peaks = sorted(client.run(peak_bytes).values())
    fresh = Store.open(test)
    first = fresh.read_rows(np.arange(min(DIGEST_ROWS, fresh.rows))).X
    return {
        "fit": seconds,
        "cpu": busy,
        "own": own,
        "rate": rows / seconds,
        "support": len(model.support_) / rows,
        "gap": model.dual_gap_,
        "accuracy": model.score(test),
        "peaks": peaks,
        "client": peak_bytes(),
        "digest": fingerprint(model, first),
    }


def shown(rows: int, variant: str, workers: int, row: Row) -> str:
    """Return a row of the table."""
    start = [f"{rows:,}", variant, str(workers)]
    if "failed" in row:
        cells = [*start, row["failed"].replace("|", "/"), *[NONE] * 10]
    else:
        cells = [
            *start,
            f"{row['fit']:.1f}",
            f"{row['cpu']:.1f}",
            f"{row['own']:.1f}",
            f"{row['rate']:,.0f}",
            f"{row['support']:.2f}",
            shown_gap(row["gap"]),
            f"{row['accuracy']:.4f}",
            f"{BEST:.4f}",
            ", ".join(f"{peak / 1e6:.0f}" for peak in row["peaks"]),
            f"{row['client'] / 1e6:.0f}",
            row["digest"][:12],
        ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 10_000_000, 20_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit", default="1GB", help="memory of a worker")
    parser.add_argument(
        "--core-each", action="store_true", help="so many cores as workers for all processes, on systems that can bind"
    )
    parser.add_argument("--timeout", type=float, default=36_000.0, help="seconds of a row's process")
    parser.add_argument("--variants", nargs="+", default=["cells:4000"])
    parser.add_argument("--test-rows", type=int, default=500_000, help="fresh rows that are predicted")
    parser.add_argument("--folder", help="where the stores are or will be kept; by default a temporary folder")
    parser.add_argument(
        "--one", nargs=6, metavar=("STORE", "FEW", "TEST", "VARIANT", "WORKERS", "LIMIT"), help="one row"
    )
    options = parser.parse_args(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        path, few, test, variant, workers, memory = options.one
        if options.core_each:  # processes that this one starts inherit it
            os.sched_setaffinity(0, range(int(workers)))
        print(json.dumps(measure(path, few, test, variant, int(workers), memory)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        test = folder / f"chessboard-{options.test_rows}-from-{max(options.rows)}.zarr"
        make(test, options.test_rows, max(options.rows))
        few = folder / f"chessboard-{FEW_ROWS}.zarr"
        make(few, FEW_ROWS)
        print(table_head(HEAD), flush=True)
        for rows in options.rows:
            path = folder / f"chessboard-{rows}.zarr"
            make(path, rows)
            for variant in options.variants:
                for workers in options.workers:
                    one = [str(path), str(few), str(test), variant, str(workers), options.limit]
                    bound = ["--core-each"] if options.core_each else []
                    row = own_process([__file__, *bound, "--one", *one], options.timeout)
                    print(shown(rows, variant, workers, row), flush=True)


if __name__ == "__main__":
    main()
