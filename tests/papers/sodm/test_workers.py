"""The merging tree holds the papers' properties: objectives that only rise, a root that is the optimum."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dask_odm.data.rows.row_sets import RowSet
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.events import LevelFinished, PartitionSolved, listen
from dask_odm.kernels import RBF, Linear
from dask_odm.methods.exact.systems import ExactLimits
from dask_odm.papers.sodm import node_workers
from dask_odm.papers.sodm.node_workers import pass_all, pass_support, projected_bytes
from dask_odm.papers.sodm.partition_solver import solve_partition
from dask_odm.papers.sodm.workers import TreeSettings, partitions_for
from small_problems import SETTINGS, SmallProblem, small_problem
from tree_jobs import grow, in_row_order, make_job, part_of

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
TOL = 1e-6


TILED = ExactLimits(whole_rows=0, dense_rows=0, rounding_rows=70)  # nodes of more rows are solved to a tolerance


def objectives(result) -> list[float]:
    return [entry["objective"] for entry in result.history]


@EVERY_SETTING
def test_objective_never_falls_up_the_tree(setting):
    p = small_problem(160, setting, weighted=True)
    for max_iter in (1, 200):
        result = grow(make_job(p, 16, max_iter=max_iter), fan_in=2)
        values = objectives(result)
        assert len(values) == 5
        assert all(b >= a - 1e-9 * abs(a) for a, b in itertools.pairwise(values))
        s = in_row_order(make_job(p, 16), result.dual[0])
        if result.history[-1]["converged"]:
            assert values[-1] <= p.optimum()[1] * (1 + 1e-9)
            assert result.gap == pytest.approx(1.0 - values[-1] / p.primal(s), abs=1e-8)


@EVERY_SETTING
def test_root_does_not_depend_on_the_partitions(setting):
    """Dense nodes: to rounding, and equal to the papers' dual."""
    p = small_problem(160, setting, weighted=True)
    best, objective = p.optimum()
    expected = p.decision(best)
    for parts, fan_in, seed in [(1, 4, 0), (16, 4, 2), (5, 2, 4), (27, 3, 5)]:
        job = make_job(p, parts, seed=seed)
        result = grow(job, fan_in=fan_in)
        s = in_row_order(job, result.dual[0])
        assert p.dual(s) == pytest.approx(objective, rel=1e-8)
        np.testing.assert_allclose(p.decision(s), expected, atol=1e-7 * max(1, np.abs(expected).max()))
        assert 0 <= result.gap < 1e-8


