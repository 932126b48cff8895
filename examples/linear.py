"""The linear kernel
=================

Newton's method learns from an array, from sparse rows of words, and from a store, with progress bars.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from sklearn.feature_extraction.text import HashingVectorizer

import dask_odm as odm
from dask_odm import ProgressBars, listen

# An array: coef_ and intercept_ are of the raw features, whatever the
# scaling.
X, y = odm.datasets.make_wide(500, 200, informative=10)
clf = odm.ODMClassifier("linear", lam=10.0, scale="standard").fit(X, y)
print(
    f"array: {clf.n_iter_} steps, gap {clf.dual_gap_:.1e}, "
    f"weights {clf.coef_.shape}"
)

# Words: sparse rows of a million features, of which only the non-zeros are
# held.
texts = [
    "the sun is warm",
    "rain and wind today",
    "a warm day of sun",
    "cold rain all day",
] * 25
weather = ["good", "bad", "good", "bad"] * 25
words = HashingVectorizer(n_features=2**20).transform(texts)
clf = odm.ODMClassifier("linear", lam=100.0).fit(words, weather)
print(
    f"words: {words.shape}, {words.nnz} non-zeros, "
    f"accuracy {clf.score(words, weather):.3f}"
)

# A store: small ones are read, of others Dask adds up what Newton asks for,
# chunk by chunk. ProgressBars listens: bars on a terminal and in a notebook,
# silent elsewhere. A fit takes it as callback, anything else runs within
# listen().
with TemporaryDirectory() as folder:
    with listen(ProgressBars()):
        store = odm.datasets.make_wide(
            2000, 100, informative=10, store=f"{folder}/wide.zarr"
        )
    clf = odm.ODMClassifier(
        "linear", scale="standard", callbacks=[ProgressBars()]
    ).fit(store)
    for step in clf.history_[-2:]:
        print(f"store: step {step['iteration']}, gap {step['gap']:.1e}")

# Which λ? A path of models costs little more than one; the best on rows that
# none of them has seen.
train, valid = slice(0, 400), slice(400, 500)
models = odm.ODMClassifier("linear", scale="standard").lam_path(
    X[train], y[train], lams=[1, 10, 100, 1000]
)
best = max(models, key=lambda model: model.score(X[valid], y[valid]))
print(f"lam={best.lam:g}: {best.score(X[valid], y[valid]):.3f}")

# Ten features count, of two hundred.
plt.figure(figsize=(8, 3))
plt.stem(best.coef_.ravel(), markerfmt=".", basefmt=" ")
plt.xlabel("feature")
plt.ylabel("weight")
