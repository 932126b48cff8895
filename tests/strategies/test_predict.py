"""Predictors: blocks of any size give the formula's values, from memory, from a file and by tasks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.data.store.records import read_record, write_record
from dask_odm.errors import StoreError
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.strategies import predict
from dask_odm.strategies.predict import ModelFile, Predictor, decide_block, decide_chunk, label_block, predictor_from
from small_problems import matrix
from small_stores import store_of

GAUSS = RBF(gamma=0.5)
SCALING = Scaling(np.array([1.0, -2.0, 0.0]), np.array([0.5, 1.0, 2.0]))


def make(kernel=GAUSS, n: int = 130, dtype: str = "float64") -> Predictor:
    rng = np.random.default_rng(0)
    support = rng.normal(size=(n, 3)).astype(dtype)
    return Predictor(kernel, SCALING, support, rng.normal(size=(1, n)), None, np.array([0.25]))


def rows(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, 3)).astype(dtype)


def expected(p: Predictor, X: np.ndarray) -> np.ndarray:
    def scaled(Z):
        return (np.asarray(Z, np.float64) - SCALING.shift) * SCALING.factor

    return matrix(p.kernel, scaled(X), scaled(p.support[:])) @ p.coefficients[0] + p.intercept[0]


KERNELS = [RBF(gamma=0.5), Laplacian(gamma=0.5), Polynomial(gamma=0.2, degree=2)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("float64", 1e-11)])
@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 2500])
def test_decision_is_the_formula(kernel, dtype, tolerance, n):
    p, X = make(kernel, dtype=dtype), rows(n, dtype)
    scores = p.decision(X, 2)
    assert scores.dtype == dtype
    assert scores.shape == (n,)
    if n:
        np.testing.assert_allclose(scores, expected(p, X), atol=tolerance * (1 + np.abs(scores).max()))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("n", [0, 1, 1024, 1025, 2500])
@pytest.mark.parametrize("form", [csr_array, csr_matrix])
def test_sparse_rows_and_sparse_support_give_the_bits_of_dense_ones(monkeypatch, kernel, n, form):
    monkeypatch.setattr(predict, "SUPPORT_BYTES", 50 * 3 * 8)
    p, X = make(kernel), rows(n) * (np.random.default_rng(2).random((n, 3)) < 0.5)
    expected_scores = p.decision(X, 2)
    sparse = Predictor(kernel, SCALING, SparseRows(form(p.support)), p.coefficients, None, p.intercept)
    for model, given in ((p, form(X)), (sparse, X), (sparse, form(X))):
        scores = model.decision(given, 2)
        assert type(scores) is np.ndarray
        np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_the_wider_dtype_is_computed_in(kernel, form):
    """A float64 model on float32 rows, and the other way round; the scores are in the rows' dtype."""
    X = rows(60, "float32")
    wide, narrow = make(kernel), make(kernel, dtype="float32")
    scores = wide.decision(form(X))
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, wide.decision(X.astype(np.float64)).astype(np.float32))
    scores = narrow.decision(form(X.astype(np.float64)))
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected(narrow, X), rtol=0, atol=1e-11 * (1 + np.abs(scores).max()))


def test_weights_of_the_linear_kernel():
    w = np.array([[1.0, -2.0, 0.5]])
    p = Predictor(Linear(), SCALING, np.empty((0, 3)), np.empty((1, 0)), w, np.array([0.5]))
    X = rows(10)
    np.testing.assert_allclose(p.decision(X), X @ w[0] + 0.5, rtol=1e-14)
    for form in (csr_array, csr_matrix):
        np.testing.assert_allclose(p.decision(form(X)), X @ w[0] + 0.5, rtol=1e-13)
        assert p.decision(form(X.astype(np.float32))).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_and_support_blocks_change_nothing_or_rounding(monkeypatch, dtype):
    p, X = make(dtype=dtype), rows(3000, dtype)
    first = p.decision(X, 1)
    for threads in (2, 3):
        assert p.decision(X, threads).tobytes() == first.tobytes()
    monkeypatch.setattr(predict, "SUPPORT_BYTES", 40 * 3 * 8)
    np.testing.assert_allclose(p.decision(X), first, rtol=0, atol=1e-4 if dtype == "float32" else 1e-11)


@pytest.fixture
def path(tmp_path):
    p = make()
    write_record(tmp_path / "m.zarr", "model", p.arrays(), {"kernel": p.kernel.parameters()})
    return str(tmp_path / "m.zarr")


@pytest.mark.parametrize("held", [0, 1 << 30], ids=["on disk", "held"])
def test_from_a_file_the_same_bits(path, monkeypatch, held):
    monkeypatch.setattr(predict, "HELD_BYTES", held)
    p = predictor_from(read_record(path, "model"))
    assert isinstance(p.support, np.ndarray) == (held > 0)
    assert p.support.shape == (130, 3)
    np.testing.assert_array_equal(p.support[3:7], make().support[3:7])
    assert p.decision(rows(50)).tobytes() == make().decision(rows(50)).tobytes()
    assert p.kernel == make().kernel


def test_a_model_file_is_read_once_a_process(path, monkeypatch):
    file, reads = ModelFile.of(read_record(path, "model")), []
    monkeypatch.setattr(predict, "read_record", lambda *a: reads.append(a) or read_record(*a))
    for _ in range(3):
        np.testing.assert_array_equal(decide_block(file, rows(5)), make().decision(rows(5)))
    assert len(reads) == 1


def test_a_replaced_model_file_is_noticed(path):
    old = ModelFile(str(path), "0" * 64)
    assert not old.is_current()
    with pytest.raises(StoreError, match="was replaced since it was loaded"):
        old.load()


def test_a_chunk_of_a_store(tmp_path, path):
    X = rows(100)
    store = store_of(tmp_path / "a.zarr", X, None, chunk_rows=30)
    for model in (make(), ModelFile.of(read_record(path, "model"))):
        parts = [decide_chunk(model, store, i) for i in range(4)]
        np.testing.assert_allclose(np.concatenate(parts), make().decision(X), atol=1e-12)


@pytest.mark.parametrize("kernel", [{"name": "sigmoid"}, {"name": "rbf", "delta": 1.0}, {}, None])
def test_an_unknown_kernel(tmp_path, kernel):
    write_record(tmp_path / "m.zarr", "model", make().arrays(), {"kernel": kernel})
    with pytest.raises(StoreError, match="kernel"):
        predictor_from(read_record(tmp_path / "m.zarr", "model"))


def test_labels_of_scores():
    classes = np.array(["no", "yes"])
    assert label_block(np.array([-1.0, 0.0, 1e-300]), classes).tolist() == ["no", "no", "yes"]
