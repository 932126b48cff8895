"""What a search tries, and where it ends."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize

import dask_odm as odm

X, y = odm.datasets.make_shells(1500, 6, noise=0.3)
found = odm.ODMClassifierCV("rbf", scale="standard", random_state=0).fit(X, y)
tried = found.cv_results_
gamma, lam = (
    np.array([each[name] for each in tried["params"]], dtype=float)
    for name in ("gamma", "lam")
)
score = tried["mean_test_score"]

figure, ax = plt.subplots()
shades = Normalize(np.quantile(score, 0.2), score.max())
shown = ax.scatter(gamma, lam, 90, score, norm=shades)
best = found.best_params_
ring = {"facecolors": "none", "edgecolors": "C3", "linewidths": 2}
ax.scatter(best["gamma"], best["lam"], 260, label="taken", **ring)
ax.set(xscale="log", yscale="log", xlabel="γ", ylabel="λ")
figure.colorbar(shown, label="score of left-out rows", extend="min")
ax.legend()
