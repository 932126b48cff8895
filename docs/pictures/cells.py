"""Regions of a chess board, each with a model of its own."""

import numpy as np
from matplotlib import pyplot as plt

import dask_odm as odm

X, y = odm.datasets.make_chessboard(4000, 2, n_squares=8)
cells = odm.solvers.Cells(500)
model = odm.ODMClassifier(
    gamma=5.0, lam=40_000.0, scale=None, solver=cells, random_state=0
)
model.fit(X, y)
ends = zip(X.min(axis=0), X.max(axis=0), strict=True)
sides = [np.linspace(low, high, 300) for low, high in ends]
points = np.stack([each.ravel() for each in np.meshgrid(*sides)], axis=1)
values = model.decision_function(points).reshape(300, 300)
region = model._model.cells_of(points).reshape(300, 300)

figure, ax = plt.subplots(figsize=(5.5, 5.5))
colours = np.where(y == model.classes_[1], "C1", "C0")
ax.scatter(*X.T, c=colours, s=3, alpha=0.6, rasterized=True)
fill = {"levels": [-np.inf, 0, np.inf], "colors": ["C0", "C1"]}
ax.contourf(*sides, values, alpha=0.3, **fill)
ax.contour(*sides, values, levels=[0], colors="#333333", linewidths=1)
for each in range(region.max() + 1):
    edge = (region == each).astype(float)
    ax.contour(*sides, edge, levels=[0.5], colors="C3", linewidths=2)
ax.set(title=f"{region.max() + 1} cells", xticks=[], yticks=[])
