"""Stores of sparse rows: what went in comes out, in AnnData's encoding, block by block; lies are told from rows."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from scipy.sparse import bsr_array, csc_array, csr_array, issparse, random_array, vstack
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dask_odm import InputError, MDDRidge, ODMClassifier, Store, StoreError, ingest
from dask_odm.data.store import open_chunks
from dask_odm.data.store.interchange import as_store, open_store
from dask_odm.data.store.layout import EntryLayout, crc32c, seal
from dask_odm.data.store.open_chunks import OpenEntries
from dask_odm.data.store.sealed import zstd
from dask_odm.data.store.writer import StoreWriter
from small_stores import forge
from traced import traced

ROWS, FEATURES = 700, 3000


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Entries are cut into several files, and rows into several chunks that begin and end within them."""
    monkeypatch.setattr(open_chunks, "CHUNK_ENTRIES", 500)


def sparse_rows(seed: int = 0, density: float = 0.004) -> tuple[csr_array, np.ndarray]:
    """Rows of which some have no entries, with labels."""
    rng = np.random.default_rng(seed)
    X = random_array((ROWS, FEATURES), density=density, format="csr", random_state=rng, dtype=np.float64)
    X = csr_array(X.multiply((rng.uniform(size=ROWS) < 0.8)[:, None]))
    X.eliminate_zeros()
    return X, rng.integers(0, 3, ROWS)


def rows_of(store: Store) -> csr_array:
    buffer = store.buffer()
    return vstack([store.read(i, buffer).X.copy() for i in range(store.n_chunks)], format="csr")


def same(found: csr_array, expected: csr_array) -> bool:
    return found.shape == expected.shape and abs(found - expected).max() == 0


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_what_went_in_and_chunks_have_few_entries(tmp_path, dtype, compression):
    X, y = sparse_rows()
    weight = np.random.default_rng(1).uniform(size=ROWS)
    store = ingest((X, y), tmp_path / "a.zarr", dtype=dtype, compression=compression, weight=weight, block_bytes=3000)
    assert store.is_sparse
    assert store.n_chunks > 5
    assert same(rows_of(store), X.astype(dtype))
    np.testing.assert_array_equal(store.labels(store.read_column("y")), y)
    np.testing.assert_array_equal(store.read_column("weight"), weight)
    longest = np.diff(X.indptr).max()
    assert max(store.read(i).X.nnz for i in range(store.n_chunks)) == store.layout.entries.most <= 500 + longest
    assert store.verify() > X.nnz * np.dtype(dtype).itemsize * (compression is None)
    buffer = store.buffer()
    for i in np.random.default_rng(2).permutation(store.n_chunks).tolist():
        assert same(store.read(i, buffer).X, X.astype(dtype)[store.chunk_slice(i)])
    wanted = [5, 699, 0, 5]
    assert same(store.read_rows(wanted).X, X.astype(dtype)[wanted])
    np.testing.assert_array_equal(store.read_rows(wanted).weight, weight[wanted])


def test_libsvm_text_is_what_scikit_learn_reads(tmp_path):
    X, y = sparse_rows()
    path = tmp_path / "a.svm"
    dump_svmlight_file(X, y, str(path), zero_based=False)
    expected, labels = load_svmlight_file(str(path))
    store = ingest(path, tmp_path / "a.zarr", dtype="float64", block_bytes=2000)
    assert store.is_sparse
    assert same(rows_of(store), csr_array(expected))
    np.testing.assert_array_equal(store.labels(store.read_column("y")), labels)
    train, test = ingest(store.path, tmp_path / "b.zarr", test_size=0.3, dtype="float64")
    assert train.is_sparse
    assert rows_of(train).sum() + rows_of(test).sum() == pytest.approx(X.sum())
    assert not ingest(store.path, tmp_path / "dense.zarr", sparse=False).is_sparse


def test_zarr_and_scipy_read_the_encoding_of_anndata(tmp_path):
    """AnnData's specification of CSR: a group of data, indices and indptr, its type, version and shape attributes."""
    X, y = sparse_rows()
    ingest((X, y), tmp_path / "a.zarr", dtype="float64")
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")["X"]
    shape = [ROWS, FEATURES]
    assert dict(group.attrs) == {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape}
    found = csr_array((group["data"][:], group["indices"][:], group["indptr"][:]), shape=tuple(group.attrs["shape"]))
    assert same(found, X)


