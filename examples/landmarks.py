"""Landmarks
=========

Landmarks take a kernel to many rows. The script tells how far they are from the optimum, and what solver="auto" takes.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

import dask_odm as odm
from dask_odm import ODMClassifier
from dask_odm.solvers import Landmark

X, y = odm.datasets.make_shells(6000, 10)
test = odm.datasets.make_shells(2000, 10, start=6000)

# More landmarks come closer to the optimum of all functions; certify=True
# says how close at most.
gaps = {}
for n_landmarks in (20, 100, 500):
    solver = Landmark(n_landmarks, certify=True)
    clf = ODMClassifier(
        solver=solver, lam=100.0, scale="standard", random_state=0
    ).fit(X, y)
    gaps[n_landmarks] = clf.dual_gap_
    print(
        f"{n_landmarks} landmarks: at most {clf.dual_gap_:.1%} from the "
        f"optimum, {clf.score(*test):.1%} right"
    )

# The optimum itself: all rows, to a certified gap of 1e-3. "auto" takes it
# where the rows are few.
clf = ODMClassifier(lam=100.0, scale="standard", random_state=0).fit(X, y)
print(
    f"{clf.history_[0]['solver']} ({clf.history_[0]['why']}): "
    f"{clf.dual_gap_:.1e}, {clf.score(*test):.1%} right"
)

# A store: landmarks are drawn from its chunks, and every pass reads it chunk
# by chunk.
with TemporaryDirectory() as folder:
    store = odm.datasets.make_shells(
        20_000, 10, store=f"{folder}/shells.zarr"
    )
    clf = ODMClassifier(
        solver=Landmark(100), lam=100.0, scale="standard", random_state=0
    ).fit(store)
    print(
        f"{store.rows} rows, {clf.history_[-1]['passes']} passes, "
        f"gap over the span {clf.history_[-1]['gap']:.1e}"
    )

# Each landmark more brings the model closer to the optimum.
plt.loglog(list(gaps), list(gaps.values()), "o-", label="certified")
plt.axhline(
    1e-3, linestyle="--", color="C3", label="the exact solver stops here"
)
plt.xlabel("landmarks")
plt.ylabel("share of the objective above the optimum, at most")
plt.legend()
