"""The ring: every row once a refill, the steps of the formula, the same bits whoever takes them or dies meanwhile."""

import signal
import threading
import time

import numpy as np
import pytest
from scipy.sparse import csr_array

import ring_jobs
from dask_odm import InputError, MemoryLimitError, ODMClassifier, ingest
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import RandomPartitioner, StratifiedPartitioner
from dask_odm.engine.shuffle import Shuffle
from dask_odm.kernels.named import Linear
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, RowLosses
from dask_odm.papers.dsvrg import workers as ring
from dask_odm.papers.dsvrg.workers import Ring, RingJob, ring_partitions, visits
from small_problems import blobs
from small_stores import store_of
from traced import traced

HERE = Cluster(None, 1, 2, 1 << 31, 1 << 31)
ODM = ODMSettings(200.0, 0.3, 0.2)
SCALING = Scaling(np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 0.5, 2.0, 1.0]))


@pytest.fixture(scope="module")
def rows():
    X, y = blobs(1603, 4, seed=3)
    return X.astype(np.float32), y, np.random.default_rng(0).choice([0.5, 1.0, 3.0], 1603)


@pytest.fixture(scope="module")
def store(rows, tmp_path_factory):
    X, y, weight = rows
    return store_of(tmp_path_factory.mktemp("stores") / "a.zarr", X, y, weight=weight, chunk_rows=200)


@pytest.fixture
def job(store, tmp_path, monkeypatch):
    return stored_job(store, tmp_path, monkeypatch)


def stored_job(store, folder, monkeypatch, stage_steps=None, parts=5) -> RingJob:
    """A job over partitions on disk, of several pieces each."""
    monkeypatch.setattr("dask_odm.data.rows.stored.PIECE_BYTES", 70 * 16)
    partitioner = StratifiedPartitioner(Linear(1.0), 8, parts, 0)
    labelling = TwoClasses((1.0, 2.0))
    partitions = Shuffle(store, labelling, str(folder), HERE).by_partitioner(partitioner, SCALING)
    total = sum(partitions.labels(0, parts)[1])
    return RingJob(partitions, SCALING, FeatureMap(4, 1.0), BandLoss(ODM, float(total)), stage_steps, 7)