def test_the_dataset_has_blocks_of_csr_rows(tmp_path):
    X, y = sparse_rows()
    store = ingest((X, y), tmp_path / "a.zarr", dtype="float64")
    dataset = open_store(store.path)
    assert issparse(dataset.X.data._meta)
    assert dataset.X.data.chunks[0][:-1] == (store.chunk_rows,) * (store.n_chunks - 1)
    assert same(dataset.X.data.compute(), X)
    assert as_store(dataset) == store
    again = ingest(dataset, tmp_path / "again.zarr", dtype="float64")
    assert same(rows_of(again), X)


@pytest.mark.parametrize(
    ("features", "density", "sparse", "expected"),
    [(3000, 0.04, None, True), (3000, 0.06, None, False), (2048, 0.01, None, False), (50, 0.5, True, True)],
)
def test_the_share_of_entries_decides(tmp_path, features, density, sparse, expected):
    X = random_array((60, features), density=density, format="csr", random_state=np.random.default_rng(0))
    store = ingest((X, np.arange(60) % 2), tmp_path / "a.zarr", sparse=sparse, dtype="float64")
    assert store.is_sparse == expected
    found = rows_of(store).toarray() if expected else store.read_rows(np.arange(60)).X
    np.testing.assert_array_equal(found, X.toarray())


def test_real_targets_found_late_unknown_labels_and_rows_without_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(open_chunks.OpenEntries, "run_rows", 64)
    X, _ = sparse_rows()
    y = np.arange(ROWS) + 0.5  # real after more than 100 different ones
    store = ingest((X, y), tmp_path / "real.zarr", dtype="float64", block_bytes=2000)
    assert store.y_kind == "real"
    np.testing.assert_array_equal(store.read_column("y"), y)
    codes = np.arange(ROWS) % 3 - 1
    with StoreWriter(tmp_path / "codes.zarr", dtype="float64") as writer:
        writer.append(X, codes)
        store = writer.finish(("a", "b"))
    np.testing.assert_array_equal(store.read_column("y"), codes)
    assert same(rows_of(store), X)
    empty = ingest((csr_array((10, 3)), np.arange(10) % 2), tmp_path / "empty.zarr", sparse=True)
    assert same(rows_of(empty), csr_array((10, 3)))


def test_one_long_row_does_not_cut_the_others_finely(tmp_path):
    X, y = sparse_rows()
    long = vstack([csr_array(np.ones((1, FEATURES))), X[:200]], format="csr")
    store = ingest((long, y[:201]), tmp_path / "a.zarr", dtype="float64")
    assert same(rows_of(store), long)
    assert store.chunk_rows > 1


def test_unsorted_and_repeated_columns_are_put_in_order(tmp_path):
    X = csr_array((np.array([1.0, 2.0, 3.0]), np.array([4, 1, 4]), np.array([0, 3])), shape=(1, 5))
    store = ingest((X, [1]), tmp_path / "a.zarr", sparse=True)
    (block,) = store.blocks()
    assert block.X.indices.tolist() == [1, 4]
    assert block.X.data.tolist() == [2.0, 4.0]


def test_rows_are_sparse_for_all_or_none(tmp_path):
    X, _ = sparse_rows()
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(X)
        with pytest.raises(InputError, match="sparse for all rows or for none"):
            writer.append(X.toarray())


def test_a_store_that_lacks_a_file_takes_no_place(tmp_path, monkeypatch):
    X, y = sparse_rows()
    good = ingest((X, y), tmp_path / "a.zarr")
    monkeypatch.setattr(OpenEntries, "_write_file", lambda self, entries: setattr(self, "_held", 0))
    with pytest.raises(RuntimeError, match="array 'X/data' has 0 of"):
        ingest((X, y), tmp_path / "a.zarr", overwrite=True)
    assert Store.open(good.path) == good
    good.verify()


def test_chunks_of_many_entries_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(open_chunks, "MAX_CHUNK_BYTES", 12_000)
    X, y = sparse_rows()  # some 10 entries a row, of 12 bytes
    with pytest.raises(InputError, match=r"chunk_rows=300 makes chunks of 1\d{4} bytes; between 1 row and 12000 bytes"):
        ingest((X, y), tmp_path / "a.zarr", chunk_rows=300, dtype="float64", block_bytes=2000)
    assert not list(tmp_path.iterdir())
    assert ingest((X, y), tmp_path / "a.zarr", chunk_rows=50, dtype="float64").chunk_rows == 50
    assert ingest((csr_array(np.ones((2, FEATURES))), [0, 1]), tmp_path / "b.zarr", chunk_rows=1, sparse=True).rows == 2


