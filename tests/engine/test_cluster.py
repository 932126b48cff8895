"""On workers: the same bits whoever dies, and errors that say what to do."""

import asyncio
import gc
import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client, get_client, get_task_stream, secede, wait
from sklearn.base import clone

import place_jobs
import ring_jobs
from dask_odm import ClusterError, MemoryLimitError, ODMClassifier, load_model, open_store
from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.storage.files import load_bytes
from dask_odm.engine import watch
from dask_odm.engine.client import active_client
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed
from dask_odm.engine.limits import USABLE, facts_of_worker
from dask_odm.engine.watch import Watch, warn_of_settings
from dask_odm.estimators import base, prediction
from dask_odm.estimators.inputs import dask_inputs, resolving
from dask_odm.events import Progress, listen
from dask_odm.kernels import from_parameters
from dask_odm.learning.problem.losses import ODMSettings
from dask_odm.learning.solution import SolverSettings
from dask_odm.papers.sodm.node_workers import TreeJob, projected_bytes
from dask_odm.papers.sodm.workers import check_memory
from dask_odm.solvers import SODM
from small_problems import blobs
from small_stores import store_of

SETTINGS = {"gamma": 0.5, "lam": 1e4, "solver": SODM(8, fan_in=2), "random_state": 0, "scale": None}


@pytest.fixture(scope="module")
def rows():
    X, y = blobs(2400, 4, seed=3)
    return X.astype(np.float32), np.where(y > 0, "yes", "no")


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("stores") / "a.zarr", *rows, chunk_rows=200).path


@pytest.fixture(scope="module")
def in_process(path, rows, without_workers):
    """The model of this process."""
    with without_workers():
        return bits(ODMClassifier(**SETTINGS).fit(path), rows[0])


def bits(model: ODMClassifier, X: np.ndarray) -> dict[str, bytes]:
    """All that must not depend on where the model was made."""
    figures = [[entry[k] for k in ("partitions", "sweeps", "gap", "objective")] for entry in model.history_]
    arrays = {name: getattr(model, name) for name in ("dual_coef_", "support_", "support_vectors_", "intercept_")}
    arrays |= {"history": np.array(figures), "gap": np.array(model.dual_gap_), "decision": model.decision_function(X)}
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def on_workers(client, path, tmp_path_factory):
    """A model that workers made, and how the fit went: what it left in its scratch folder, and who ran its tasks."""
    scratch = tmp_path_factory.mktemp("scratch")
    with dask.config.set({"temporary-directory": str(scratch)}), get_task_stream(client) as stream:
        model = ODMClassifier(**SETTINGS).fit(path)
    return model, os.listdir(scratch), [(str(task["key"]), task["worker"]) for task in stream.data]


@pytest.mark.slow
def test_a_worker_killed_in_the_shuffle_changes_no_bit(in_process, path, rows, client, killer):
    kill = killer(client, lambda event: isinstance(event, Progress) and event.phase == "shuffle" and event.done > 0)
    model = ODMClassifier(**SETTINGS, callbacks=[kill]).fit(path)
    assert kill.killed
    assert bits(model, rows[0]) == in_process
    client.wait_for_workers(2, timeout=60)
    assert kill.killed not in client.run(os.getpid).values()


def test_lazy_rows_are_taken_from_the_workers_a_few_blocks_at_a_time(client, rows, monkeypatch):
    """Workers keep the others, and no worker puts them together."""
    gather, taken = Client.gather, []

    async def watched(client, futures, *arguments, **options):
        found = await gather(client, futures, *arguments, **options)
        taken.append(sum(each.nbytes for each in found))
        return found

    monkeypatch.setattr(Client, "gather", watched)
    X, y = da.from_array(rows[0], chunks=(300, 4)), da.from_array(rows[1], chunks=300)
    monkeypatch.setattr(dask_inputs, "BLOCK_BYTES", 2 * X.blocks[0].nbytes)
    found = resolving.resolve_training(X, y, None)
    np.testing.assert_array_equal(found.X, rows[0])
    np.testing.assert_array_equal(found.y, rows[1])
    assert taken == [2 * (X.blocks[0].nbytes + y.blocks[0].nbytes)] * 4


