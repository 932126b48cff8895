"""Steps over sparse rows are those over the same rows made dense, at the cost of their entries."""

import numpy as np
import pytest
from scipy.sparse import random_array

from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.papers.dsvrg.solver import stiffest_of, walk_rows
from traced import traced

N = 200
LOSS = BandLoss(ODMSettings(300.0, 0.4, 0.2), float(N))


def rows_of(d: int, entries: int):
    rng = np.random.default_rng(d)
    X = random_array((N, d), density=entries / d, format="csr", random_state=rng)
    X.data = rng.normal(size=X.nnz) + 0.5
    return X, rng.integers(0, 2, N).astype(np.int8), rng.choice([0.0, 0.5, 2.0], N)


def scaling_of(kind: str, d: int) -> Scaling | None:
    rng = np.random.default_rng(1)
    factor = rng.choice([0.0, 0.5, 1.0, 3.0], d)
    return {"none": None, "factor": Scaling(np.zeros(d), factor), "shift": Scaling(rng.normal(size=d), factor)}[kind]


@pytest.mark.parametrize("scaling", ["none", "factor", "shift"])
@pytest.mark.parametrize("bias", [0.0, 2.0])
# A step of .9 leaves the range of float64 after 150 rows, 1 forgets w at once, and 1.5 turns it round.
@pytest.mark.parametrize("step", [1e-5, 1e-3, 0.9, 1.0, 1.5])
def test_a_walk_ends_where_that_of_dense_rows_ends(scaling, bias, step):
    X, codes, weight = rows_of(30, 6)
    scaling = scaling_of(scaling, 30)
    sparse = FeatureMap(30, bias, scaling)
    dense = FeatureMap(30, bias)
    rng = np.random.default_rng(2)
    start, snapshot, image = rng.normal(size=(3, dense.k))
    # the losses are made small, since long steps along steep ones diverge in both
    loss = LOSS.with_lam(300.0 if step < 0.1 else 0.01)
    halves = np.split(rng.permutation(N), 2)

    def walked(features: FeatureMap, rows) -> np.ndarray:
        parts = [((rows, codes, weight), half) for half in halves]
        return walk_rows(features, loss, N, parts, snapshot, image, step, start=start)

    expected = walked(dense, sparse.dense(X))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(walked(sparse, X), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("scaling", ["none", "factor", "shift"])
def test_the_stiffest_row_is_that_of_dense_rows(scaling):
    X, codes, weight = rows_of(30, 6)
    sparse = FeatureMap(30, 2.0, scaling_of(scaling, 30))
    found = stiffest_of([(X, codes, weight)], LOSS, sparse)
    assert found == pytest.approx(stiffest_of([(sparse.dense(X), codes, weight)], LOSS, FeatureMap(30, 2.0)))


def test_no_array_of_all_features_is_made_for_a_row():
    """Steps of 1 of 2,000 rows and then of all end with as much memory in use: none of it is for a row."""
    X, codes, weight = rows_of(100_000, 10)
    w = np.zeros(100_000)
    peaks = []
    for count in (1, 2000):
        order = np.arange(count) % N
        parts = [((X, codes, weight), order)]
        peaks.append(traced(walk_rows, FeatureMap(100_000, 0.0), LOSS, N, parts, w, w, 1e-6)[1])
    assert peaks[1] < 1.1 * peaks[0] < 1.1 * 100_000 * 8 * 16  # bytes of sixteen vectors, as tasks project
