"""Stratified partitions, in memory and through a store: the same rows in the same places, classes in balance."""

import os

import numpy as np
import pytest

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.engine import shuffle
from dask_odm.engine.partitioners import RandomPartitioner, StratifiedPartitioner
from dask_odm.engine.shuffle import Shuffle, partition_arrays
from dask_odm.errors import InputError, StoreError
from dask_odm.events import Progress, listen
from dask_odm.kernels import RBF, Linear
from small_problems import blobs
from small_stores import store_of
from tree_jobs import HERE

GAUSS = RBF(1.0, 0.5)
PLAIN = Scaling(np.zeros(3), np.ones(3))


def on_disk(tmp_path, X, y, partitioner, *, scaling=PLAIN, cluster=HERE, **options):
    store = store_of(tmp_path / "a.zarr", X, y, **options)
    (tmp_path / "scratch").mkdir()
    return Shuffle(store, TwoClasses(), str(tmp_path / "scratch"), cluster).by_partitioner(partitioner, scaling)


@pytest.mark.parametrize(("parts", "chunk_rows", "kernel", "dtype"), [
    (1, 100, RBF(1.0, 0.5), "float32"), (4, 300, RBF(1.0, 0.5), "float64"), (4, 300, Linear(1.0), "float32"),
    (7, 60, RBF(1.0, 0.5), "float32"), (7, 60, None, "float64"), (300, 100, RBF(1.0, 0.5), "float32"),
], ids=str)  # fmt: skip
def test_memory_and_disk_agree(tmp_path, parts, chunk_rows, kernel, dtype):
    X, y = blobs(900)
    X = X.astype(dtype)
    partitioner = StratifiedPartitioner(kernel, 12, parts, 3) if kernel else RandomPartitioner(parts, 3)
    scaling = Scaling(X.mean(axis=0, dtype=np.float64), np.array([2.0, 1.0, 0.5]))
    disk = on_disk(tmp_path, X, y, partitioner, scaling=scaling, chunk_rows=chunk_rows)
    memory = partition_arrays(scaling(X), y, np.ones(900), partitioner)
    assert disk.counts == memory.counts
    assert max(disk.counts) - min(disk.counts) <= 1
    np.testing.assert_array_equal(disk.row_numbers(0, parts), memory.row_numbers(0, parts))
    for k in range(0, parts, 1 + parts // 5):
        rows, own = disk.rows(k, k + 1, scaling, 1 << 30)[0], memory.rows(k, k + 1, scaling, 1 << 30)[0]
        np.testing.assert_array_equal(rows.read(0, rows.n), own.read(0, own.n))
        np.testing.assert_array_equal(disk.labels(k, k + 1), memory.labels(k, k + 1))


def test_dropped_rows_are_gone_and_the_rest_intact(tmp_path):
    X, labels = blobs(500)
    y = np.where(labels > 0, "a", "b").astype(object)
    y[::7] = None
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 500)
    weight[::5] = 0.0
    p = on_disk(tmp_path, X, y, StratifiedPartitioner(GAUSS, 5, 3, 0), weight=weight, chunk_rows=70)
    numbers = p.row_numbers(0, 3)
    expected = [i for i in range(500) if i % 7 and i % 5]
    assert sorted(numbers.tolist()) == expected
    signs, weights = p.labels(0, 3)
    np.testing.assert_array_equal(weights, weight[numbers])
    np.testing.assert_array_equal(signs, np.where(y[numbers] == "b", 1.0, -1.0))
    rows, _ = p.rows(0, 3, PLAIN, 0)
    np.testing.assert_array_equal(rows.read(0, rows.n), X[numbers])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_rows(tmp_path, value):
    X, y = np.full((50, 3), value), np.where(np.arange(50) % 2, 1.0, -1.0)
    for kernel in (RBF(), Linear()):
        p = partition_arrays(X, y, np.ones(50), StratifiedPartitioner(kernel, 8, 4, 0))
        assert sorted(p.counts) == [12, 12, 13, 13]
    assert sorted(on_disk(tmp_path, X, y, StratifiedPartitioner(GAUSS, 8, 4, 0)).counts) == [12, 12, 13, 13]


