"""Landmark learning by passes over a store: the sums of rows in memory, the same bits whoever adds them up."""

import signal
from dataclasses import replace

import dask
import numpy as np
import pytest

import pass_jobs
from dask_odm import ODMClassifier, Store
from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine import passes
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import KeptValues, StorePasses, chunk_groups
from dask_odm.events import IterationFinished
from dask_odm.kernels import RBF
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import RACES
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, ResidualLoss, ResidualSettings
from dask_odm.methods.landmark.memory import LandmarkMemory
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import Draw, SpanQuery
from dask_odm.solvers import Landmark
from small_stores import store_of
from traced import traced

pytestmark = pytest.mark.usefixtures("over_passes")
HERE = Cluster(None, 1, 2, 1 << 30, 1 << 30)
HERE_ALONE = Cluster(None, 1, 1, 1 << 30, 1 << 30)
SETTINGS = {"solver": Landmark(60), "gamma": 0.3, "lam": 1e4, "tol": 1e-6, "random_state": 0, "scale": "standard"}


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = (np.random.default_rng(0).normal(size=(n, 5)) * 2 + 1).astype(np.float32)
    return X, (np.sin(X).sum(axis=1) > 1).astype(int)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """2,300 rows in 23 chunks, weighted, some labels unknown."""
    X, y = rows(2300)
    labels = [None if i % 50 == 0 else int(v) for i, v in enumerate(y)]
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 2300)
    return store_of(tmp_path_factory.mktemp("spans") / "a.zarr", X, np.array(labels, dtype=object), weight=weight)


def bits(model: ODMClassifier) -> list:
    history = [(r["gap"], r["objective"], r["passes"]) for r in model.history_]
    return [model.dual_coef_.tobytes(), model.support_.tobytes(), model.intercept_.tobytes(), history]


@pytest.mark.parametrize("upsilon", [0.0, 0.3, 1.0])
def test_sums_are_those_of_rows_in_memory(store, upsilon):
    whole = store.read_rows(np.arange(store.rows))
    scaling, odm = Scaling(np.full(5, 0.5), np.linspace(0.5, 1, 5)), ODMSettings(1e4, upsilon, 0.2)
    scaled = scaling(whole.X)
    landmarks = Landmarks.of(RBF(1.0, 0.3), scaled[:40])
    query = SpanQuery(landmarks.kernel, landmarks.rows, BandLoss(odm, 1e3, 0.5, 2.0))
    there = SpanProblem.over_passes(replace(query, scaling=scaling), StorePasses(store, HERE))
    memory = SpanProblem.over_rows(query, scaled, whole.y, whole.weight, 0)
    rng = np.random.default_rng(2)
    a, p, steps = rng.normal(size=40), rng.normal(size=40), np.array([0.1, 1.0])
    found, expected = there.sums(a, Draw(100, 5)), memory.sums(a, Draw(100, 5))
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-9)
    for one, other in (
        (found.dual_image, expected.dual_image),
        (there.product(found, p), memory.product(expected, p)),
        (there.slopes(a, p, steps), memory.slopes(a, p, steps)),
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * np.abs(other).max())
    for one, other in zip(found.sample.weighted(), expected.sample.weighted(), strict=True):
        np.testing.assert_array_equal(one, other)
    drawn, wanted = there.support(a, Draw(100, 6)), memory.support(a, Draw(100, 6))
    for name in ("numbers", "rows", "y", "weight"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(wanted, name))


@pytest.mark.parametrize("choice", ["support", *RACES])
def test_model_is_as_good_as_that_of_rows_in_memory(store, choice, monkeypatch):
    heard: list = []
    settings = {**SETTINGS, "solver": Landmark(60, choice=choice)}
    model = ODMClassifier(**settings, callbacks=[heard.append]).fit(store.path)
    assert [e.iteration for e in heard if isinstance(e, IterationFinished)] == list(range(len(model.history_)))
    assert model.history_[-1]["gap"] <= SETTINGS["tol"]
    np.testing.assert_array_equal(model.support_vectors_, store.read_rows(model.support_).X)
    monkeypatch.setitem(dask.config.config, "dask_odm", {})
    in_memory = ODMClassifier(**settings).fit(store.path)
    assert in_memory.history_[-1]["objective"] == pytest.approx(model.history_[-1]["objective"], rel=0.2)
    assert model.score(store.path) == pytest.approx(in_memory.score(store.path), abs=0.03)


