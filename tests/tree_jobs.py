"""Trees over rows in memory, for the tests of the strategies: small, in this process, any shape."""

import numpy as np

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.engine.shuffle import partition_arrays
from dask_odm.learning.problem.losses import ODMSettings
from dask_odm.learning.solution import SolverSettings
from dask_odm.papers.sodm.node_workers import TreeJob
from dask_odm.papers.sodm.workers import TreeResult, TreeSettings, grow_tree
from small_problems import SmallProblem

HERE = Cluster(None, 1, 2, 1 << 31, 1 << 31)


def partitioned(p: SmallProblem, parts: int, seed: int = 0, n_landmarks: int = 8) -> MemoryPartitions:
    """The problem's rows in stratified partitions."""
    return partition_arrays(p.X, p.y, p.weight, StratifiedPartitioner(p.kernel, n_landmarks, parts, seed))


def make_job(p: SmallProblem, parts: int, *, seed: int = 0, **solver) -> TreeJob:
    odm = ODMSettings(p.lam, p.upsilon, p.theta)
    identity = Scaling(np.zeros(p.X.shape[1]), np.ones(p.X.shape[1]))
    return TreeJob(partitioned(p, parts, seed), identity, p.kernel, odm, SolverSettings(seed=seed, **solver))


def grow(job: TreeJob, cluster: Cluster = HERE, **options) -> TreeResult:
    tree = {k: options.pop(k) for k in ("fan_in", "stop_at", "early_stop") if k in options}
    return grow_tree(job, TreeSettings(**tree), cluster, **options)


def in_row_order(job: TreeJob, dual: np.ndarray) -> np.ndarray:
    """Dual variables (n,) in the order of the problem's rows."""
    numbers = job.partitions.row_numbers(0, len(job.partitions.counts))
    out = np.empty(len(numbers))
    out[numbers] = dual
    return out


def part_of(p: SmallProblem, job: TreeJob, first: int, last: int) -> SmallProblem:
    """The problem of partitions ``first:last`` alone."""
    rows = job.partitions.row_numbers(first, last)
    return SmallProblem(p.kernel, p.X[rows], p.y[rows], p.weight[rows], p.lam, p.upsilon, p.theta)