def test_fit_leaves_nothing_behind(client, on_workers):
    _, left, _ = on_workers
    assert left == []
    gc.collect()
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.total_occupancy) == 0.0


def test_prediction_runs_on_the_workers(on_workers, path, rows):
    model, _, _ = on_workers
    expected = model.decision_function(rows[0])
    for X in (path, open_store(path), da.from_array(rows[0], chunks=(300, 4))):
        np.testing.assert_allclose(model.decision_function(X).compute(), expected, rtol=1e-4, atol=1e-4)
    assert model.score(path) == pytest.approx(model.score(*rows))


@pytest.fixture
def large_models(monkeypatch):
    """Every model counts as too large to travel within tasks."""
    monkeypatch.setattr(prediction, "EMBEDDED_BYTES", 0)


@pytest.mark.usefixtures("large_models")
def test_a_large_model_is_sent_again_after_the_next_fit(client, path, rows):
    model = ODMClassifier(**SETTINGS)
    for gamma in (0.5, 5.0):
        model.set_params(gamma=gamma).fit(path)
        expected = model.decision_function(rows[0])
        np.testing.assert_allclose(model.decision_function(path).compute(), expected, rtol=1e-4, atol=1e-4)
        assert clone(model).get_params() == model.get_params()


@pytest.mark.usefixtures("large_models")
def test_lazy_predictions_outlive_the_estimator(on_workers, path, rows, tmp_path):
    model, _, _ = on_workers
    expected = model.decision_function(rows[0])
    model.save(tmp_path / "m.zarr")
    lazy = load_model(tmp_path / "m.zarr").decision_function(path)
    gc.collect()
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-4, atol=1e-4)


def test_predictions_of_two_models_are_not_mixed_up(client, path, rows, monkeypatch):
    """Results that are kept on workers belong to one model, also when the next takes its place in memory."""
    monkeypatch.setattr(base, "id", lambda _: 7, raising=False)  # happens without this, now and then
    kept = []
    for gamma in (0.1, 25.0):
        model = ODMClassifier(gamma=gamma, solver=SODM(1)).fit(rows[0][:100], rows[1][:100])
        kept.append((model.decision_function(path).persist(), model.decision_function(rows[0])))
        wait(kept[-1][0])
    for lazy, expected in kept:
        np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-3, atol=1e-3)


def test_too_little_memory_holds_both_figures(client, path):
    before = client.run(os.getpid)
    with pytest.raises(MemoryLimitError, match=r"needs \d+\.\d+ \w+ per task, but only 0 B of a worker's limit"):
        ODMClassifier(**SETTINGS, memory_limit="50MB").fit(path)
    assert client.run(os.getpid) == before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_task_that_takes_more_than_its_solver_told_says_so(client):
    cluster = replace(Cluster.current(), memory=8 << 30)
    client.run(place_jobs.heard, logging.DEBUG)
    try:
        for told in (1 << 20, 6 << 30):
            cluster = replace(cluster, told=[])
            cluster.require(told, 1, "A lie")
            cluster.map_chunks(place_jobs.take, [(120 << 20,)], "lies")
    finally:
        said = [each for some in client.run(place_jobs.heard, logging.NOTSET).values() for each in some]
    warned = [each for each in said if each.startswith("WARNING")]
    assert len(warned) == 1
    assert re.search(r"A lie took 1\d\d\.\d\d MiB of memory, where 1.00 MiB were expected", warned[0])
    assert {e for e in said if re.search(r"^DEBUG A lie took .*, of the 6.00 GiB told", e)} == {*said} - {*warned}
    assert len(said) > 1


