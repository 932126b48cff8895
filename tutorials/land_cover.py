"""A satellite scene to a land-cover map
=====================================

People visited one plot in thirty and noted what grows there. What grows everywhere else, and where does the satellite
not tell? After this page you can make such a map from labels on few pixels, say how often it will be right before
anybody checks it, and leave blank the pixels that are too uncertain.

The scene is made up: 200 × 200 pixels, four bands, three dates, with clouds. So the truth is known, which yours is
not.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import dask_odm as odm

cube, labels, truth, best = odm.datasets.make_scene(
    200, 200, n_times=3, noise=2.0, clouds=0.02, labelled=0.03
)
cover = labels.attrs["flag_meanings"].split()
print(dict(cube.sizes), "classes:", *cover)

# %%
# A look at the data
# ------------------
#
# ``cube`` is a lazy DataArray, as ``xarray.open_zarr`` or rioxarray give it, and NaN under clouds. ``labels`` has
# codes on the same pixels, and 0 where nobody was. One band on one date shows the fields dimly at best.

colours = {
    "levels": [0.5, 1.5, 2.5, 3.5, 4.5],
    "colors": ["C0", "C1", "C2", "C3"],
    "add_colorbar": False,
}
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), layout="constrained"
)
cube.isel(time=1, band=3).plot(ax=left, cmap="gray", robust=True)
labels.where(labels > 0).plot(ax=right, **colours)
right.set_title("where somebody was")

# %%
# A model, and how good it is
# ---------------------------
#
# What labels and cube share, y and x, runs along rows. Times and bands are the features, twelve of them. With
# ``loo=True`` every labelled pixel is also predicted by the model without it, in closed form, at about the price of
# one more fit. But pixels of one plot may resemble each other. Then the others of its plot give the answer away, and
# the score is too good. ``groups`` leaves out whole squares of 200 m at once, and so tells how the model does in
# places where nobody was.

clf = odm.ODMClassifier(scale="minmax", lam=100, loo=True, random_state=0)
single = clf.fit(cube, labels).loo_score_
squares = odm.spatial_blocks(cube, {"y": 200, "x": 200})
apart = clf.fit(cube, labels, groups=squares).loo_score_
print(
    f"{clf.missing_rows_} labelled pixels are under clouds and took no part"
)
print(
    f"right when left out: {single:.1%} of single pixels, "
    f"{apart:.1%} of squares"
)

# %%
# Squares score a little lower. In a real scene, where neighbours share soil, weather and owner, the difference is
# larger. Believe the squares.
#
# The certificate is another matter. It says that the solver is done: no function of this kernel has an objective that
# is lower by more than this share. It does not say that the model is good; the scores above do.

print(
    "certificate: "
    f"at most {clf.dual_gap_:.1e} of the objective is left to gain"
)
clf

# %%
# The map
# -------
#
# Predictions keep the coordinates of the cube. They are lazy and written block by block, so a scene need not fit in
# memory: ``clf.predict(cube).to_zarr("cover.zarr")``. This one is small.

found, truth, best = clf.predict(cube).load(), truth.load(), best.load()
# the best rule has no answer under clouds, and neither has the model
clear = best != 0
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for ax, title, image in zip(
    axes,
    ("truth", "map", "errors"),
    (truth, found, found.where(found != truth)),
    strict=True,
):
    image.where(clear).plot(ax=ax, **colours)
    ax.set_title(title)
for name, image in (
    ("the map", found),
    ("the best rule that there is", best),
):
    right = float((image == truth).where(clear).mean())
    print(f"{right:.1%} of the clear pixels are right: {name}")

# %%
# The left-out scores promised that, give or take two per cent, from the labelled pixels alone. And little is left to
# gain: the best rule, which knows how the scene was made, is ahead by less than three per cent. The rest is noise and
# mixed pixels.
#
# A decision
# ----------
#
# A map that is blank where it would guess is worth more than one that is wrong there. Probabilities say where.

sure = clf.predict_proba(cube).max("class").load()
print(
    "leave blank below | of the map remains | right there | probability there"
)
for least in (0.5, 0.7, 0.9):
    kept = clear & (sure >= least)
    share, correct = (
        float(kept.sum() / clear.sum()),
        float((found == truth).where(kept).mean()),
    )
    said = float(sure.where(kept).mean())
    print(f"{least:17.0%} | {share:18.0%} | {correct:11.1%} | {said:.1%}")

# %%
# Of your scene you know the last column alone. What it promises is held here, and more: pixels of squares that were
# left out are harder than the others. Choose the line whose errors you can bear.

figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
found.where(sure >= 0.7).plot(ax=ax, **colours)
ax.set_title("blank below 70 %")
counts = xr.where(sure >= 0.7, found, 0).values
for code, name in enumerate(["blank or cloud", *cover]):
    print(f"{name:15} {np.mean(counts == code):.0%} of the scene")

# %%
# What to try next
# ----------------
#
# * :class:`~dask_odm.ODMClassifierCV` finds the settings, which were given here; with ``groups``, too.
# * A map can be written over a scene of any size, with workers or without: :doc:`/maps`. A scene of 100 million
#   pixels took 41 s on two cores (:doc:`/benchmarks`).
# * ``odm.report(clf, cube, "report.html", y=labels)`` writes a page with the map, the scores and the certificate.
# * :doc:`costs` goes on with errors that do not cost the same.
