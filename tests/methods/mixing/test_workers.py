"""Shards asked in groups: contents, passes and verdicts are those of the shards one by one; memory is projected."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partition.dealing import GroupDealer, ranks_within
from dask_odm.engine.shuffle import GroupOfNumber, partition_store_by
from dask_odm.errors import MemoryLimitError
from dask_odm.methods.mixing.online_passes import LocalRule
from dask_odm.methods.mixing.solver import Mixing
from dask_odm.methods.mixing.workers import ShardRounds, ShardsInMemory, ShardsOnDisk
from small_problems import blobs
from small_stores import store_of
from tree_jobs import HERE

N, D, SHARDS = 700, 4, 45  # more shards than groups


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = blobs(N, D, seed=8)
    X[:, 2] *= np.random.default_rng(1).random(N) < 0.01  # few shards have it
    return X, y, np.random.default_rng(0).permutation(np.arange(N) % SHARDS).astype(np.int32)


def order_of(codes: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    counts = tuple(np.bincount(codes).tolist())
    partition, place = GroupDealer(counts, 3).assign(codes, ranks_within(codes, np.zeros(SHARDS)))
    return np.lexsort((place, partition)), counts


def in_memory(rows, scaling: Scaling | None = None, *, sparse: bool = False) -> ShardsInMemory:
    X, y, codes = rows
    return ShardsInMemory(csr_array(X) if sparse else X, y, np.empty(0), *order_of(codes), scaling)


def test_rows_stay_in_their_shards_in_random_order(rows):
    X, _, codes = rows
    order, counts = order_of(codes)
    np.testing.assert_array_equal(codes[order], np.repeat(np.arange(SHARDS), counts))
    assert (np.diff(order) < 0).any()
    shards = in_memory(rows)
    for k in (0, 7, SHARDS - 1):
        ((found, _, _),) = shards.blocks(k)
        np.testing.assert_array_equal(found[np.lexsort(found.T)], X[codes == k][np.lexsort(X[codes == k].T)])


@pytest.mark.parametrize("scaled", [False, True])
def test_shards_on_disk_hold_the_rows_of_memory(rows, tmp_path, scaled):
    X, y, codes = rows
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=90)
    np.save(tmp_path / "codes.npy", codes)
    (tmp_path / "scratch").mkdir()
    group_of, folder = GroupOfNumber(str(tmp_path / "codes.npy")), str(tmp_path / "scratch")
    partitions = partition_store_by(store, TwoClasses(1), group_of, SHARDS, 3, folder, HERE)
    scaling = Scaling(np.full(D, 0.5), np.arange(1.0, D + 1)) if scaled else None
    np.savez(tmp_path / "scaling.npz", shift=np.full(D, 0.5), factor=np.arange(1.0, D + 1))
    disk = ShardsOnDisk(partitions, StoredScaling(str(tmp_path / "scaling.npz")) if scaled else None, 0, SHARDS)
    memory = in_memory(rows, scaling)
    assert disk.counts == memory.counts
    for k in range(SHARDS):
        parts = [[np.array(each) for each in block] for block in disk.hold(k, k + 1).blocks(0)]
        ((found, labels, _),) = memory.blocks(k)
        np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), found)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)


@pytest.mark.parametrize("form", ["dense", "sparse", "sparse, scaled", "sparse, moved"])
def test_groups_answer_as_the_shards_one_by_one(rows, form):
    X, y, codes = rows
    shift = 0.3 if form == "sparse, moved" else 0.0
    scaling = Scaling(np.full(D, shift), np.full(D, 0.5)) if "," in form else None
    seen = X if scaling is None else scaling(X)
    problem = ShardRounds(Cluster.local(), in_memory(rows, scaling, sparse="sparse" in form), LocalRule("pa"), True)
    order, counts = order_of(codes)
    parts = np.split(order, np.cumsum(counts)[:-1])
    present = [sum((seen[part, j] != 0).any() for part in parts) for j in range(D)]
    assert problem.present().tolist() == [*present, SHARDS]
    np.testing.assert_array_equal(problem.contents.rows, [[(y[p] < 0).sum(), (y[p] > 0).sum()] for p in parts])
    w = np.linspace(-0.2, 0.2, D + 1)
    moments = problem.walk(w, 0)
    ends = []
    for part in parts:
        ends.append(w.copy())
        LocalRule("pa").walk(np.ascontiguousarray(seen[part]), y[part], np.empty(0), ends[-1], 0)
    np.testing.assert_allclose(moments.norms, np.linalg.norm(ends, axis=1))
    centre = Mixing("beta", beta=0.5).centre(moments, problem.present())
    mixed, expected = problem.mix(centre), centre.mixture(np.array(ends))
    np.testing.assert_allclose(mixed.vector / mixed.total, expected.vector / expected.total)
    np.testing.assert_allclose(mixed.distances, expected.distances)
    wrong = [int((np.sign(seen[p] @ w[:D] + w[D]) != y[p]).sum()) for p in parts]
    assert problem.judge(w).tolist() == wrong


def test_what_does_not_fit_is_refused(rows):
    with pytest.raises(MemoryLimitError, match=r"Mixing 45 shards of 5 weights needs .* Use fewer shards"):
        ShardRounds(Cluster.local(2000), in_memory(rows), LocalRule("pa"), True)


@pytest.mark.parametrize("d", [3_000, 60_000])
def test_the_states_of_all_shards_are_projected(d, monkeypatch):
    """What an epoch allocates, rows included, beside the bytes that are asked for before it."""
    asked: list[int] = []
    monkeypatch.setattr(Cluster, "require", lambda self, nbytes, *rest: asked.append(nbytes))
    X = csr_array((np.ones(400), (np.arange(400), np.arange(400) * d // 400)), shape=(400, d))
    y, counts = np.where(np.arange(400) % 3, 1.0, -1.0), (10,) * 40
    here = Cluster(None, 1, 1, 10**12, 10**12)
    shards = ShardsInMemory(X, y, np.empty(0), np.arange(400), counts, None)
    LocalRule("pa").walk(X, y, np.empty(0), np.zeros(d), 0)  # compiles
    tracemalloc.start()
    problem = ShardRounds(here, shards, LocalRule("pa"), True)
    moments = problem.walk(np.zeros(d + 1), 0)
    problem.mix(Mixing().centre(moments, problem.present()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < asked[0] + (4 << 20)
    assert asked[0] < 4 * peak + (4 << 20)