def at_work(rows) -> TreeJob:
    """Eighty rows in four partitions of one size."""
    X, y = rows[0][:80], np.where(rows[1][:80] == "yes", 1.0, -1.0)
    partitions = MemoryPartitions(X, y, np.ones(80), np.arange(80), (20,) * 4)
    scaling = Scaling(np.zeros(4), np.ones(4))
    kernel = from_parameters({"name": "rbf", "gamma": 0.5, "bias": 1.0})
    return TreeJob(partitions, scaling, kernel, ODMSettings(1e4, 0.2, 0.2), SolverSettings(1e-3, 10, 0))


def test_advice_follows_from_the_case(rows):
    """More partitions do not make the last merger smaller."""
    job = at_work(rows)
    needed = [projected_bytes(job, n, 1, certify=n == 80) for n in (20, 40, 80)]
    for levels, memory, advice in (
        ([[0, 1, 2, 3, 4], [0, 2, 4], [0, 4]], needed[0] - 1, "Use more partitions or more memory"),
        ([[0, 1, 2, 3, 4], [0, 2, 4], [0, 4]], needed[2] - 1, "Use more memory, or end the tree .* by stop_at=2"),
        ([[0, 4]], needed[2] - 1, r"solver='landmark', or solver=SODM\(n_partitions=…, stop_at=…\)"),
    ):
        with pytest.raises(MemoryLimitError, match=advice):
            check_memory(job, levels, Cluster(None, 1, 1, memory, memory))


def refusal(needed: int, tasks: int = 4, advice: tuple[str, ...] = (), **cluster: Any) -> str:
    told = {"client": object(), "workers": 2, "threads": 1, "memory": 10, "limit": 300, "held": 200, "left": 0}
    with pytest.raises(MemoryLimitError) as refused:
        Cluster(**told | cluster).require(needed, tasks, "It", advice)
    return str(refused.value).split("free for it.")[1].strip()


def test_a_refusal_says_what_workers_hold_and_what_a_restart_would_free():
    assert refusal(12) == "It holds 200 B already. Use more memory."
    restart = "It holds 200 B already, 5 B of them from earlier work, which client.restart() frees. Use more memory."
    assert refusal(12, left=5) == restart
    assert refusal(16, left=5) == "It holds 200 B already. Use more memory.", "a restart would not do"
    assert "restart" not in refusal(8, threads=2, left=5), "nor for two tasks at a time"
    assert refusal(12, client=None, left=5) == "Use more memory.", "this process has no workers"


def test_a_worker_that_holds_more_than_its_limit_is_told_that_less_work_does_not_help():
    assert refusal(12, memory=-5, threads=2, advice=("fewer rows",)) == "It holds 200 B already. Use more memory."


def test_a_refusal_tells_what_a_fit_needs_beside_its_tasks():
    """A limit below the rows themselves would leave 0 B free, which does not say how much is short."""
    local = Cluster(None, 1, 1, 60, 300).without(100).without(20)
    assert local.memory == -60
    with pytest.raises(MemoryLimitError, match="It needs 220 B per task, but only 60 B of a worker's limit of 300 B"):
        local.require(100, 1, "It")


@pytest.mark.parametrize(("case", "expected"), [
    ({}, "Use more memory."),
    ({"advice": ("more partitions",)}, "Use more partitions or more memory."),
    ({"threads": 2}, "Use fewer threads a worker or more memory."),
    ({"threads": 2, "advice": ("a, b",)}, "Use a, b, fewer threads a worker or more memory."),
    ({"threads": 2, "tasks": 1}, "Use more memory."),
    ({"threads": 2, "client": None}, "Use more memory."),
], ids=str)  # fmt: skip
def test_advice_names_only_what_there_is(case, expected):
    assert refusal(100, **case).removeprefix("It holds 200 B already. ") == expected


def test_a_worker_tells_what_earlier_work_has_left(monkeypatch):
    monkeypatch.setattr("dask_odm.engine.limits.first_baseline", [])
    first, left, _ = facts_of_worker(lambda: None)
    kept = np.ones(50 << 17)  # 50 MiB
    later, grown, _ = facts_of_worker(lambda: None)
    assert left == 0
    assert grown == later - first
    assert grown > 0.8 * kept.nbytes


