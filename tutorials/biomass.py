"""Biomass from a scene, with intervals
=====================================

Biomass was weighed on sixty plots of a forest. How much stands on every other pixel, and how far can one trust the
number there? After this page you can make such a map of a number, say how good it is without further plots, and draw
intervals that are wide where the satellite tells little.

The scene is made up, so the truth is known, which yours is not.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from scipy.ndimage import gaussian_filter

import dask_odm as odm

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

# %%
# Light in both bands depends on biomass, in tons a hectare, and tells less of it the more there is: that is why the
# number is uncertain where a forest is dense. A plot has five by five pixels.

plots = np.full(shape, np.nan)
for number in range(60):
    y, x = rng.integers(0, shape[0] - 5), rng.integers(0, shape[1] - 5)
    plots[y : y + 5, x : x + 5] = number
plots = xr.DataArray(plots, grid, ("y", "x"))
weighed = biomass.where(plots.notnull())
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), layout="constrained"
)
scene.red.plot(ax=left, cmap="gray")
weighed.plot(ax=right, cmap="YlGn", cbar_kwargs={"label": "t/ha"})
right.set_title("what was weighed")

# %%
# A model, and how good it is
# ---------------------------
#
# Pixels of a plot resemble each other, so ``groups`` leaves out plots as a whole, in closed form. R² is then that of
# places where nobody was. ``noise="uneven"`` learns two expectiles beside the prediction, a low and a high one. How
# far they are apart says how far biomass spreads where the scene looks so.

model = odm.ODMRegressor(gamma=0.5, noise="uneven", loo=True)
model.fit(scene, weighed, groups=plots.fillna(-1).astype(int))
print(f"R² {model.loo_score_:.2f} on plots that were left out")
error = -model.loo_score("neg_mean_absolute_error")
print(f"{error:.0f} t/ha off on average")

# %%
# Three maps
# ----------
#
# The value, and the two ends of its interval, which hold four pixels in five. Maps keep the coordinates, and are lazy
# if the scene is: ``.to_zarr`` writes those of any size block by block.

found = model.predict(scene).compute()
ends = model.predict_interval(scene, coverage=0.8).compute()
low, high = ends.sel(end="low"), ends.sel(end="high")
width = high - low
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
found.plot(ax=axes[0], cmap="YlGn", cbar_kwargs={"label": "t/ha"})
axes[0].set_title("Biomass")
width.plot(ax=axes[1], cmap="magma", cbar_kwargs={"label": "t/ha"})
axes[1].set_title("Width of the interval")

# %%
# What is dense is uncertain, and the second map says where. Of all pixels, most of which no plot covers, the truth is
# inside about as often as was asked for:

inside = (low <= biomass) & (biomass <= high)
print(f"{float(inside.mean()):.0%} of all pixels inside, 80% asked for")
for name, here in {
    "below 100 t": biomass < 100,
    "above 200 t": biomass > 200,
}.items():
    print(
        f"{name}: {float(inside.where(here).mean()):.0%} inside, "
        f"{float(width.where(here).mean()):.0f} t wide"
    )

# %%
# A decision
# ----------
#
# A buyer of carbon pays for what surely stands there: the lower ends, not the values. And where the next plot teaches
# most is where intervals are widest.

hectares = 0.01  # of a pixel of ten by ten metres
for name, tons in {
    "values": found,
    "lower ends": low,
    "truth": biomass,
}.items():
    print(f"{name}: {float(tons.sum()) * hectares:,.0f} t in the scene")
next_plot = width.where(plots.isnull()).argmax(["y", "x"])
print({d: float(grid[d][int(at)]) for d, at in next_plot.items()})

# %%
# What to try next
# ----------------
#
# * :class:`~dask_odm.ODMRegressorCV` finds kernel, γ and λ, which were given here; with ``groups``, too.
# * Equal noise everywhere needs no ``noise="uneven"``: intervals are then equally wide, in a third of the time.
# * ``odm.report(model, scene, "report.html", y=weighed)`` writes a page with the map, residuals and intervals.
# * :doc:`land_cover` makes a map of classes.
