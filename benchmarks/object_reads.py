"""A pass over a store in an object store beside one over the same store on disk, by the same threads.

The server is that of the tests, on the loopback network, in a process of its own; ``--delay`` lets it wait before every
answer, and ``--rate`` bounds what a connection gives, as a network does. Passes alternate, and of each kind the
quickest counts. Helpers of the tests are to be on the path, as ``PYTHONPATH=.:tests`` puts them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dask_odm.data.storage import objects
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from object_server import BUCKET, serving


def make_store(path: str, megabytes: int) -> Store:
    """Rows of 100 features in chunks of the usual size."""
    rng = np.random.default_rng(0)
    with StoreWriter(path) as writer:
        for _ in range(max(1, megabytes // 4)):
            writer.append(rng.standard_normal((10_000, 100), dtype=np.float32))
        return writer.finish()


def read_all(store: Store, threads: int) -> int:
    """Read and check all chunks, a buffer a thread; returns bytes."""

    def read(chunks: range) -> int:
        buffer = store.buffer()
        return sum(store.read(i, buffer).X.nbytes for i in chunks)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, [range(k, store.n_chunks, threads) for k in range(threads)]))


def quickest(calls: dict[str, Callable[[], int]], repeat: int) -> dict[str, float]:
    """MB/s of each call, its quickest of several; they alternate."""
    best: dict[str, float] = {}
    for _ in range(repeat):
        for name, call in calls.items():
            began = time.perf_counter()
            nbytes = call()
            best[name] = max(best.get(name, 0.0), nbytes / 1e6 / (time.perf_counter() - began))
    return best


def measure(
    megabytes: int, threads: int, delay: float, repeat: int, *, rate: float | None = None, part: float | None = None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        if part is not None:
            objects.ObjectStorage.part_bytes = int(part * (1 << 20))
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            local = make_store(os.path.join(folder, "rows.zarr"), megabytes)
            remote = make_store(f"s3://{BUCKET}/rows.zarr", megabytes)
            if delay or rate:
                server.fail("slow", match="GET", seconds=delay, **({} if rate is None else {"rate": rate * 1e6}))
            calls = {"disk": lambda: read_all(local, threads), "objects": lambda: read_all(remote, threads)}
            found = quickest(calls, repeat)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return {
        "megabytes": megabytes,
        "threads": threads,
        "delay_s": delay,
        "rate_mb_s": rate,
        **{f"{name}_mb_s": round(rate) for name, rate in found.items()},
        "disk_over_objects": found["disk"] / found["objects"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--rate", type=float, help="MB/s that a connection gives at most")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--part", type=float, help="MiB of a request; by default as the package has it")
    given = parser.parse_args(arguments)
    print(json.dumps(measure(**vars(given))))


if __name__ == "__main__":
    main()
