"""solver="cells": every cell is an exact machine, in memory and over stores, for two classes and many."""

import tracemalloc
from dataclasses import fields
from itertools import combinations, pairwise
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

import reference
from dask_odm import InputError, MemoryLimitError, ODMClassifier, StoreError, load_model
from dask_odm.data.store.records import read_record
from dask_odm.events import IterationFinished
from dask_odm.kernels.shape import Shape
from dask_odm.learning.training import memory_data
from dask_odm.learning.training.checkpoints import save_checkpoint
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods import as_predicted
from dask_odm.methods.cells import workers
from dask_odm.methods.cells.memory import CellMemory, grown_row_bytes
from dask_odm.methods.cells.workers import CellSettings, SolvedBin, StoredBins, solve_bin, solve_stored_bin
from dask_odm.methods.exact import solver as exact_solver
from dask_odm.methods.exact.recipe import fit_bytes, most_fit_bytes
from dask_odm.progress import format_history
from dask_odm.solvers import Cells
from small_stores import store_of

SETTINGS = {"gamma": 3.0, "lam": 1e4, "tol": 1e-6, "random_state": 0, "scale": None}


def board(n: int = 1200, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a chess board, with rows of other classes among each."""
    X = np.random.default_rng(seed).random((n, 2))
    squares = np.floor(3.0 * X).astype(int)
    return X, (squares[:, 0] + (2 if classes > 2 else 1) * squares[:, 1]) % classes


def test_a_cell_is_the_exact_machine_of_its_rows():
    X, y = board(600)
    model = ODMClassifier(**SETTINGS, solver=Cells(100), fit_intercept=False).fit(X, y)
    cells = model._model.cells_of(X)
    assert len(set(cells.tolist())) == model.history_[-1]["cells"] == 8
    primal = short = 0.0
    for cell in range(8):
        rows = cells == cell
        signs = np.where(y[rows] == 1, 1.0, -1.0)
        if len(set(signs.tolist())) == 1:
            np.testing.assert_array_equal(model.decision_function(X[rows]), signs)
            continue
        K = reference.rbf(X[rows], X[rows], 3.0)
        lam = 1e4 * rows.sum() / 600
        expected = K @ (signs * reference.solve_two_variable_dual(K, signs, lam, 0.2, 0.2)[0])
        np.testing.assert_allclose(model.decision_function(X[rows]), expected, rtol=0, atol=1e-3)
        a = np.zeros(600)
        a[model.support_] = model.dual_coef_[0]
        s = signs * a[rows]
        value = reference.primal_value(K, signs, s, lam, 0.2, 0.2)
        primal += value
        short += reference.relative_gap(K, signs, s, lam, 0.2, 0.2) * reference.primal_value(K, signs, s, lam, 0.2, 0.2)
    assert model.history_[-1]["objective"] == pytest.approx(primal, rel=1e-6)
    assert model.dual_gap_ == pytest.approx(short / primal, abs=1e-7)
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])


ODD = {
    "one feature": lambda X, y: (X[:, :1], y),
    "constant features": lambda X, y: (np.column_stack([X, np.zeros((len(X), 3))]), y),
    "more features than rows in a cell": lambda X, y: (np.column_stack([X, 0.01 * np.resize(X, (len(X), 60))]), y),
    "one row of a class": lambda X, y: (X, (np.arange(len(X)) == 7).astype(int)),
    "few different rows": lambda X, y: (np.round(3 * X) / 3, y),
}


@pytest.mark.parametrize("shape", ODD)
def test_cells_of_odd_rows_are_exact_machines(shape):
    X, y = ODD[shape](*board(200))
    model = ODMClassifier(**SETTINGS, solver=Cells(40)).fit(X, y)
    cells = model._model.cells_of(X)
    assert len(set(cells.tolist())) > 1
    for cell in set(cells.tolist()):
        rows, mixed = cells == cell, len(set(y[cells == cell].tolist())) == 2
        if mixed:
            alone = ODMClassifier(**{**SETTINGS, "lam": 1e4 * rows.sum() / 200}, solver="exact").fit(X[rows], y[rows])
            expected = alone.decision_function(X[rows])
            np.testing.assert_allclose(model.decision_function(X[rows]), expected, rtol=0, atol=1e-2)
        else:
            np.testing.assert_array_equal(model.predict(X[rows]), y[rows])


@pytest.mark.parametrize("scheme", ["ovr", "ovo"])
def test_machines_of_classes_that_a_cell_lacks_are_constants(scheme):
    X, y = board(900, classes=5)
    model = ODMClassifier(**SETTINGS, solver=Cells(100), multi_class=scheme).fit(X, y)
    cells = model._model.cells_of(X)
    assert (np.array([len(set(y[cells == c])) for c in range(cells.max() + 1)]) < 5).all()
    for cell in range(cells.max() + 1):
        rows = cells == cell
        assert set(model.predict(X[rows]).tolist()) <= set(y[rows].tolist()), "a cell predicts its own classes"
    whole = ODMClassifier(**SETTINGS, solver="exact", multi_class=scheme).fit(X, y)
    assert model.score(*board(2000, 5, 1)) > whole.score(*board(2000, 5, 1)) - 0.02


@pytest.mark.parametrize("scheme", [None, "ovo"])
def test_left_out_values_are_those_of_the_cells(scheme):
    classes = 2 if scheme is None else 4
    X, y = board(800, classes)
    settings = SETTINGS | {"lam": 100.0, "loo": True, "multi_class": scheme}
    model = ODMClassifier(**settings, solver=Cells(200)).fit(X, y)
    cells = model._model.cells_of(X)
    assert model.loo_decision_function_.shape == ((800,) if classes == 2 else (800, 4))
    for cell in (0, cells.max()):
        rows = cells == cell
        if len(set(y[rows])) < classes:
            continue
        own = settings | {"lam": 100.0 * rows.sum() / 800, "solver": "exact"}
        alone = ODMClassifier(**own).fit(X[rows], y[rows])
        found = model.loo_decision_function_[rows]
        np.testing.assert_allclose(found, alone.loo_decision_function_, rtol=0, atol=1e-4)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
    if classes == 2:
        assert abs(model.loo_score_ - model.score(*board(3000, classes, 1))) < 0.05


def test_cells_overlap():
    X, y = board(1200)
    apart = ODMClassifier(**SETTINGS, solver=Cells(100), loo=True).fit(X, y)
    model = ODMClassifier(**SETTINGS, solver=Cells(100, overlap=0.3), loo=True).fit(X, y)
    assert model.history_[-1]["rows"] > 1300 > apart.history_[-1]["rows"] == 1200
    assert np.isfinite(model.loo_decision_function_).all(), "each row is left out of its own cell"
    assert model.loo_score_ > apart.loo_score_
    assert model.score(*board(4000, 2, 1)) > apart.score(*board(4000, 2, 1))


def test_cells_are_learned_alike_wherever_they_lie():
    """About the mean of two boards that are 4,096 apart, float32 would lose all digits of the distances on each."""
    X, y = board(1200)
    X = np.round(1024.0 * X) / 1024.0  # so that float32 has them at any distance
    found = []
    for apart in (16.0, 4096.0):
        moved = X + apart * (np.arange(1200) >= 600)[:, None]
        model = ODMClassifier(**SETTINGS | {"tol": 1e-3}, solver=Cells(300)).fit(moved.astype(np.float32), y)
        found.append((model.decision_function(moved.astype(np.float32)), model.n_iter_))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-4)
    assert found[1][1] == found[0][1]


@pytest.mark.slow
def test_stores_workers_and_bins(tmp_path, start_workers, monkeypatch):
    X, y = board(1500, 3)
    path = store_of(tmp_path / "rows.zarr", X.astype(np.float32), y, chunk_rows=400).path
    model = ODMClassifier(**SETTINGS, solver=Cells(30), loo=True)

    histories: list[list[dict]] = []

    def bits() -> list[bytes]:
        with dask.config.set({"dask_odm.read-into-memory": 0}):
            model.fit(path)
        histories.append(without_seconds(model.history_))
        return [np.asarray(each).tobytes() for each in (model.dual_coef_, model.support_, model.loo_decision_function_)]

    here = bits()
    assert len(model.history_) > 4, "several bins"
    with start_workers(3):
        assert bits() == here
        for module in ("engine.futures", "methods.cells.recipe"):
            monkeypatch.setattr(f"dask_odm.{module}.FEW_TASKS", 1)  # workers join, as they do if they are many
        assert bits() == here
    assert histories[2] == histories[1] == histories[0]
    assert model.score(*board(2000, 3, 1)) > 0.85
    np.testing.assert_array_equal(model.support_vectors_, X.astype(np.float32)[model.support_])
    held = ODMClassifier(**SETTINGS, solver=Cells(30), loo=True).fit(X.astype(np.float32), y)
    assert np.mean(held.predict(X) == model.predict(X)) > 0.95


@pytest.mark.parametrize("read", ["256MiB", 0], ids=["held", "stored"])
def test_no_cell_asks_workers(tmp_path, monkeypatch, read):
    """A task that waits for tasks of its own workers may wait forever."""
    X, y = board(400)
    path = store_of(tmp_path / "rows.zarr", X, y, chunk_rows=100).path
    monkeypatch.setattr(memory_data, "WORKER_ROWS", 50)
    monkeypatch.delattr(memory_data, "products_of_file")
    workers = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
    with workers, Client(workers), dask.config.set({"dask_odm.read-into-memory": read}):
        model = ODMClassifier(**SETTINGS, solver=Cells(100)).fit(path)
    assert model.score(X, y) > 0.9


def test_workers_take_bins_in_the_order_in_which_they_are_saved(tmp_path, monkeypatch):
    """In another order a fit would be saved for the first time when most bins are solved."""
    path = store_of(tmp_path / "rows.zarr", *board(1200)).path
    begun: list[int] = []

    def solve(rows, settings, number, threads):
        begun.append(number)
        return solve_bin(rows, settings, number, threads)

    monkeypatch.setattr(workers, "solve_bin", solve)
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
    with cluster, Client(cluster), dask.config.set({"dask_odm.read-into-memory": 0}):
        ODMClassifier(**SETTINGS, solver=Cells(30)).fit(path)
    assert begun == list(range(64))


@pytest.mark.parametrize("scheme", ["ovr", "ovo"])
def test_memory_of_a_cell_is_for_one_thread(scheme):
    """Its pair of 1,000 rows takes 32 MB in float64, and would take as much in each thread that had one."""
    X, y = board(1500, 3)
    model = ODMClassifier(**SETTINGS | {"tol": 0.1}, solver=Cells(1500), multi_class=scheme)
    model.set_params(memory_limit=CPU_COUNT * 50_000_000).fit(X, y)


def test_memory_is_projected_for_rows_that_are_left_out():
    X, y = board(2000)
    model = ODMClassifier(**SETTINGS | {"tol": 0.1}, solver=Cells(2000), memory_limit=70_000_000)
    model.fit(X, y)
    with pytest.raises(MemoryLimitError, match=r"A bin of 2000 rows needs .* smaller cell_rows"):
        model.set_params(loo=True).fit(X, y)


def test_memory_is_projected_for_cells_of_fewer_rows_that_take_more():
    """Of 3,072 rows a matrix is held whole, of 3,164 in a bin it is not."""
    data = SimpleNamespace(features=10, dtype=np.dtype(np.float32), labelled_rows=12_000, in_memory=False)
    fit = SimpleNamespace(axes=None, loo=False, kernel=KernelChoice("rbf"))
    memory = CellMemory(data, fit)
    assert memory.cell(3164) >= memory.cell(3072)
    kernel = fit.kernel.alike
    for d, sizes in ((10, (200, 256, 512, 1024, 3072)), (300, (3382,)), (1000, (1038,)), (4000, (512, 1048))):
        for n in sizes:
            shape = Shape(kernel, n, d, 8, 1)
            assert most_fit_bytes(shape.of(n + 3)) >= fit_bytes(shape)


def test_memory_of_a_bin_of_narrow_rows(monkeypatch):
    """Numbers of a row take more than two features do; see how many before any cell is solved, and while."""
    rows = 100_000
    run = FitRun(0, scale="minmax")
    X, y = board(rows)
    held = MemoryData.of(run, X.astype(np.float32), np.where(y == 1, 1.0, -1.0), np.ones(rows), (1.0, 1.0))
    fit = ODMClassifier(**SETTINGS | {"scale": "minmax"}, solver=Cells())._settings(run)
    settings = CellSettings(fit, (1.0, 1.0), False, float(rows), 4000, 0.0)

    class Stored:
        labels = staticmethod(lambda *_: (held.y.copy(), held.weight.copy()))
        row_numbers = staticmethod(lambda *_: held.kept.copy())
        raw = staticmethod(lambda *_: held.X.copy())

    monkeypatch.delattr(workers, "run_threads")
    for _ in range(2):  # the first one loads loops
        tracemalloc.start()
        with pytest.raises(NameError):
            solve_stored_bin(StoredBins(Stored(), held, settings, 1), 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 0.5 * grown_row_bytes(held) * rows < peak < grown_row_bytes(held) * rows

    def tell(*_):
        solving.append(tracemalloc.get_traced_memory()[0])
        raise NameError

    solving = []
    monkeypatch.setattr(workers, "run_threads", tell, raising=False)
    tracemalloc.start()
    with pytest.raises(NameError):
        solve_stored_bin(StoredBins(Stored(), held, settings, 1), 0)
    tracemalloc.stop()
    row = CellMemory(held, fit, settings.machines).solved_row
    assert 0.5 * row * rows < solving[0] < row * rows


def without_seconds(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def test_history_tells_of_the_levels_and_of_sixteen_steps(tmp_path):
    X, y = board(640)
    heard: list[IterationFinished] = []
    model = ODMClassifier(**SETTINGS, solver=Cells(30), callbacks=[heard.append]).fit(X, y)
    levels = [record for record in model.history_ if "nodes" in record]
    steps = model.history_[len(levels) :]
    cells = model._model.cells_of(X)
    sizes = np.bincount(cells)
    assert levels[0]["least_rows"] == levels[0]["most_rows"] == 640
    assert sum(record["cells"] for record in levels) == len(sizes) == steps[-1]["cells"]
    assert sum(record["nodes"] for record in levels) == len(sizes) - 1
    assert (levels[-1]["least_rows"], levels[-1]["most_rows"]) == (sizes.min(), sizes.max()), "of equal depth"
    assert 8 <= len(steps) <= 16
    assert all(a["rows"] < b["rows"] and a["seconds"] <= b["seconds"] for a, b in pairwise(steps))
    assert steps[-1]["mean_gap"] <= steps[-1]["worst_gap"] <= 1e-6
    told = [event.objective for event in heard if isinstance(event, IterationFinished)]
    assert told == [record["objective"] for record in steps]
    tables = format_history(model.history_).split("\n\n")
    assert [len(table.splitlines()) for table in tables] == [len(levels) + 1, len(steps) + 1]
    model.save(tmp_path / "model.zarr")
    assert load_model(tmp_path / "model.zarr").history_ == model.history_


def test_a_checkpoint_has_more_bins_than_its_history_tells_of(tmp_path):
    X, y = board(900, 3)
    path = tmp_path / "fit.zarr"
    settings = SETTINGS | {"solver": Cells(40), "loo": True, "multi_class": "ovo", "checkpoint": str(path)}
    model = ODMClassifier(**settings).fit(X, y)
    record = read_record(path, "checkpoint")
    attributes = record.attributes | {"history": record.attributes["history"][:1]}
    save_checkpoint(path, {name: record.array(name) for name in record.arrays}, attributes)
    again = ODMClassifier(**settings, resume=True).fit(X, y)
    assert without_seconds(again.history_) == without_seconds(model.history_)
    assert again.dual_gap_ == model.dual_gap_
    np.testing.assert_array_equal(again.loo_decision_function_, model.loo_decision_function_)
    with pytest.raises(StoreError, match="another fit"):  # three classes have as many machines either way
        again.set_params(multi_class="ovr").fit(X, y)


@pytest.mark.parametrize("name", ["thresholds", "numbers", "left_rows"])
def test_a_checkpoint_of_other_shapes_is_refused(tmp_path, name):
    X, y = board(200)
    path = tmp_path / "fit.zarr"
    model = ODMClassifier(**SETTINGS, solver=Cells(40), checkpoint=str(path)).fit(X, y)
    record = read_record(path, "checkpoint")
    arrays = {each: np.array(record.array(each)) for each in record.arrays}
    arrays["shapes"][:, [each.name for each in fields(SolvedBin)].index(name), 1] = 1.0  # a column for a vector
    save_checkpoint(path, arrays, record.attributes)
    with pytest.raises(StoreError, match="not those of a state of this fit"):
        model.set_params(resume=True).fit(X, y)


def test_over_a_store_solved_bins_leave_the_disk_and_a_checkpoint_of_other_bins_is_refused(tmp_path):
    X, y = board(640)
    store = store_of(tmp_path / "rows.zarr", X, y)
    path = tmp_path / "fit.zarr"
    left: list[int] = []

    def count(event):
        if isinstance(event, IterationFinished):
            left.append(sum(each.is_file() for each in tmp_path.glob(".dask-odm.*/**/pieces/*")))

    apart = {"temporary-directory": str(tmp_path), "dask_odm.read-into-memory": 0}
    with dask.config.set(apart):
        model = ODMClassifier(**SETTINGS, solver=Cells(30), checkpoint=str(path), callbacks=[count]).fit(store)
    assert left[-1] < left[0] / 2, "each bin has left by the time that the next is told of"
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_].astype(model.support_vectors_.dtype))
    record = read_record(path, "checkpoint")
    arrays = {name: np.array(record.array(name)) for name in record.arrays}
    arrays["bins"] = arrays["bins"][::-1].copy()
    save_checkpoint(path, arrays, record.attributes)
    with dask.config.set(apart), pytest.raises(StoreError, match="support rows of another bin"):
        model.set_params(resume=True, callbacks=None).fit(store)


def test_rows_of_pure_cells_have_no_left_out_values_of_other_pairs():
    X, y = board(900, 4)
    groups = np.arange(900) // 450  # of all classes
    model = ODMClassifier(**SETTINGS, solver=Cells(20), multi_class="ovo", loo=True).fit(X, y, groups=groups)
    cells = model._model.cells_of(X)
    assert min(len(set(y[cells == c])) for c in range(cells.max() + 1)) == 1
    for i, pair in enumerate(combinations(range(4), 2)):
        np.testing.assert_array_equal(np.isfinite(model._left_out_pairs[:, i]), np.isin(y, pair))


def test_more_equal_rows_than_a_cell_may_have():
    """Nothing divides them: dense ones are merged, and sparse ones are solved if there is memory for them."""
    X, y = board(660)
    X[60:] = 0.5
    limit = CPU_COUNT * 3_000_000
    settings = SETTINGS | {"lam": 1e3, "gamma": 30.0}
    dense = ODMClassifier(**settings, solver=Cells(50), memory_limit=limit).fit(X, y)
    sparse = ODMClassifier(**settings, solver=Cells(50)).fit(csr_array(X), y)
    assert np.bincount(dense._model.cells_of(X)).max() >= 600
    np.testing.assert_allclose(sparse.decision_function(csr_array(X)), dense.decision_function(X), rtol=0, atol=1e-4)
    with pytest.raises(MemoryLimitError, match=r"a cell has 6\d\d rows \(cell_rows=50; nothing divides equal rows"):
        ODMClassifier(**settings, solver=Cells(50), memory_limit=limit).fit(csr_array(X), y)


@pytest.mark.parametrize("solver", ["exact", Cells(100)], ids=["exact", "cells"])
def test_an_infinite_gap_ends_no_fit_that_has_a_checkpoint(tmp_path, solver, monkeypatch):
    """As of coefficients so large that ‖w‖² is negative; which those are depends on the processor."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)).astype(np.float32), rng.integers(0, 2, 80)
    settings = {"gamma": 1.0, "lam": 1e3, "random_state": 0, "max_iter": 30, "solver": solver}
    checkpoint = str(tmp_path / "fit.zarr")
    for module in (exact_solver, as_predicted):
        monkeypatch.setattr(module, "relative_gap", lambda primal, left, square: np.inf)
    found = []
    for more in ({}, {"checkpoint": checkpoint}, {"checkpoint": checkpoint, "resume": True}):
        model = ODMClassifier(**settings, **more)
        with pytest.warns(ConvergenceWarning, match="no gap is known"):
            found.append(model.fit(X, y).decision_function(X))
        assert model.dual_gap_ == np.inf
    np.testing.assert_array_equal(found, found[:1] * 3)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_an_objective_that_overflows_is_said_of_the_first_cell(tmp_path):
    X, y = board(300)
    model = ODMClassifier(solver=Cells(60), gamma=0.5, scale=None, random_state=0, checkpoint=tmp_path / "fit.zarr")
    with pytest.raises(InputError, match="the solution is not finite: rescale the rows"):
        model.fit((1e37 * X).astype(np.float32), y)


def test_says_what_it_cannot_do():
    X, y = board(300)
    with pytest.raises(InputError, match="features"):
        ODMClassifier("precomputed", solver="cells").fit(X @ X.T, y)
    with pytest.warns(ConvergenceWarning, match=r"cells stopped short.*max_iter"):
        ODMClassifier(**SETTINGS | {"max_iter": 1}, solver=Cells(280)).fit(*board(560))
