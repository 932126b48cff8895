"""Scaling against NumPy and scikit-learn, constant and far features included."""

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from dask_odm.data.rows.scaling import SCALINGS, Scaling, Stretch, load_scaling
from dask_odm.data.store.statistics import Statistics


def statistics(X: np.ndarray) -> Statistics:
    X = X.astype(np.float64)
    return Statistics(X.min(axis=0), X.max(axis=0), X.mean(axis=0), X.var(axis=0))


def rows(dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(500, 4)) * [1.0, 1e3, 1e-3, 5.0] + [0.0, 10.0, 1.0, -3.0]).astype(dtype)


@pytest.mark.parametrize(("method", "scaler"), [("minmax", MinMaxScaler()), ("standard", StandardScaler())])
def test_agrees_with_scikit_learn(method, scaler):
    X = rows()
    scaling = Scaling.from_statistics(statistics(X), method, centre=False)
    np.testing.assert_allclose(scaling(X), scaler.fit_transform(X), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_scaled_in_float64(dtype):
    X = rows(dtype)
    scaling = Scaling.from_statistics(statistics(X), "standard", centre=False)
    expected = ((X - scaling.shift) * scaling.factor).astype(dtype)
    np.testing.assert_array_equal(scaling(X), expected)
    np.testing.assert_array_equal(scaling(X[7:8]), expected[7:8])


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("method", SCALINGS)
def test_other_words_are_as_far_as_a_deviation_of_numbers(method, centre):
    rng = np.random.default_rng(0)
    numbers, words = rng.beta(2, 2, 900) * 40, np.eye(3)[np.repeat([0, 1, 2], [860, 30, 10])]
    X = np.column_stack([numbers, words])
    scaled = Scaling.from_statistics(statistics(X), method, centre=centre, marks=(1, 2, 3))(X)
    apart = np.linalg.norm(scaled[[0, 0, -1], 1:] - scaled[[-1, 870, 870], 1:], axis=1)
    np.testing.assert_allclose(apart, scaled[:, 0].std())  # however rare the words


@pytest.mark.parametrize("method", [None, *SCALINGS])
def test_centred_rows_have_mean_zero_and_the_same_distances(method):
    X = rows()
    plain, centred = (Scaling.from_statistics(statistics(X), method, centre=c)(X) for c in (False, True))
    spread = np.abs(centred).max(axis=0)
    assert (np.abs(centred.mean(axis=0)) <= 1e-12 * spread).all()
    np.testing.assert_allclose(centred - centred[0], plain - plain[0], atol=1e-9 * spread.max())


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("method", SCALINGS)
def test_a_constant_feature_becomes_zero(method, centre):
    X = np.column_stack([rows()[:, 0], np.full(500, 0.1), np.zeros(500)])
    scaled = Scaling.from_statistics(statistics(X), method, centre=centre)(X)
    assert np.isfinite(scaled).all()
    np.testing.assert_array_equal(scaled[:, 1:], 0.0)


@pytest.mark.parametrize("method", SCALINGS)
def test_a_feature_far_from_zero_keeps_its_digits_in_float32(method):
    X = (np.random.default_rng(1).integers(0, 64, (300, 2)) + 2**20).astype(np.float32)
    scaled = Scaling.from_statistics(statistics(X), method, centre=True)(X)
    assert scaled.dtype == np.float32
    exact = Scaling.from_statistics(statistics(X), method, centre=True)(X.astype(np.float64))
    np.testing.assert_allclose(scaled, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_order_and_input_are_kept(dtype):
    X = np.asfortranarray(rows(dtype))
    X.flags.writeable = False
    scaled = Scaling.from_statistics(statistics(X), "minmax", centre=False)(X)
    assert scaled.dtype == dtype
    assert scaled.flags.c_contiguous


@pytest.mark.parametrize("method", [None, *SCALINGS])
@pytest.mark.parametrize("centre", [False, True])
def test_variance_is_that_of_all_scaled_entries(method, centre):
    X = rows()
    scaling = Scaling.from_statistics(statistics(X), method, centre=centre)
    assert scaling.variance(statistics(X)) == pytest.approx(scaling(X).var(), rel=1e-10)


@pytest.mark.parametrize("method", [None, *SCALINGS])
def test_features_at_rest_become_zero(method):
    X = rows()
    X[: 4 * len(X) // 5 : 2, 1], X[: 4 * len(X) // 5 : 2, 2] = X[:, 1].min(), X[:, 2].max()  # in two of five rows
    X[np.random.default_rng(0).random(len(X)) < 0.7, 3] = X[:, 3].max()  # white paper
    X[np.random.default_rng(1).random(len(X)) < 0.7, 0] = X[:, 0].min()
    scaling = Scaling.from_statistics(statistics(X), method, centre=True)
    rested = scaling.at_rest(X, statistics(X))
    assert (rested(X) == 0).mean(axis=0).round(1).tolist() == [0.7, 0.0, 0.0, 0.7]
    np.testing.assert_array_equal(rested.factor, scaling.factor)
    np.testing.assert_array_equal(rested.shift[1:3], scaling.shift[1:3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_matrix_turns_scaled_rows_one_by_one_and_is_kept_in_files(tmp_path, dtype):
    X = rows(dtype)[:, [0, 1, 2, 3, 0]]
    matrix = np.random.default_rng(1).normal(size=(5, 5))
    matrix += matrix.T
    affine = Scaling.from_statistics(statistics(X), "standard", centre=True)
    scaling = affine.stretched(Stretch(matrix))
    found = scaling(X)
    np.testing.assert_allclose(found, affine(X) @ matrix, rtol=0, atol=1e-5 if dtype == "float32" else 1e-12)
    np.testing.assert_array_equal(scaling(X[7:8]), found[7:8])  # whatever rows are beside it
    scaling.save(str(tmp_path / "s.npy"))
    np.testing.assert_array_equal(load_scaling(str(tmp_path / "s.npy"))(X), found)
    np.testing.assert_array_equal(Scaling.of_arrays(scaling.arrays())(X), found)
    assert (np.abs(found) <= scaling.farthest(statistics(X)) * 1.0001).all()
    with pytest.raises(ValueError, match=r"metric of shape \(3, 5\) for 5 features"):
        Scaling.of_arrays(scaling.arrays() | {"metric": matrix[:3]})


def test_factors_of_a_metric_are_those_of_the_scaling():
    X = rows()
    affine = Scaling.from_statistics(statistics(X), "standard", centre=True)
    found = affine.stretched(Stretch(np.array([1.0, 2.0, 0.0, 0.5])))(X)
    np.testing.assert_allclose(found, affine(X) * [1.0, 2.0, 0.0, 0.5], atol=1e-12)
