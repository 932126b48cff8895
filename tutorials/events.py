"""Physics events in 20 million rows
=================================

A detector writes down millions of collisions. How many of them does it take to learn from? After this page you can
learn to tell signal from background from a store, see whether a kernel is worth its time, find out how many events it
takes, and set the cut that lets one background event in a hundred through.

The events are made up in the shape of `SUSY <https://archive.ics.uci.edu/dataset/279/susy>`__: eighteen values, eight
measured and ten computed from them. The best rule that there is gets 80 % right. This page has 80,000 of them, so that
it runs within seconds; the numbers at its end say what 20 million take.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_curve

import dask_odm as odm

folder = TemporaryDirectory()
events, new = Path(folder.name, "events.zarr"), Path(folder.name, "new.zarr")
store = odm.datasets.make_susy(30_000, store=events)
odm.datasets.make_susy(50_000, store=new, start=30_000)
store

# %%
# A look at the data
# ------------------
#
# Of a file of yours ``odm.ingest("events.csv", events, label="signal")`` makes such a store. ``sample`` reads rows of
# any store, without the rest. No single value separates the two.

X, y = store.sample(20_000, 0)
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
for ax, feature in zip(axes, (0, 8, 12), strict=True):
    for label, name in zip(
        store.classes, ("background", "signal"), strict=True
    ):
        values = X[y == label, feature]
        ax.hist(values, bins=60, density=True, histtype="step", label=name)
    ax.set_xlabel(f"feature {feature}")
axes[0].legend()

# %%
# A linear model, to begin with
# -----------------------------
#
# Newton's method passes over the store, block by block, a handful of times. The fit ends when the certificate is small
# enough.

linear = odm.ODMClassifier("linear", scale="standard", lam=1e3).fit(events)
print(f"linear: {linear.score(new):.1%} of new events right")
print(
    "certificate: "
    f"at most {linear.dual_gap_:.0e} of the objective is left to gain"
)

# %%
# A kernel
# --------
#
# With more rows than some ten thousand a kernel works over landmarks, a few hundred rows that stand for all. The
# certificate says how far this is from the best function of the kernel, so it tells whether more landmarks can lower
# the objective. ``loo=True`` leaves every event out in closed form.

settings = {
    "gamma": 0.005,
    "lam": 5e3,
    "scale": "standard",
    "random_state": 0,
}
solver = odm.solvers.Landmark(150, certify=True)
kernel = odm.ODMClassifier(solver=solver, loo=True, **settings).fit(events)
print(f"kernel: {kernel.score(new):.1%} of new events right")
print(f"        {kernel.loo_score_:.1%} of those left out")
print(
    "certificate: "
    f"at most {kernel.dual_gap_:.1%} left to gain by more landmarks"
)

# %%
# Left-out events say what new ones do, within a per cent, so you need no test events to know it. A certificate near 0
# says that more landmarks would not help. So what is left to gain are the last steps to the 80 % that no rule exceeds,
# and the kernel has made a part of the way that the linear model cannot go.
#
# How many events are enough
# --------------------------------------
#
# :func:`~dask_odm.learning_curve` fits an eighth, a fourth, half and all of the rows that it draws, and scores those
# left out. Where the curve is flat, more events cost time and bring nothing.

model = odm.ODMClassifier(solver=odm.solvers.Landmark(150), **settings)
curve = odm.learning_curve(model, events)
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
odm.plot_learning_curve(curve, ax)
ax.axhline(0.8, color="black", linestyle="--", linewidth=1)
print(f"{curve.scores[-1]:.1%} right from {curve.rows[-1]:,} events")
print(f"{curve.twice:.1%} from twice as many, if it goes on so")

# %%
# A decision: the cut
# -------------------
#
# An analysis lets few background events through, and asks how much of the signal remains. The left-out values of the
# background say where the cut lies, without a test event. New events show that it holds.

signal = store.read_column("y") == 1
left_out = kernel.loo_decision_function_
cut = np.quantile(left_out[~signal], 0.99)
X_new, y_new = odm.Store.open(new).sample(50_000, 0)
values, is_signal = kernel.decision_function(X_new), y_new == store.classes[1]
print(
    "asked for 1 % of the background: "
    f"{(values[~is_signal] > cut).mean():.2%} pass"
)
passes = [(left_out[signal] > cut).mean(), (values[is_signal] > cut).mean()]
print(
    "signal that passes: {:.1%} of the left-out, {:.1%} of the new".format(
        *passes
    )
)

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for name, model in (("linear", linear), ("kernel", kernel)):
    background, found, _ = roc_curve(
        is_signal, model.decision_function(X_new)
    )
    ax.semilogx(background[background > 0], found[background > 0], label=name)
ax.axvline(0.01, color="black", linestyle="--", linewidth=1)
ax.set(
    xlabel="background that passes",
    ylabel="signal that passes",
    xlim=(1e-3, 1),
)
ax.legend()
folder.cleanup()

# %%
# At the cut the two curves nearly meet. For these events take the linear model: it costs next to nothing, and has a
# weight for every value that a colleague can read. Where the curves are apart, take the kernel.

# %%
# Twenty million rows
# -------------------
#
# The code stays as it is. With an active ``distributed.Client`` the same lines run on its workers, which read the
# store block by block, and the model has the same bits. This was measured with two workers on two cores
# (:doc:`/benchmarks`), with rows of 18 features where nothing else is said:
#
# .. table::
#
#    =======================  ===============  =======  =======================
#    rows                     model            seconds  most memory of a worker
#    =======================  ===============  =======  =======================
#    50 million               linear           5.1      230 MB
#    5 million                1,000 landmarks  36       390 MB
#    20 million, 20 features  cells            258      516 MB
#    =======================  ===============  =======  =======================
#
# Seconds grow in proportion to the rows, and a worker's memory by far less. So landmarks should take some two and a
# half minutes for 20 million.
#
# What to try next
# ----------------
#
# * If accuracy grows with landmarks and a narrow kernel suits the data, take ``solver="cells"``: :doc:`/solvers`.
# * :class:`~dask_odm.ODMClassifierCV` finds γ and λ from a sample of the store.
# * :doc:`kubernetes` brings the workers.
