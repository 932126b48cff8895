"""Kernel models: blocks of any size give the formula's values, in memory or with support on disk."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from dask_odm.data.rows.memory import SparseRows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.kernels import RBF, Laplacian, Polynomial
from dask_odm.kernels.named import WIDE
from dask_odm.models import kernel_model
from dask_odm.models.kernel_model import KernelModel
from models.made import SCALING, expected, make, rows
from traced import traced

KERNELS = [RBF(gamma=0.5), Laplacian(gamma=0.5), Polynomial(gamma=0.2, degree=2)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("float64", 1e-11)])
@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("outputs", [1, 3])
def test_values_are_the_formula(kernel, dtype, tolerance, n, outputs):
    p, X = make(kernel, dtype=dtype, outputs=outputs), rows(n, dtype)
    scores = p.values(X, 2)
    assert scores.dtype == dtype
    assert scores.shape == (n, outputs)
    if n:
        np.testing.assert_allclose(scores, expected(p, X), atol=tolerance * (1 + np.abs(scores).max()))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("outputs", [1, 3])
def test_support_without_coefficients_adds_nothing(kernel, outputs):
    """As landmarks of a model that is zero, of whose tiles no machine uses any."""
    p = make(kernel, outputs=outputs)
    p = replace(p, coefficients=np.zeros_like(p.coefficients))
    X = rows(70)
    np.testing.assert_array_equal(p.values(X), np.tile(p.intercept, (70, 1)))
    np.testing.assert_array_equal(p.label_values(X), p.values(X))
    assert p.are_finite(X)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_class_that_had_no_row_has_the_least_value(outputs):
    p = make(outputs=outputs)
    own = p.values(rows(70))
    own = np.hstack([-own, own]) if outputs == 1 else own
    model = replace(p, lacking=(0, 2))
    found = model.values(rows(70))
    assert found.shape == (70, model.outputs) == (70, own.shape[1] + 2)
    np.testing.assert_array_equal(np.delete(found, [0, 2], axis=1), own)
    np.testing.assert_array_equal(found[:, [0, 2]], np.tile(own.min(axis=1, keepdims=True) - 1.0, 2))
    np.testing.assert_array_equal(model.label_values(rows(70)).argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("n", [0, 1, 1024, 1025, 2500])
@pytest.mark.parametrize("form", [csr_array, csr_matrix])
def test_sparse_rows_and_sparse_support_give_the_bits_of_dense_ones(monkeypatch, kernel, n, form):
    monkeypatch.setattr(kernel_model, "PANEL_BYTES", 50 * 3 * 8)
    p, X = make(kernel), rows(n) * (np.random.default_rng(2).random((n, 3)) < 0.5)
    expected_scores = p.values(X, 2)
    sparse = KernelModel(kernel, SCALING, SparseRows(form(p.support)), p.coefficients, p.intercept)
    for model, given in ((p, form(X)), (sparse, X), (sparse, form(X))):
        scores = model.values(given, 2)
        assert type(scores) is np.ndarray
        np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_the_wider_dtype_is_computed_in(kernel, form):
    """A float64 model on float32 rows, and the other way round; the scores are in the rows' dtype."""
    X = rows(60, "float32")
    wide, narrow = make(kernel), make(kernel, dtype="float32")
    scores = wide.values(form(X))
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, wide.values(X.astype(np.float64)).astype(np.float32))
    scores = narrow.values(form(X.astype(np.float64)))
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected(narrow, X), rtol=0, atol=1e-11 * (1 + np.abs(scores).max()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_and_support_blocks_change_nothing_or_rounding(monkeypatch, dtype):
    p, X = make(dtype=dtype), rows(3000, dtype)
    first = p.values(X, 1)
    for threads in (2, 3):
        assert p.values(X, threads).tobytes() == first.tobytes()
    monkeypatch.setattr(kernel_model, "PANEL_BYTES", 40 * 3 * 8)
    np.testing.assert_allclose(p.values(X), first, rtol=0, atol=1e-4 if dtype == "float32" else 1e-11)


@pytest.fixture
def narrow(monkeypatch):
    """Any rows are enough for float32."""
    monkeypatch.setattr(kernel_model, "NARROW_ENTRIES", 0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kernel", KERNELS[:2], ids=lambda k: k.name)
def test_label_values_have_every_sign_and_come_from_float32_where_they_can(kernel):
    X = np.vstack([rows(4000), [[1e30, 0.0, 0.0], [1e200, 0.0, 0.0]]])
    p = make(kernel)
    centre = np.median(p.values(X))
    p = replace(p, coefficients=1e-3 * p.coefficients, intercept=1e-3 * (p.intercept - centre))
    p = replace(p, intercept=p.intercept - p.values(X)[17])  # on the boundary but for the last digits
    values, found = p.values(X), p.label_values(X, 2)
    np.testing.assert_array_equal(found > 0, values > 0)
    near = np.abs(values) < 1e-7
    assert near.any()
    np.testing.assert_array_equal(found[near], values[near])
    assert np.mean(found != values) > 0.9
    np.testing.assert_allclose(found, values, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("narrow")
def test_labels_that_float32_cannot_tell_have_the_values_of_float64():
    """Coefficients are large, or errors unknown, which warns of no coefficient that is zero."""
    polynomial = make(Polynomial())
    polynomial.coefficients[0, :5] = 0.0
    for p in (replace(make(), coefficients=1e6 * make().coefficients), polynomial):
        np.testing.assert_array_equal(p.label_values(rows(500)), p.values(rows(500)))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kernel", [RBF, Laplacian])
@pytest.mark.parametrize("size", [1e-30, 1e-19, 1e19, 1e20, 1e39])
def test_labels_of_features_whose_squares_leave_float32_are_the_signs_of_float64(kernel, size):
    p = make(kernel(gamma=0.5 / (size**2 if kernel is RBF else size)))
    p = replace(p, scaling=replace(SCALING, shift=size * SCALING.shift), support=size * p.support)
    np.testing.assert_array_equal(p.label_values(size * rows(500)) > 0, p.values(size * rows(500)) > 0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("size", [1e-36, 1e-50, 1e-300])  # the last two vanish in float32
def test_labels_of_tiny_coefficients_are_the_signs_of_float64(size):
    p = replace(make(), coefficients=size * make().coefficients, intercept=size * make().intercept)
    np.testing.assert_array_equal(p.label_values(rows(500)) > 0, p.values(rows(500)) > 0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("d", [WIDE - 1, WIDE, 200])
def test_labels_of_rows_on_the_boundary_are_the_signs_of_all_rows_together(d):
    """BLAS multiplies some of the rows with other last digits than all of them."""
    rng = np.random.default_rng(0)
    scaling = Scaling(np.zeros(d), np.ones(d))
    p = KernelModel(RBF(gamma=0.5 / d), scaling, rng.normal(size=(50, d)), rng.normal(size=(1, 50)), np.zeros(1))
    X = rng.normal(size=(1500, d))
    values = p.values(X)[:, 0]
    for i in range(0, 1500, 75):
        q = replace(p, intercept=-values[i : i + 1])
        np.testing.assert_array_equal(q.label_values(X) > 0, q.values(X) > 0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("values", [KernelModel.values, KernelModel.label_values])
@pytest.mark.parametrize("far", [1.0, 100.0])  # float32 decides every row, and none
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_prediction_by_few_support_rows_copies_a_part_of_the_rows_at_a_time(monkeypatch, values, far, form):
    monkeypatch.setattr(kernel_model, "COPIED_BYTES", 1 << 20)
    n, d = 40_000, 100
    rng = np.random.default_rng(0)
    scaling, support = Scaling(np.zeros(d), np.ones(d)), 0.1 * rng.normal(size=(3, d))
    p = KernelModel(Laplacian(gamma=0.1), scaling, support, np.ones((1, 3)), np.full(1, 1e-7 if far > 1.0 else 1.0))
    X = np.zeros((n, d))
    X[:, :7] = far * rng.uniform(1.0, 2.0, (n, 7))
    given = form(X)
    values(p, given[:10])  # compile
    found, peak = traced(values, p, given, 2)
    assert (found == p.values(given)).all() == (far > 1.0 or values is KernelModel.values)
    assert peak < 0.5 * X.nbytes
