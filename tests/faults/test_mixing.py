"""Faults of shards: who sent a row is missing, wrong or of no use, from Python and from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_odm import MixingClassifier
from faults.table import raises, refused, tree
from small_problems import blobs
from small_stores import store_of

ROWS = 60
X, Y = blobs(ROWS, 3, seed=3)
SENDER = np.arange(ROWS) % 3


def fit(shard: Any = None, *, rows: Any = X, weight: Any = None, **parameters: Any) -> Callable[[], Any]:
    return lambda: MixingClassifier(random_state=0, **parameters).fit(rows, Y, weight, shard=shard)


FAULTS = [
    ("One shard", fit(np.zeros(ROWS))),
    ("One shard", fit(rows=np.column_stack([X, np.ones(ROWS)]), shard_feature=3)),
    ("Shard without rows", fit(SENDER, weight=(SENDER != 1).astype(float))),
    ("Shards of one class each", fit(Y)),
    ("Shards of another length", fit(SENDER[1:])),
    ("Shard feature that is not there", fit(shard_feature="sender")),
    ("Shard feature that is not there", fit(shard_feature=3)),
    ("More shards than rows", fit(n_shards=ROWS + 1)),
    ("Weights that overflow", fit(rows=X * 1e-155, fit_intercept=False)),
    ("Both beta and kappa", fit(beta=0.1, kappa=1.0)),
]


@pytest.mark.parametrize(("row", "call"), FAULTS, ids=[f"{i}-{row}" for i, (row, _) in enumerate(FAULTS)])
def test_shards_that_cannot_be_learned_from(row, call):
    raises(row, call)


@pytest.mark.parametrize(("row", "options"), [
    ("One shard", ["--shard-feature", "same"]),
    ("Shard feature that is not there", ["--shard-feature", "who"]),
    ("Shard feature that is not there", ["--shard-feature", 9]),
    ("More shards than rows", ["--n-shards", ROWS + 1]),
    ("Both beta and kappa", ["--beta", 0.1, "--kappa", 1]),
])  # fmt: skip
def test_at_the_command_line(row, options, tmp_path: Path):
    store = store_of(tmp_path / "s.zarr", np.column_stack([X, np.ones(ROWS)]), Y, names=["a", "b", "c", "same"])
    before = tree(tmp_path)
    refused(row, "fit", store.path, tmp_path / "m.zarr", "--estimator", "mixing", *options)
    assert tree(tmp_path) == before