@pytest.mark.slow
def test_large_samples_meet_on_the_workers(client, tmp_path, monkeypatch):
    """The client holds a few of them at its peak, not those of all 32 tasks, and they have the same bits."""
    n, d, size = 16_000, 1000, 450
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    store = store_of(tmp_path / "a.zarr", X, np.arange(n) % 2, chunk_rows=500)
    scaling, loss = Scaling(np.zeros(d), np.ones(d)), BandLoss(ODMSettings(1e4, 0.3, 0.2), n)
    some = StorePasses(store, Cluster(client, 2, 16, 1 << 30, 1 << 30))
    span = SpanProblem.over_passes(SpanQuery(RBF(1.0, 1e-3), X[:20], loss, scaling), some)
    samples, peaks, sample_bytes = [], [], 4 * d * size
    for most in (0, 1 << 40):
        monkeypatch.setattr(passes, "COPIED_BYTES", most)
        found, peak = traced(span.support, np.zeros(20), Draw(size, 5))
        peaks.append(peak)
        samples.append([part.tobytes() for part in found.weighted()])
    assert samples[0] == samples[1]
    assert peaks[0] < 6 * sample_bytes
    assert peaks[1] > 20 * sample_bytes, "what this is about"


@pytest.mark.parametrize(("chunk_rows", "r"), [(2000, 100), (10_000, 40)])  # rows of a chunk fill a tile
def test_answers_for_all_rows_of_a_task_are_told(tmp_path, monkeypatch, chunk_rows, r):
    n = 200_000
    X = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    there = StorePasses(store_of(tmp_path / "a.zarr", X, X[:, 0], chunk_rows=chunk_rows, real=True), HERE_ALONE)
    loss = ResidualLoss(ResidualSettings(1e4, 0.3, 0.0), n)
    query = SpanQuery(RBF(1.0, 0.3), X[:r], loss, Scaling(np.zeros(2), np.ones(2)))
    span = SpanProblem.over_passes(query, there)
    span.leverages(np.zeros(r), np.eye(r))  # compiles
    peaks = []

    def measured(*arguments, **more):
        found, peak = traced(sum_groups, *arguments, **more)
        peaks.append(peak)
        return found

    sum_groups = passes.sum_groups
    monkeypatch.setattr(passes, "sum_groups", measured)
    span.leverages(np.zeros(r), np.eye(r))
    told = there.task_bytes(LandmarkMemory(r, n, 2, 4).leaving_out())
    assert 0.5 * told < max(peaks) <= told


@pytest.mark.slow
def test_curvatures_stay_with_the_workers_and_are_found_again(store, client):
    query = SpanQuery(RBF(1.0, 0.3), rows(40)[0], BandLoss(ODMSettings(1e4, 0.3, 0.2), 1e3))
    p = np.linspace(-1, 1, 40)
    products = []
    for cluster in (HERE, Cluster(client, 2, 1, 1 << 30, 1 << 30)):
        span = SpanProblem.over_passes(query, StorePasses(store, cluster))
        sums = span.sums(p)
        products.append(span.product(sums, p).tobytes())
    assert isinstance(sums.curvatures, KeptValues)
    client.restart_workers(list(client.scheduler_info()["workers"])[:1])
    assert [span.product(sums, p).tobytes(), products[0]] == [products[1]] * 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills by a POSIX signal")
def test_same_bits_though_a_worker_is_killed(store, client, without_workers, tmp_path, monkeypatch):
    """Where sums meet on the workers, too."""
    with without_workers():
        whole = bits(ODMClassifier(**SETTINGS).fit(store.path))
    monkeypatch.setattr(passes, "COPIED_BYTES", 0)
    monkeypatch.setattr(passes, "CLIENT_TASKS", 1)
    monkeypatch.setattr(passes, "JOINED", 2)
    first = chunk_groups(store.n_chunks)[8].start
    monkeypatch.setattr(passes, "sum_groups", pass_jobs.DeadlySums(str(tmp_path), first))
    assert bits(ODMClassifier(**SETTINGS).fit(store.path)) == whole
    assert (tmp_path / "died").exists(), "no worker was killed"
    client.wait_for_workers(2, timeout=60)
