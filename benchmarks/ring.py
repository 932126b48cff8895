"""What a hop of the DSVRG ring costs beside its steps: w from worker to worker as a future.

Makes a SUSY-shaped store, partitions it, and walks one epoch after another, on workers and in this process. Overhead
is the difference a hop. The chain of empty hops is what Dask alone takes. The goal is at most 10 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm import datasets
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.engine.shuffle import Shuffle, scaling_path
from dask_odm.engine.workers import local_workers
from dask_odm.kernels.named import Linear
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.papers.dsvrg.workers import Ring, RingJob


def pass_on(w: Any) -> Any:
    """A hop without steps."""
    return w


def timed(call: Callable[[int], object], repeat: int) -> tuple[float, float]:
    """Median and least seconds of ``repeat`` calls, each with its number; the first one is left out."""
    seconds = []
    for i in range(repeat + 1):
        began = time.perf_counter()
        call(i)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]), min(seconds[1:])


def measure(rows: int, partitions: int, workers: int, repeat: int, folder: Path) -> dict[str, Any]:
    """Seconds of an epoch's hops on workers and here, and of empty hops."""
    datasets.make_susy(rows, store=folder / "susy.zarr")
    store = Store.open(folder / "susy.zarr")
    scaling = Scaling.from_statistics(store.statistics, "minmax", centre=False)
    (folder / "partitions").mkdir()
    with local_workers(workers, memory_limit="1GB"):
        cluster, partitioner = Cluster.current(), StratifiedPartitioner(Linear(1.0), 16, partitions, 0)
        scratch = str(folder / "partitions")
        found = Shuffle(store, TwoClasses(), scratch, cluster).by_partitioner(partitioner, scaling)
        features, loss = FeatureMap(store.features, 1.0), BandLoss(ODMSettings(1e3, 0.2, 0.2), float(store.rows))
        job = RingJob(found, StoredScaling(scaling_path(scratch)), features, loss, None, 0)
        w = np.zeros(features.k)

        def epochs(where: Cluster) -> tuple[float, float]:
            return timed(lambda i: Ring(job, where).walk(w, w, 1e-6, i), repeat)

        here, there = epochs(Cluster.local()), epochs(cluster)
        empty = timed(lambda i: cluster.chain(pass_on, w, [()] * partitions, f"empty{i}"), repeat)
    return {
        "rows": store.rows,
        "hops": partitions,
        "workers": workers,
        "epoch_seconds": there[0],
        "epoch_seconds_here": here[0],
        "overhead_ms": 1e3 * (there[0] - here[0]) / partitions,
        "least_overhead_ms": 1e3 * (there[1] - here[1]) / partitions,  # where others use the machine too
        "empty_hop_ms": 1e3 * empty[0] / partitions,
        "least_empty_hop_ms": 1e3 * empty[1] / partitions,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.rows, options.partitions, options.workers, options.repeat, Path(folder))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
