"""Partitions on disk: every row is there exactly once, is read by any range, and damage is named."""

from pathlib import Path

import numpy as np
import pytest

from dask_odm import Store, StoreError
from dask_odm.data.rows import stored
from dask_odm.data.rows.dealing import count_groups
from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import StoredPartitions, sample_chunk
from dask_odm.data.rows.targets import ManyClasses, RealValues, Targets, TwoClasses
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.partitioners import RandomPartitioner
from dask_odm.engine.shuffle import Shuffle
from small_stores import store_of
from tree_jobs import HERE

FEATURES = 3
PLAIN = Scaling(np.zeros(FEATURES), np.ones(FEATURES))


def made_up(rows: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that tell their number, labels of which some are unknown, weights of which some are zero."""
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, FEATURES)).astype(dtype)
    X[:, 0] = np.arange(rows)
    y = rng.choice(np.array(["no", "yes", None], dtype=object), rows, p=[0.5, 0.4, 0.1])
    y[:2] = ["no", "yes"]
    return X, y, np.where(rng.random(rows) < 0.1, 0.0, rng.uniform(0.5, 2.0, rows))


def shuffled(
    folder: Path, rows: int, parts: int, *, chunk: int = 37, dtype: str = "float32", piece: int | None = None
) -> StoredPartitions:
    """Rows of a store in random partitions, in pieces of ``piece`` rows."""
    X, y, weight = made_up(rows, dtype)
    store = store_of(folder / "a.zarr", X, y, weight=weight, chunk_rows=chunk)
    return in_partitions(store, TwoClasses((0.5, 3.0)), folder, parts, piece)


def in_partitions(store: Store, targets: Targets, folder: Path, parts: int, piece: int | None) -> StoredPartitions:
    (folder / "scratch").mkdir()
    shuffle = Shuffle(store, targets, str(folder / "scratch"), HERE)
    with pytest.MonkeyPatch.context() as patch:
        if piece is not None:
            patch.setattr(stored, "PIECE_BYTES", piece * FEATURES * store.dtype.itemsize)
        return shuffle.by_partitioner(RandomPartitioner(parts, 0), PLAIN)


def read_all(p: StoredPartitions, first: int = 0, last: int | None = None) -> tuple[np.ndarray, ...]:
    last = len(p.counts) if last is None else last
    rows, _ = p.rows(first, last, PLAIN, 1 << 30)
    return rows.read(0, rows.n), *p.labels(first, last), p.row_numbers(first, last)


@pytest.mark.parametrize(("rows", "parts", "chunk", "piece", "dtype"), [
    (10, 1, 37, None, "float32"), (200, 3, 37, None, "float64"), (200, 3, 37, 1, "float32"),
    (200, 3, 37, 7, "float64"), (200, 3, 37, 53, "float32"), (201, 16, 3, 4, "float32"),
])  # fmt: skip
def test_every_row_arrives_exactly_once(tmp_path, rows, parts, chunk, piece, dtype):
    p = shuffled(tmp_path, rows, parts, chunk=chunk, dtype=dtype, piece=piece)
    X, y, weight = made_up(rows, dtype)
    kept = np.array([label is not None for label in y]) & (weight > 0)
    found_X, found_y, found_weight, number = read_all(p)
    np.testing.assert_array_equal(np.sort(number), np.flatnonzero(kept))
    assert found_X.dtype == dtype
    np.testing.assert_array_equal(found_X, X[number])
    np.testing.assert_array_equal(found_y, np.where(y[number] == "yes", 1.0, -1.0))
    np.testing.assert_array_equal(found_weight, weight[number] * np.where(y[number] == "yes", 3.0, 0.5))
    assert sum(p.counts) == kept.sum()
    assert [len(p.row_numbers(k, k + 1)) for k in range(parts)] == list(p.counts)


def test_consecutive_partitions_are_read_as_one(tmp_path):
    p = shuffled(tmp_path, 200, 5, piece=6)
    whole = read_all(p)
    starts = np.cumsum([0, *p.counts])
    for first in range(5):
        for last in range(first + 1, 6):
            for part, all_of_it in zip(read_all(p, first, last), whole, strict=True):
                np.testing.assert_array_equal(part, all_of_it[starts[first] : starts[last]])


@pytest.mark.parametrize("at", [5, -70], ids=["columns", "rows"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_named(tmp_path, at, damage):
    p = shuffled(tmp_path, 200, 3, piece=20)
    path = Path(p.path, p.piece_key(p.chunks_each + 1))
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[at] ^= 1
        path.write_bytes(data if damage == "flip" else data[:at])
    expected = FileNotFoundError if damage == "remove" else StoreError
    with pytest.raises(expected, match=rf"{p.chunks_each + 1}( is damaged|')"):
        read_all(p, 1, 2)
    read_all(p, 0, 1)  # the neighbours are whole


def test_a_partition_without_rows(tmp_path):
    p = StoredPartitions(str(tmp_path), FEATURES, np.dtype(np.float32), (0, 2), 4)
    assert [a.shape for a in read_all(p, 0, 1)] == [(0, FEATURES), (0,), (0,), (0,)]


@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["from disk", "held"])
def test_rows_are_scaled_and_read_by_any_range(tmp_path, memory):
    p = shuffled(tmp_path, 200, 3, piece=9)
    scaling = Scaling(np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, 0.0]))
    rows, held = p.rows(0, 3, scaling, memory)
    expected = scaling(read_all(p)[0])
    assert (rows.n, rows.d, rows.dtype) == (sum(p.counts), FEATURES, np.float32)
    for start, stop in [(0, rows.n), (0, 0), (5, 6), (8, 10), (17, 100), (rows.n - 1, rows.n), (3, 4)]:
        np.testing.assert_array_equal(rows.read(start, stop), expected[start:stop])
    assert held == (expected.nbytes if memory else 0)
    assert p.reading_bytes >= 2 * 9 * FEATURES * 4, "a chunk as it is on disk, and scaled"


@pytest.mark.parametrize("chosen", [[], [0], [4, 5, 6, 21], [0, 60, 61]])
def test_raw_rows_at_positions(tmp_path, chosen):
    p = shuffled(tmp_path, 200, 3, piece=9)
    whole = read_all(p, 1, 3)[0]
    np.testing.assert_array_equal(p.raw(1, 3, np.array(chosen, np.int64)), whole[chosen])


def test_plan_keeps_chunks_within_a_partition_and_small(tmp_path):
    store = store_of(tmp_path / "a.zarr", np.zeros((10, FEATURES), np.float32), None)
    assert StoredPartitions.plan("p", store, (3, 4)).chunk_rows == 4
    assert StoredPartitions.plan("p", store, (10**8,)).piece_nbytes <= 30 << 20
    wide = store_of(tmp_path / "b.zarr", np.zeros((2, 10_000), np.float32), None)
    assert StoredPartitions.plan("p", wide, (10**6,)).piece_nbytes <= 30 << 20


@pytest.mark.parametrize("real", [False, True])
def test_partitions_keep_real_targets_and_many_codes(tmp_path, real):
    n = 500
    X, _, weight = made_up(n)
    y = np.random.default_rng(3).normal(size=n) if real else np.arange(n) % 300
    with StoreWriter(tmp_path / "a.zarr", chunk_rows=37) as writer:
        writer.append(X, y, weight)
        store = writer.finish()
    targets = RealValues() if real else ManyClasses((1.0,) * 300)
    rows, found, _, numbers = read_all(in_partitions(store, targets, tmp_path, 3, 11))
    np.testing.assert_array_equal(np.sort(numbers), np.flatnonzero(weight > 0))
    np.testing.assert_array_equal(found, y[numbers].astype(np.float64), strict=True)
    np.testing.assert_array_equal(rows[:, 0], numbers)


def test_sample_is_of_kept_rows_in_order_and_of_the_seed(tmp_path):
    X, y, weight = made_up(200)
    store = store_of(tmp_path / "a.zarr", X, y, weight=weight, chunk_rows=100)
    kept = set(np.flatnonzero(np.array([label is not None for label in y]) & (weight > 0)).tolist())
    one, same, other = (sample_chunk(store, TwoClasses(), 20, seed, 1)[:, 0] for seed in (1, 1, 2))
    assert len(one) == 20
    assert set(one.tolist()) <= kept
    assert one.min() >= 100
    assert (np.diff(one) > 0).all()
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    everything = sample_chunk(store, TwoClasses(), 1000, 1, 1)
    assert len(everything) == len([i for i in kept if i >= 100])


def test_partitions_in_memory():
    n = 20
    X = np.arange(60.0).reshape(n, 3)
    p = MemoryPartitions(X, np.ones(n), np.full(n, 2.0), np.arange(n)[::-1], (5, 0, 15))
    rows, held = p.rows(1, 3, PLAIN, 0)
    assert held == 0, "they are the caller's"
    assert (rows.n, rows.d, rows.dtype, p.features) == (15, 3, np.float64, 3)
    np.testing.assert_array_equal(rows.read(2, 4), X[7:9])
    np.testing.assert_array_equal(p.row_numbers(2, 3), np.arange(15)[::-1])
    assert [len(a) for a in p.labels(0, 1)] == [5, 5]
    assert len(p.row_numbers(1, 2)) == 0


def test_kept_rows_are_counted_without_their_features(tmp_path):
    X, y, weight = made_up(200)
    store = store_of(tmp_path / "a.zarr", X, y, weight=weight, chunk_rows=40)
    for chunk in range(store.n_chunks):
        Path(store.path, store.layout.X.chunk_key(chunk)).unlink()
    kept = np.array([label is not None for label in y]) & (weight > 0)
    told = store, TwoClasses((0.5, 3.0)), None, 1, str(tmp_path)
    found = [count_groups(*told, chunk).tolist() for chunk in range(store.n_chunks)]
    assert found == kept.reshape(5, 40).sum(axis=1)[:, None].tolist()