def test_settings_of_a_cluster_of_this_process_are_no_warning(start_workers, caplog, monkeypatch):
    monkeypatch.setattr("dask_odm.engine.watch._WARNED", set())
    settings = {"distributed.scheduler.allowed-failures": 0}
    with start_workers(1, **settings) as client, caplog.at_level("INFO", logger="dask_odm"):
        address = client.scheduler.address
        for _ in range(2):  # told once
            Cluster.current()
        monkeypatch.setattr("dask_odm.engine.watch._WARNED", set())
        client.cluster, cluster = None, client.cluster
        warn_of_settings(Watch(client))
        client.cluster = cluster
    levels = [(r.levelname, "allowed-failures: 3" in r.getMessage()) for r in caplog.records if "is set so" in r.msg]
    assert levels == [("INFO", True), ("WARNING", True)]
    assert "worker-ttl=5 minutes" in caplog.text
    assert address in caplog.text


@pytest.mark.parametrize("method", ["get", "submit"])
def test_an_interrupt_while_tasks_are_sent_leaves_none_of_them(client, monkeypatch, method):
    """Their futures live on with the traceback, as in a notebook; a task that has begun is not cut short."""
    cluster, whole = Cluster.current(), getattr(Client, method)

    def interrupted(*arguments, **options):
        futures = whole(*arguments, **options)
        raise KeyboardInterrupt(len(str(futures)))

    keys = [f"{method}-{uuid4().hex}-{i}" for i in range(3)]
    send = {
        "get": lambda: cluster.started(dict.fromkeys(keys, (time.sleep, 2)), keys),
        "submit": lambda: cluster.submit(keys[0], None, time.sleep, 2),
    }
    with monkeypatch.context() as patch:
        patch.setattr(Client, method, interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:
            send[method]()
    time.sleep(0.5)  # what is on its way arrives
    left = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    assert [key for key in left if key.startswith(method)] == []
    del kept


def test_a_cancelled_task_ends_after_the_item_it_is_at(client, tmp_path):
    """Dask lets it run: without a look at its state, the next fit, or `close`, waited for all of its rows."""

    def slow(i):
        time.sleep(0.02)
        (tmp_path / str(i)).touch()
        return i

    def interrupt(event):
        if event.done:
            raise KeyboardInterrupt

    arguments = [(i,) for i in range(400)]
    with listen(interrupt), pytest.raises(KeyboardInterrupt):
        Cluster.current().map_chunks(slow, arguments, f"slow-{uuid4().hex}")
    time.sleep(0.5)  # what is on its way arrives
    count = len(list(tmp_path.iterdir()))
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == count < 200


def test_resources_of_the_workers(client):
    cluster = Cluster.current()
    assert (cluster.workers, cluster.threads, cluster.limit) == (2, 1, 10**9)
    usable = USABLE * 10**9
    assert usable - 400e6 < cluster.memory < usable - 100e6, "the baseline is taken off"
    assert cluster.share(1) == cluster.share(100) == (cluster.memory, 1)
    assert Cluster.current("600 MB").limit == 600 * 10**6
    assert Cluster.current("2 GB").limit == 10**9, "never more than the workers have"


def test_what_tasks_share_draws_them_to_no_worker(client):
    """They are handed out one after the other; else most go to the worker that has it first."""
    found = Cluster.current().map_chunks(place_jobs.process_after, [(0.1,)] * 8, "places", "shared")
    assert sorted(map(found.count, set(found))) == [4, 4]


def test_workers_are_seen_whatever_the_client_does_in_the_background(client, monkeypatch):
    """The client refreshes its cache, without workers, every two seconds: here just between asking and looking."""
    refresh = client._update_scheduler_info

    async def refresh_twice(n_workers=0):
        await refresh(n_workers=n_workers)
        await refresh()

    monkeypatch.setattr(client, "_update_scheduler_info", refresh_twice)
    assert Cluster.current().workers == 2


def test_versions_that_differ(client, monkeypatch):
    def differ(*_args, **_options):
        raise ValueError("Mismatched versions found: dask")

    monkeypatch.setattr(client, "get_versions", differ)
    with pytest.raises(ClusterError, match=r"Versions differ .*Mismatched versions found: dask"):
        Cluster.current()


@pytest.mark.slow
def test_workers_that_keep_dying_are_a_cluster_error(start_workers):
    with (
        start_workers(1, **{"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(ClusterError, match=r"given up because 1 workers died while running it.*more partitions"),
    ):
        Cluster.current().map_chunks(os._exit, [(1,)], "x")


@pytest.mark.slow
def test_a_cluster_without_workers(start_workers, path):
    with start_workers(0), pytest.raises(ClusterError, match="no workers"):
        ODMClassifier(**SETTINGS).fit(path)


def test_partitions_are_spread_over_the_workers(on_workers):
    ran = [worker for key, worker in on_workers[2] if key.startswith("solve_8_partitions")]
    assert len(ran) == 8
    assert len(set(ran)) == 2, "a common input would draw all of them to the worker that holds it"


# What prefers a worker that is gone ---------------------------------------------------------------------------

HERE = Cluster(None, 1, 1, 10**9, 10**9)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "timeout"), [(1, "3s"), (2, None)])
def test_all_workers_killed_in_the_midst_of_pinned_tasks(start_workers, tmp_path, monkeypatch, timeout, count):
    """They come back under new addresses: the results are the same, or it is said that no worker came in time.

    Without a timeout of the scheduler's, waiting tasks are soon looked for, else it gives them up first.
    """
    if timeout is None:
        monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, poll=0.2))
    with start_workers(count, **{"distributed.scheduler.no-workers-timeout": timeout}) as client:
        cluster = Cluster.current()
        for name in ("each", "chain"):
            (tmp_path / name).mkdir()
            client.wait_for_workers(count)
            deadly = (str(tmp_path / name), 1, tuple(client.run(os.getpid).values()))
            late = ClusterError if timeout else ()
            try:
                found = each_or_chain(cluster, name, deadly)
            except late as error:  # the machine is so busy that a worker takes longer to start
                return late_worker(error)
            assert os.listdir(tmp_path / name) == ["killed-1"]
            assert found == each_or_chain(HERE, name, ())


