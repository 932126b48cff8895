"""Training on data several times larger than the workers' memory together: level gaps, seconds, peak of every worker.

    python benchmarks/out_of_core.py [--rows 60000] [--features 20000] [--worker-memory 600MB] [--stop-at 16]

The rows are wide, so that they stay few: kernel work grows with their square. Peaks are read from the kernel
(VmHWM) of every worker process; a worker that was killed would have another process, a paused one is counted by
a plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

import dask

import dask_odm as odm
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.engine.workers import local_workers, peak_bytes
from dask_odm.progress import format_history
from dask_odm.solvers import SODM

TEST_START = 209_715_200  # the first test row of the endless sequence, far behind the training rows


class PauseWatch:
    """Looks at every worker's status while it is open, and counts those that were not running."""

    def __init__(self, client: Any) -> None:
        self._client, self.paused, self._done = client, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PauseWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            workers = self._client.cluster.scheduler.workers.values()
            self.paused += sum(worker.status.name != "running" for worker in workers)


def measure(
    folder: str, *, rows: int, features: int, workers: int, worker_memory: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Generate, train, score; figures as plain values."""
    make = odm.datasets.make_shells
    train: Any = make(rows, features, store=os.path.join(folder, "train.zarr"))
    test: Any = make(1000, features, start=TEST_START, store=os.path.join(folder, "test.zarr"))
    model = odm.ODMClassifier(random_state=0, **parameters)
    temporary = dask.config.set({"temporary-directory": folder})
    with temporary, local_workers(workers, 1, worker_memory) as client:
        limit = min(w["memory_limit"] for w in client.scheduler_info(n_workers=-1)["workers"].values())
        before = client.run(os.getpid)
        began = time.perf_counter()
        with PauseWatch(client) as watch:
            model.fit(train.path)
        seconds = time.perf_counter() - began
        peaks, same = sorted(client.run(peak_bytes).values()), client.run(os.getpid) == before
    return {
        "data_bytes": 4 * rows * features,
        "limit_bytes": limit,
        "times_the_limit": 4 * rows * features / (limit * workers),
        "peaks": peaks,
        "killed": not same,
        "paused": watch.paused,
        "fit": seconds,
        "accuracy": evaluate(model, test).accuracy,
        "history": model.history_,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the figures, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker-memory", default="600MB")
    parser.add_argument("--n-partitions", type=int, default=64)
    parser.add_argument("--stop-at", type=int, default=16)
    parser.add_argument("--lam", type=float, default=1e3)
    parser.add_argument("--folder", help="where the data go; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(
            folder,
            rows=options.rows,
            features=options.features,
            workers=options.workers,
            worker_memory=options.worker_memory,
            parameters={"solver": SODM(options.n_partitions, stop_at=options.stop_at), "lam": options.lam},
        )
    if options.json:
        print(json.dumps(found))
        return 0
    print(format_history(found["history"]))
    print(f"\ndata {found['data_bytes'] / 1e9:.2f} GB, {found['times_the_limit']:.1f} times the workers' total limit")
    for peak in found["peaks"]:
        print(f"worker peak {peak / 1e6:.0f} MB of {found['limit_bytes'] / 1e6:.0f} MB")
    print(f"killed: {found['killed']}, seen paused: {found['paused']}")
    print(f"fit {found['fit']:.1f} s, accuracy {found['accuracy']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