DAMAGED = {
    "columns beyond": csr_array((np.ones(2), [0, 500], [0, 1, 2]), shape=(2, 10)),
    "negative columns": csr_array((np.ones(2), [0, -7], [0, 1, 2]), shape=(2, 10)),
    "rows beyond": csc_array((np.ones(2), [0, 500], [0, *[2] * 10]), shape=(2, 10)),
    "blocks beyond": bsr_array((np.ones((2, 1, 5)), [0, 2], [0, 1, 2]), shape=(2, 10)),
    "bounds that fall": csr_array((np.ones(2), [0, 1], [0, 5, 2]), shape=(2, 10)),
    "bounds that fall to 0": csr_array((np.ones(2), [0, 1], [0, 900, 0]), shape=(2, 10)),
}


@pytest.mark.parametrize("which", DAMAGED)
@pytest.mark.parametrize("sparse", [True, False])
def test_arrays_with_entries_elsewhere_are_refused(tmp_path, which, sparse):
    """SciPy makes such arrays without a word, and its own loops write to such places."""
    with pytest.raises(InputError, match="X is a damaged sparse array"):
        ingest((DAMAGED[which], [0, 1]), tmp_path / "a.zarr", sparse=sparse)
    with StoreWriter(tmp_path / "a.zarr") as writer, pytest.raises(InputError, match="X is a damaged sparse array"):
        writer.append(DAMAGED[which])
    for model in (ODMClassifier("linear"), ODMClassifier(), MDDRidge()):
        with pytest.raises(InputError, match="X is a damaged sparse array"):
            model.fit(DAMAGED[which], [0, 1])
        model.fit(csr_array(np.eye(2, 10)), [0, 1])
        with pytest.raises(InputError, match="X is a damaged sparse array"):
            model.predict(DAMAGED[which])


# Damage and lies ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_chunks, "CHUNK_ENTRIES", 500)
        X, y = sparse_rows()
        return Path(ingest((X, y), tmp_path_factory.mktemp("sound") / "a.zarr", dtype="float64").path)


@pytest.fixture
def store(sound, tmp_path) -> Store:
    """A copy that the test may damage."""
    return Store.open(shutil.copytree(sound, tmp_path / "a.zarr"))


def lie(store: Store, name: str, change, i: int = 0) -> Store:
    """Put other numbers in place of a chunk of an array, with checksums that fit, and open the store."""
    array = store.layout.of_entries()[f"X/{name}"]
    values = store.chunk(array, i).numbers().copy()
    change(values)
    data = seal(values.tobytes() if array.compression is None else bytes(zstd().encode(values.tobytes())))
    Path(store.path, array.chunk_key(i)).write_bytes(data)
    forge(store.path, lambda m: m["chunks"][array.name].__setitem__(i, [len(data), crc32c(data[:-4])]))
    return Store.open(store.path)


def read_whole(store: Store) -> None:
    buffer = store.buffer()
    for i in range(store.n_chunks):
        store.read(i, buffer)


LIES = {
    "a column beyond the last": ("indices", 7, FEATURES),
    "a negative column": ("indices", 7, -1),
    "the smallest column": ("indices", 7, np.iinfo(np.int32).min),
    "the largest column": ("indices", 7, np.iinfo(np.int32).max),
    "a column twice": ("indices", slice(0, 40), 5),
    "bounds that fall": ("indptr", 5, 400),
    "a negative bound": ("indptr", 5, -1),
    "a bound far beyond": ("indptr", 5, np.iinfo(np.int64).max),
    "a bound far below": ("indptr", 5, np.iinfo(np.int64).min),
    "another beginning": ("indptr", 0, 1),
    "no entries": ("indptr", slice(None), 0),
}


@pytest.mark.parametrize("which", LIES)
def test_bounds_and_columns_that_lie(store, which):
    name, at, value = LIES[which]
    liar = lie(store, name, lambda values: values.__setitem__(at, value))
    with pytest.raises(StoreError, match=r"array 'X/(indptr|indices)', chunk .*re-ingest"):
        read_whole(liar)


