"""Stores of real targets, and what a store says of its y without reading X."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from dask.base import tokenize
from scipy.sparse import csr_array

from dask_odm import InputError, Store, StoreError
from dask_odm.data.store.layout import STORE_CHUNK_BYTES, crc32c, rows_of_chunk
from dask_odm.data.store.writer import StoreWriter
from data.stores import CHUNK, ROWS, made_up_rows, rewrite_y, write_store
from small_stores import forge


def real_store(path: Path, *, weight: bool = True, compression: str | None = None, coded: int = 0) -> Store:
    """A store of real targets, every tenth unknown; the first ``coded`` rows come as codes at first."""
    X, _, w = made_up_rows()
    y = targets()
    values, codes = np.unique(y[:coded], return_inverse=True)
    with StoreWriter(path, chunk_rows=CHUNK, compression=compression) as writer:
        for start in range(0, ROWS, 100):
            rows = slice(start, start + 100)
            given = codes[rows] if start < coded else y[rows]
            if start == coded and coded:
                writer.make_real(values.tolist())
            writer.append(X[rows], given, w[rows] if weight else None)
        return writer.finish(source="made up")


def targets() -> np.ndarray:
    y = np.random.default_rng(1).normal(size=ROWS)
    y[::10] = np.nan
    return y


def test_codes_that_turn_out_to_be_numbers(tmp_path):
    """The file is the same as if they had been numbers from the first row on."""
    at_once = real_store(tmp_path / "a.zarr")
    for coded in (100, 300, 700):
        store = real_store(tmp_path / f"{coded}.zarr", coded=coded)
        assert store.digest == at_once.digest
        assert not Path(store.path, "codes").exists()
        store.verify()


def test_codes_and_numbers_do_not_mix(tmp_path):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((2, 1)), [0, 1])
        with pytest.raises(InputError, match="codes for all rows, or real targets for all"):
            writer.append(np.zeros((2, 1)), [0.5, 1])


@pytest.mark.parametrize("wrong", [{"known_rows": ROWS + 1}, {"known_rows": None}, {"known_weight": "1"}])
def test_impossible_facts_of_real_targets(tmp_path, wrong):
    store = real_store(tmp_path / "a.zarr")
    rewrite_y(store, lambda attributes: attributes.update(wrong))
    with pytest.raises(StoreError, match=r"file 'y/zarr.json': no known targets"):
        Store.open(store.path)


def test_an_infinite_target_is_damage(tmp_path):
    store = real_store(tmp_path / "a.zarr", weight=False)
    y = np.full(CHUNK, np.inf)
    data = y.tobytes()
    Path(store.path, "y/c/1").write_bytes(data + crc32c(data).to_bytes(4, "little"))
    with pytest.raises(StoreError, match="chunk 1"):
        store.read_columns(1)


# Several targets --------------------------------------------------------------------------------------------


def several_store(path: Path, y: np.ndarray, form=np.asarray, **options) -> Store:
    X, _, weight = made_up_rows()
    with StoreWriter(path, **options) as writer:
        for start in range(0, ROWS, 130):
            rows = slice(start, start + 130)
            writer.append(form(X[rows]), y[rows], weight[rows])
        return writer.finish()


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_several_targets_of_a_row_are_kept(tmp_path, form, compression):
    y = np.stack([targets(), np.arange(ROWS) + 0.5, np.ones(ROWS)], axis=1)
    store = several_store(tmp_path / "a.zarr", y, form, compression=compression, chunk_rows=300)
    known = ~np.isnan(y).any(axis=1)
    assert (store.targets, store.known_rows, store.y_kind, store.facts.labels) == (3, known.sum(), "real", ())
    np.testing.assert_array_equal(store.read_column("y"), y)
    np.testing.assert_array_equal(store.read_rows([400, 3]).y, y[[400, 3]])
    assert known[np.isin(y[:, 1], store.sample(50)[1][:, 1])].all()
    one = store.of_target(1)
    np.testing.assert_array_equal(one.read_column("y"), np.where(known, y[:, 1], np.nan))
    assert (one.targets, tokenize(one) == tokenize(store)) == (0, False)
    store.verify()
    found = zarr.open_group(store.path, mode="r")["y"]
    assert (found.shape, found.metadata.dimension_names) == ((ROWS, 3), ("sample", "target"))


def test_a_matrix_of_labels_is_known_as_such(tmp_path):
    _, _, weight = made_up_rows()
    y = np.random.default_rng(0).integers(0, 2, (ROWS, 2)).astype(float)
    y[5, 1] = np.nan
    known = np.arange(ROWS) != 5
    store = several_store(tmp_path / "a.zarr", y)
    assert "2 labels a row" in repr(store)
    for i in range(2):
        one = store.of_target(i, as_label=True)
        codes = np.where(known, y[:, i], -1).astype(np.int8)
        np.testing.assert_array_equal(one.read_column("y"), codes, strict=True)
        assert (one.classes, one.class_counts) == ((0, 1), tuple(np.bincount(codes[known])))
        np.testing.assert_allclose(one.class_weights_total(), np.bincount(codes[known], weight[known]))


@pytest.mark.parametrize("wrong", [[], [{}, {}], "all"])
def test_impossible_facts_of_labels(tmp_path, wrong):
    store = several_store(tmp_path / "a.zarr", np.zeros((ROWS, 2)))
    rewrite_y(store, lambda held: held.update(labels=held["labels"][:1] if wrong == [] else wrong))
    with pytest.raises(StoreError, match=r"file 'y/zarr.json': no known targets"):
        Store.open(store.path)


@pytest.mark.parametrize("wrong", [{"targets": 1}, {"targets": -2}, {"targets": 2.0}, {"y_dtype": "int8"}])
def test_impossible_numbers_of_targets(tmp_path, wrong):
    store = several_store(tmp_path / "a.zarr", np.zeros((ROWS, 2)))
    forge(store.path, lambda manifest: manifest["layout"].update(wrong))
    with pytest.raises(StoreError):
        Store.open(store.path)


def test_chunks_of_many_targets_keep_their_bounds(tmp_path):
    assert rows_of_chunk(None, 1, "float32", 1000) == STORE_CHUNK_BYTES // 8000
    with StoreWriter(tmp_path / "a.zarr", chunk_rows=100_000) as writer, pytest.raises(InputError, match="chunk_rows"):
        writer.append(csr_array((3, 5)), np.zeros((3, 400)))


# Weights of classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_weights_of_classes_are_those_of_reading(tmp_path, compression):
    store = write_store(tmp_path / "a.zarr", compression=compression)
    _, codes, weight = made_up_rows()
    np.testing.assert_allclose(store.class_weights_total(), np.bincount(codes, weight), rtol=1e-13)
    known = store.class_weights_total()
    rewrite_y(store, lambda attributes: attributes.pop("class_weights"))  # as stores were written before
    older = Store.open(store.path)
    assert older.facts.class_weights is None
    for i in range(store.n_chunks):
        Path(store.path, store.layout.X.chunk_key(i)).unlink()
    np.testing.assert_array_equal(older.class_weights_total(), known, strict=True)
    with StoreWriter(tmp_path / "b.zarr") as writer:
        writer.append(np.zeros((4, 1)), [0, 1, -1, 1])
        bare = writer.finish()
    np.testing.assert_array_equal(bare.class_weights_total(), [1.0, 2.0])  # without weights their rows


def test_columns_are_read_without_rows(store):
    for i in range(store.n_chunks):
        Path(store.path, store.layout.X.chunk_key(i)).unlink()
    _, codes, weight = made_up_rows()
    blocks = list(store.column_blocks())
    np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), codes)
    np.testing.assert_array_equal(np.concatenate([b.weight for b in blocks]), weight)
    assert [(b.first, b.X.shape) for b in blocks] == [(0, (300, 0)), (300, (300, 0)), (600, (300, 0)), (900, (100, 0))]
