"""Shards asked in groups: contents, passes and verdicts are those of the shards one by one; memory is projected."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.data.rows.memory import MemoryPartitions, SparseRows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import GroupDealer
from dask_odm.errors import MemoryLimitError
from dask_odm.papers.mixing.online_passes import LocalRule
from dask_odm.papers.mixing.solver import Mixing
from dask_odm.papers.mixing.workers import ShardRounds, require_memory
from small_problems import blobs
from traced import traced

N, D, SHARDS = 700, 4, 45  # more shards than groups
PA = LocalRule("pa", 1.0, 1e3, 0.1, 0.5)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = blobs(N, D, seed=8)
    X[:, 2] *= np.random.default_rng(1).random(N) < 0.01  # few shards have it
    return X, y, np.random.default_rng(0).permutation(np.arange(N) % SHARDS).astype(np.int32)


def in_memory(rows, scaling: Scaling | None = None, *, sparse: bool = False) -> MemoryPartitions:
    """The partitions of the shards, scaled already unless they are sparse and their zeros would move."""
    X, y, codes = rows
    counts = tuple(np.bincount(codes).tolist())
    partition, place = GroupDealer(counts, 3).assign(codes, np.zeros(SHARDS, int))
    order = np.lexsort((place, partition))
    if sparse and scaling is not None and scaling.shift.any():
        found = SparseRows(csr_array(X[order]), scaling)
    else:
        dense = X[order] if scaling is None else scaling(X[order])
        found = SparseRows(csr_array(dense)) if sparse else dense
    return MemoryPartitions(found, y[order], np.ones(N), order, counts)


@pytest.mark.parametrize("form", ["dense", "sparse", "sparse, scaled", "sparse, moved"])
def test_groups_answer_as_the_shards_one_by_one(rows, form):
    X, y, _ = rows
    shift = 0.3 if form == "sparse, moved" else 0.0
    scaling = Scaling(np.full(D, shift), np.full(D, 0.5)) if "," in form else None
    seen = X if scaling is None else scaling(X)
    shards = in_memory(rows, scaling, sparse="sparse" in form)
    problem = ShardRounds(Cluster.local(), shards, None, PA, True)
    parts = np.split(shards.numbers, np.cumsum(shards.counts)[:-1])
    present = [sum((seen[part, j] != 0).any() for part in parts) for j in range(D)]
    assert problem.present.tolist() == [*present, SHARDS]
    np.testing.assert_array_equal(problem.rows, [[(y[p] < 0).sum(), (y[p] > 0).sum()] for p in parts])
    w = np.linspace(-0.2, 0.2, D + 1)
    moments = problem.walk(w, 0)
    ends = []
    for part in parts:
        ends.append(w.copy())
        PA.walk(np.ascontiguousarray(seen[part]), y[part], np.ones(len(part)), ends[-1], 0)
    np.testing.assert_allclose(moments.figures[:, 0], np.linalg.norm(ends, axis=1))
    centre = Mixing("beta", beta=0.5).centre(moments, problem.present)
    mixed, expected = problem.mix(centre), centre.mixture(np.array(ends))
    np.testing.assert_allclose(mixed.vector / mixed.total, expected.vector / expected.total)
    np.testing.assert_allclose(mixed.distances, expected.distances)
    wrong = [int((np.sign(seen[p] @ w[:D] + w[D]) != y[p]).sum()) for p in parts]
    assert problem.judge(w).tolist() == wrong


@pytest.mark.parametrize("d", [3_000, 60_000])
def test_the_states_of_all_shards_are_projected(d):
    """What an epoch allocates, rows included, is within the bytes that are asked for before it."""
    X = csr_array((np.ones(400), (np.arange(400), np.arange(400) * d // 400)), shape=(400, d))
    y, counts = np.where(np.arange(400) % 3, 1.0, -1.0), (10,) * 40
    PA.walk(X, y, np.ones(400), np.zeros(d), 0)  # compiles
    here = Cluster(None, 1, 1, 10**12, 10**12)

    def epoch() -> None:
        partitions = MemoryPartitions(SparseRows(X), y, np.ones(400), np.arange(400), counts)
        problem = ShardRounds(here, partitions, None, PA, True)
        problem.mix(Mixing().centre(problem.walk(np.zeros(d + 1), 0), problem.present))

    _, peak = traced(epoch)
    slack = 4 << 20

    def fits(memory: int) -> bool:
        try:
            require_memory(replace(here, memory=memory), 40, d + 1, 16 * X.nnz + 32 * 400, 8 << 20)
        except MemoryLimitError:
            return False
        return True

    assert not fits(peak - slack), "what is asked for covers the peak"
    assert fits(4 * peak + slack)