def damage(values: np.ndarray, rng: np.random.Generator) -> None:
    """Change bytes of some numbers, or whole numbers to near or far ones."""
    at = rng.integers(len(values), size=rng.integers(1, 4))
    how = rng.integers(4)
    if how == 0:
        values.view(np.uint8)[at * values.itemsize + rng.integers(values.itemsize)] ^= np.uint8(1 << rng.integers(8))
    elif how == 1:
        values[at[0] :] = np.frombuffer(rng.bytes(values[at[0] :].nbytes), values.dtype)
    elif how == 2:
        values[at] = np.roll(values, rng.integers(1, 5))[at]
    else:
        values[at] = rng.integers(-3, 1200, size=len(at))


@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
def test_damage_whose_checksums_fit_is_refused_or_read_within_bounds(tmp_path, name):
    """SciPy's own check of all bounds and columns finds nothing wrong with rows that are not refused."""
    X, y = sparse_rows()
    store = ingest((X, y), tmp_path / "a.zarr", dtype="float64", block_bytes=3000)
    array = store.layout.of_entries()[f"X/{name}"]
    manifest = Path(store.path, "manifest.json")
    before = manifest.read_bytes()
    refused = 0
    for trial in range(20):
        rng = np.random.default_rng(trial)
        i = int(rng.integers(array.n_chunks))
        whole = Path(store.path, array.chunk_key(i)).read_bytes()
        liar = lie(store, name, lambda values: damage(values, rng), i)  # noqa: B023
        try:
            for X in (rows_of(liar), liar.read_rows(rng.integers(ROWS, size=20)).X):
                X.check_format(full_check=True)
                places = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)) * FEATURES + X.indices
                assert (np.diff(places) > 0).all()
        except StoreError:
            refused += 1
        Path(store.path, array.chunk_key(i)).write_bytes(whole)
        manifest.write_bytes(before)
    assert (refused > 5) == (name != "data")


@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_a_shorter_file_whose_checksums_fit(store, name):
    array = store.layout.of_entries()[f"X/{name}"]
    data = seal(Path(store.path, array.chunk_key(1)).read_bytes()[:-100])
    Path(store.path, array.chunk_key(1)).write_bytes(data)
    forge(store.path, lambda m: m["chunks"][array.name].__setitem__(1, [len(data), crc32c(data[:-4])]))
    with pytest.raises(StoreError, match="manifest"):
        Store.open(store.path)


LAYOUTS = {
    "more entries than rows hold": {"total": ROWS * FEATURES + 1},
    "fewer entries": {"total": 10},
    "a negative number": {"total": -1},
    "no files": {"chunk": 0},
    "huge files": {"chunk": 1 << 40},
    "huge chunks": {"most": 1 << 40},
    "no room for a chunk": {"most": 1},
    "text": {"most": "many"},
    "another field": {"least": 1},
}


@pytest.mark.parametrize("which", LAYOUTS)
def test_a_layout_that_lies(store, which):
    forge(store.path, lambda m: m["layout"]["entries"].update(LAYOUTS[which]))
    with pytest.raises(StoreError):
        read_whole(Store.open(store.path))


def test_a_chunk_has_no_more_entries_than_a_writer_allows():
    """Readers take memory for as many: 12 bytes each would be 200 MB here, beside files of 12 kB."""
    with pytest.raises(ValueError, match="16777216 entries a chunk"):
        EntryLayout(1 << 25, 1000, 1 << 24).check(10_000, 5000)
    EntryLayout(1 << 25, 1000, 1 << 20).check(10_000, 5000)


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_a_damaged_file_is_named(store, name, how):
    path = Path(store.path, store.layout.of_entries()[f"X/{name}"].chunk_key(1))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.unlink() if how == "missing" else path.write_bytes(data[:-5] if how == "cut" else data)
    with pytest.raises(StoreError, match=f"array 'X/{name}', chunk 1: "):
        read_whole(store)
    with pytest.raises(StoreError, match=f"array 'X/{name}', chunk 1: "):
        Store.open(store.path).verify()


@pytest.mark.slow
def test_a_pass_takes_little_memory(tmp_path):
    """Chunks are read into the same buffers, so that a pass takes what its projection says, and no more."""
    X = random_array((20_000, 5000), density=2e-3, format="csr", random_state=np.random.default_rng(0))
    store = ingest((X, np.arange(20_000) % 2), tmp_path / "a.zarr")
    _, peak = traced(read_whole, store)
    assert peak < 3 * store.chunk_nbytes + 500_000 < X.nnz * 8
