"""Special routes of models over landmarks: dask_odm/methods/landmark."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask
import numpy as np

import dask_odm as odm
import dask_odm.methods.landmark.recipe as recipe
from benchmarks.weight.route import Route, Routes


def routes(scale: float) -> Routes:
    n = int(30_000 * scale)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(24, 40))
    of = rng.integers(0, 24, n)
    X = centres[of] + 0.7 * rng.normal(size=(n, 40))
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.csv")
        np.savetxt(rows, np.column_stack([X, of % 8]), delimiter=",", fmt="%.4g")
        store = Path(folder, "rows.zarr")
        odm.ingest(rows, store, label=40, target="classes")
        model = odm.ODMClassifier(solver=odm.solvers.Landmark(100), gamma=1 / 40, lam=1e4, random_state=0)

        def fit() -> None:
            with dask.config.set({"dask_odm.read-into-memory": 0}):
                model.fit(store)

        yield Route.replacing(
            "passes that machines share",
            f"store of {n:,} × 40, 8 classes, or one after another",
            fit,
            recipe,
            machines_at_once=lambda *_: 1,
        )
