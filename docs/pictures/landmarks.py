"""A boundary by few landmarks and by more, on a chess board."""

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm

X, y = odm.datasets.make_chessboard(4000, 2, n_squares=6)
new = odm.datasets.make_chessboard(4000, 2, n_squares=6, start=4000)
(left, low), (right, high) = np.quantile(X, [0.01, 0.99], axis=0)
x, y_ = np.linspace(left, right, 200), np.linspace(low, high, 200)
points = np.stack([each.ravel() for each in np.meshgrid(x, y_)], 1)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6))
for ax, count in zip(axes, (20, 100, 500), strict=True):
    solver = odm.solvers.Landmark(count)
    model = odm.ODMClassifier(
        gamma=5.0, lam=4e4, scale=None, solver=solver, random_state=0
    )
    model.fit(X, y)
    inside = (model.decision_function(points) > 0).reshape(200, 200)
    where = (left, right, low, high)
    ax.imshow(inside, origin="lower", extent=where, vmin=-0.3, vmax=1.2)
    marks = model._model.support
    ax.plot(*np.asarray(marks).T, ".", color="white", markersize=3)
    ax.set(xlim=where[:2], ylim=where[2:], xticks=[], yticks=[])
    ax.set_title(f"{count} landmarks, {model.score(*new):.0%} right")