def late_worker(error: ClusterError) -> None:
    assert "No worker is left to run tasks" in str(error)


def each_or_chain(cluster: Cluster, name: str, deadly: tuple):
    """Both go through `place_jobs.halves`."""
    if name == "each":
        return cluster.each(place_jobs.halves, [(1.0, i, *deadly) for i in range(4)], name)
    return cluster.chain(place_jobs.halves, 1.0, [(i, *deadly) for i in range(4)], name)


@pytest.mark.slow
def test_no_worker_comes_back_in_time(start_workers):
    """One error, whichever of its two the scheduler gives."""
    with start_workers(1, **{"distributed.scheduler.no-workers-timeout": "1s"}) as client:
        cluster = Cluster.current()
        client.cluster.scale(0)
        with pytest.raises(ClusterError, match="No worker is left to run tasks"):
            cluster.chain(place_jobs.halves, 1.0, [(i,) for i in range(4)], "chain")


def test_workers_that_do_nothing_are_told(client, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, poll=0.1, idle=0.5))
    never = client.submit(abs, 1, key="never", workers=["tcp://127.0.0.1:9"])
    with pytest.raises(ClusterError, match="No progress: none of 2 workers had anything to do for"):
        Cluster.current().gather([never], [])
    assert never.cancelled()


def test_a_paused_worker_that_still_runs_something_is_not_silent(client, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, silence=1.0))
    busy, idle = (
        {"status": "paused", "last_seen": 0, "metrics": {"task_counts": counts}}
        for counts in ({"executing": 1}, {"ready": 3, "memory": 2})
    )
    looked = Watch(client)
    assert looked._silent({"busy": busy, "idle": idle}, 0.0) == []
    assert looked._silent({"busy": busy | {"last_seen": 9}, "idle": idle | {"last_seen": 9}}, 9.0) == ["idle"]


