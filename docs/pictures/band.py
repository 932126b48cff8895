"""Margins of rows beside the band in which a row costs nothing."""

from matplotlib import pyplot as plt

import dask_odm as odm

X, y = odm.datasets.make_shells(4000, 6, noise=0.1)
model = odm.ODMClassifier(lam=1e6, theta=0.3, random_state=0)
model.fit(X, y)
sign = (y == model.classes_[1]) * 2 - 1
margins = sign * model.decision_function(X)

figure, ax = plt.subplots(figsize=(3.2, 2.6))
theta = model.theta
ax.axvspan(1 - theta, 1 + theta, color="C2", alpha=0.3, label="costs nothing")
ax.hist(margins, 60, color="C0")
ax.axvline(0, color="C3", linestyle="--", label="wrong to the left")
ax.set(title="Margins gather in a band", xlabel="margin", ylabel="rows")
figure.legend(loc="outside lower center", ncols=2)
