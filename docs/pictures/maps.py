"""A scene, its map, how certain the map is, and where it is wrong."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import dask_odm as odm

scene, labels, truth, _ = odm.datasets.make_scene(150, 225, noise=0.7)
model = odm.ODMClassifier(scale="minmax", lam=1000, loo=True)
model.fit(scene, labels)
cover = model.predict(scene).compute()
clear = cover != cover.attrs["_FillValue"]
sure = model.predict_proba(scene).max("class").compute()
wrong = (cover != truth.compute()) & clear

figure, axes = plt.subplots(2, 2, figsize=(5.6, 5.3))
figure.get_layout_engine().set(h_pad=0.1)
colours = ["#56B4E9", "#009E73", "#E69F00", "#F0E442"]
maps = {  # values, colours, and their range
    "A scene (one band)": (scene.sel(band="B08"), "gray", None, None),
    "The map": (cover.where(clear), ListedColormap(colours), 0.5, 4.5),
    "How certain it is": (sure, "Purples", 0.25, 1),
    f"Where it is wrong: {float(wrong.sum() / clear.sum()):.0%}": (
        np.where(clear, wrong, np.nan),
        ListedColormap(["0.95", "#A0005A"]),
        0,
        1,
    ),
}
for ax, (title, (values, cmap, low, high)) in zip(
    axes.flat, maps.items(), strict=True
):
    shades = plt.get_cmap(cmap).with_extremes(bad="0.6")
    image = {"cmap": shades, "vmin": low, "vmax": high}
    ax.imshow(values, interpolation="nearest", **image)
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
certain = axes[1, 0].images[0]
bar = figure.colorbar(
    certain,
    ax=axes,
    location="bottom",
    shrink=0.5,
    aspect=40,
    ticks=[0.25, 1],
)
bar.set_ticklabels(["doubtful", "certain"])
names = cover.attrs["flag_meanings"].split()
parts = zip(
    [*colours, "0.6", "#A0005A"],
    [*names, "no data (cloud)", "wrong"],
    strict=True,
)
key = [Patch(color=colour, label=name) for colour, name in parts]
figure.legend(handles=key, loc="outside lower center", ncols=3)