def test_repeated_rows_are_spread(tmp_path):
    X = np.repeat(blobs(10)[0], 40, axis=0)
    p = partition_arrays(X, np.ones(400), np.ones(400), StratifiedPartitioner(RBF(0.0, 0.5), 64, 4, 0))
    for k in range(4):
        _, copies = np.unique(p.rows(k, k + 1, PLAIN, 0)[0].read(0, 100), axis=0, return_counts=True)
        assert copies.tolist() == [10] * 10


def test_seed_decides():
    X, y = blobs(300)
    numbers = [
        partition_arrays(X, y, np.ones(300), StratifiedPartitioner(RBF(), 8, 4, seed)).row_numbers(0, 4)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(numbers[0], numbers[1])
    assert not np.array_equal(numbers[0], numbers[2])


def test_random_partitions_do_not_look_at_the_rows(tmp_path):
    """Nor read them before they are moved; rows sorted by class come out balanced."""
    X, y = blobs(2000)
    y, partitioner, heard = np.sort(y), RandomPartitioner(8, 1), []
    with listen(heard.append):
        disk = on_disk(tmp_path, X, y, partitioner, chunk_rows=150)
    assert list(dict.fromkeys(e.phase for e in heard)) == ["labels", "shuffle", "seal"]
    other = partition_arrays(-7.0 * X, y, np.ones(2000), partitioner)
    np.testing.assert_array_equal(disk.row_numbers(0, 8), other.row_numbers(0, 8))
    shares = [(disk.labels(k, k + 1)[0] > 0).mean() for k in range(8)]
    assert np.abs(np.array(shares) - 0.5).max() < 0.12  # 3.8 standard deviations of 250 rows
    assert max(disk.counts) - min(disk.counts) <= 1


@pytest.mark.parametrize("left", [0, 50, 200])
def test_a_file_of_the_shuffle_that_is_cut_off(tmp_path, monkeypatch, left):
    X, y = blobs(300)
    partitioner = RandomPartitioner(4, 1)
    save = shuffle.save_array

    def save_a_part(path, values):
        save(path, np.pad(values, ((0, 0), (0, 20))))
        os.truncate(path, left)

    monkeypatch.setattr(shuffle, "save_array", save_a_part)
    with pytest.raises(StoreError, match="the file is cut off"), scratch_folder() as folder:
        Shuffle(store_of(tmp_path / "a.zarr", X, y), TwoClasses(), folder, HERE).by_partitioner(partitioner, PLAIN)


def test_phases_are_reported(tmp_path):
    X, y = blobs(300)
    heard: list[Progress] = []
    with listen(heard.append):
        on_disk(tmp_path, X, y, StratifiedPartitioner(GAUSS, 8, 4, 0), chunk_rows=50)
    phases = list(dict.fromkeys(e.phase for e in heard))
    assert phases == ["landmarks", "strata", "shuffle", "seal"]
    for phase in phases:
        own = [e for e in heard if e.phase == phase]
        assert own[0].done == 0
        assert own[-1].done == own[-1].total == (4 if phase == "seal" else 6)


def test_fewer_rows_than_partitions(tmp_path):
    y = np.array([0, 1, None], dtype=object)
    with pytest.raises(InputError, match="2 rows cannot make 3 partitions"):
        on_disk(tmp_path, blobs(3)[0], y, StratifiedPartitioner(GAUSS, 2, 3, 0))


def test_sample_is_bounded_by_rows_and_bytes():
    few, many = (StratifiedPartitioner(GAUSS, count, 1, 0) for count in (64, 2000))
    assert few.sample_rows(10, 4) == 4096
    assert many.sample_rows(10, 4) == 8000
    assert few.sample_rows(10_000, 8) * 10_000 * 8 <= 64 << 20
    assert few.sample_rows(10**7, 8) == 64
