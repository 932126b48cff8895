"""Landmarks over a store: those of rows in memory, kept rows only, bounded memory."""

from pathlib import Path

import numpy as np
import pytest

from dask_odm import InputError, MemoryLimitError, Store
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.pivot_passes import StorePivots, proposal_bytes, propose
from dask_odm.events import Progress, listen
from dask_odm.kernels import RBF, Linear
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import RACES, MemoryPivots, choose
from small_problems import blobs
from small_stores import store_of
from traced import traced

HERE = Cluster(None, 1, 2, 1 << 30, 1 << 30)
GAUSS = RBF(1.0, 0.4)
SCALING = Scaling(np.array([0.5, -0.1, 0.2]), np.array([1.0, 0.5, 2.0]))
EVERY_METHOD = pytest.mark.parametrize("method", RACES)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """2,000 rows in 17 chunks."""
    X, y = blobs(2000)
    return store_of(tmp_path_factory.mktemp("landmarks") / "a.zarr", X.astype(np.float32), y, chunk_rows=123)


def chosen(store: Store, method: str, count: int = 150, *, cluster: Cluster = HERE, **options):
    options = {"kernel": GAUSS, "labelling": TwoClasses(), "scaling": SCALING, "seed": 5} | options
    kernel, labelling, scaling = (options.pop(name) for name in ("kernel", "labelling", "scaling"))
    kind = np.dtype(options.pop("dtype", store.dtype))
    source = StorePivots(store, labelling, scaling, cluster, kind)
    source.require(min(count, store.rows), method)
    landmarks = choose(kernel, source, count, method=method, **options)
    return landmarks, source.raw(landmarks.index)


def bits(found: tuple[Landmarks, np.ndarray]) -> list[bytes]:
    landmarks, raw = found
    return [landmarks.index.tobytes(), landmarks.rows.tobytes(), landmarks.factor.tobytes(), raw.tobytes()]


@EVERY_METHOD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_those_of_rows_in_memory_in_the_same_chunks(store, method, dtype):
    landmarks, raw = chosen(store, method, dtype=dtype)
    whole = store.read_rows(np.arange(store.rows)).X.astype(dtype)
    source = MemoryPivots(SCALING(whole), chunk_rows=store.chunk_rows)
    expected = choose(GAUSS, source, 150, method=method, seed=5)
    np.testing.assert_array_equal(landmarks.index, expected.index)
    np.testing.assert_array_equal(landmarks.rows, expected.rows)
    np.testing.assert_array_equal(raw, whole[expected.index])
    assert landmarks.rows.dtype == raw.dtype == np.dtype(dtype)


def test_a_share_of_the_rows_is_that_of_rows_in_memory(store):
    found = bits(chosen(store, "rp", 30, rows=400))
    source = MemoryPivots(SCALING(store.read_rows(np.arange(store.rows)).X), chunk_rows=store.chunk_rows)
    expected = choose(GAUSS, source, 30, method="rp", seed=5, rows=400)
    assert found[0] == expected.index.tobytes()
    assert found != bits(chosen(store, "rp", 30))


@EVERY_METHOD
def test_dropped_rows_are_never_chosen(tmp_path, method):
    X, labels = blobs(500)
    y = np.where(labels > 0, "a", "b").astype(object)
    y[::7] = None
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 500)
    weight[::5] = 0.0
    store = store_of(tmp_path / "a.zarr", X, y, weight=weight, chunk_rows=70)
    kept = [i for i in range(500) if i % 7 and i % 5]
    landmarks, raw = chosen(store, method, 10_000, kernel=RBF(gamma=500.0))
    assert landmarks.index.tolist() == kept
    np.testing.assert_array_equal(raw, X[kept])
    positive, _ = chosen(store, method, 10_000, kernel=RBF(gamma=500.0), labelling=TwoClasses((0.0, 1.0)))
    assert positive.index.tolist() == [i for i in kept if y[i] == "b"]


