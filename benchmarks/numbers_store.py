"""Numbers from a cube of millions of labelled places: seconds, memory, error beside the best that there is, intervals.

    python benchmarks/numbers_store.py [--rows 20000000] [--workers 2] [--ways intervals plain] [--landmarks 200]

Writes a cube (2 times × 4 bands × y × x, `make_scene`) to zarr, with numbers at four places of five. Mean and noise of
a number depend on the eight features. Workers put the labelled places into a store, learn them, and write a map to
zarr. ``intervals`` learns with ``noise="uneven"`` and ``loo``, and beside the prediction its map has the lower and the
upper end that nine numbers of ten shall be between; `WAYS` has the others. Each row of the Markdown table is made in a
process of its own, and timed after a fit of a few rows, which compiles. Error, coverage and width are of places without
a label; the best error is the noise, and the best width that of intervals by the true spread. Memory is the most that
each worker had, and the client, which gets what the model knows of left-out rows. CPU seconds are of all workers, and
of the client, during the fit. The digest is of what was learned and of the map, which is the same whatever the number
of workers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import NormalDist
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
from cells import NONE, own_process, shown_gap, table_head
from scene import opened, seconds_of
from sklearn.base import clone

import dask_odm as odm
from dask_odm.engine.workers import local_workers, peak_bytes

WAYS: dict[str, dict[str, Any]] = {
    "intervals": {"noise": "uneven", "loo": True},
    "plain": {},
    "ranks": {"scale": "ranks"},
    "metric": {"metric": "diagonal"},
    "ranks, metric": {"scale": "ranks", "metric": "diagonal"},
}
LABELLED = 0.8  # share of the places
COVERAGE = 0.9
LINES = 100  # of a map that are read at once
FEW_LINES = 10  # of a fit before the one that is timed, as in a session that has fitted something
HEAD = ("rows", "way", "workers", "to a store, s", "fit, s", "CPU of workers, s", "CPU of the client, s", "map, s",
        "gap", "error", "error of the best", "inside", "width", "width of the best", "memory of workers, MB",
        "of the client, MB", "killed", "digest")  # fmt: skip
Row = dict[str, Any]


def write_cube(path: Path, rows: int, width: int) -> None:
    """Write a cube with about so many labels, and what is true of all places, block by block in this process."""
    lines = math.ceil(rows / (LABELLED * width))
    cube = odm.datasets.make_scene(lines, width, n_bands=4, n_times=2, clouds=0.0).cube
    a, b = cube.drop_vars(["time", "band"])
    mean = np.tanh(a[0]) + 0.25 * a[1] * np.tanh(b[1]) + b[2]
    deviation = 0.1 + 0.9 / (1.0 + np.exp(-2.0 * b[3]))
    random = da.random.default_rng(0)
    number = mean + deviation * random.standard_normal(mean.shape, chunks=mean.chunks)
    labels = number.where(random.random(mean.shape, chunks=mean.chunks) < LABELLED)
    made = {"cube": cube, "labels": labels, "number": number, "mean": mean, "deviation": deviation}
    with dask.config.set(scheduler="threads"):
        xr.Dataset(made).to_zarr(path, mode="w", consolidated=False)


def measure(path: Path, way: str, workers: int, limit: str, landmarks: int) -> Row:
    """Go from the cube to a store, a model and a map by workers of this process."""
    dask.config.set({"dask_odm.read-into-memory": 0, "temporary-directory": str(path.parent)})
    held = opened(str(path))
    few = held.isel(y=slice(FEW_LINES))
    model = odm.ODMRegressor(solver=odm.solvers.Landmark(landmarks), random_state=0, **WAYS[way])
    first, train, maps = (str(path.with_name(name)) for name in ("few.zarr", "train.zarr", "map.zarr"))
    with local_workers(workers, memory_limit=limit) as client:
        before = client.run(os.getpid)
        odm.ingest((few["cube"], few["labels"]), first, target="real", overwrite=True)
        clone(model).fit(first)
        stored, store = seconds_of(
            lambda: odm.ingest((held["cube"], held["labels"]), train, target="real", overwrite=True)
        )
        busy, own = sum(client.run(time.process_time).values()), time.process_time()
        fitted, _ = seconds_of(lambda: model.fit(train))
        busy, own = sum(client.run(time.process_time).values()) - busy, time.process_time() - own
        found = xr.Dataset({"prediction": model.predict(held["cube"])})
        if model.loo:
            interval = model.predict_interval(held["cube"], COVERAGE)
            found = found.assign({end: interval.sel(end=end, drop=True) for end in ("low", "high")})
        mapped, _ = seconds_of(lambda: found.to_zarr(maps, mode="w", consolidated=False))
        peaks, killed = sorted(client.run(peak_bytes).values()), client.run(os.getpid) != before
    row = {"rows": store.rows, "stored": stored, "fit": fitted, "cpu": busy, "own": own, "mapped": mapped}
    row |= {"gap": model.history_[-1]["gap"], "peaks": peaks, "client": peak_bytes(), "killed": killed}
    found = opened(maps)
    return row | judged(found, held) | {"digest": digest(model, found)}


def judged(found: xr.Dataset, held: xr.Dataset) -> Row:
    """Return the errors of a map where the cube has no label, and of its intervals, beside the best that there are."""
    new = held["labels"].isnull()
    figures = {"error": (found["prediction"] - held["number"]) ** 2, "best": (held["mean"] - held["number"]) ** 2}
    if "low" in found:
        figures["inside"] = (found["low"] <= held["number"]) & (held["number"] <= found["high"])
        figures["width"] = found["high"] - found["low"]
        figures["best_width"] = 2.0 * NormalDist().inv_cdf(0.5 + COVERAGE / 2) * held["deviation"]
    with dask.config.set(scheduler="threads"):
        means = xr.Dataset(figures).where(new).mean(dtype=np.float64).compute()
    return {name: float(mean) ** (0.5 if name in ("error", "best") else 1.0) for name, mean in means.items()}


def digest(model: odm.ODMRegressor, found: xr.Dataset) -> str:
    """Return a digest of coefficients, landmarks, and the map at all places."""
    seen = hashlib.sha256()
    for part in (model.dual_coef_, model.support_, np.asarray(model.intercept_)):
        seen.update(np.ascontiguousarray(part).tobytes())
    for name in sorted(found):  # a store on disk lists them in any order
        for start in range(0, found.sizes["y"], LINES):
            seen.update(found[name][start : start + LINES].to_numpy().tobytes())
    return seen.hexdigest()


def shown(way: str, workers: int, row: Row) -> str:
    """Return a row of the table."""
    if "failed" in row:
        cells = [NONE, way, str(workers), row["failed"].replace("|", "/"), *[NONE] * 14]
    else:
        cells = [
            f"{row['rows']:,}",
            way,
            str(workers),
            *(f"{row[key]:.1f}" for key in ("stored", "fit", "cpu", "own", "mapped")),
            shown_gap(row["gap"]),
            *(f"{row[key]:.4f}" if key in row else NONE for key in ("error", "best", "inside", "width", "best_width")),
            ", ".join(f"{peak / 1e6:.0f}" for peak in row["peaks"]),
            f"{row['client'] / 1e6:.0f}",
            str(row["killed"]),
            row["digest"][:12],
        ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000, help="places with a label, about")
    parser.add_argument("--width", type=int, default=5000, help="places of a line")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--limit", default="1GB", help="memory of a worker")
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--timeout", type=float, default=36_000.0, help="seconds of a row's process")
    parser.add_argument("--folder", help="where the data go; default: the system's temporary folder")
    parser.add_argument("--one", nargs=5, metavar=("CUBE", "WAY", "WORKERS", "LIMIT", "LANDMARKS"), help="one row")
    options = parser.parse_args(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        path, way, workers, limit, landmarks = options.one
        print(json.dumps(measure(Path(path), way, int(workers), limit, int(landmarks))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "cube.zarr")
        made, _ = seconds_of(lambda: write_cube(path, options.rows, options.width))
        print(f"made {path} in {made:.1f} s", file=sys.stderr)
        print(table_head(HEAD), flush=True)
        for way in options.ways:
            for workers in options.workers:
                one = [str(path), way, str(workers), options.limit, str(options.landmarks)]
                row = own_process([__file__, "--one", *one], options.timeout)
                print(shown(way, workers, row), flush=True)


if __name__ == "__main__":
    main()
