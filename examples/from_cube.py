"""From a cube to a map
====================

A scene of three bands over two dates, labels on a tenth of its pixels, clouds; and a map with its coordinates.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr

import dask_odm as odm

# The scene: chunked, with clouds as NaN. Forest and field differ in the last
# band, and more so in summer.
rng = np.random.default_rng(0)
grid = {
    "y": 5000.0 - 10.0 * np.arange(80),
    "x": 300.0 + 10.0 * np.arange(120),
}
forest = xr.DataArray(
    np.hypot(*np.mgrid[-40:40, -60:60]) < 35, grid, ("y", "x")
)
bands = {
    "time": pd.to_datetime(["2024-03-10", "2024-07-10"]),
    "band": ["B03", "B04", "B08"],
}
scene = xr.DataArray(
    rng.normal(size=(2, 3, 80, 120)),
    {**bands, **grid},
    ("time", "band", "y", "x"),
)
scene = scene + forest * xr.DataArray([0.8, 2.5], dims="time") * (
    scene.band == "B08"
)
scene = (
    scene.where((scene.y > 4300) | (scene.x > 400))
    .astype("float32")
    .chunk(y=40, x=60)
)

# Labels: a DataArray on the same grid, missing where nobody knows.
known = forest.copy(data=rng.random(forest.shape) < 0.1)
labels = xr.where(forest, "forest", "field").where(known)

# What labels and scene share, y and x, runs along rows; times and bands are
# features.
clf = odm.ODMClassifier(scale="minmax", lam=1000, loo=True).fit(scene, labels)
print("features:", *clf.feature_names_in_, sep="\n  ")
print(
    f"{clf.missing_rows_} labelled pixels under clouds, "
    f"{clf.loo_score_:.0%} of the others right when left out"
)

# Maps are lazy, and written block by block: codes with the names of the
# classes, as GIS programs read them.
cover = clf.predict(scene)
with TemporaryDirectory() as folder:
    cover.to_zarr(f"{folder}/cover.zarr", consolidated=False)
    print(
        xr.open_zarr(
            f"{folder}/cover.zarr", consolidated=False, mask_and_scale=False
        )["prediction"].attrs
    )

# The classes themselves, and how certain they are.
print(clf.predict(scene, decode=True).sel(y=4600, x=900).compute().item())
certain = clf.predict_proba(scene).max("class")
print(f"{float((certain < 0.7).mean()):.0%} of the pixels are uncertain")

# A look at it: the forest is round.
certain.plot(
    vmin=0.5, vmax=1.0, cbar_kwargs={"label": "probability of the class"}
)
plt.title("How certain the map is")
