"""Kernels
=======

Kernels are taken by name, computed beforehand, or a function of yours; in float32 or float64.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics.pairwise import chi2_kernel, rbf_kernel

import dask_odm as odm

X, y = odm.datasets.make_shells(600, 6, noise=0.2)
# the rows that follow
X_test, y_test = odm.datasets.make_shells(400, 6, noise=0.2, start=600)
low, high = X.min(axis=0), X.max(axis=0)
# χ² is for numbers from 0
P, P_test = (
    (rows - low) / (high - low) for rows in (X, np.clip(X_test, low, high))
)

found = {}
for kernel, options in [
    ("rbf", {"gamma": "scale"}),
    ("laplacian", {"gamma": 0.2}),
    ("poly", {"degree": 2, "gamma": "scale", "coef0": 1.0}),
    ("linear", {}),
]:
    clf = odm.ODMClassifier(kernel, **options).fit(X, y)
    found[kernel] = clf.score(X_test, y_test)
    print(
        f"{kernel:12} accuracy {found[kernel]:.3f}, gap {clf.dual_gap_:.0e}"
    )

# Precomputed: values of shape (n, n) to fit, (rows, n) to predict.
clf = odm.ODMClassifier("precomputed").fit(rbf_kernel(X, gamma=0.2), y)
print(
    f"{'precomputed':12} accuracy "
    f"{clf.score(rbf_kernel(X_test, X, gamma=0.2), y_test):.3f}"
)

# A function of rows (n, d) and (m, d) that returns values (n, m).
clf = odm.ODMClassifier(chi2_kernel).fit(P, y)
print(f"{'callable':12} accuracy {clf.score(P_test, y_test):.3f}")

# float64 throughout; by default as the rows come, here float32.
clf = odm.ODMClassifier(dtype="float64", tol=1e-8).fit(X, y)
print(
    f"{'float64':12} {clf.decision_function(X_test).dtype}, "
    f"gap {clf.dual_gap_:.0e}"
)

# A line cannot tell a shell from what is inside it.
bars = plt.barh(list(found), list(found.values()))
plt.bar_label(bars, fmt="%.2f", padding=3)
plt.axvline(0.5, linestyle="--", color="C3", label="chance")
plt.xlabel("accuracy on new rows")
plt.legend()