def test_tasks_wait_for_busy_workers_in_peace(client, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, poll=0.1, idle=1.0))
    assert Cluster.current().each(ring_jobs.slowly, [(1, 2.5)], "slowly") == [2]


def test_tasks_that_fill_all_workers_wait_for_no_other_task(client):
    """They would wait for ever for the threads that they take; Dask gives these back while it computes lazy values."""

    def nested(i):
        cluster = Cluster.current()
        return cluster.client, cluster.map_chunks(pow, [(i, 2), (i, 3)], "nested"), computed(delayed(abs)(-i))

    found = [future.result(timeout=60) for future in client.map(nested, (5, 6))]
    assert found == [(None, [25, 125], (5,)), (None, [36, 216], (6,))]


def test_a_task_that_seceded_uses_the_workers(client):
    def nested(i):
        secede()
        cluster = Cluster.current()
        return cluster.slots, cluster.map_chunks(pow, [(i, 2), (i, 3)], "nested")

    assert client.gather(client.map(nested, (5, 6))) == [(2, [25, 125]), (2, [36, 216])]


def test_a_thread_that_a_task_starts_uses_no_workers(client):
    def nested():
        get_client()  # of the worker: the thread finds it too
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(active_client).result() is None

    assert client.submit(nested).result()


def test_a_coroutine_that_waits_in_another_thread_uses_no_workers(client):
    async def nested():
        return await asyncio.to_thread(active_client) is None

    assert client.submit(nested).result()


def test_a_task_may_take_what_its_worker_has_left(client):
    def nested():
        return [Cluster.local(limit) for limit in (None, 1 << 20, "100 GB")]

    default, less, more = client.submit(nested).result()
    assert 0 < more.memory < USABLE * 10**9
    assert abs(default.memory - more.memory) < 20 << 20, "both are what is left, measured twice"
    assert less.memory == 1 << 20
    assert (default.limit, less.limit, more.limit) == (10**9, 1 << 20, 10**9), "messages name what bounds it"


def test_results_that_go_through_files(client, tmp_path):
    numbers, heard = [(i,) for i in range(20)], []
    for cluster in (Cluster.present(), Cluster.local()):
        with listen(heard.append):
            found = cluster.map_chunks(np.multiply, numbers, "arrays", np.arange(3), folder=str(tmp_path))
        assert np.array_equal(found, np.outer(np.arange(20), np.arange(3)))
        assert heard[-1] == Progress("arrays", 20, 20)
        assert not any(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        Cluster.present().map_chunks(divmod, [(1, 1), (1, 0)], "x", folder=str(tmp_path))


def test_a_damaged_result_is_told(client, tmp_path, monkeypatch):
    def damaged(path: str) -> bytes:
        with open(path, "r+b") as file:
            file.seek(-5, os.SEEK_END)
            file.write(b"?")
        return load_bytes(path)

    monkeypatch.setattr("dask_odm.engine.futures.load_bytes", damaged)
    with pytest.raises(OSError, match="the file is damaged"):
        Cluster.present().map_chunks(np.sqrt, [(4.0,)], "roots", folder=str(tmp_path))


def test_workers_join_the_results_of_many_tasks(client, monkeypatch):
    monkeypatch.setattr("dask_odm.engine.futures.FEW_TASKS", 4)
    numbers = [(i, 2) for i in range(40)]
    joined = sorted(Cluster.present().finished(pow, numbers, 20, "squares"))
    assert [(first, len(found)) for first, found in joined] == [(0, 16), (16, 16), (32, 8)]
    assert [each for _, found in joined for each in found] == [i**2 for i in range(40)]
    assert sorted(Cluster.local().finished(pow, numbers, 3, "squares")) == [
        (first, [i**2 for i in range(first, stop)]) for first, stop in ((0, 13), (13, 27), (27, 40))
    ]
