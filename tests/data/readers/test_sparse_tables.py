"""SciPy sparse rows: filled block by block, whatever their format."""

import numpy as np
import pytest
import scipy.sparse

from dask_odm.data.ingest import ingest
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.tables import ArrayTable
from data.reading import read_all, sparse_rows, stored
from traced import traced

X, Y = sparse_rows()


@pytest.mark.parametrize("block_bytes", [1, 300, 10**6])
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("form", [scipy.sparse.coo_array, scipy.sparse.coo_matrix])
def test_sparse_rows_are_what_went_in(tmp_path, form, kind, block_bytes):
    store = ingest(
        (form(X).asformat(kind), Y), tmp_path / "a.zarr", weight=np.arange(200.0), dtype="float64",
        block_bytes=block_bytes, chunk_rows=64,
    )  # fmt: skip
    rows, labels = stored(store)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, Y)
    np.testing.assert_array_equal(store.read_column("weight"), np.arange(200.0))


def test_rows_alone_and_a_column_of_labels():
    matrix = scipy.sparse.csr_array(np.abs(X))
    np.testing.assert_array_equal(read_all(matrix, dtype="float64")[0], np.abs(X))
    rows, labels, _ = read_all(matrix, label=8, dtype="float64", block_bytes=100)
    np.testing.assert_array_equal(rows, np.abs(X[:, :8]))
    np.testing.assert_array_equal(labels, np.abs(X[:, 8]))


def test_sparse_rows_are_never_dense_as_a_whole():
    matrix = scipy.sparse.random_array((20000, 1000), density=1e-3, format="csr", random_state=np.random.default_rng(0))
    source = open_source(matrix, block_bytes=400_000)
    total, peak = traced(lambda: sum(float(block.X.sum(dtype=np.float64)) for block in source.blocks()))
    assert total == pytest.approx(matrix.sum(), rel=1e-6)
    assert peak < 4_000_000 < 20_000 * 1000 * 4


def test_a_column_of_weights_leaves_the_others_sparse():
    matrix = scipy.sparse.random_array((5000, 1000), density=1e-3, format="csr", random_state=np.random.default_rng(0))
    weight, peak = traced(ArrayTable(matrix).numbers, [7], 0, 5000)
    np.testing.assert_array_equal(weight, matrix[:, [7]].toarray())
    assert peak < 1_000_000 < 5000 * 1000 * 8
