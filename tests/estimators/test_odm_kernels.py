"""Kernels the user brings, sparse rows, the dtype to compute in: each gives the model of what it stands for."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array, csc_matrix, csr_array, csr_matrix, issparse
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_score

from dask_odm import InputError, ODMClassifier, load_model
from dask_odm.kernels import KERNELS
from dask_odm.solvers import SODM
from estimators.odm_models import SETTINGS
from small_problems import blobs
from small_stores import store_of

GAMMA = SETTINGS["gamma"]
SOLVERS = pytest.mark.parametrize("solver", ["auto", SODM(4)], ids=["auto", "sodm"])
NAMED = list(KERNELS)


def gaussian(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """A callable that pickles by name."""
    return rbf_kernel(X, Z, gamma=GAMMA)


@pytest.fixture(scope="module")
def new() -> np.ndarray:
    """Rows that no model was trained on."""
    return blobs(40, 3, seed=6)[0]


# Precomputed values and callables -----------------------------------------------------------------------------


@SOLVERS
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_precomputed_and_callable_are_the_kernel_by_name(rows, new, solver, fit_intercept, weighted):
    X, y = rows
    weight = np.random.default_rng(0).integers(0, 4, 90).astype(float) if weighted else None
    settings = {**SETTINGS, "solver": solver, "fit_intercept": fit_intercept, "random_state": 0, "tol": 1e-10}
    named = ODMClassifier(**settings).fit(X, y, weight)
    called = ODMClassifier(gaussian, **settings).fit(X, y, weight)
    looked_up = ODMClassifier("precomputed", **settings).fit(gaussian(X, X), y, weight)
    expected = named.decision_function(new)
    np.testing.assert_allclose(called.decision_function(new), expected, atol=1e-8)
    np.testing.assert_allclose(looked_up.decision_function(gaussian(new, X)), expected, atol=1e-8)
    for model in (called, looked_up):
        np.testing.assert_array_equal(model.support_, named.support_)
        np.testing.assert_allclose(model.dual_coef_, named.dual_coef_, atol=1e-7)
        np.testing.assert_allclose(model.intercept_, named.intercept_, atol=1e-8)
        assert model.dual_gap_ < 1e-8
    np.testing.assert_array_equal(called.support_vectors_, X[called.support_])


def test_a_callable_sees_scaled_rows(rows, new):
    X, y = rows[0] * [1.0, 50.0, 0.1], rows[1]
    new = new * [1.0, 50.0, 0.1]
    named, called = (ODMClassifier(k, **SETTINGS | {"scale": "standard"}).fit(X, y) for k in ("rbf", gaussian))
    np.testing.assert_allclose(called.decision_function(new), named.decision_function(new), atol=1e-8)


def test_cross_validation_takes_rows_and_columns_of_a_precomputed_kernel(rows):
    X, y = rows
    K = gaussian(X, X)
    scores = cross_val_score(ODMClassifier("precomputed", lam=100.0), K, y, cv=3)
    np.testing.assert_allclose(scores, cross_val_score(ODMClassifier(gamma=GAMMA, lam=100.0, scale=None), X, y, cv=3))
    search = GridSearchCV(ODMClassifier("precomputed"), {"lam": [1e-6, 100.0]}, cv=3).fit(K, y)
    named = GridSearchCV(ODMClassifier(gamma=GAMMA, scale=None), {"lam": [1e-6, 100.0]}, cv=3).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], named.cv_results_["mean_test_score"])
    np.testing.assert_allclose(search.predict(K), named.predict(X))


def test_save_and_load_of_a_precomputed_model(rows, tmp_path):
    K = gaussian(rows[0], rows[0])
    model = ODMClassifier("precomputed", **SETTINGS).fit(K, rows[1])
    model.save(tmp_path / "m.zarr")
    loaded = load_model(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.decision_function(K), model.decision_function(K))
    assert loaded.kernel == "precomputed"


def test_a_callable_cannot_be_saved(rows, tmp_path):
    model = ODMClassifier(gaussian).fit(*rows)
    with pytest.raises(InputError, match="a model of a callable kernel cannot be saved"):
        model.save(tmp_path / "m.zarr")
    assert list(tmp_path.iterdir()) == []


def spoilt(K: np.ndarray, i: int, j: int, value: float) -> np.ndarray:
    K = K.copy()
    K[i, j] = value
    return K


WRONG = {
    "not square": (lambda K: K[:, :50], r"must be a square matrix\. Input is a 90x50 matrix"),
    "not symmetric": (lambda K: spoilt(K, 3, 70, 9.0), r"not symmetric: see entry \((3, 70|70, 3)\)"),
    "negative diagonal": (lambda K: spoilt(K, 5, 5, -1.0), "negative diagonal entry in row 5"),
    "nan": (lambda K: spoilt(K, 5, 6, np.nan), "missing values"),
    "infinity": (lambda K: spoilt(K, 5, 6, np.inf), "infinity"),
    "sparse": (csr_array, "[Ss]parse"),
}


@pytest.mark.parametrize("what", WRONG)
def test_precomputed_values_that_are_none(rows, what):
    make, message = WRONG[what]
    with pytest.raises(InputError, match=message):
        ODMClassifier("precomputed").fit(make(gaussian(rows[0], rows[0])), rows[1])


@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_precomputed_values_are_not_scaled(rows, scale):
    with pytest.raises(InputError, match="scale must be None for kernel='precomputed'"):
        ODMClassifier("precomputed", scale=scale).fit(gaussian(rows[0], rows[0]), rows[1])


@pytest.mark.parametrize("kernel", ["precomputed", gaussian], ids=["precomputed", "callable"])
def test_kernels_of_this_process_do_not_go_to_workers(rows, tmp_path, monkeypatch, kernel):
    """A store of several partitions, dask rows beyond the limit, a checkpoint of a function."""

    X, y = rows[0], (rows[1] > 0).astype(int)
    given = gaussian(X, X) if kernel == "precomputed" else X
    path = store_of(tmp_path / "a.zarr", given, y).path
    with pytest.raises(InputError, match="needs rows in memory, not a store"):
        ODMClassifier(kernel, solver=SODM(4)).fit(path)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 100})
    with pytest.raises(InputError, match=r"kernel.* needs rows in memory"):
        ODMClassifier(kernel, solver=SODM(4)).fit(da.from_array(given, chunks=(30, -1)), da.from_array(y, chunks=30))
    if callable(kernel):
        with pytest.raises(InputError, match="kernel needs rows in memory, not a fit with a checkpoint"):
            ODMClassifier(kernel, checkpoint=tmp_path / "c.zarr").fit(X, y)


# Sparse rows --------------------------------------------------------------------------------------------------


def thinned(X: np.ndarray) -> np.ndarray:
    """Rows of which most entries are zero: some features always, some never."""
    wide = np.column_stack([X * (np.abs(X) > 0.7), np.zeros(len(X)), np.full(len(X), 2.0), X[:, 0] + 5.0])
    wide[4] = 0.0
    return wide


SCALES = (None, "minmax", "standard")  # of which the last shifts no sparse rows of the linear kernel
ALIKE = [(kernel, scale) for kernel in NAMED for scale in SCALES if (kernel, scale) != ("linear", "standard")]


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly"])
def test_support_vectors_of_sparse_rows_are_sparse(rows, kernel):
    X = thinned(rows[0])
    model = ODMClassifier(kernel, **SETTINGS).fit(csr_matrix(X), rows[1])
    assert issparse(model.support_vectors_)
    assert model.support_vectors_.shape == (len(model.support_), X.shape[1])
    np.testing.assert_array_equal(model.support_vectors_.toarray(), X[model.support_])


@pytest.mark.parametrize("form", [coo_array, csc_matrix, csr_matrix], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sparse_rows_of_any_format_and_dtype(rows, form, dtype):
    X = np.round(3 * thinned(rows[0])).astype(dtype)
    dense, sparse = (ODMClassifier(**SETTINGS | {"scale": "minmax"}).fit(given, rows[1]) for given in (X, form(X)))
    found, expected = sparse.decision_function(form(X)), dense.decision_function(X)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, atol=1e-4 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize(("kernel", "scale"), ALIKE)
def test_entries_stored_twice_are_added_and_zeros_may_be_stored(rows, kernel, scale):
    """CSR need not be canonical: the rows are what `toarray` says, and they stay as they were."""
    X, y = thinned(rows[0]), rows[1]
    canonical = csr_array(X)
    indptr = 3 * canonical.indptr
    thirds = np.repeat(canonical.data, 3) * np.tile([2.0, -1.0, 0.0], canonical.nnz)
    given = csr_array((thirds, np.repeat(canonical.indices, 3), indptr), X.shape)
    np.testing.assert_allclose(given.toarray(), X, atol=1e-15)
    settings = {**SETTINGS, "scale": scale, "random_state": 0, "tol": 1e-10}
    dense, sparse = (ODMClassifier(kernel, **settings).fit(rows_, y) for rows_ in (X, given))
    assert given.nnz == 3 * canonical.nnz
    expected = dense.decision_function(X)
    for found in (sparse.decision_function(X), sparse.decision_function(given), dense.decision_function(given)):
        np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize("scale", [None, "standard"])
def test_save_and_load_of_a_model_of_sparse_rows(rows, tmp_path, kernel, scale):
    X = csr_matrix(thinned(rows[0]))
    model = ODMClassifier(kernel, **SETTINGS | {"scale": scale}).fit(X, rows[1])
    model.save(tmp_path / "m.zarr")
    loaded = load_model(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.decision_function(X.toarray()), model.decision_function(X.toarray()))
    if kernel != "linear":
        np.testing.assert_array_equal(loaded.support_vectors_, model.support_vectors_.toarray())
    again = tmp_path / "again.zarr"
    loaded.save(again)
    np.testing.assert_array_equal(load_model(again).decision_function(X), model.decision_function(X))


@pytest.mark.parametrize(("value", "what"), [(np.nan, r"missing values \(NaN\)"), (np.inf, "infinity")])
def test_sparse_values_that_are_not_finite_have_a_place(rows, value, what):
    X = csr_array(spoilt(thinned(rows[0]), 7, 2, value))
    with pytest.raises(InputError, match=rf"^X holds {what} in column 2 \(1 row\), first in row 7"):
        ODMClassifier().fit(X, rows[1])
    with pytest.raises(InputError, match=rf"^X holds {what} in column 2"):
        ODMClassifier().fit(thinned(rows[0]), rows[1]).predict(X)


def test_callables_take_dense_rows(rows):
    with pytest.raises(InputError, match=r"[Ss]parse"):
        ODMClassifier(gaussian).fit(csr_array(rows[0]), rows[1])


# The dtype to compute in --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "form"),
    [*((kernel, form) for kernel in NAMED for form in (np.asarray, csr_array, pd.DataFrame)), (gaussian, np.asarray)],
)
def test_narrow_rows_in_float64_give_the_model_of_wide_rows(rows, kernel, form):
    X = rows[0].astype(np.float32)
    settings = {**SETTINGS, "random_state": 0, "tol": 1e-10}
    narrow = ODMClassifier(kernel, **settings, dtype="float64").fit(form(X), rows[1])
    wide = ODMClassifier(kernel, **settings).fit(form(X.astype(np.float64)), rows[1])
    name = "coef_" if kernel == "linear" else "dual_coef_"
    np.testing.assert_array_equal(getattr(narrow, name), getattr(wide, name))
    np.testing.assert_array_equal(narrow.intercept_, wide.intercept_)
    X64 = X.astype(np.float64)
    np.testing.assert_array_equal(narrow.decision_function(form(X64)), wide.decision_function(form(X64)))


@pytest.mark.parametrize("kernel", NAMED)
def test_wide_rows_in_float32(rows, kernel):
    model = ODMClassifier(kernel, **SETTINGS, dtype="float32", random_state=0).fit(*rows)
    narrow = ODMClassifier(kernel, **SETTINGS, random_state=0).fit(rows[0].astype(np.float32), rows[1])
    name = "coef_" if kernel == "linear" else "dual_coef_"
    np.testing.assert_array_equal(getattr(model, name), getattr(narrow, name))
    np.testing.assert_array_equal(model.intercept_, narrow.intercept_)
    if kernel != "linear":
        assert model.support_vectors_.dtype == np.float32


def test_a_model_in_float64_computes_narrow_rows_in_it():
    """float32 scores at a λ where they lose most of their digits."""
    X, y = blobs(300, 3, seed=2)
    X = X.astype(np.float32)
    model = ODMClassifier(gamma=0.05, lam=1e9, dtype="float64").fit(X, y)
    expected = model.decision_function(X.astype(np.float64))
    found = model.decision_function(X)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
