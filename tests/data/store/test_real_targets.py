"""Stores of real targets, and what a store says of its y without reading X."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dask_odm.data.store.layout import crc32c
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError, StoreError
from data.stores import CHUNK, ROWS, made_up_rows, rewrite_y, write_store


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


def test_a_store_of_real_targets_has_no_classes(tmp_path):
    with pytest.raises(InputError, match=r"holds real targets.* a regressor, .*target='classes' \(--target classes\)"):
        real_store(tmp_path / "a.zarr").require_classes()


def test_codes_and_numbers_do_not_mix(tmp_path):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((2, 1)), [0, 1])
        with pytest.raises(InputError, match="codes for all rows, or real targets for all"):
            writer.append(np.zeros((2, 1)), [0.5, 1])


@pytest.mark.parametrize(
    "wrong", [{"known_rows": ROWS + 1}, {"known_rows": None}, {"known_weight": -1.0}, {"known_weight": "1"}]
)
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
