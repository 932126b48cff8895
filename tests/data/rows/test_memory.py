"""Rows in memory: sparse ones are what dense rows scaled give, and equal rows are found, whatever their order."""

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from dask_odm.data.rows import memory
from dask_odm.data.rows.memory import SparseRows, merge_equal, taken
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.store.statistics import EntryStatistics, Statistics, StatisticsAccumulator

FIGURES = ("minimum", "maximum", "mean", "variance")


def dense_rows(dtype: str = "float64") -> np.ndarray:
    """Columns: mostly zeros, no value, all values, all the same, all but one, all negative, negative among zeros."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(57, 7)) * (rng.random((57, 7)) < 0.3)
    X[:, 1] = 0.0
    X[:, 2] = rng.normal(5.0, 1.0, 57)
    X[:, 3] = 3.0
    X[:, 4] = np.where(np.arange(57) == 20, 0.0, 2.0)
    X[:, 5] = -rng.uniform(1.0, 2.0, 57)
    X[:, 6] = -np.abs(X[:, 6])
    X[11] = 0.0
    return X.astype(dtype)


def with_stored_zeros(X: np.ndarray) -> csr_array:
    """CSR that also stores every other of its zeros."""
    stored = (X != 0) | (np.add.outer(np.arange(X.shape[0]), np.arange(X.shape[1])) % 2 == 0)
    rows, columns = np.nonzero(stored)
    sparse = csr_array((X[rows, columns], columns, np.concatenate([[0], np.cumsum(stored.sum(axis=1))])), X.shape)
    assert sparse.nnz > np.count_nonzero(X)
    return sparse


def of_entries(X, weight) -> Statistics:
    """Statistics of sparse rows, of two halves that are added."""
    cut = X.shape[0] // 2
    halves = [EntryStatistics(X.shape[1]), EntryStatistics(X.shape[1])]
    halves[0].update(csr_array(X)[:cut], weight[:cut])
    halves[1].update(csr_array(X)[cut:], weight[cut:])
    return (halves[0] + halves[1]).result()


def gathered(X: np.ndarray, weight: np.ndarray) -> Statistics:
    accumulator = StatisticsAccumulator(X.shape[1])
    accumulator.update(X, weight)
    return accumulator.result()


FORMS = pytest.mark.parametrize("form", [csr_array, csr_matrix, with_stored_zeros], ids=lambda f: f.__name__)
EVERY_DTYPE = pytest.mark.parametrize("dtype", ["float32", "float64"])


@FORMS
@EVERY_DTYPE
@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_are_those_of_the_dense_rows(form, dtype, weighted):
    X = dense_rows(dtype)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(X)) if weighted else np.ones(len(X))
    found, expected = of_entries(form(X), weight), gathered(X, weight)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-14)
    X = X.astype(np.float64)
    np.testing.assert_array_equal(found.minimum, X.min(axis=0))
    np.testing.assert_array_equal(found.maximum, X.max(axis=0))
    mean = np.average(X, axis=0, weights=weight)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.variance, np.average((X - mean) ** 2, axis=0, weights=weight), atol=1e-14)


@pytest.mark.parametrize("value", [0.1, 1e-30, -1e20, 16777217.0])
def test_a_constant_feature_is_exactly_constant(value):
    """Or it would be blown up by scaling: 1 / (a variance of rounding errors)."""
    X = np.full((101, 2), value)
    found = of_entries(csr_array(X), np.random.default_rng(3).uniform(0.1, 1.0, 101))
    np.testing.assert_array_equal([found.minimum, found.maximum, found.mean], np.full((3, 2), value))
    np.testing.assert_array_equal(found.variance, 0.0)


def test_nothing_cancels_far_from_zero():
    X = np.random.default_rng(4).normal(1e8, 1.0, (200, 1))
    found = of_entries(csr_array(X), np.ones(200))
    assert found.variance[0] == pytest.approx(X.var(), rel=1e-6)


@pytest.mark.parametrize("method", [None, "minmax", "standard"])
@pytest.mark.parametrize("centre", [False, True])
@FORMS
@EVERY_DTYPE
def test_reading_is_scaling_the_dense_rows(method, centre, form, dtype):
    X = dense_rows(dtype)
    scaling = Scaling.from_statistics(gathered(X, np.ones(len(X))), method, centre=centre)
    rows, expected = SparseRows(form(X), scaling), scaling(X)
    assert (rows.n, rows.d, len(rows), rows.shape, rows.dtype) == (57, 7, 57, (57, 7), dtype)
    for start, stop in ((0, 57), (0, 1), (11, 12), (30, 57), (5, 5)):
        block = rows.read(start, stop)
        np.testing.assert_array_equal(block, expected[start:stop])
        assert block.dtype == dtype
        assert block.flags.c_contiguous
    np.testing.assert_array_equal(rows[np.array([4, 50, 4])], expected[[4, 50, 4]])


def test_chosen_rows_stay_sparse():
    X = dense_rows()
    scaling = Scaling.from_statistics(gathered(X, np.ones(len(X))), "standard", centre=True)
    rows, order = SparseRows(csr_array(X), scaling), np.random.default_rng(5).permutation(57)
    for chosen, expected in (
        (rows.take(order), X[order]),
        (taken(rows, order), X[order]),
        (rows.take(slice(9, 30)), X[9:30]),
    ):
        assert isinstance(chosen, SparseRows)
        assert chosen.X.format == "csr"
        assert chosen.X.nnz == np.count_nonzero(expected)
        np.testing.assert_array_equal(chosen.read(0, chosen.n), scaling(expected))
    np.testing.assert_array_equal(taken(X, order), X[order])


def test_reading_leaves_the_rows_alone():
    X = csr_array(dense_rows())
    before = X.copy()
    rows = SparseRows(X, Scaling(np.ones(7), np.full(7, 2.0)))
    rows.read(0, 57)[:] = np.nan
    of_entries(X, np.ones(57))
    np.testing.assert_array_equal(X.toarray(), before.toarray())
    assert X.nnz == before.nnz


def test_rows_without_any_entry():
    statistics = of_entries(csr_array((4, 3), dtype=np.float32), np.ones(4))
    for values in (statistics.minimum, statistics.maximum, statistics.mean, statistics.variance):
        np.testing.assert_array_equal(values, np.zeros(3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 7])
def test_first_of_equal_rows_in_order(dtype, d):
    rng = np.random.default_rng(d)
    X = rng.integers(0, 3, (400, d)).astype(dtype)
    y = rng.choice([-1.0, 1.0], 400)
    first, of = merge_equal(X, y)
    seen: dict[bytes, int] = {}
    for i, row in enumerate(np.column_stack([X, y])):
        seen.setdefault(row.tobytes(), i)
    np.testing.assert_array_equal(first, sorted(seen.values()))
    np.testing.assert_array_equal(X[first][of], X)
    np.testing.assert_array_equal(y[first][of], y)


def test_rows_of_one_hash_that_differ_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_hash_rows", lambda words, odd, out: out.fill(0))
    X = np.array([[1.0], [2.0], [1.0]])
    np.testing.assert_array_equal(merge_equal(X, np.ones(3))[0], [0, 1, 2])
