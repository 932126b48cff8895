"""Biomass from a scene, with intervals
======================================

Biomass was weighed on sixty plots; the map has a value for every pixel, and intervals that are wide where it is dense.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from scipy.ndimage import gaussian_filter

import dask_odm as odm

# The scene: biomass in smooth patches, in tons a hectare. Light in two bands
# depends on it, and tells less and less of it the more there is.
rng = np.random.default_rng(0)
shape = (120, 160)
grid = {"y": 10.0 * np.arange(shape[0]), "x": 10.0 * np.arange(shape[1])}
smooth = gaussian_filter(rng.normal(size=shape), 9)
biomass = xr.DataArray(
    300.0 / (1.0 + np.exp(-1.5 * smooth / smooth.std())), grid, ("y", "x")
)
bands = {"red": np.exp(-biomass / 120.0), "nir": np.exp(-biomass / 160.0)}
scene = xr.Dataset(
    {
        name: band + 0.05 * rng.normal(size=shape)
        for name, band in bands.items()
    }
)
scene = scene.astype("float32").chunk(y=60, x=80)

# Plots of five by five pixels, of which each has a number: pixels of a plot
# resemble each other, and so a plot is left out as a whole.
plots = np.full(shape, np.nan)
for number in range(60):
    y, x = rng.integers(0, shape[0] - 5), rng.integers(0, shape[1] - 5)
    plots[y : y + 5, x : x + 5] = number
plots = xr.DataArray(plots, grid, ("y", "x"))
weighed = biomass.where(plots.notnull())

# Two expectiles beside the prediction say how far biomass spreads where the
# scene looks so.
model = odm.ODMRegressor(gamma=0.5, noise="uneven", loo=True)
model.fit(scene, weighed, groups=plots.fillna(-1).astype(int))
print(f"R² {model.loo_score_:.2f} on plots that were left out")

# Three lazy maps: the value, and the two ends of its interval.
found = model.predict(scene).compute()
ends = model.predict_interval(scene, coverage=0.8).compute()
width = ends.sel(end="high") - ends.sel(end="low")
inside = (ends.sel(end="low") <= biomass) & (biomass <= ends.sel(end="high"))
print(f"{float(inside.mean()):.0%} of all pixels inside, 80% asked for")
for name, here in {
    "below 100 t": biomass < 100,
    "above 200 t": biomass > 200,
}.items():
    print(
        f"{name}: {float(inside.where(here).mean()):.0%} inside, "
        f"{float(width.where(here).mean()):.0f} t wide"
    )

# A look at it: what is dense is uncertain.
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
found.plot(ax=axes[0], cmap="YlGn", cbar_kwargs={"label": "t/ha"})
axes[0].set_title("Biomass")
width.plot(ax=axes[1], cmap="magma", cbar_kwargs={"label": "t/ha"})
axes[1].set_title("Width of the interval")
