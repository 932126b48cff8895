"""SODM's large roots, solved by Newton from the level below: the optimum, its history, checkpoints, equal rows."""

import math

import dask
import numpy as np
import pytest

from dask_odm import MemoryLimitError, ODMClassifier
from dask_odm.events import CheckpointOpened, IterationFinished, LevelFinished, listen
from dask_odm.kernels import RBF
from dask_odm.papers.sodm import recipe as sodm
from dask_odm.solvers import SODM
from small_problems import SmallProblem, blobs, dual_of
from small_stores import store_of
from stopping import StoppedError, stop_at

SETTINGS = {"gamma": 0.5, "lam": 1e4, "upsilon": 0.3, "theta": 0.1, "random_state": 0, "scale": None}
ROWS = 1300
LEVEL = ("level", "partitions", "rows", "sweeps", "converged", "start_gap", "gap", "objective", "seconds")


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X, y = blobs(ROWS, 4, seed=3)
    return X.astype(np.float32), y


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Few rows are a large root, and a large store."""
    monkeypatch.setattr(sodm, "NODE_ROWS", 1200)


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(sodm, "NODE_ROWS", 400)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 100})


def fit(solver, source, *more, **settings) -> ODMClassifier:
    return ODMClassifier(solver=solver, **{**SETTINGS, **settings}).fit(source, *more)


@pytest.fixture(scope="module")
def problem(rows) -> SmallProblem:
    X, y = rows
    return SmallProblem(RBF(1.0, 0.5), X, y, np.ones(ROWS), 1e4, 0.3, 0.1)


@pytest.fixture(scope="module")
def best(problem) -> float:
    """P of the optimum, to rounding."""
    a = problem.coefficients
    return problem.primal(problem.y * a)


@pytest.mark.parametrize("parts", [1, 4, 6])
@pytest.mark.parametrize("source", ["memory", "store"])
@pytest.mark.usefixtures("on_disk")
def test_is_the_optimum_with_a_gap_that_holds(rows, problem, best, tmp_path, source, parts):
    X, y = rows
    given = rows if source == "memory" else (store_of(tmp_path / "a.zarr", X, y, chunk_rows=300),)
    heard: list = []
    with listen(heard.append):
        model = fit(SODM(parts, fan_in=4), *given)
    found = problem.primal(dual_of(model, y))
    assert best * (1 - 1e-6) <= found <= best / (1 - model.dual_gap_) + 1e-6 * best
    assert model.dual_gap_ <= 1e-3
    levels = {1: [1], 4: [4, 1], 6: [6, 2, 1]}[parts]
    assert [record["partitions"] for record in model.history_] == levels
    assert [record["level"] for record in model.history_] == [*range(len(levels))][::-1]
    for record in model.history_:
        assert set(LEVEL) <= set(record)
        assert record["rows"] == ROWS
    root = model.history_[-1]
    assert root["gap"] == model.dual_gap_
    assert root["gap"] < root["start_gap"] < 1
    assert root["objective"] == pytest.approx(best, rel=2e-3)
    steps = [event for event in heard if isinstance(event, IterationFinished)]
    assert len(steps) == root["sweeps"] + 1, "the root is Newton's"
    assert [event.level for event in heard if isinstance(event, LevelFinished)] == [r["level"] for r in model.history_]


def test_other_ends_keep_their_meaning(rows):
    model = fit(SODM(8, fan_in=2, stop_at=2), *rows)
    assert [record["partitions"] for record in model.history_] == [8, 4, 2]
    assert math.isnan(model.dual_gap_)
    model = fit(SODM(8, fan_in=2, early_stop=True), *rows, lam=1e-3, tol=0.1)
    assert [record["partitions"] for record in model.history_] == [8, 4]
    assert math.isnan(model.dual_gap_)
    linear = fit(SODM(2, fan_in=2), *rows, kernel="linear", tol=1e-9)
    assert linear.dual_gap_ < 1e-9, "to rounding, as any node"


def test_fits_of_small_roots_are_nodes(rows):
    heard: list = []
    with listen(heard.append):
        fit(SODM(2), rows[0][:1100], rows[1][:1100])
    assert not any(isinstance(event, IterationFinished) for event in heard)


def bits(model: ODMClassifier) -> list:
    arrays = [np.asarray(getattr(model, name)).tobytes() for name in ("dual_coef_", "support_", "intercept_")]
    return [*arrays, model.dual_gap_, [(r["gap"], r["start_gap"], r["objective"]) for r in model.history_]]


@pytest.mark.parametrize(("kind", "count"), [(LevelFinished, 2), (IterationFinished, 2)])
def test_going_on_from_a_checkpoint_gives_the_same_bits(rows, tmp_path, kind, count):
    path = str(tmp_path / "c.zarr")
    whole = bits(fit(SODM(4), *rows))
    with pytest.raises(StoppedError):
        fit(SODM(4), *rows, checkpoint=path, callbacks=[stop_at(count, kind)])
    assert bits(fit(SODM(4), *rows, checkpoint=path, resume=True)) == whole
    heard: list = []
    again = fit(SODM(4), *rows, checkpoint=path, resume=True, callbacks=[heard.append])
    assert bits(again) == whole
    (opened,) = heard
    assert (type(opened), opened.steps) == (CheckpointOpened, 2), "a root that is there is not solved again"


@pytest.mark.parametrize(
    ("parts", "way_out"), [(1, r"'landmark', or solver=SODM\(n_partitions=…, stop_at=…\)"), (16, "stop_at=4")]
)
def test_too_little_memory_for_the_root_is_found_first(rows, parts, way_out):
    heard: list = []
    with listen(heard.append), pytest.raises(MemoryLimitError, match=rf"root of the tree over 1300 rows.*{way_out}"):
        fit(SODM(parts), *rows, memory_limit="5MB")
    assert heard == []


@pytest.mark.parametrize("parts", [None, 4])
def test_equal_rows_are_one(rows, parts):
    X, y = (each[:500] for each in rows)
    times = np.random.default_rng(0).integers(1, 4, 500)
    weighted = fit(SODM(parts), X, y, times.astype(float))
    repeated = fit(SODM(parts), np.repeat(X, times, axis=0), np.repeat(y, times))
    assert repeated.history_[-1]["rows"] == 500
    np.testing.assert_array_equal(repeated.support_, (np.cumsum(times) - times)[weighted.support_])
    np.testing.assert_allclose(repeated.dual_coef_, weighted.dual_coef_, rtol=1e-9)
    # as many partitions as were rows given, though few differ
    many = fit(SODM(30), np.repeat(X[:20], 3, axis=0), np.repeat(y[:20], 3))
    assert many.history_[0]["partitions"] == 30
