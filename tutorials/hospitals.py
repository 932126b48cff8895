"""Hospitals whose labels lie
==========================

Forty hospitals send blood values of their patients, and whether each had the disease. Some have read the code table
the wrong way round, and some have typed in anything. Nobody knows which. After this page you can learn from all of
them without being misled, and name those that somebody should phone.

The patients are made up: 6,000 with thirty blood values, on which the best rule that there is gets 93 % right.
"""

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm
from dask_odm.datasets import (
    contaminate_labels,
    deal_shards,
    make_overlapping,
)

blood, truth = make_overlapping(6000, 30, accuracy=0.93)
new_blood, new_truth = make_overlapping(4000, 30, accuracy=0.93, start=6000)
hospital = deal_shards(6000, 40)
lies = {"flipped": 14, "random": 3, "positive": (0.4, 0.6)}
told, liars = contaminate_labels(truth, hospital, **lies)
print(f"{np.bincount(hospital).min()} patients or more of each hospital")

# %%
# A look at the data
# ------------------
#
# The share of ill patients is the first thing to look at. It tells nothing: about half of the patients are ill, and
# half are if every label is turned round.

ill = np.bincount(hospital, told == 1) / np.bincount(hospital)
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.bar(range(40), ill, color="gray")
ax.set(xlabel="hospital", ylabel="share told to be ill", ylim=(0, 1))

# %%
# A model of all of them
# ----------------------
#
# A linear ODM learns from all labels alike. ``groups`` leaves out one hospital at a time, so that the score of a
# hospital is that of a model which has never seen it.

plain = odm.ODMClassifier("linear", lam=1e3, scale=None, loo=True).fit(
    blood, told, groups=hospital
)
print(
    "certificate: "
    f"at most {plain.dual_gap_:.0e} of the objective is left to gain"
)
print(f"left-out hospitals: {plain.loo_score_:.0%} of the labels right")
print(f"new patients: {plain.score(new_blood, new_truth):.1%} right")

# %%
# The certificate is as good as any: this is the best fit of these labels. It cannot say that the labels are false. The
# left-out score can, a little: a rule that is right about so few labels is either poor, or was told lies.
#
# A model that asks who agrees with whom
# --------------------------------------
#
# :class:`~dask_odm.MixingClassifier` lets every hospital move the common weights by its own patients, epoch for epoch,
# and mixes what they come to. A result that is far from the others counts for little. ``"odm"`` takes steps on the
# objective of the ODM.

robust = odm.MixingClassifier("odm", lam=1e3, random_state=0)
robust.fit(blood, told, shard=hospital)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
odm.plot_shard_weights(robust, ax)
print(f"new patients: {robust.score(new_blood, new_truth):.1%} right")

# %%
# A decision: whom to phone
# -------------------------
#
# ``suspects_`` are the hospitals whose labels contradict the model more than chance explains. How often they do says
# what went wrong there: a hospital that is nearly always wrong has turned its labels round, and one that is wrong half
# of the time has typed in anything.

errors = robust.shard_errors_
for name in robust.suspects_:
    print(
        f"hospital {name:2}: "
        f"{errors[name]:.0%} of its labels contradict the model"
    )
print("those that lied, which only this page knows:", *liars)
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
suspected = np.isin(np.arange(40), robust.suspects_)
ax.bar(range(40), errors, color=np.where(suspected, "C3", "C0"))
ax.axhline(0.5, color="black", linestyle="--", linewidth=1)
ax.set(xlabel="hospital", ylabel="share that contradicts the model")

# %%
# Until they have answered, leave them out. The others are honest, so an ordinary ODM learns from them, and brings what
# a mixture has not: a certificate, scores of hospitals that were left out, and probabilities.

honest = ~np.isin(hospital, robust.suspects_)
final = odm.ODMClassifier("linear", lam=1e3, scale=None, loo=True)
final.fit(blood[honest], told[honest], groups=hospital[honest])
worst = final.loo_group_scores_.min()
print(
    "certificate: "
    f"at most {final.dual_gap_:.0e} of the objective is left to gain"
)
print(
    f"left-out hospitals: {final.loo_score_:.1%} right, the worst {worst:.0%}"
)
print(f"new patients: {final.score(new_blood, new_truth):.1%} right")

# %%
# Now the left-out score agrees with that of new patients. That is how you notice, without any truth, that the lies are
# gone.
#
# What to try next
# ----------------
#
# * Some hospitals may be odd and honest: other patients, another laboratory. Phone before you drop them.
# * ``kappa`` says how much distance counts. Choose it by patients whose labels you trust; :doc:`/other_estimators` says
#   how, at *Shards full of wrong labels*, and where the method ends.
# * Of 20 million patients in a store, two workers of 500 MB each named 30 false shards of 100, and no other
#   (:doc:`/benchmarks`, at *Other estimators*).
# * :doc:`/gallery/mixing_tables` repeats the tables of the paper that the method is from.
