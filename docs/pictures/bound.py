"""How far a fit still is from the best possible, step by step."""

from matplotlib import pyplot as plt

import dask_odm as odm

X, y = odm.datasets.make_shells(6000, 10, noise=0.2)
model = odm.ODMClassifier(lam=1e6, solver="exact", tol=1e-6)
steps = [step for step in model.fit(X, y).history_ if "gap" in step]

figure, ax = plt.subplots(figsize=(3.2, 2.6))
gaps = [100 * step["gap"] for step in steps]
ax.semilogy(range(1, len(gaps) + 1), gaps, "o-")
ax.axhline(1e-4, color="C3", linestyle="--", label="asked for: tol")
ax.set(title="A bound in every step", xlabel="step of the solver")
ax.set_ylabel("% from the best possible")
ax.legend()