@pytest.mark.parametrize("stage_steps", [None, 1, 50, 70, 100, 321, 5000])
def test_every_row_once_before_any_row_twice(store, tmp_path, monkeypatch, stage_steps):
    job = stored_job(store, tmp_path, monkeypatch, stage_steps)
    assert len(job.piece_rows(0)) == 5
    orders = []
    for refill in range(2):
        for k, count in enumerate(job.partitions.counts):
            seen: list[tuple[int, int]] = []
            for epoch in range(refill * job.stages, (refill + 1) * job.stages):
                found = [(piece, row) for piece, some in visits(job, k, epoch) for row in some.tolist()]
                assert len(found) <= (stage_steps or count)
                seen += found
            assert len(seen) == len(set(seen)) == count
            assert sorted(seen) == [(p, r) for p, size in enumerate(job.piece_rows(k)) for r in range(size)]
            orders.append(seen)
    assert all(a[:50] != b[:50] for i, a in enumerate(orders) for b in orders[:i]), "orders repeat"
    assert job.stages == (1 if stage_steps is None else -(-321 // stage_steps))


@pytest.mark.parametrize("stage_steps", [None, 100])
def test_an_epoch_is_the_formula(job, store, tmp_path, monkeypatch, stage_steps):
    """Hop by hop and step by step in plain NumPy, over rows read back from the partitions."""
    if stage_steps:
        job = stored_job(store, tmp_path, monkeypatch, stage_steps)
    rng, step = np.random.default_rng(1), 1e-3
    snapshot = rng.normal(size=5)
    problem = Ring(job, HERE)
    sums = problem.sums(snapshot)
    parts = len(job.partitions.counts)
    raw = np.concatenate([job.partitions.raw(k, k + 1, np.arange(job.partitions.counts[k])) for k in range(parts)])
    X = np.column_stack([(raw - SCALING.shift) * SCALING.factor, np.ones(len(raw))])
    y, weight = job.partitions.labels(0, parts)
    losses = RowLosses(ODM, y, weight)

    def gradient(w, rows):
        return len(y) * (y * losses.dual_candidate(y * (X @ w)))[rows] @ X[rows]

    every = np.arange(len(y))
    np.testing.assert_allclose(sums.dual_image, gradient(snapshot, every) / len(y), rtol=1e-5)
    assert sums.loss == pytest.approx(losses.losses(y * (X @ snapshot)).sum(), rel=1e-6)
    assert problem.stiffest() == pytest.approx((losses.stiffness_low * (X**2).sum(axis=1)).max(), rel=1e-6)
    for epoch in (0, 3):
        w, count = snapshot.copy(), 0
        for k in range(parts):
            first = sum(job.partitions.counts[:k])
            for piece, order in visits(job, k, epoch):
                for i in first + sum(job.piece_rows(k)[:piece]) + order:
                    change = gradient(w, [i]) - gradient(snapshot, [i])
                    w = w - step * (w - snapshot - change + snapshot - sums.dual_image)
                    count += 1
        found, passes, hops = problem.walk(snapshot, sums.dual_image, step, epoch)
        np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-6)
        assert passes == pytest.approx(count / len(y))
        assert hops == (parts if epoch == 0 or stage_steps is None else sum(c > 300 for c in job.partitions.counts))


def test_partitions_depend_on_rows_alone():
    assert [ring_partitions(n, None) for n in (1, 20, 40, 1000, 10**8)] == [1, 1, 2, 8, 8]
    assert ring_partitions(100, 30) == 30
    with pytest.raises(InputError, match="at most the number of rows, 100"):
        ring_partitions(100, 101)


def test_what_does_not_fit_is_refused(job):
    with pytest.raises(MemoryLimitError, match=r"An epoch of the ring needs .* Use more memory\.$"):
        Ring(job, Cluster(None, 1, 1, 1 << 20, 1 << 20))


def peak_of(task: str, job: RingJob) -> int:
    """Most bytes that a task takes."""
    w = np.zeros(job.features.k)
    Ring(job, HERE)  # compiles
    if task == "gradient":
        return traced(ring.sum_partition, job, w, 0)[1]
    return traced(ring.walk_partition, w, job, w, w, 1e-6, 0, 0)[1]


@pytest.mark.slow
def test_memory_is_as_projected(tmp_path):
    X, y = blobs(100_000, 18, seed=1)
    store = store_of(tmp_path / "a.zarr", X.astype(np.float32), y, chunk_rows=50_000)
    (tmp_path / "scratch").mkdir()
    scaling, partitioner = Scaling(np.zeros(18), np.full(18, 0.5)), StratifiedPartitioner(Linear(1.0), 4, 1, 0)
    partitions = Shuffle(store, TwoClasses(), str(tmp_path / "scratch"), HERE).by_partitioner(partitioner, scaling)
    job = RingJob(partitions, scaling, FeatureMap(18, 1.0), BandLoss(ODM, 1e5), None, 0)
    assert len(job.piece_rows(0)) == 2
    for task in ("gradient", "hop"):
        assert 0.5 * job.task_bytes < peak_of(task, job) <= job.task_bytes, task


@pytest.mark.slow
def test_memory_of_sparse_rows_counts_entries(tmp_path):
    """Rows of 200,000 features: a dense piece of 10,000 would take 8 GB."""
    columns = 5000 * np.arange(40) + np.random.default_rng(0).integers(0, 5000, (20_000, 40))
    entries = np.ones(columns.size, np.float32), columns.ravel(), np.arange(0, columns.size + 1, 40)
    X = csr_array(entries, shape=(20_000, 200_000))
    store = ingest((X, np.arange(20_000) % 2), tmp_path / "a.zarr", sparse=True)
    (tmp_path / "scratch").mkdir()
    shuffle = Shuffle(store, TwoClasses(), str(tmp_path / "scratch"), HERE)
    partitions = shuffle.by_partitioner(RandomPartitioner(2, 0), Scaling(np.zeros(200_000), np.ones(200_000)))
    job = RingJob(partitions, None, FeatureMap(200_000, 1.0), BandLoss(ODM, 1e4), None, 0)
    for task in ("gradient", "hop"):
        assert 0.2 * job.task_bytes < peak_of(task, job) <= job.task_bytes < 100e6, task


# On workers --------------------------------------------------------------------------------------------------


def bits(model: ODMClassifier) -> list:
    figures = [[r[name] for name in ("gap", "objective", "passes", "hops")] for r in model.history_]
    return [model.coef_.tobytes(), model.intercept_.tobytes(), figures]


def test_hops_go_round_the_workers(client):
    cluster = Cluster.current()
    numbers = [(i,) for i in range(6)]
    found = cluster.chain(ring_jobs.where, [], numbers, "where")
    assert [number for number, _ in found] == list(range(6))
    processes = [process for _, process in found]
    assert len(set(processes)) == 2
    assert processes == [processes[0]] * 3 + [processes[-1]] * 3
    assert [number for number, _ in HERE.chain(ring_jobs.where, [], numbers, "where")] == list(range(6))
    each = cluster.each(ring_jobs.where, [([], i) for i in range(6)], "each")
    assert [number for ((number, _),) in each] == list(range(6))
    assert HERE.each(ring_jobs.slowly, [(i, 0.0) for i in range(6)], "each") == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("client")
def test_an_error_in_a_hop_is_raised_here():
    with pytest.raises(ZeroDivisionError, match="at 2, with 2"):
        Cluster.current().chain(ring_jobs.fails, 0, [(i,) for i in range(5)], "fails")
    with pytest.raises(ZeroDivisionError, match="at 2, with 2"):
        Cluster.current().each(ring_jobs.fails, [(i, i) for i in range(5)], "fails")


def started(dask_scheduler) -> int:
    return sum(str(key).startswith("slowly") for key in dask_scheduler.tasks)


def test_a_chain_that_is_interrupted_is_cancelled(client):
    interrupt = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        Cluster.current().chain(ring_jobs.slowly, 0, [(0.5,)] * 200, "slowly")
    interrupt.join()
    deadline = time.monotonic() + 30
    while client.run_on_scheduler(started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.run_on_scheduler(started) == 0
