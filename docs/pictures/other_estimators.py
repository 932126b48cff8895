"""Where rows are like those that were learned, and where not."""

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm

rng = np.random.default_rng(0)
turn = rng.uniform(0, np.pi, 400)
X = np.stack([np.cos(turn), np.sin(turn)], axis=1)
X += rng.normal(scale=0.12, size=X.shape)
new = rng.uniform([-1.8, -0.8], [1.8, 1.8], (60, 2))
detector = odm.OneClassODM(0.05, gamma=3.0).fit(X)

x, y = np.linspace(-1.8, 1.8, 200), np.linspace(-0.8, 1.8, 150)
points = np.stack([each.ravel() for each in np.meshgrid(x, y)], 1)
values = detector.decision_function(points).reshape(150, 200)
figure, ax = plt.subplots(figsize=(6.5, 4))
ax.contourf(x, y, values > 0, levels=[0.5, 1.5], colors=["C2"], alpha=0.2)
ax.contour(x, y, values, levels=[0], colors="C2")
ax.plot(*X.T, ".", markersize=3, label="learned")
out = detector.predict(new) == -1
ax.plot(*new[out].T, "x", color="C3", label="new, an outlier")
ax.plot(*new[~out].T, "o", color="C1", label="new, like the others")
ax.set(xticks=[], yticks=[])
figure.legend(loc="outside lower center", ncols=3)
