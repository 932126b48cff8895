"""A scene, its map, how certain the map is, and where it is wrong."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import dask_odm as odm

scene, labels, truth, _ = odm.datasets.make_scene(150, 225, noise=0.7)
model = odm.ODMClassifier(scale="minmax", lam=1000, loo=True)
model.fit(scene, labels)
cover = model.predict(scene).compute()
clear = cover != cover.attrs["_FillValue"]
sure = model.predict_proba(scene).max("class").compute()
wrong = (cover != truth.compute()) & clear

figure, axes = plt.subplots(1, 4, figsize=(12, 2.6))
axes[0].imshow(scene.sel(band="B08"), cmap="gray")
colours = ListedColormap(["#56B4E9", "#009E73", "#E69F00", "#F0E442"])
classes = {"cmap": colours, "vmin": 0.5, "vmax": 4.5}
axes[1].imshow(cover.where(clear), interpolation="nearest", **classes)
shown = axes[2].imshow(sure, interpolation="nearest", vmin=0.25, vmax=1)
figure.colorbar(shown, ax=axes[2], shrink=0.7)
errors = np.where(clear, np.where(wrong, 1.0, 0.0), np.nan)
errors_only = ListedColormap(["#EEEEEE", "#D55E00"])
axes[3].imshow(errors, cmap=errors_only, interpolation="nearest")
share = float(wrong.sum() / clear.sum())
titles = ["One band", "The map", "Certainty", f"Wrong: {share:.0%}"]
for ax, title in zip(axes, titles, strict=True):
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
