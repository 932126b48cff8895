"""Data to try things on
=====================

Data sets are made to order, bundled with scikit-learn, or fetched from the LIBSVM site.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm

clf = odm.ODMClassifier(lam=10.0, scale="standard")

# Made to order: an endless sequence, of which a test set is the rows that
# follow. The best accuracy is known.
X, y = odm.datasets.make_overlapping(2000, 10, accuracy=0.9)
X_test, y_test = odm.datasets.make_overlapping(
    2000, 10, accuracy=0.9, start=2000
)
print(
    f"overlapping: accuracy {clf.fit(X, y).score(X_test, y_test):.3f}, "
    "the best is .9"
)

# Of any size straight into a store, in bounded memory.
with TemporaryDirectory() as folder:
    train = odm.datasets.make_susy(2000, store=f"{folder}/train.zarr")
    test = odm.datasets.make_susy(
        2000, start=train.rows, store=f"{folder}/test.zarr"
    )
    print(
        f"SUSY-shaped: accuracy {clf.fit(train).score(test):.3f}, "
        "the best is .8"
    )

# The others, by name.
for make in (
    odm.datasets.make_separable,
    odm.datasets.make_imbalanced,
    odm.datasets.make_duplicated,
):
    X, y = make(500, 5)
    print(
        f"{make.__name__}: accuracy {clf.fit(X, y).score(X, y):.3f}, "
        f"{(y > 0).mean():.0%} of label 1"
    )

# Bundled with scikit-learn, two classes of each.
for name in ("breast_cancer", "digits", "iris", "wine"):
    X, y = odm.datasets.load_bundled(name)
    print(f"{name}: {X.shape}, accuracy {clf.fit(X, y).score(X, y):.3f}")

# From the LIBSVM site, once, with checksums and resume (not run here):
#     train, test = odm.datasets.fetch_libsvm("a7a")
#     odm.datasets.fetch_libsvm("SUSY", store="susy.zarr", test_size=0.2)

# Four of them in two features.
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8))
names = "chessboard", "shells", "overlapping", "separable"
for ax, name in zip(axes, names, strict=True):
    X, y = getattr(odm.datasets, f"make_{name}")(800, 2)
    ax.scatter(*X.T, s=4, c=np.where(y == y[0], "C0", "C1"))
    ax.set(title=name, xticks=[], yticks=[])
