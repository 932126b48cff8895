"""Shards with wrong labels: which, how many, the same in memory and in a store."""

import numpy as np
import pytest

from dask_odm.datasets import contaminate_labels, contaminate_store, deal_shards
from dask_odm.errors import InputError
from small_problems import blobs
from small_stores import store_of

N, SHARDS = 2000, 20


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = blobs(N, 3, seed=1)
    return X, np.where(y > 0, "spam", "ham"), deal_shards(N, SHARDS)


def test_shards_are_dealt_evenly_and_again():
    shard = deal_shards(103, 10, random_state=4)
    assert set(np.bincount(shard)) == {10, 11}
    np.testing.assert_array_equal(shard, deal_shards(103, 10, random_state=4))
    assert (shard != deal_shards(103, 10, random_state=5)).any()


def test_flipped_shards_have_every_label_wrong_and_others_none(rows):
    _, y, shard = rows
    told, bad = contaminate_labels(y, shard, flipped=6, random_state=3)
    assert len(bad) == len(set(bad)) == 6
    np.testing.assert_array_equal(told != y, np.isin(shard, bad))
    assert told.dtype == y.dtype


def test_random_shards_have_the_shares_that_were_asked_for(rows):
    _, y, shard = rows
    told, bad = contaminate_labels(y, shard, random=12, positive=(0.1, 0.9))
    np.testing.assert_array_equal(told[~np.isin(shard, bad)], y[~np.isin(shard, bad)])
    shares = sorted(np.mean(told[shard == k] == "spam") for k in bad)
    np.testing.assert_allclose(shares, np.linspace(0.1, 0.9, 12), atol=0.15)
    wrong = np.mean([np.mean(told[shard == k] != y[shard == k]) for k in bad])
    assert wrong == pytest.approx(0.5, abs=0.05), "whatever the labels were"


def test_another_seed_makes_others_bad(rows):
    _, y, shard = rows
    chosen = {tuple(contaminate_labels(y, shard, flipped=6, random_state=seed)[1]) for seed in range(4)}
    assert len(chosen) == 4


@pytest.mark.parametrize("chunk_rows", [64, 700])
def test_a_store_tells_what_memory_does(rows, tmp_path, chunk_rows):
    X, y, shard = rows
    named = np.array([f"sender {k:02}" for k in shard])
    labels = y.astype(object)
    labels[::50] = None
    source = store_of(tmp_path / "a.zarr", X, labels, weight=np.arange(N) / N, chunk_rows=chunk_rows, names=list("abc"))
    store, bad = contaminate_store(source.path, tmp_path / "b.zarr", named, flipped=3, random=4, random_state=2)
    expected, expected_bad = contaminate_labels(y, named, flipped=3, random=4, random_state=2)
    known = np.arange(N) % 50 != 0
    np.testing.assert_array_equal(bad, expected_bad)
    np.testing.assert_array_equal(np.array(store.classes)[store.read_column("y")[known]], expected[known])
    assert (store.read_column("y")[~known] == -1).all()
    block = store.read_rows(np.arange(N))
    np.testing.assert_array_equal(block.X, X)
    np.testing.assert_array_equal(block.weight, np.arange(N) / N)
    assert (store.feature_names, store.chunk_rows) == (("a", "b", "c"), chunk_rows)
    store.verify()


@pytest.mark.parametrize(("changes", "message"), [
    ({"flipped": 15, "random": 6}, "at most 20, the number of shards, together. Got 15 and 6"),
    ({"flipped": -1}, "must not be negative"),
    ({"positive": (0.9, 0.1)}, "ascending order"),
    ({"shard": np.zeros(3)}, rf"each of the {N} rows. Got shape \(3,\)"),
    ({"y": np.zeros(N)}, "two classes are needed"),
])  # fmt: skip
def test_bad_input_is_named(rows, changes, message):
    arguments = {"y": rows[1], "shard": rows[2]} | changes
    with pytest.raises(InputError, match=message):
        contaminate_labels(arguments.pop("y"), arguments.pop("shard"), **arguments)


def test_no_more_shards_than_rows():
    with pytest.raises(InputError, match=r"at most n_samples, 3\. Got 4"):
        deal_shards(3, 4)


def test_real_targets_are_refused(tmp_path, rows):
    from dask_odm import ingest

    store = ingest((rows[0], np.linspace(0.0, 1.0, N)), tmp_path / "r.zarr", target="real")
    with pytest.raises(InputError, match="holds real targets"):
        contaminate_store(store, tmp_path / "out.zarr", rows[2])
    assert not (tmp_path / "out.zarr").exists()
