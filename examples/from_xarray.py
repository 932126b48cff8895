"""From xarray
===========

A Dataset or DataArrays, dimensions in any order and of any name; predictions keep the coordinates.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pandas as pd
import xarray as xr

import dask_odm as odm

X, y = odm.datasets.make_overlapping(1000, 3)
days = pd.date_range("2020-01-01", periods=1000)
bands = ["red", "green", "blue"]

# DataArrays: rows run along the dimension that y shares with X, here the
# second of X.
light = xr.DataArray(
    X.T, dims=("band", "time"), coords={"band": bands, "time": days}
)
cloudy = xr.DataArray(y, dims="time", coords={"time": days})
clf = odm.ODMClassifier().fit(light, cloudy)
print("features:", *clf.feature_names_in_)
print(clf.predict(light).sel(time="2020-02"))

# A Dataset of X and y: chunked, everything is lazy.
dataset = xr.Dataset({"X": light, "y": cloudy}).chunk(time=250)
clf.fit(dataset)
print(clf.decision_function(dataset).sel(time="2021-01-01").compute())

# A store opens as such a Dataset.
with TemporaryDirectory() as folder:
    odm.ingest(dataset, f"{folder}/train.zarr")
    ds = odm.open_store(f"{folder}/train.zarr")
    print(ds.sizes, clf.fit(ds).score(ds))

# Values keep their days.
plt.figure(figsize=(8, 3))
clf.decision_function(light).rolling(time=30).mean().plot()
plt.title("Mean of thirty days")
