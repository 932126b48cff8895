"""Kernel products by Dask: those of this process, to the last bit, whoever computes them and whatever is kept."""

import shutil
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dask_odm import MemoryLimitError, ODMClassifier
from dask_odm.engine.cluster import Cluster
from dask_odm.events import IterationFinished, Progress, listen
from dask_odm.kernels import RBF, Polynomial
from dask_odm.kernels.blocks import Gram
from dask_odm.learning import distributed_products as gram
from dask_odm.learning.distributed_products import ActiveRows, ClusterProducts, cluster_products, gram_part, write_rows
from dask_odm.learning.problem.products import Products, RowProducts, scores_of
from dask_odm.learning.training import memory_data
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.papers.sodm import recipe as sodm
from dask_odm.solvers import SODM
from small_problems import blobs
from small_stores import store_of

SETTINGS = {"gamma": 0.5, "lam": 1e4, "solver": "exact", "random_state": 0, "scale": None}
KERNEL = RBF(1.0, 0.5)


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return blobs(2600, 4, seed=1)[0].astype(np.float32)


@pytest.fixture(scope="module")
def folder(X, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("gram"))
    write_rows(path, X.shape, X.dtype, [X])
    return path


def asked(products: Products) -> list[bytes]:
    """Everything that a solver asks for, once."""
    n, rng = products.n, np.random.default_rng(0)
    chosen = np.sort(rng.choice(n, n // 2, replace=False))
    rest, v = np.setdiff1d(np.arange(n), chosen), rng.normal(size=n // 2)
    few = chosen[::100]
    with single_threaded_blas:
        return [answer.tobytes() for answer in _answers(products, chosen, rest, few, v)]


def _answers(products: Products, chosen: np.ndarray, rest: np.ndarray, few: np.ndarray, v: np.ndarray):
    active = products.among(chosen)
    answers = [active(v), active(2 * v), products.cross(rest, chosen, v), products.rows(few)]
    answers += [
        products.among(chosen, double_precision=True)(v),
        products.cross(few, rest, v[: len(rest)], double_precision=True),
    ]
    return [*answers, products.cross(few[:0], chosen, v), products.cross(rest, few[:0], v[:0])]


@pytest.fixture(scope="module")
def expected(X) -> list[bytes]:
    return asked(RowProducts(KERNEL, X, 1 << 30, 2))


@pytest.mark.parametrize(("budget", "threads"), [(1 << 30, 1), (0, 1), (0, 3), (1 << 22, 2)])
def test_memory_and_threads_change_no_bit(X, expected, budget, threads):
    assert asked(RowProducts(KERNEL, X, budget, threads)) == expected


def test_products_are_those_of_the_matrix(X):
    rows = X[:1500].astype(np.float64)
    K = KERNEL.tile(rows, rows)
    index, v = np.arange(0, 1500, 2), np.random.default_rng(1).normal(size=750)
    within, across = K[np.ix_(index, index)] @ v, K[np.ix_(index + 1, index)] @ v
    for source in (X[:1500], rows):
        products, a = RowProducts(KERNEL, source, 0), np.zeros(1500)
        for double, tolerance in ((False, 2e-4), (True, 1e-10)):
            active = products.among(index, double_precision=double)
            np.testing.assert_allclose(active(v), within, atol=tolerance)
            found = products.cross(index + 1, index, v, double_precision=double)
            np.testing.assert_allclose(found, across, atol=tolerance)
        a[index] = v
        np.testing.assert_allclose(scores_of(products, a, double_precision=True), K @ a, atol=1e-10)


@pytest.mark.parametrize("workers", [2, 1])
def test_workers_change_no_bit(client, folder, expected, workers):
    cluster = Cluster.current()
    some = Cluster(client, workers, 2, cluster.memory, cluster.limit)
    with cluster_products(KERNEL, folder, some) as products:
        assert asked(products) == expected
    # tiles that do not fit are computed anew
    tight = Cluster(client, workers, 1, 20 << 20, 20 << 20)
    with cluster_products(KERNEL, folder, tight) as products:
        assert asked(products) == expected


def kept_parts() -> int:
    return len(gram._KEPT)


def test_workers_keep_tiles_until_the_fit_ends(client, folder):
    with cluster_products(KERNEL, folder, Cluster.current()) as products:
        active = products.among(np.arange(0, 2600, 2))
        active(np.ones(1300))
        assert sum(client.run(kept_parts).values()) == products.parts
        products.among(np.arange(700))(np.ones(700))
        assert sum(client.run(kept_parts).values()) == products.parts, "those of the last active rows"
    assert sum(client.run(kept_parts).values()) == 0


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_late_task_of_earlier_active_rows_spoils_no_tile(X, tmp_path, monkeypatch, begins):
    """It may still run where the tasks of the next ones do: its worker was given up, but shares its process."""
    write_rows(str(tmp_path), X.shape, X.dtype, [X])
    grams = []
    for name, start in (("earlier", 0), ("later", 600)):
        np.save(tmp_path / f"{name}.npy", np.arange(start, start + 2000))
        grams.append(ActiveRows(KERNEL, str(tmp_path), f"{name}.npy", False, 1, 1 << 30, 1))
    v, (earlier, later) = np.random.default_rng(0).normal(size=2000), grams
    expected = [RowProducts(KERNEL, X, 0).among(np.arange(a, a + 2000))(v).tobytes() for a in (0, 600)]
    fill, at_work, go_on, found = Gram._fill, threading.Event(), threading.Event(), []

    def slow_fill(self: Gram, i: int) -> None:
        if threading.current_thread().name == "late":
            at_work.set()
            assert go_on.wait(60)
        fill(self, i)

    monkeypatch.setattr(Gram, "_fill", slow_fill)
    late = threading.Thread(target=lambda: found.append(gram_part(earlier, 0, v).tobytes()), name="late")
    try:
        asked = [] if begins == "before" else [gram_part(later, 0, v).tobytes()]
        late.start()
        assert at_work.wait(60)
        asked.append(gram_part(later, 0, v).tobytes())
        go_on.set()
        late.join()
        asked += [gram_part(later, 0, v).tobytes() for _ in range(2)]
    finally:
        go_on.set()
        gram.forget(str(tmp_path))
    assert found == expected[:1]
    assert set(asked) == {expected[1]}


def test_precise_passes_report_progress(client, folder):
    heard: list[object] = []
    with listen(heard.append), cluster_products(KERNEL, folder, Cluster.current()) as products:
        products.among(np.arange(2000), double_precision=True)(np.ones(2000))
    done = [event.done for event in heard if isinstance(event, Progress) and event.phase == "certificate"]
    assert done[0] == 0
    assert done[-1] == heard[-1].total


def test_rows_that_do_not_fit_are_refused(client, folder):
    with pytest.raises(MemoryLimitError, match=r"kernel of 2600 rows of 4 features needs .* but only"):
        ClusterProducts(KERNEL, folder, Cluster(client, 2, 1, 1 << 16, 1 << 16))


def test_rows_for_which_the_disk_has_no_room_leave_no_file(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")

    def write() -> None:
        write_rows(str(tmp_path), (1000, 30), np.dtype(np.float64), iter(np.ones((4, 250, 30))))

    with monkeypatch.context() as patch:
        patch.setattr(gram, "disk_usage", lambda folder: shutil.disk_usage(folder)._replace(free=1000))
        with pytest.raises(OSError, match=r"No space left on device \(234.38 kiB needed, 0.98 kiB free\)"):
            write_rows(str(tmp_path), (1000, 30), np.dtype(np.float64), (pytest.fail("read") for _ in "x"))
        assert list(tmp_path.iterdir()) == []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OSError, match="File too large"):
            write()
        assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write()
    assert (gram.read_rows(str(tmp_path)) == np.ones((1000, 30))).all()

    def interrupted() -> Iterator[np.ndarray]:
        yield np.ones((1, 2))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(str(tmp_path), (3, 2), np.dtype(np.float32), interrupted())
    assert list(tmp_path.iterdir()) == []


def bits(model: ODMClassifier) -> list:
    arrays = [np.asarray(getattr(model, name)).tobytes() for name in ("dual_coef_", "support_", "intercept_")]
    return [*arrays, [(record["gap"], record["objective"]) for record in model.history_]]


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    X, y = blobs(3200, 4, seed=3)  # more than are solved with their matrix whole
    return X.astype(np.float32), y


@pytest.mark.slow
def test_a_root_of_the_tree_on_workers(client, problem, tmp_path, monkeypatch, without_workers, killer):
    """Of partitions on disk; a worker dies while the root is solved."""
    monkeypatch.setattr(sodm, "NODE_ROWS", 1200)
    monkeypatch.setattr(memory_data, "WORKER_ROWS", 1)
    settings = {**SETTINGS, "solver": SODM(4)}
    store = store_of(tmp_path / "a.zarr", *problem, chunk_rows=300)
    with without_workers():
        here = ODMClassifier(**settings).fit(store)
    assert [record["partitions"] for record in here.history_] == [4, 1]
    assert here.dual_gap_ <= 1e-3
    kill = killer(client, lambda event: isinstance(event, IterationFinished))
    assert bits(ODMClassifier(**settings, callbacks=[kill]).fit(store)) == bits(here)
    assert kill.killed
    client.wait_for_workers(2, timeout=60)


def test_kernels_without_width_limit():
    """A polynomial of few rows, whose blocks are not full."""
    X = np.random.default_rng(0).normal(size=(70, 3))
    K = Polynomial(1.0, 0.5, 1.0, 3).tile(X, X)
    products = RowProducts(Polynomial(1.0, 0.5, 1.0, 3), X, 0)
    v = np.random.default_rng(1).normal(size=70)
    np.testing.assert_allclose(products.among(np.arange(70), double_precision=True)(v), K @ v, rtol=1e-10)
