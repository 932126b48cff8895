"""Cubes, labels and groups beside them that cannot be learned from, or predicted."""

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from dask_odm import ODMClassifier, spatial_blocks
from faults.table import raises, refused
from small_cubes import labels_of, scene

LABELS = labels_of("codes")[0]
BANDS = scene().to_dataset("band")
POINTS = LABELS.to_dataframe().reset_index()[["y", "x", "landcover"]]


def fit(X: Any, y: Any = None, groups: Any = None, **parameters: Any) -> Callable[[], Any]:
    return lambda: ODMClassifier(loo=groups is not None, **parameters).fit(X, y, groups=groups)


def predict(X: Any) -> Callable[[], Any]:
    return lambda: ODMClassifier(scale="minmax", lam=100).fit(scene(), LABELS).predict(X)


CALLS = {
    "cube-without-labels": ("Cube without labels", fit(BANDS.assign(landcover=LABELS))),
    "name": ("No such variable", fit(BANDS, "landcover")),
    "labels-inside": ("Labels among the features", fit(BANDS.assign(landcover=LABELS), LABELS)),
    "grid": ("Labels of another grid", fit(scene(), LABELS.assign_coords(x=range(10)))),
    "size": ("Labels of another grid", fit(scene(), LABELS[1:].drop_vars("y"))),
    "dimension": ("Labels of other dimensions", fit(scene(), LABELS.expand_dims(time=2))),
    "none-shared": ("Labels of other dimensions", fit(scene(), LABELS.rename(y="lat", x="lon")[:1, :1])),
    "unlabelled": ("Cube without a label", fit(scene(), LABELS.where(False))),
    "clouds": ("Clouds on all labels", fit(scene().where(False), LABELS)),
    "words": ("Variable without numbers", fit(BANDS.assign(name=LABELS.astype(str)), LABELS)),
    "outside": ("Points outside the cube", fit(scene(), POINTS.assign(x=POINTS["x"] + 100))),
    "columns": ("Columns of points", fit(scene(), POINTS.rename(columns={"x": "lon", "y": "lat"}))),
    "more-columns": ("Columns of points", fit(scene(), POINTS.assign(name="a"))),
    "plain-groups": ("Weights or groups that are no DataArray", fit(scene(), LABELS, np.zeros((9, 10)))),
    "no-loo": ("Groups that cannot be left out", lambda: ODMClassifier().fit(scene(), LABELS, groups=LABELS)),
    "one-group": ("Groups that cannot be left out", fit(scene(), LABELS, xr.zeros_like(LABELS))),
    "memory": ("Block of a cube too large", fit(scene().chunk(), LABELS, memory_limit=1000)),
    "features": ("Features of a cube unknown", predict(scene().drop_vars("band").rename(band="z").isel(z=[0, 1]))),
    "blocks": ("Blocks along another dimension", lambda: spatial_blocks(scene(), {"lat": 30})),
}


@pytest.mark.parametrize(("row", "call"), CALLS.values(), ids=CALLS)
def test_a_cube_that_is_refused(row, call):
    raises(row, call)


def test_groups_of_rows_that_are_not_read_into_memory():
    with dask.config.set({"dask_odm.read-into-memory": 100}):
        raises("Groups of a large cube", fit(scene().chunk(), LABELS, LABELS))


def test_cubes_in_a_shell(tmp_path):
    cube, labels = tmp_path / "scene.zarr", tmp_path / "labels.zarr"
    BANDS.to_zarr(cube, consolidated=False)
    LABELS.to_zarr(labels, consolidated=False)
    model = ("fit", cube, tmp_path / "m.zarr", "--labels")
    (tmp_path / "scene.nc").write_bytes(b"no")
    refused("Not a cube", *model, tmp_path / "scene.nc")
    refused("No such variable in a file", *model, f"{labels}:cover")
    refused("No such variable in a file", *model, cube)
    POINTS.assign(name="a").to_csv(tmp_path / "points.csv")
    refused("Table of points", *model, tmp_path / "points.csv")