@pytest.mark.parametrize("kernel", [RBF(1.0, 1.0), Linear(1.0)], ids=lambda k: k.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_root_of_tiled_nodes_does_not_depend_on_the_partitions(kernel, dtype):
    """1,200 rows: the root and its children take the tiled way, or the linear one."""
    p = small_problem(1200, (1e3, 0.3, 0.1), kernel=kernel, dtype=dtype)
    decisions, values = [], []
    for parts in (1, 4, 16):
        job = make_job(p, parts, seed=parts, tol=TOL, max_iter=1000)
        result = grow(job)
        s = in_row_order(job, result.dual[0])
        assert p.gap(s) <= TOL * 1.001
        decisions.append(p.decision(s))
        values.append(p.dual(s))
    # ½‖f − f*‖² ≤ P − D for each of two, so they differ by at most 2 √(2 (P − D) κ(x, x))
    allowed = 2 * np.sqrt(2 * TOL * 1.01 * values[0] * p.K.diagonal())
    for decision, value in zip(decisions, values, strict=True):
        assert value == pytest.approx(values[0], rel=2 * TOL)
        assert (np.abs(decision - decisions[0]) <= allowed).all()


@pytest.mark.parametrize("stop_at", [1, 2, 4, 16, 100])
def test_stop_at_averages_the_models_it_ends_with(stop_at):
    p = small_problem(160, SETTINGS[0], weighted=True)
    job = make_job(p, 16)
    result = grow(job, fan_in=4, stop_at=stop_at)
    ends_with = {1: 1, 2: 1, 4: 4, 16: 16, 100: 16}[stop_at]
    assert result.history[-1]["partitions"] == ends_with == len(result.solutions)
    assert math.isnan(result.gap) == (ends_with > 1)
    model = np.zeros(160)
    for first in range(0, 16, 16 // ends_with):
        part = part_of(p, job, first, first + 16 // ends_with)
        s, _ = part.optimum()
        rows = job.partitions.row_numbers(first, first + 16 // ends_with)
        model += part.weight.sum() / p.weight.sum() * (p.K[:, rows] @ (part.y * s))
    np.testing.assert_allclose(p.decision(in_row_order(job, result.dual[0])), model, atol=1e-7)


def test_early_stop_ends_where_every_start_had_converged(monkeypatch):
    p = small_problem(640, (5.0, 0.5, 0.2))
    monkeypatch.setattr(node_workers, "solve_partition", partial(solve_partition, limits=TILED))
    job = make_job(p, 64, tol=0.1)
    stopped, whole = grow(job, fan_in=2, early_stop=True), grow(job, fan_in=2)
    starts = [entry["start_gap"] for entry in whole.history]
    first = next(i for i, gap in enumerate(starts) if i > 0 and gap <= 0.1)
    assert 0 < first < len(starts) - 1, "the case is made so that it stops half-way"
    assert len(stopped.history) == first + 1
    assert stopped.history[-1]["sweeps"] == 0, "converged starts pass through unsolved"
    assert math.isnan(stopped.gap)
    below = grow(job, fan_in=2, stop_at=64 >> (first - 1))
    np.testing.assert_allclose(stopped.dual, below.dual, rtol=1e-12)


def test_events_and_history_are_the_levels():
    p = small_problem(100, SETTINGS[0], weighted=True)
    heard: list = []
    job = make_job(p, 4)
    with listen(heard.append):
        result = grow(job, fan_in=2)
    solved = [e for e in heard if isinstance(e, PartitionSolved)]
    finished = [e for e in heard if isinstance(e, LevelFinished)]
    assert [(e.level, e.partition) for e in solved] == [(2, 0), (2, 1), (2, 2), (2, 3), (1, 0), (1, 1), (0, 0)]
    assert [(e.level, e.partitions, e.rows) for e in finished] == [(2, 4, 100), (1, 2, 100), (0, 1, 100)]
    assert [e["objective"] for e in result.history] == [e.objective for e in finished]
    assert finished[0].start_gap == 1.0, "a cold start has no dual"
    for level in finished:
        own = [e for e in solved if e.level == level.level]
        spans = 4 // level.partitions
        weights = [part_of(p, job, k * spans, (k + 1) * spans).weight.sum() for k in range(level.partitions)]
        assert level.objective == pytest.approx(np.average([e.objective for e in own], weights=weights))
        assert level.gap == max(e.gap for e in own)
        assert level.sweeps == max(e.sweeps for e in own)


def test_partitions_for():
    assert partitions_for(1000, None, 4, 1000) == 1
    assert partitions_for(1001, None, 4, 1000) == 4
    assert partitions_for(16_001, None, 4, 1000) == 64
    assert partitions_for(10, 10, 4, 1000) == 10
    with pytest.raises(InputError, match=r"at most the number of rows, 10\. Got 11"):
        partitions_for(10, 11, 4, 1000)


# Nodes that hold part of the rows ------------------------------------------------------------------------------


def test_a_level_partitioned_as_before_changes_no_bit():
    """Nodes given by row rather than by partition: the same rows and the same start."""
    p = small_problem(240, SETTINGS[0], weighted=True)
    job = make_job(p, 8)
    counts = job.partitions.counts
    bounds = [0, *np.cumsum(counts).tolist()]

    def by_row(number: int) -> list[RowSet] | None:
        spans = itertools.pairwise(TreeSettings(2).levels(8)[number])
        return None if number == 2 else [RowSet.at(np.arange(bounds[a], bounds[b]), counts) for a, b in spans]

    np.testing.assert_array_equal(grow(job, fan_in=2, regroup=by_row).dual, grow(job, fan_in=2).dual)


@pytest.mark.parametrize("pass_up", [pass_all, pass_support])
def test_a_level_of_other_clusters(pass_up):
    """By a feature, across all partitions; stopped there, the model is the mean of the clusters' by weight."""
    p = small_problem(240, (1e3, 0.3, 0.4))
    job = replace(make_job(p, 8), pass_up=pass_up)
    numbers = job.partitions.row_numbers(0, 8)
    cluster_of = np.digitize(p.X[numbers, 0], np.quantile(p.X[:, 0], [0.2, 0.6]))
    sets = [RowSet.at(np.flatnonzero(cluster_of == c), job.partitions.counts) for c in range(3)]
    stopped = grow(job, fan_in=2, stop_at=4, regroup=lambda number: sets)
    assert stopped.history[-1]["partitions"] == 3
    s, leaves = in_row_order(job, stopped.dual[0]), grow(job, fan_in=2, stop_at=8)
    passed = in_row_order(job, leaves.dual[0]) != 0 if pass_up is pass_support else np.ones(240, bool)
    for c in range(3):
        rows = np.sort(numbers[cluster_of == c])
        assert (s[rows][~passed[rows]] == 0).all()
        rows = rows[passed[rows]]
        size = np.count_nonzero(cluster_of == c)
        lam = p.lam * len(rows) / size
        own = SmallProblem(p.kernel, p.X[rows], p.y[rows], p.weight[rows], lam, p.upsilon, p.theta)
        np.testing.assert_allclose(s[rows], own.optimum()[0] * size / 240, atol=1e-7 * np.abs(s).max())
    root = grow(job, fan_in=2, regroup=lambda number: sets if number == 1 else None)
    assert root.gap < 1e-8
    if pass_up is pass_all:
        _, objective = p.optimum()
        assert p.dual(in_row_order(job, root.dual[0])) == pytest.approx(objective, rel=1e-8)


def test_a_node_that_gets_nothing_has_nothing():
    p = small_problem(60, (1e3, 0.3, 0.4))
    job = replace(make_job(p, 2), pass_up=pass_support)
    leaves = grow(job, fan_in=2, stop_at=2)
    left, kept = (np.flatnonzero((leaves.dual[0] != 0) == kept) for kept in (False, True))
    sets = [RowSet.at(positions, job.partitions.counts) for positions in (left, kept)]
    result = grow(job, fan_in=2, regroup=lambda number: sets)
    assert [s.rows for s in result.solutions] == [0, len(kept)]
    assert (result.dual[0][left] == 0).all()


def test_memory_of_a_cascade_is_that_of_the_rows_passed_up():
    """All rows do not fit into one node, those that count do; with fewer bytes a level is refused when it is due."""
    job, heard = make_job(small_problem(240, (1e3, 0.3, 0.4)), 8), []
    few, enough = (projected_bytes(job, rows, 1, certify=True) for rows in (30, 200))
    for pass_up, memory, what in (
        (pass_all, enough, "1 partition of up to 240 rows"),
        (pass_support, few, "4 partitions"),
    ):
        heard.clear()
        with listen(heard.append), pytest.raises(MemoryLimitError, match=what):
            grow(replace(job, pass_up=pass_up), Cluster(None, 1, 1, memory, memory), fan_in=2)
        assert bool(heard) == (pass_up is pass_support)
    assert grow(replace(job, pass_up=pass_support), Cluster(None, 1, 1, enough, enough), fan_in=2).gap < 1e-8
