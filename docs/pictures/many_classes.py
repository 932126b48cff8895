"""Digits that a model takes for others, the most certain errors first."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import dask_odm as odm

X, y = load_digits(return_X_y=True)
model = odm.ODMClassifier(scale="minmax", gamma=0.1)
model.fit(X[:1000], y[:1000])
taken = model.predict(X[1000:])
values = np.sort(model.decision_function(X[1000:]), axis=1)
lead = values[:, -1] - values[:, -2]
wrong = np.flatnonzero(taken != y[1000:])
worst = wrong[np.argsort(-lead[wrong])][:10]

figure, axes = plt.subplots(1, 10, figsize=(10, 1.6))
for ax, row in zip(axes, worst, strict=True):
    ax.imshow(X[1000 + row].reshape(8, 8), cmap="Greys")
    ax.set(xticks=[], yticks=[])
    ax.set_title(f"{y[1000 + row]} → {taken[row]}", loc="center")
