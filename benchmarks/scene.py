"""A map of a scene larger than its workers' memory: seconds of sampling, fitting and mapping, and every worker's peak.

    python benchmarks/scene.py [--size 10000] [--bands 10] [--workers 2] [--worker-memory 1GB] [--folder folder]

The scene (`dask_odm.datasets.make_scene`, 4 GB by default) is written to zarr. Workers then draw a sample of its
labelled pixels into a store, and write the map of the fitted model. Beside that are the seconds in which they read the
scene and write a map without any model, and the pixels a second that the model alone predicts on all workers at once,
just before the map and just after it. A map has to take as long as reading and writing, and all clear pixels at that
rate; the figure beside its seconds is how many times as long it took. ``--size 500`` tries it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import xarray as xr
from distributed import Client
from out_of_core import PauseWatch

import dask_odm as odm
from dask_odm.engine.workers import local_workers, peak_bytes
from dask_odm.solvers import Landmark

RATE_ROWS = 1_000_000  # pixels by which the rate of the model alone is measured


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a function took, and what it returned."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def write_scene(path: str, scene: odm.datasets.Scene) -> None:
    """Write the scene, with its truth and its best map, block by block in this process."""
    made = xr.Dataset({"scene": scene.cube, "labels": scene.labels, "truth": scene.truth, "best": scene.best})
    with dask.config.set(scheduler="threads"):
        made.to_zarr(path, mode="w", consolidated=False)


def opened(path: str) -> xr.Dataset:
    """Return a lazy Dataset from disk; codes stay whole numbers."""
    return xr.open_zarr(path, consolidated=False, mask_and_scale=False)


def write_map(path: str, found: xr.DataArray) -> None:
    """Write a lazy map to zarr."""
    found.rename("map").to_dataset().to_zarr(path, mode="w", consolidated=False)


def rate_of(model: odm.ODMClassifier, pixels: np.ndarray) -> float:
    """Return the pixels a second that a model predicts by one thread, from some of them (n, d)."""
    many = pixels[np.arange(RATE_ROWS) % len(pixels)]
    seconds, _ = seconds_of(lambda: model._model.values(many, 1))
    return RATE_ROWS / seconds


def rate_of_workers(client: Client, model: odm.ODMClassifier, pixels: np.ndarray) -> float:
    """Return the pixels a second that the model alone predicts on all workers at once, one thread each."""
    return sum(client.run(rate_of, model, pixels).values())


def measure(
    folder: str, *, size: int, bands: int, workers: int, worker_memory: str, per_class: int, n_landmarks: int
) -> dict[str, Any]:
    """Make the scene, and measure all steps on workers; figures as plain values."""
    path = os.path.join(folder, "scene.zarr")
    scene = odm.datasets.make_scene(size, size, n_bands=bands, labelled=0.05)
    made, _ = seconds_of(lambda: write_scene(path, scene))
    model = odm.ODMClassifier(scale="minmax", lam=1e4, solver=Landmark(n_landmarks), random_state=0)
    held = opened(path)
    cube = held["scene"]
    whole = dask.config.set({"temporary-directory": folder})
    with whole, local_workers(workers, 1, worker_memory) as client, PauseWatch(client) as watch:
        limit = min(w["memory_limit"] for w in client.scheduler_info(n_workers=-1)["workers"].values())
        before = client.run(os.getpid)
        positive = (cube > 0).sum("band").astype("uint8").drop_attrs()
        alone, _ = seconds_of(lambda: write_map(os.path.join(folder, "alone.zarr"), positive))
        train = os.path.join(folder, "train.zarr")
        sampled, store = seconds_of(lambda: odm.ingest((cube, held["labels"]), train, per_class=per_class))
        fitted, _ = seconds_of(lambda: model.fit(store))
        pixels = store.read_rows(np.arange(store.rows)).X
        rates = [rate_of_workers(client, model, pixels) for _ in range(2)][1:]  # the first loads what is compiled
        mapped, _ = seconds_of(lambda: write_map(os.path.join(folder, "map.zarr"), model.predict(cube)))
        rates.append(rate_of_workers(client, model, pixels))
        peaks = sorted(client.run(peak_bytes).values())
        killed = client.run(os.getpid) != before
    found = opened(os.path.join(folder, "map.zarr"))["map"]
    clear = held["best"] != 0
    with dask.config.set(scheduler="threads"):
        right, best, count = dask.compute(
            (clear & (found == held["truth"])).sum(), (clear & (held["best"] == held["truth"])).sum(), clear.sum()
        )
    return {
        "data_bytes": int(cube.nbytes),
        "limit_bytes": limit,
        "made": made,
        "alone": alone,
        "sampled": sampled,
        "rows": store.rows,
        "fitted": fitted,
        "mapped": mapped,
        "rates": rates,
        "times": mapped / (alone + int(count) / float(np.mean(rates))),
        "accuracy": float(right / count),
        "best": float(best / count),
        "peaks": peaks,
        "client": peak_bytes(),
        "paused": watch.paused,
        "killed": killed,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the figures, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=10_000, help="lines of the scene, and pixels of a line")
    parser.add_argument("--bands", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker-memory", default="1GB")
    parser.add_argument("--per-class", type=int, default=5000, help="pixels of each class that are learned from")
    parser.add_argument("--n-landmarks", type=int, default=200)
    parser.add_argument("--folder", help="where the data go; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    with tempfile.TemporaryDirectory(dir=options.pop("folder")) as folder:
        found = measure(folder, **options)
    if as_json:
        print(json.dumps(found))
        return 0
    print(f"scene {found['data_bytes'] / 1e9:.2f} GB, made and written in {found['made']:.1f} s")
    print(f"read, and a map written without a model: {found['alone']:.1f} s")
    print(f"sampled {found['rows']} pixels in {found['sampled']:.1f} s, fitted in {found['fitted']:.1f} s")
    print(f"model alone: {' and '.join(f'{rate:,.0f}' for rate in found['rates'])} pixels/s by all workers")
    print(f"mapped in {found['mapped']:.1f} s, {found['times']:.2f} times what that takes")
    print(f"accuracy {found['accuracy']:.4f}, best {found['best']:.4f}")
    for peak in found["peaks"]:
        print(f"worker peak {peak / 1e6:.0f} MB of {found['limit_bytes'] / 1e6:.0f} MB")
    print(f"client peak {found['client'] / 1e6:.0f} MB, killed: {found['killed']}, seen paused: {found['paused']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
