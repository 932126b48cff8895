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

bands = scene.sel(band=["B08", "B04", "B03"]).transpose("y", "x", ...)
low, high = np.nanquantile(bands, [0.02, 0.98], axis=(0, 1))
image = ((bands - low) / (high - low)).clip(0, 1).fillna(1)
colours = ListedColormap(["#56B4E9", "#009E73", "#E69F00", "#F0E442"])
classes = {"cmap": colours, "vmin": 0.5, "vmax": 4.5}

figure, axes = plt.subplots(1, 4, figsize=(12, 2.9))
axes[0].imshow(image)
y, x = np.nonzero(labels.to_numpy())
codes = labels.to_numpy()[y, x]
axes[1].scatter(x, y, 4, codes, **classes, linewidths=0, rasterized=True)
axes[1].set(xlim=(0, 300), ylim=(200, 0), aspect="equal")
axes[2].imshow(cover.where(clear), interpolation="nearest", **classes)
shade = {"cmap": "cividis", "vmin": 0.25, "vmax": 1.0}
axes[3].imshow(sure, interpolation="nearest", **shade)
titles = ["A scene", "What is known", "The map", "How certain it is"]
for ax, title in zip(axes, titles, strict=True):
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
names = cover.attrs["flag_meanings"].split()
key = [Patch(color=colours(i), label=name) for i, name in enumerate(names)]
figure.legend(handles=key, loc="outside lower center", ncols=4)
