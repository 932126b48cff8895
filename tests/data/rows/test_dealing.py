"""Partitions of sparse rows on disk: every row once, where dense rows go, checked when it is read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import random_array, vstack

from dask_odm import MemoryLimitError, StoreError, ingest
from dask_odm.data.rows import dealing, stored
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store import open_chunks
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import RandomPartitioner
from dask_odm.engine.shuffle import EARLIER, Shuffle, count_run, deal_run

N = 500
D = 300
HERE = Cluster(None, 1, 2, 1 << 31, 1 << 31)
PLAIN = Scaling(np.zeros(D), np.ones(D))


@pytest.fixture(scope="module", autouse=True)
def small():
    """Files of few entries, and pieces of some thirty rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_chunks, "CHUNK_ENTRIES", 700)
        patch.setattr(stored, "PIECE_BYTES", 3000)
        yield


@pytest.fixture(scope="module")
def rows():
    """Rows of 0 to some 20 entries, with labels, and with weights of which some are 0: such rows take no part."""
    rng = np.random.default_rng(0)
    X = random_array((N, D), density=6 / D, format="csr", random_state=rng)
    X.data = rng.normal(size=X.nnz)
    return X, np.arange(N) % 3 // 2, rng.choice([0.0, 1.0, 2.0], N)


@pytest.fixture(scope="module")
def stores(rows, tmp_path_factory):
    X, y, weight = rows
    folder = tmp_path_factory.mktemp("stores")
    options = {"weight": weight, "dtype": "float64"}
    sparse = ingest((X, y), folder / "a.zarr", sparse=True, **options)
    return sparse, ingest((X, y), folder / "b.zarr", sparse=False, chunk_rows=60, **options)


def dealt(store, folder, parts=3, cluster=HERE, **options):
    folder.mkdir()
    shuffle = Shuffle(store, TwoClasses((1.0, 3.0)), str(folder), cluster, **options)
    return shuffle.by_partitioner(RandomPartitioner(parts, 5), PLAIN)


def rows_read(partitions, k: int, scaling=None):
    X, y, weight = zip(*[(X.copy(), y, w.copy()) for X, y, w in partitions.blocks(k, scaling)], strict=True)
    return vstack(X, format="csr"), np.concatenate(y), np.concatenate(weight)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_go_where_dense_rows_go(stores, rows, tmp_path, dtype):
    sparse, dense = (dealt(s, tmp_path / n, dtype=dtype) for s, n in zip(stores, ("a", "b"), strict=True))
    assert sparse.counts == dense.counts
    assert len(list(sparse.pieces(0, 3))) > 6
    for k in range(3):
        X, y, weight = rows_read(sparse, k)
        numbers = sparse.row_numbers(k, k + 1)
        np.testing.assert_array_equal(numbers, dense.row_numbers(k, k + 1))
        assert X.dtype == dtype
        np.testing.assert_array_equal(X.toarray(), rows[0][numbers].toarray().astype(dtype))
        of_dense = [np.concatenate([block[i].copy() for block in dense.blocks(k, None)]) for i in (1, 2)]
        np.testing.assert_array_equal([y, weight], of_dense)
        np.testing.assert_array_equal([y, weight], sparse.labels(k, k + 1))
    everyone = np.sort(sparse.row_numbers(0, 3))
    np.testing.assert_array_equal(everyone, np.flatnonzero(rows[2] > 0))


def test_factors_are_applied_and_nothing_is_shifted(stores, tmp_path):
    partitions = dealt(stores[0], tmp_path / "a")
    factor = np.arange(D) * 0.1
    scaled, _, _ = rows_read(partitions, 1, Scaling(np.full(D, 7.0), factor))
    np.testing.assert_allclose(scaled.toarray(), rows_read(partitions, 1)[0].toarray() * factor)


def test_nothing_is_left_of_what_was_dealt_and_removed(stores, tmp_path):
    partitions = dealt(stores[0], tmp_path / "a")
    assert not (tmp_path / "a" / "dealt").exists()
    for k in range(3):
        partitions.remove(k)
    assert not list((tmp_path / "a" / "pieces").iterdir())


@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_damage_is_found(stores, tmp_path, harm):
    partitions = dealt(stores[0], tmp_path / "a")
    path = tmp_path / "a" / "pieces" / "0"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[harm])
    with pytest.raises(StoreError, match=r"scratch folder '.*': piece 0 is damaged"):
        rows_read(partitions, 0)


def test_rows_that_were_lost_are_missed(stores, tmp_path):
    partitions = dealt(stores[0], tmp_path / "a")
    (number, count), *_ = partitions.pieces(0, 1)
    (tmp_path / "b").mkdir()
    dealer = RandomPartitioner(3, 5).dealer((sum(partitions.counts),))
    targets = TwoClasses((1.0, 3.0))
    shared = stores[0], targets, partitions, str(tmp_path / "b"), dealer.assign
    runs = [range(1), range(1, 3)]  # of more chunks
    np.save(tmp_path / "b" / EARLIER, np.zeros((len(runs), 1), np.int64))
    for i, run in enumerate(runs):
        count_run(stores[0], targets, None, 1, str(tmp_path / "b"), run)
        deal_run(*shared, run, i)
    with pytest.raises(StoreError, match="rows of piece 0 were lost while workers wrote them"):
        dealing.join(partitions, str(tmp_path / "b"), runs, number, count)
    path = tmp_path / "b" / "dealt" / "1"
    whole = path.read_bytes()
    for harmed in (b"", whole[:12], b"\x7f" * 64 + whole[64:]):
        path.write_bytes(harmed)
        with pytest.raises(StoreError, match="segment 0 of chunk 1 is damaged"):
            dealing.join(partitions, str(tmp_path / "b"), runs, number, count)


@pytest.mark.parametrize("threads", [1, 5])
def test_runs_change_no_bit(stores, tmp_path, threads):
    found = []
    for name, cluster in ("a", HERE), ("b", replace(HERE, threads=threads)):
        partitions = dealt(stores[0], tmp_path / name, cluster=cluster)
        found.append([Path(partitions.path, partitions.piece_key(i)).read_bytes() for i, _ in partitions.pieces(0, 3)])
    assert found[0] == found[1]


def test_what_does_not_fit_is_refused(stores, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(MemoryLimitError, match="Shuffling the store"):
        Shuffle(stores[0], TwoClasses(), str(tmp_path / "a"), Cluster(None, 1, 2, 10_000, 10_000))
