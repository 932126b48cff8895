"""Linear ODM over a store of sparse rows, by Newton or DSVRG: ingestion and passes beside bare reads, and memory.

    python benchmarks/sparse_store.py [--rows 2000000] [--features 1000000] [--entries 100] [--workers 2 1] [--kill]
                                      [--solver newton]

Rows have so many entries in columns of which the first are the most frequent, as words are, and labels by hidden
weights and noise. They are written straight to the store, block by block; the first ``--text-rows`` of them also as
LIBSVM text, which is ingested and read by others. Each fit is made by so many workers under a limit of memory. A pass
is beside the same workers' bare read of the same chunks, by zarr and as plain files. All digests must be the same; with
``--kill``, also that of a fit of which a worker is killed. Ratios are of the fit's seconds over passes x seconds of a
bare read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from fingerprints import fingerprint
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.passes import StorePasses
from dask_odm.engine.workers import local_workers, peak_bytes

BLOCK = 10_000  # rows that are made at a time
NOISE = 0.3  # of scores with a standard deviation of about 1


def blocks(rows: int, features: int, entries: int, seed: int = 0) -> Iterator[tuple[csr_array, np.ndarray]]:
    """Yield rows in float32, and labels."""
    weights = np.random.default_rng(0).normal(size=features)
    for start in range(0, rows, BLOCK):
        rng = np.random.default_rng([seed, start])
        n = min(BLOCK, rows - start)
        columns = np.sort((features * rng.uniform(size=(n, entries)) ** 2).astype(np.int32), axis=1)
        values = np.round(rng.uniform(0.5, 1.5, size=n * entries) / np.sqrt(entries), 4)
        bounds = np.arange(n + 1, dtype=np.int32) * entries
        X = csr_array((values.astype(np.float32), columns.ravel(), bounds), shape=(n, features))
        X.sum_duplicates()
        yield X, (X @ weights + NOISE * rng.normal(size=n) > 0).astype(int)


def make(path: Path, rows: int, features: int, entries: int) -> float | None:
    """Write the store unless it is there, and return the seconds that it took."""
    if path.exists():
        return None
    began = time.perf_counter()
    with StoreWriter(path) as writer:
        for X, y in blocks(rows, features, entries):
            writer.append(X, y)
        writer.finish()
    return time.perf_counter() - began


def seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def measure_text(folder: Path, rows: int, features: int, entries: int) -> dict[str, Any]:
    """Ingest LIBSVM text, beside reading its bytes and reading it by scikit-learn."""
    path = folder / "rows.svm"
    with path.open("wb") as file:
        for X, y in blocks(rows, features, entries):
            X = X.astype(np.float64)
            X.data = X.data.round(4)  # else text has all digits of the nearest number in float32
            dump_svmlight_file(X, y, file, zero_based=False)
    few = folder / "few.svm"
    few.write_bytes(path.read_bytes()[: 1 << 20].rpartition(b"\n")[0])
    odm.ingest(few, folder / "few.zarr", n_features=features)  # imports what it needs
    megabytes = path.stat().st_size / 1e6
    taken = {
        "bytes": seconds_of(path.read_bytes),
        "scikit-learn": seconds_of(lambda: load_svmlight_file(path, n_features=features)),
        "ingest": seconds_of(lambda: odm.ingest(path, folder / "text.zarr", n_features=features)),
    }
    path.unlink()
    return {"text_mb": megabytes, "text_mb_s": {name: megabytes / seconds for name, seconds in taken.items()}}


def read_zarr(path: str, part: int, parts: int) -> int:
    """Read a part of the chunks of entries, bounds and labels by zarr; return the numbers that there are."""
    import zarr

    group = zarr.open_group(path, mode="r")
    read = 0
    for name in ("X/data", "X/indices", "X/indptr", "y"):
        array: Any = group[name]
        chunk = array.chunks[0]
        of_part = np.array_split(np.arange(-(-array.shape[0] // chunk)), parts)[part]
        read += sum(len(array[i * chunk : (i + 1) * chunk]) for i in of_part)
    return read


def read_files(path: str, part: int, parts: int) -> int:
    """Read a part of the same files into one buffer, as they are."""
    files = sorted(each for each in Path(path).rglob("c/*") if each.is_file())
    buffer = bytearray(32 << 20)
    read = 0
    for file in np.array_split(np.array(files, object), parts)[part]:
        with open(file, "rb", buffering=0) as stream:
            read += stream.readinto(buffer)
    return read


def bare_reads(client: Any, path: str, workers: int) -> dict[str, float]:
    """Return the seconds of a read of all chunks by the workers: the median of three."""

    def read(function: Callable[[str, int, int], int]) -> None:
        client.gather([client.submit(function, path, part, workers, pure=False) for part in range(workers)])

    return {
        name: sorted(seconds_of(partial(read, function)) for _ in range(3))[1]
        for name, function in (("zarr", read_zarr), ("files", read_files))
    }


class Killer:
    """Kills a worker when the second step has been taken."""

    def __init__(self, client: Any) -> None:
        self._victim = min(client.run(os.getpid).values())
        self.killed = False

    def __call__(self, event: object) -> None:
        if getattr(event, "iteration", 0) == 2 and not self.killed:
            self.killed = True
            os.kill(self._victim, signal.SIGKILL)


def measure(path: Path, few: Path, test: Any, workers: int, kill: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Fit by so many workers, after a few rows, and read the store by the same workers."""
    settings = {"max_iter": options.max_iter} if options.max_iter else {}
    model = odm.ODMClassifier(
        kernel="linear", solver=options.solver, lam=1e6, scale=None, tol=options.tol, random_state=0, **settings
    )
    with local_workers(workers, memory_limit=options.limit) as client:
        model.fit(few)  # compiles
        killer = Killer(client)
        model.set_params(callbacks=[killer] if kill else None)
        with dask.config.set({"dask_odm.read-into-memory": 0}):
            seconds = seconds_of(lambda: model.fit(path))
        peaks = sorted(client.run(peak_bytes).values())
        reads = {} if kill else bare_reads(client, str(path), workers)
    last = model.history_[-1]
    found = {
        "workers": workers,
        "killed": killer.killed,
        "fit_s": seconds,
        "passes": last["passes"],
        "pass_s": last["seconds"] / last["passes"],
        "bare_s": reads,
        "ratio": {name: last["seconds"] / (last["passes"] * each) for name, each in reads.items()},
        "gap": model.dual_gap_,
        "accuracy": float(model.score(*test)),
        "peak_mb": [round(peak / 1e6) for peak in peaks],
        "client_mb": round(peak_bytes() / 1e6),
        "digest": fingerprint(model, test[0]),
    }
    print(json.dumps(found), file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the figures, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=100, help="of a row")
    parser.add_argument("--text-rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--limit", default="1GB", help="memory of a worker")
    parser.add_argument("--solver", choices=("newton", "dsvrg"), default="newton")
    parser.add_argument("--max-iter", type=int, help="most steps of the solver; default: its own")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--kill", action="store_true", help="one more fit, of which a worker is killed")
    parser.add_argument("--folder", help="where the store is or will be kept; by default a temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    shape = options.features, options.entries
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(options.folder or folder) / f"sparse-{options.rows}-{options.features}-{options.entries}.zarr"
        made = make(path, options.rows, *shape)
        store = Store.open(path)
        entries = store.layout.entries
        result: dict[str, Any] = {
            "rows": store.rows,
            "features": store.features,
            "entries": entries.total,
            "gigabytes": store.layout.rows_nbytes / 1e9,
            "made_s": made,
            "chunks": store.n_chunks,
            "groups": StorePasses(store, None).groups,
            "limit": options.limit,
        }
        if options.text_rows:
            result |= measure_text(Path(folder), options.text_rows, *shape)
        few = Path(folder) / "few-rows.zarr"
        make(few, 2 * BLOCK, *shape)
        test = next(blocks(BLOCK, *shape, seed=1))
        plan = [(workers, False) for workers in options.workers] + [(max(options.workers), True)] * options.kill
        result["fits"] = [measure(path, few, test, workers, kill, options) for workers, kill in plan]
    result["same_bits"] = len({fit["digest"] for fit in result["fits"]}) == 1
    if options.json:
        print(json.dumps(result))
        return
    for fit in result.pop("fits"):
        print(f"{fit.pop('workers')} workers")
        _show(fit, "    ")
    _show(result)


def _show(figures: dict[str, Any], margin: str = "") -> None:
    for name, value in figures.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {each:.4g}" for key, each in value.items())
        print(f"{margin}{name:12} {value:.4g}" if isinstance(value, float) else f"{margin}{name:12} {value}")


if __name__ == "__main__":
    main()