def test_no_row_and_no_kernel_are_told_apart(tmp_path):
    X, y = blobs(40)
    bare = store_of(tmp_path / "a.zarr", X, y, weight=np.zeros(40), chunk_rows=10)
    zero = store_of(tmp_path / "b.zarr", np.zeros((40, 3)), y, chunk_rows=10)
    plain = Scaling(np.zeros(3), np.ones(3))
    for method in RACES:
        with pytest.raises(InputError, match="no row has both a label and a positive weight"):
            chosen(bare, method)
        with pytest.raises(InputError, match="overflows or is zero"):
            chosen(zero, method, kernel=Linear(), scaling=plain)
        assert len(chosen(zero, method, scaling=plain)[0]) == 1


@EVERY_METHOD
def test_progress_is_told(store, method):
    heard: list[Progress] = []
    with listen(heard.append):
        chosen(store, method, 20)
    assert {event.phase for event in heard} == {"landmarks"}


def test_what_does_not_fit_is_refused(store):
    small = Cluster(None, 1, 1, 10_000_000, 10_000_000)
    with pytest.raises(MemoryLimitError, match=r"Choosing 2000 landmarks needs .* per task, but only"):
        chosen(store, "rp", 2000, cluster=small)
    assert len(chosen(store, "uniform", 20, cluster=small)[0]) == 20


@pytest.mark.parametrize(
    ("n", "d", "count", "chunk_rows", "rows"),
    [(20_000, 5, 500, 256, None), (3000, 200, 300, 256, None), (20_000, 400, 40, None, 10_000)],
)
def test_peak_memory_of_choosing_in_memory_is_projected(n, d, count, chunk_rows, rows):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    X[: n // 2] = X[0]  # so that few proposals are accepted, and the next blocks are large
    source = MemoryPivots(X, threads=2, chunk_rows=chunk_rows)
    choose(RBF(gamma=0.1), MemoryPivots(X[-50:]), 10, method="rp")  # compiles
    _, peak = traced(choose, RBF(gamma=0.1), source, count, method="rp", rows=rows)
    projected = source.choosing_bytes(count)
    assert 0.15 * projected < peak <= projected


@pytest.mark.parametrize(("n", "d", "chunk_rows", "count"), [(40_000, 18, 20_000, 100), (1500, 300, 500, 600)])
def test_peak_memory_of_a_task_is_projected(tmp_path: Path, n, d, chunk_rows, count):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    store = store_of(tmp_path / "a.zarr", X, np.arange(n) % 2, chunk_rows=chunk_rows)
    scaling, kernel = Scaling(np.zeros(d), np.full(d, 0.1)), RBF(gamma=1.0)
    source = StorePivots(store, TwoClasses(), scaling, HERE, np.dtype(np.float32))
    landmarks = choose(kernel, source, count, method="uniform")
    chunks = list(range(store.n_chunks))
    for method in RACES:
        race = RACES[method](kernel, Landmarks(kernel, landmarks.rows, landmarks.index), 8192, 0.0, 0, 1)
        _, peak = traced(propose, store, TwoClasses(), scaling, "float32", race, chunks)
        projected = proposal_bytes(store, count, 4, method)
        assert 0.15 * projected < peak <= projected


def test_few_rows_that_count_are_all_looked_at(tmp_path):
    X = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)
    labels = np.array([i % 2 if i % 60 == 0 else None for i in range(3000)], dtype=object)
    labels[60] = 1
    store = store_of(tmp_path / "a.zarr", X, labels)
    here = Cluster(None, 1, 1, 1 << 30, 1 << 30)
    source = StorePivots(store, TwoClasses(), Scaling(np.zeros(3), np.ones(3)), here, np.dtype(np.float32))
    assert len(choose(RBF(1.0, 2.0), source, 40, method="rp", rows=60)) == 40


def test_rows_are_gathered_from_no_more_chunks_at_a_time_than_is_told(tmp_path):
    X = np.zeros((80_000, 100), np.float32)
    store = store_of(tmp_path / "a.zarr", X, np.arange(len(X)) % 2, chunk_rows=20_000)
    _, peak = traced(store.read_rows, np.arange(4) * 20_000)
    told = store.readers * store.chunk_nbytes
    assert 0.3 * told < peak <= 1.1 * told < X.nbytes
