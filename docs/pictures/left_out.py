"""Three scores of one model: left-out rows tell what new rows tell."""

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm

X, y = odm.datasets.make_shells(800, 5, noise=0.3)
new = odm.datasets.make_shells(4000, 5, noise=0.3, start=800)
gammas = np.geomspace(0.003, 0.4, 9)
scores = []
for gamma in gammas:
    model = odm.ODMClassifier(
        gamma=gamma, lam=3e3, scale="standard", loo=True
    )
    model.fit(X, y)
    scores.append((model.score(X, y), model.loo_score_, model.score(*new)))

figure, ax = plt.subplots()
names = ["rows that it learned", "rows left out", "new rows"]
for values, name, style in zip(
    np.transpose(scores), names, ["--", "o-", "s-"], strict=True
):
    ax.semilogx(gammas, values, style, label=name)
ax.set(xlabel="γ, how narrow the kernel is", ylabel="accuracy")
ax.legend()
