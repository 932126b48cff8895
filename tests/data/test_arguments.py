"""Arguments of wrong types are refused in a line that names them, and nothing is written."""

import numpy as np
import pandas as pd
import pytest

import dask_odm as odm
from small_problems import blobs

X, Y = blobs(60, 3, seed=1)[:2]
FRAME = pd.DataFrame(X, columns=list("abc")).assign(label=Y)
ITERABLE = r"instance of 'collections\.abc\.Iterable'"
INGEST = {
    "drop": (None, ITERABLE),
    "test_size": ("x", r"float in the range \(0\.0, 1\.0\)"),
    "seed": (-1, "int in the range"),
    "chunk_rows": (1e3, "instance of 'int' or None"),
    "block_bytes": (0, "float in the range"),
    "per_class": ("x", "int in the range"),
    "fraction": (np.nan, "float in the range"),
    "text": (["a"], "instance of 'str'"),
    "categories": (None, ITERABLE),
    "numbers": (1, ITERABLE),
    "max_levels": ("x", "int in the range"),
    "ids": (1, "str among"),
}


@pytest.mark.parametrize("name", INGEST)
def test_of_ingest(name, tmp_path):
    wrong, message = INGEST[name]
    with pytest.raises(odm.InputError, match=rf"^The '{name}' parameter of ingest must be an? .*{message}.* Got "):
        odm.ingest(FRAME, tmp_path / "a.zarr", **{name: wrong})
    assert not list(tmp_path.iterdir())


def model():
    return odm.ODMClassifier(lam=10.0, random_state=0).fit(X, Y)


CALLS = {
    "a recipe": (lambda at: odm.ingest(FRAME, at / "a.zarr", columns=["a"]), r"^columns must be store\.column_recipe"),
    "a model": (
        lambda at: odm.evaluate("m.zarr", at / "a.zarr"),
        r"^evaluate takes an estimator of dask_odm.* Got str",
    ),
    "a seed": (lambda at: odm.learning_curve(model(), X, Y, random_state="x"), "'x' cannot be used to seed"),
    "shares": (lambda at: odm.learning_curve(model(), X, Y, shares=["x"]), "could not convert string to float: 'x'"),
    "rows": (lambda at: odm.learning_curve(model(), 1, Y), "Expected sequence or array-like, got"),
    "flips": (
        lambda at: odm.datasets.contaminate_labels(Y, Y, flipped=None),
        "^The 'flipped' parameter of contaminate",
    ),
    "weights": (lambda at: odm.ODMRegressor().fit(X, X[:, 0]).score(X, X[:, 0], {}), "float.. argument must be"),
}


@pytest.mark.parametrize("what", CALLS)
def test_of_others(what, tmp_path):
    call, message = CALLS[what]
    with pytest.raises(odm.InputError, match=message):
        call(tmp_path)
    assert not list(tmp_path.iterdir())
