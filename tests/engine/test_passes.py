"""Newton by passes over a store: the sums of rows in memory, the same bits whoever adds them up, within memory."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dask_odm import InputError, MemoryLimitError, ODMClassifier
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine import passes
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import StorePasses, chunk_groups, group_runs
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, Query
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.linalg.row_passes import PassBytes, RowBlock, tree_nodes
from dask_odm.methods.linear.solver import solve_newton
from dask_odm.papers.mdd import moments
from dask_odm.papers.mdd.moments import Embedding, MomentQuery
from small_stores import store_of
from squared_loss import SquaredLoss
from traced import traced

pytestmark = pytest.mark.usefixtures("over_passes")
HERE = Cluster(None, 1, 2, 1 << 30, 1 << 30)
ODM = ODMSettings(1e4, 0.3, 0.2)
SETTINGS = {"lam": 1e4, "tol": 1e-9, "random_state": 0, "scale": None}


def rows(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * 2 + 1).astype(np.float32)
    return X, (X @ rng.normal(size=d) + 2 * rng.normal(size=n) > 1).astype(int)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """2,300 rows in 23 chunks, weighted, some labels unknown."""
    X, y = rows(2300, 7)
    labels = [None if i % 50 == 0 else int(v) for i, v in enumerate(y)]
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 2300)
    return store_of(tmp_path_factory.mktemp("passes") / "a.zarr", X, np.array(labels, dtype=object), weight=weight)


def bits(model: ODMClassifier) -> list:
    return [model.coef_.tobytes(), model.intercept_.tobytes(), [(r["gap"], r["passes"]) for r in model.history_]]


def test_a_query_that_takes_pieces_sums_the_same_bits(store, monkeypatch):
    monkeypatch.setattr(moments, "PIECE_BYTES", 1)
    embedding, columns = Embedding(FeatureMap(7, 0.0), np.ones(7)), TwoClasses().columns
    query = MomentQuery(embedding, np.zeros(1), store.chunk_rows)
    chunks = (RowBlock(block.X, *columns(block), block.first) for block in store.blocks())
    ((_, _, found),) = passes.sum_groups(store, query, MomentQuery.sums, (), columns, 0, [range(store.n_chunks)])
    assert query.piece_rows < store.chunk_rows
    np.testing.assert_array_equal(found.total(9), query.sums(chunks).total(9))


@pytest.mark.parametrize("aligned", [False, True])
def test_groups_and_runs(aligned):
    for n in (1, 2, 3, 23, 64, 1000, 100_000):
        groups = chunk_groups(n)
        assert [i for group in groups for i in group] == list(range(n))
        assert len(groups) & (len(groups) - 1) == 0
        for threads in (1, 2, 3, 6, 200, 1000):
            runs = group_runs(len(groups), threads, aligned=aligned)
            assert [g for run in runs for g in run] == list(range(len(groups)))
            lengths = {len(run) for run in runs}
            if aligned:
                assert len(lengths) == 1
                assert len(runs) & (len(runs) - 1) == 0
            else:
                assert len(runs) == min(threads, len(groups))
                assert max(lengths) - min(lengths) <= max(1, min(lengths) // 8)


def test_a_thousand_runs_are_about_as_long():
    groups = chunk_groups(100_000)
    runs = group_runs(len(groups), 1000)
    assert max(sum(len(groups[g]) for g in run) for run in runs) < 1.05 * 100
    nodes = [tree_nodes((0, g, 0) for g in run) for run in runs]
    assert np.mean([len(each) for each in nodes]) < 6, "sums that a task sends"


def test_levels_are_the_tasks_that_a_scheduler_had():
    """As `benchmarks/scale.py` counted them with 100 and 300 workers."""
    many = SimpleNamespace(layout=SimpleNamespace(entries=None), n_chunks=100_000)
    for workers, tasks in ((10, 10), (100, 113), (300, 343), (1000, 1141)):
        levels = StorePasses(many, Cluster(None, workers, 1, 2 << 30, 4 << 30)).levels(8 * 51**2)
        assert sum(map(len, levels)) == tasks
        for runs in levels:
            assert [g for run in runs for g in run] == list(range(65_536))
    assert len(StorePasses(many, Cluster(None, 300, 1, 2 << 30, 4 << 30)).levels(None)) == 1, "rows, which only travel"


def test_what_does_not_fit_is_refused_or_goes_another_way(store, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("dask_odm.engine.cluster.active_client", lambda: None)
    X, y = rows(2000, 600)
    wide, settings = store_of(tmp_path / "wide.zarr", X, y, chunk_rows=250), {"lam": 10.0, "tol": 1e-7}
    exact = ODMClassifier("linear", **settings).fit(wide.path)
    with caplog.at_level(logging.WARNING, "dask_odm"):
        less = ODMClassifier("linear", memory_limit="30MB", **settings).fit(wide.path)
    assert "A Hessian of 601 weights does not fit the workers' memory" in caplog.text
    assert less.history_[-1]["passes"] > exact.history_[-1]["passes"]
    np.testing.assert_allclose(less.coef_, exact.coef_, rtol=0, atol=1e-3 * np.abs(exact.coef_).max())
    with pytest.raises(MemoryLimitError, match=r"A pass over the store needs .* per task, but only"):
        ODMClassifier("linear", memory_limit="100kB", **SETTINGS).fit(store.path)
    with pytest.raises(InputError, match="has no labels"):
        ODMClassifier("linear").fit(store_of(tmp_path / "bare.zarr", X, None).path)


@pytest.mark.parametrize(("n", "d", "chunk_rows"), [(60_000, 18, 20_000), (900, 700, 100)])
def test_peak_memory_of_a_task_is_projected(tmp_path: Path, n, d, chunk_rows):
    X, y = rows(n, d)
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=chunk_rows)
    scaling = Scaling(np.zeros(d), np.full(d, 0.5))
    query = Query(FeatureMap(d, 1.0, scaling), BandLoss(ODM, float(n)), np.zeros(d + 1))
    groups = chunk_groups(store.n_chunks)
    arguments = store, query, Query.sums, ["full"], StoreBlock.columns, 0, groups
    passes.sum_groups(*arguments)  # compiles
    _, peak = traced(passes.sum_groups, *arguments)
    here = StorePasses(store, HERE)
    projected = here.task_bytes(PrimalProblem(query.features, query.loss, here).pass_bytes("full"))
    assert 0.2 * projected < peak <= projected


def test_answers_for_single_rows_do_not_fill_a_worker():
    """A worker of 1 GB has room for leaving out 20 million rows, in tasks that have answers for few of them each."""
    layout = SimpleNamespace(entries=None)
    many = SimpleNamespace(layout=layout, n_chunks=40, rows=20_000_000, chunk_rows=500_000, chunk_nbytes=24_000_000)
    here = StorePasses(many, Cluster(None, 2, 1, 200 << 20, 1 << 30))
    assert here.fits(PassBytes(8 * 200**2, 16, 8 << 20, answer_row=16))
    (runs,) = here.levels(None)
    assert [g for run in runs for g in run] == list(range(32))
    assert len(runs) == 32


def test_few_rows_are_drawn_once_however_many_sums_there_are(store):
    """Each is in a sum of the last pass, in one of this pass, and in two more while these are joined."""
    here = StorePasses(store, HERE)
    none, all_rows = (here.task_bytes(PassBytes(8, 0, 0, 2, drawn, 1000)) for drawn in (0, store.rows))
    # where sums are joined there is no chunk
    assert all_rows - none == pytest.approx(4 * 1000 * store.rows, rel=1e-3)


def test_fits_at_the_same_time_do_not_share_tasks(store, client):
    """Every fit starts at w = 0: a task is of one fit all the same."""
    lams = [1.0, 100.0, 1e4]
    alone = [bits(ODMClassifier("linear", lam=lam, tol=1e-9).fit(store.path)) for lam in lams]

    def fit(lam: float) -> list:
        with client.as_current():
            return bits(ODMClassifier("linear", lam=lam, tol=1e-9).fit(store.path))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(fit, lams)) == alone


@dataclass(frozen=True)
class RealTargets:
    """Columns of a block whose targets are not the store's."""

    y: np.ndarray
    weighted: bool

    def __call__(self, block: StoreBlock) -> tuple[np.ndarray, np.ndarray]:
        y = self.y[block.first : block.first + len(block.X)]
        assert block.weight is not None
        return y, block.weight if self.weighted else np.empty(0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("exact", [True, False], ids=["cholesky", "conjugate gradients"])
def test_other_targets_and_another_loss_need_no_other_pass(store, weighted, exact):
    """Ridge regression on real targets, though the store has classes."""
    whole = store.read_rows(np.arange(store.rows))
    y = np.cos(whole.X).sum(axis=1).astype(np.float64)
    given = StorePasses(store, HERE, RealTargets(y, weighted))
    problem = PrimalProblem(FeatureMap(7, 0.0), SquaredLoss(2.0), given)
    solution = solve_newton(problem, np.zeros(7), tol=1e-13, max_iter=20, exact=exact)
    ridge = Ridge(0.5, fit_intercept=False).fit(whole.X.astype(float), y, whole.weight if weighted else None)
    assert solution.converged
    np.testing.assert_allclose(solution.x, ridge.coef_, atol=1e-5)


def test_large_questions_are_sent_once_and_change_no_bit(store, client, monkeypatch):
    expected = bits(ODMClassifier("linear", **SETTINGS).fit(store.path))
    monkeypatch.setattr(passes, "COPIED_BYTES", 0)
    monkeypatch.setattr(passes, "SENT_BYTES", 0)
    assert bits(ODMClassifier("linear", **SETTINGS).fit(store.path)) == expected
