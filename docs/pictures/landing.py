"""A scene, the pixels that somebody visited, and a map of all of them."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import dask_odm as odm

scene, labels, _, _ = odm.datasets.make_scene(200, 300, noise=0.7)
model = odm.ODMClassifier(scale="minmax", lam=1000, loo=True)
model.fit(scene, labels)
cover = model.predict(scene).compute()
clear = cover != cover.attrs["_FillValue"]
sure = model.predict_proba(scene).max("class").compute()

colours = ["#56B4E9", "#009E73", "#E69F00", "#F0E442"]
of_class = ListedColormap(colours).with_extremes(bad="0.6")
classes = {"cmap": of_class, "vmin": 0.5, "vmax": 4.5}

figure, axes = plt.subplots(2, 2, figsize=(5.6, 5))
figure.get_layout_engine().set(h_pad=0.1)
scenes, known, covers, certain = axes.flat
grey = plt.colormaps["gray"].with_extremes(bad="0.6")
scenes.imshow(scene.sel(band="B08"), cmap=grey)
known.imshow(clear, cmap=ListedColormap(["0.6", "0.15"]))
y, x = np.nonzero(labels.to_numpy())
codes = labels.to_numpy()[y, x]
known.scatter(x, y, 9, codes, **classes, linewidths=0, rasterized=True)
covers.imshow(cover.where(clear), interpolation="nearest", **classes)
purples = plt.colormaps["Purples"].with_extremes(bad="0.6")
shade = {"cmap": purples, "vmin": 0.25, "vmax": 1.0}
shown = certain.imshow(sure, interpolation="nearest", **shade)
titles = [
    "A scene (one band)",
    "What is known",
    "The map",
    "How certain it is",
]
for ax, title in zip(axes.flat, titles, strict=True):
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
bar = figure.colorbar(
    shown, ax=axes, location="bottom", shrink=0.5, aspect=40, ticks=[0.25, 1]
)
bar.set_ticklabels(["doubtful", "certain"])
names = [*cover.attrs["flag_meanings"].split(), "no data (cloud)"]
key = [
    Patch(color=colour, label=name)
    for colour, name in zip([*colours, "0.6"], names, strict=True)
]
figure.legend(
    handles=key,
    loc="outside lower center",
    ncols=5,
    handlelength=1,
    columnspacing=1,
)
