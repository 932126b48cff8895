"""Levels of clusters: as a slow assignment has them, each row once, the same from memory, a store and workers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dask_odm.data.rows.targets import TwoClasses
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import ClusterPartitioner
from dask_odm.engine.shuffle import Shuffle
from dask_odm.errors import MemoryLimitError
from dask_odm.papers.sodm.node_workers import Reclustering
from small_problems import SmallProblem, small_problem
from small_stores import store_of
from tree_jobs import HERE, grow, in_row_order, make_job

NODES = (8, 4, 2, 1)


def regroup(p: SmallProblem, partitions, scaling, cluster=HERE) -> Reclustering:
    return Reclustering(partitions, scaling, NODES, partial(ClusterPartitioner, p.kernel), 0, cluster)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_a_level_s_nodes_are_clusters_of_all_rows(number, stored, tmp_path):
    """The sample is all rows here, so that a row is in the cluster whose mean is nearest, sums written out."""
    p = small_problem(240)
    job = make_job(p, 8)
    if stored:
        store = store_of(tmp_path / "a.zarr", p.X, p.y, chunk_rows=50)
        partitioner = ClusterPartitioner(p.kernel, 8, 0)
        partitions = Shuffle(store, TwoClasses(), str(tmp_path), HERE).by_partitioner(partitioner, job.scaling)
        job = replace(job, partitions=partitions)
    nodes = regroup(p, job.partitions, job.scaling)(number)
    positions = [node.positions(job.partitions.counts) for node in nodes]
    assert 1 < len(nodes) <= NODES[number]
    np.testing.assert_array_equal(np.sort(np.concatenate(positions)), np.arange(240))
    numbers = job.partitions.row_numbers(0, len(job.partitions.counts))
    K = p.K[np.ix_(numbers, numbers)]
    distances = [-2 * K[:, own].mean(axis=1) + K[np.ix_(own, own)].mean() for own in positions]
    nearest = np.argmin(distances, axis=0)
    for c, own in enumerate(positions):
        np.testing.assert_array_equal(np.flatnonzero(nearest == c), own)


def test_too_little_memory_is_refused():
    p = small_problem(60)
    job = make_job(p, 8)
    with pytest.raises(MemoryLimitError, match=r"Finding clusters by 60 rows needs .*, but only .*9\.77 kiB"):
        regroup(p, job.partitions, job.scaling, Cluster(None, 1, 1, 10_000, 10_000))(1)


def test_the_root_is_all_rows():
    p = small_problem(60)
    job = make_job(p, 8)
    assert regroup(p, job.partitions, job.scaling)(3) is None


def test_solutions_of_clusters_are_their_optima_and_the_root_is_the_optimum():
    """Stopped at a level, every cluster has its own optimum, scaled by its share of the rows; then DC's end."""
    p = small_problem(240, (1e3, 0.3, 0.4))
    job = make_job(p, 8)
    clusters = regroup(p, job.partitions, job.scaling)
    stopped = grow(job, fan_in=2, stop_at=2, regroup=clusters)
    s = in_row_order(job, stopped.dual[0])
    numbers = job.partitions.row_numbers(0, 8)
    for node in clusters(2):
        rows = np.sort(numbers[node.positions(job.partitions.counts)])
        own = SmallProblem(p.kernel, p.X[rows], p.y[rows], p.weight[rows], p.lam, p.upsilon, p.theta)
        np.testing.assert_allclose(s[rows], own.optimum()[0] * len(rows) / 240, atol=1e-7 * np.abs(s).max())
    root = grow(job, fan_in=2, regroup=clusters)
    assert [entry["rows"] for entry in root.history] == [240] * 4
    assert root.gap < 1e-8
    assert p.dual(in_row_order(job, root.dual[0])) == pytest.approx(p.optimum()[1], rel=1e-8)
