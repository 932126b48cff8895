"""Probabilities and costs
=======================

A screening test that misses somebody who is ill costs twenty times as much as a false alarm. Patients came several
times, and few are ill. After this page you can get probabilities that hold for new patients, move the boundary to
where errors cost least, and send the unclear cases to a doctor.

The patients are made up: 300 with five visits each, and 10,000 new ones to judge by.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibrationDisplay

import dask_odm as odm


def visits(patients, each, seed):
    """Return values of all visits, who is ill, and which patient it is."""
    random = np.random.default_rng(seed)
    state = random.normal(size=(patients, 4))
    risk = (
        1.5 * np.abs(state[:, 0])
        + state[:, 1]
        + 0.7 * random.normal(size=patients)
    )
    patient = np.repeat(np.arange(patients), each)
    values = state[patient] + 0.1 * random.normal(size=(len(patient), 4))
    return values, (risk > 3)[patient].astype(int), patient


X, y, patient = visits(300, 5, seed=0)
X_new, y_new, _ = visits(10_000, 1, seed=1)
print(f"{len(y)} visits, {y.mean():.0%} of them of ill patients")

# %%
# A look at the data
# ------------------
#
# Visits of one patient lie close together, which makes little islands of colour. A model can learn the islands by
# heart.

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for label, name in enumerate(("healthy", "ill")):
    ax.scatter(*X[y == label, :2].T, s=4, label=name)
ax.set(xlabel="first value", ylabel="second value")
ax.legend()

# %%
# Which rows to leave out
# -----------------------
#
# :class:`~dask_odm.ODMClassifierCV` chooses settings by the visits that were left out. If it leaves out single visits,
# the other four of the same patient tell the answer. Then a narrow kernel, which knows the islands by heart, looks
# best. With ``groups`` it leaves out whole patients.

searches = {}
for way, groups in (("single visits", None), ("whole patients", patient)):
    search = odm.ODMClassifierCV("rbf", loo=True, random_state=0).fit(
        X, y, groups=groups
    )
    searches[way] = search
    promised, new = search.loo_score_, search.score(X_new, y_new)
    gamma = search.best_params_["gamma"]
    print(f"{way} left out: gamma {gamma:.3g}")
    print(f"    promised {promised:.1%} right, of new patients {new:.1%}")
clf = searches["whole patients"]

# %%
# The first promise is not kept, the second one nearly.
#
# Both models have a certificate close to 0. It says that the solver is done, and nothing about islands: only honest
# left-out scores do.

for way, search in searches.items():
    print(f"{way}: certificate {search.dual_gap_:.0e}")

# %%
# Probabilities
# -------------
#
# ``predict_proba`` comes from the left-out values, too. Among the patients to whom the model gives a probability of 30
# %, three in ten should be ill. The model that left out whole patients comes near that. The other one is far off.

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for way, search in searches.items():
    CalibrationDisplay.from_estimator(
        search, X_new, y_new, n_bins=8, name=way, ax=ax
    )

# %%
# A decision: the cheapest boundary
# ---------------------------------
#
# :class:`~dask_odm.CostScorer` has a row for each true class and a column for each predicted one. ``tune_threshold``
# moves the boundary to where the left-out visits cost least, without a refit.

cost = odm.CostScorer([[0, 1], [20, 0]])
before = -cost(clf, X_new, y_new)
clf.tune_threshold(cost)
found = clf.predict(X_new)
after = -cost(clf, X_new, y_new)
print(f"cost of a new patient: {before:.2f} before, {after:.2f} after")
print(f"without a test, all of them sent home: {20 * y_new.mean():.2f}")
alarms = [found[y_new == label].mean() for label in (1, 0)]
print("alarmed: {:.0%} of the ill, {:.0%} of the healthy".format(*alarms))

# %%
# Another way to the same end, if costs change from day to day: alarm if the probability is above 1 in 21, where a miss
# costs as much as an alarm.

alarm = clf.predict_proba(X_new)[:, 1] > 1 / 21
print(
    "cost by probabilities: "
    f"{np.mean(np.where(alarm, y_new == 0, 20 * y_new)):.3f}"
)

# %%
# Unclear cases
# -------------
#
# ``predict_set`` returns all classes that a patient may be of. The true one is among them with a probability of about
# 95 %, for the ill and the healthy each by itself. Who has both goes to a doctor.

sets = clf.predict_set(X_new, 0.95, by_class=True)
unclear = sets.all(axis=1)
holds = sets[np.arange(len(y_new)), y_new]
held = [holds[y_new == label].mean() for label in (1, 0)]
print(
    "true class among them: {:.1%} of the ill, {:.1%} of the healthy".format(
        *held
    )
)
print(
    f"to a doctor: {unclear.mean():.0%}, "
    f"of whom {y_new[unclear].mean():.0%} are ill"
)

# %%
# What to try next
# ----------------
#
# * :doc:`/left_out` says how far to trust scores, probabilities and sets, and how ``calibrate`` makes the promise of
#   sets exact by patients who were held out.
# * ``scoring`` can be the cost itself, ``ODMClassifierCV(scoring=cost)``: :doc:`/gallery/which_score` shows what a
#   choice by accuracy does where few rows are positive.
# * Where new patients are ill more often than those learned from, fit with ``class_weight``.
