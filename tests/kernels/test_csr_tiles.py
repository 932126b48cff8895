"""Tiles of sparse rows, beside scikit-learn's kernels of sparse and of dense rows."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import (
    bsr_matrix,
    coo_array,
    coo_matrix,
    csc_array,
    csc_matrix,
    csr_array,
    csr_matrix,
    dok_array,
    lil_array,
    random_array,
)
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel

from dask_odm.errors import InputError
from dask_odm.kernels.base import Sides
from dask_odm.kernels.blocks import Gram
from dask_odm.kernels.named import RBF, Linear, Polynomial
from dask_odm.kernels.sparse_tiles import tiles_of
from dask_odm.learning.problem.products import ChosenRows
from dask_odm.linalg.csr_rows import CSRRows, sparse_rows, stacked_rows

KERNELS = {
    "rbf": (RBF(0.5, gamma=0.3), lambda X, Z: rbf_kernel(X, Z, gamma=0.3) + 0.5),
    "poly": (
        Polynomial(0.5, gamma=0.2, degree=3, coef0=0.7),
        lambda X, Z: polynomial_kernel(X, Z, gamma=0.2, degree=3, coef0=0.7) + 0.5,
    ),
    "linear": (Linear(0.5), lambda X, Z: linear_kernel(X, Z, dense_output=True) + 0.5),
}
SIZES = [(1, 1), (4, 511), (5, 513), (30, 1100), (0, 3), (3, 0)]


def rows(n: int, d: int = 300, dtype: type = np.float64) -> csr_array:
    """Sparse rows, some of which have no entry, with a few features that most of them have."""
    rng = np.random.default_rng(n + d)
    X = random_array((n, d), density=0.05, rng=rng, data_sampler=lambda size: rng.standard_normal(size)).toarray()
    X[:, :3] = rng.standard_normal((n, 3)) * (rng.random((n, 3)) < 0.6)
    X[::7] = 0.0
    return csr_array(X.astype(dtype))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_tiles_are_those_of_scikit_learn(name, n, m):
    kernel, rival = KERNELS[name]
    X, Z = rows(n), rows(m)
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 2e-5)):
        found = kernel.tile(CSRRows.of(X.astype(dtype)), CSRRows.of(Z.astype(dtype)))
        assert found.dtype == dtype
        if n and m:
            for given in ((X, Z), (X.toarray(), Z.toarray())):
                np.testing.assert_allclose(found, rival(*given), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(kernel.diagonal(CSRRows.of(X)), kernel.diagonal(X.toarray()), rtol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_a_shift_of_all_rows_is_that_of_dense_rows(name):
    kernel, rival = KERNELS[name]
    shift = np.random.default_rng(0).random(300) * (np.arange(300) % 3 == 0)
    X, Z = (CSRRows.of(rows(n), shift=shift) for n in (40, 60))
    dense = rows(40).toarray() - shift
    np.testing.assert_allclose(kernel.tile(X, Z), rival(dense, rows(60).toarray() - shift), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(kernel.diagonal(X), rival(dense, dense).diagonal(), rtol=1e-11)
    np.testing.assert_allclose(np.asarray(X), dense, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_parts_and_products_have_the_bits_of_the_tile(name, dtype):
    kernel, _ = KERNELS[name]
    X, Z = CSRRows.of(rows(530, dtype=dtype)), CSRRows.of(rows(700, dtype=dtype))
    left, right = kernel.pack_left(X), kernel.pack_right(Z)
    tile = kernel.tile_packed(left, right)
    np.testing.assert_array_equal(kernel.tile(X[np.arange(9, 200)], Z), tile[9:200])  # gathered
    np.testing.assert_array_equal(kernel.tile_packed(left[10:20], right[512:700]), tile[10:20, 512:])
    u, v = np.random.default_rng(1).standard_normal(512), np.random.default_rng(2).standard_normal(188)
    found, wanted = (Sides(v, np.zeros(512), u, np.zeros(188)) for _ in range(2))
    kernel.products(left[:512], right[512:700], found)
    kernel.multiply(np.ascontiguousarray(tile[:512, 512:]), wanted)
    np.testing.assert_array_equal(found.by_row, wanted.by_row)
    np.testing.assert_array_equal(found.by_column, wanted.by_column)
    np.testing.assert_allclose(found.by_row, tile[:512, 512:].astype(np.float64) @ v, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram_products_have_the_same_bits_for_any_threads_and_memory(dtype):
    kernel, rival = KERNELS["rbf"]
    X = rows(1300)
    chosen = ChosenRows(CSRRows.of(X), np.arange(1300), dtype == np.float64)
    v = np.random.default_rng(0).standard_normal(1300)
    first = Gram(kernel, chosen, 0).matvec(v)
    for budget, threads in ((0, 3), (1 << 30, 1), (1 << 30, 2)):
        np.testing.assert_array_equal(Gram(kernel, chosen, budget, threads).matvec(v), first)
    np.testing.assert_allclose(first, rival(X, X) @ v, rtol=1e-4, atol=2e-3 if dtype == np.float32 else 1e-10)


def test_time_and_memory_do_not_grow_with_the_columns():
    d = (1 << 31) - 1  # as dense rows they would take gigabytes each
    features = np.array([0, 1, d - 1, 1, d // 2, d - 1, 7, d - 1])
    X = csr_array((np.arange(1.0, 9.0), features, [0, 3, 6, 6, 8]), shape=(4, d))
    wanted = [[1 + 4 + 9, 2 * 4 + 3 * 6, 0, 3 * 8], [26, 16 + 25 + 36, 0, 48], [0, 0, 0, 0], [24, 48, 0, 49 + 64]]
    np.testing.assert_array_equal(Linear().tile(CSRRows.of(X), CSRRows.of(X)), wanted)


def test_unsorted_repeated_and_zero_entries_of_64_bit_indices_are_those_of_plain_rows():
    X = rows(60)
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in pairwise(X.indptr)])
    entries = np.repeat(order, 3)
    data = np.repeat(X.data[order], 3) * np.tile([0.25, 0.0, 0.75], len(order))
    hostile = csr_array((data, X.indices[entries].astype(np.int64), 3 * X.indptr.astype(np.int64)), shape=X.shape)
    assert not hostile.has_sorted_indices
    kernel, _ = KERNELS["rbf"]
    found = kernel.tile(CSRRows.of(hostile), CSRRows.of(hostile))
    np.testing.assert_allclose(found, kernel.tile(CSRRows.of(X), CSRRows.of(X)), rtol=1e-13)
    assert hostile.nnz == 3 * X.nnz  # the caller's array is as it was


class Foreign:
    """An array of the package ``sparse``, of which this is used."""

    ndim = 2

    def __init__(self, X: csr_array, fill_value: float = 0.0) -> None:
        self.X = X
        self.fill_value = fill_value

    def asformat(self, name: str) -> "Foreign":
        assert name == "coo"
        return self

    def to_scipy_sparse(self) -> coo_array:
        return coo_array(self.X)


@pytest.mark.parametrize(
    "form",
    [csr_array, csr_matrix, csc_array, csc_matrix, coo_array, coo_matrix, lil_array, dok_array, bsr_matrix, Foreign],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_sparse_rows_of_any_kind_become_a_csr_array(form, dtype):
    X = rows(40).astype(dtype)
    given = form(X)
    found = sparse_rows(given)
    assert type(found) is csr_array  # not a matrix, whose mean has two dimensions
    assert found.dtype == dtype
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), X.toarray())


def test_sparse_arrays_that_are_no_rows_of_mostly_zeros():
    with pytest.raises(InputError, match=r"must have two dimensions. Got a sparse array of shape \(2, 3, 4\)"):
        sparse_rows(coo_array(np.ones((2, 3, 4))))
    with pytest.raises(InputError, match=r"whose other entries are 1.0, not 0; pass X.todense\(\)"):
        sparse_rows(Foreign(rows(3), 1.0))


def test_entries_that_are_stored_in_several_parts_are_added_up_in_a_copy():
    X = rows(40)
    parts = csr_matrix((np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr.astype(np.int64)), X.shape)
    np.testing.assert_array_equal(sparse_rows(parts).toarray(), X.toarray())
    assert parts.nnz == 2 * X.nnz
    dense = X.toarray()
    assert sparse_rows(dense) is dense


def test_rows_are_indexed_and_stacked_like_an_array():
    X = rows(50)
    given, dense = CSRRows.of(X, shift=np.arange(300.0)), X.toarray() - np.arange(300.0)
    mask = np.arange(50) % 3 == 0
    for where in (slice(3, 20), slice(45, 90), slice(20, 3), slice(None, None, 4), np.array([7, 7, 0]), mask, []):
        index = np.array(where, int) if isinstance(where, list) else where
        np.testing.assert_array_equal(np.asarray(given[index]), dense[index])
        narrow = np.asarray(given[index].astype(np.float32))
        np.testing.assert_allclose(narrow, dense[index], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(stacked_rows([given[5:9], given[30:]])), np.r_[dense[5:9], dense[30:]])
    v = np.random.default_rng(0).standard_normal(300)
    np.testing.assert_allclose(given[4:].along(v), dense[4:] @ v)
    np.testing.assert_allclose(given[4:].square_norms(), (dense[4:] ** 2).sum(axis=1))
    assert given[4:9].nbytes < given.nbytes
    assert tiles_of(KERNELS["rbf"][0], given) is KERNELS["rbf"][0]


@pytest.mark.parametrize("shifted", [False, True])
def test_columns_that_are_empty_change_no_inner_product(shifted):
    X = random_array((30, 200), density=0.01, format="csr", random_state=0, dtype=np.float32)
    shift = np.where(np.arange(200) == 150, 0.5, 0.0) if shifted else None
    whole = CSRRows.of(X, None, shift)
    few = whole.without_empty_columns()
    used = len(np.union1d(X.indices, [0, 150] if shifted else [0]))
    assert few.shape == (30, used)
    few, whole = np.asarray(few), np.asarray(whole)
    np.testing.assert_allclose(few @ few.T, whole @ whole.T, rtol=1e-6)
