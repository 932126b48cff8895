"""Whatever is killed, stopped or interrupted: the same bits, or a clear error within the time that is promised."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster, get_task_stream

from dask_odm import ClusterError, InputError, ODMClassifier, SaddleSVC
from dask_odm.engine import watch
from dask_odm.engine.watch import complaints_about
from dask_odm.events import PartitionSolved
from dask_odm.solvers import SODM, Landmark, Saddle
from small_problems import blobs
from small_stores import store_of

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops and kills processes by POSIX signals")

SETTINGS = {"gamma": 0.5, "lam": 1e4, "solver": SODM(8, fan_in=2), "random_state": 0, "scale": None}
SILENCE = 10.0  # on a busy machine, workers that are well are silent for five
PATIENCE = 120.0  # seconds in which everything here must have ended, however busy the machine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    X, y = blobs(1600, 4, seed=3)
    return store_of(tmp_path_factory.mktemp("stores") / "a.zarr", X.astype(np.float32), y, chunk_rows=200).path


@pytest.fixture(scope="module")
def in_process(path, without_workers):
    with without_workers():
        return bits(ODMClassifier(**SETTINGS).fit(path))


def bits(model: ODMClassifier) -> list[bytes]:
    return [np.asarray(getattr(model, name)).tobytes() for name in ("dual_coef_", "support_", "intercept_")]


@pytest.fixture
def impatient(monkeypatch):
    """Silence is noticed after seconds: more of them than a worker that compiles, or starts, is silent."""
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, silence=SILENCE, poll=0.2))


class At:
    """A callback that does something at the first event it is told to wait for."""

    def __init__(self, when, action) -> None:
        self.when, self.action, self.done = when, action, False

    def __call__(self, event: object) -> None:
        if not self.done and self.when(event):
            self.done = True
            self.action()


def solving(event: object) -> bool:
    return isinstance(event, PartitionSolved)


@contextmanager
def command(*arguments: str):
    """A process of Python's, ended whatever happens."""
    process = subprocess.Popen([sys.executable, "-m", *arguments], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def separate_cluster(folder, workers: int):
    """A scheduler and workers without nannies, each a process of its own, as on a user's machines."""
    file = folder / "scheduler.json"
    with ExitStack() as stack:
        arguments = ("--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        scheduler = stack.enter_context(command("distributed.cli.dask_scheduler", *arguments))
        options = ("--no-nanny", "--nthreads", "1", "--memory-limit", "1GB", "--no-dashboard")
        options += ("--local-directory", str(folder), "--scheduler-file", str(file))
        processes = [stack.enter_context(command("distributed.cli.dask_worker", *options)) for _ in range(workers)]
        client = stack.enter_context(Client(_address(file), timeout=PATIENCE))
        client.wait_for_workers(workers, timeout=PATIENCE)
        yield client, scheduler, processes
        # or its end waits for a scheduler that is gone
        if scheduler.poll() is not None or _is_stopped(scheduler):
            client._timeout = 5
            scheduler.kill()


def _address(file) -> str:
    """What a scheduler wrote to its file, once it has written all of it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError, ValueError):
            return json.loads(file.read_text())["address"]
        time.sleep(0.05)
    pytest.fail("the scheduler did not start")


def _is_stopped(process) -> bool:
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_stopped_worker_is_restarted(in_process, path, client, caplog):
    def stop() -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGSTOP)

    at = At(solving, stop)
    with caplog.at_level(logging.WARNING, "dask_odm"):
        model = ODMClassifier(**SETTINGS, callbacks=[at]).fit(path)
    assert at.done
    assert bits(model) == in_process
    assert "restarted, and tasks run again" in caplog.text
    client.wait_for_workers(2, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_stopped_worker_without_a_nanny_is_given_up(in_process, path, tmp_path):
    with separate_cluster(tmp_path, 2) as (client, _, workers):
        workers[0].send_signal(signal.SIGSTOP)  # before the fit begins
        assert bits(ODMClassifier(**SETTINGS).fit(path)) == in_process
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_all_workers_lost(path, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, workerless=3.0))
    with separate_cluster(tmp_path, 1) as (_, _, workers):
        at, began = At(solving, workers[0].kill), time.monotonic()
        with pytest.raises(ClusterError, match="No worker was there for 3 s; start some and fit again"):
            ODMClassifier(**SETTINGS, callbacks=[at]).fit(path)
        assert time.monotonic() - began < PATIENCE


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("how", "message"), [
    # a client that is connecting anew may find the silence first
    (signal.SIGKILL, "scheduler was lost; start it anew, connect to it and fit again|has not answered for 10 s"),
    (signal.SIGSTOP, "scheduler at tcp://.* has not answered for 10 s"),
])  # fmt: skip
def test_a_lost_scheduler(path, tmp_path, how, message):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with separate_cluster(tmp_path, 1) as (_, scheduler, _):
        at, began = At(solving, lambda: scheduler.send_signal(how)), time.monotonic()
        with dask.config.set({"temporary-directory": str(scratch)}), pytest.raises(ClusterError, match=message):
            ODMClassifier(**SETTINGS, callbacks=[at]).fit(path)
        assert time.monotonic() - began < PATIENCE
    assert list(scratch.iterdir()) == []


def test_another_scheduler_at_the_address_of_a_lost_one():
    """A client connects to it as if nothing had been, and would wait for tasks that nobody knows."""
    empty = {"n_workers": 0, "processes": False, "protocol": "tcp", "dashboard_address": None}
    with LocalCluster(**empty) as first, Client(first.scheduler_address) as client:
        seen = watch.Watch(client)
        assert seen.identity()["address"] == first.scheduler_address
        first.close()
        with (
            LocalCluster(scheduler_port=int(first.scheduler_address.rpartition(":")[2]), **empty),
            pytest.raises(ClusterError, match="scheduler was lost; start it anew, connect to it and fit again"),
        ):
            seen.identity()


def test_settings_that_make_losses_dear():
    fine = {"allowed-failures": 3, "worker-ttl": "30s", "no-workers-timeout": "60s"}
    assert complaints_about(fine) == []
    assert complaints_about({**fine, "allowed-failures": 0}) == [
        "distributed.scheduler.allowed-failures=0 gives a task up after 1 lost workers"
    ]
    for ttl, waits in (("5 minutes", "for 5 minutes"), (None, "for ever")):
        (complaint,) = complaints_about({**fine, "worker-ttl": ttl})
        assert f"wait {waits} for a worker that stopped" in complaint
    (complaint,) = complaints_about({**fine, "no-workers-timeout": None})
    assert "wait for ever once all workers are lost" in complaint


# Checkpoints ------------------------------------------------------------------------------------------------


def nothing(event: object) -> None:
    pytest.fail(f"there was work before the checkpoint was looked at: {event}")


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("place", ["store", "memory"])
def test_a_checkpoint_that_cannot_be(path, tmp_path, parts, place):
    X, y = blobs(100, 4)
    source = (path,) if place == "store" else (X, y)
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("no checkpoint")
    folder.mkdir()
    (folder / "a").touch()
    for target, message in [
        (tmp_path / "no" / "c.zarr", "there is no folder"),
        (file, "is not a zarr store"),
        (file / "c.zarr", "there is no folder"),
        (folder, "is not a zarr store"),
    ]:
        settings = {**SETTINGS, "solver": SODM(parts, fan_in=2), "checkpoint": str(target), "callbacks": [nothing]}
        with pytest.raises(InputError, match=message):
            ODMClassifier(**settings).fit(*source)
    with pytest.raises(InputError, match="resume=True needs the path of a checkpoint"):
        ODMClassifier(**SETTINGS, resume=True, callbacks=[nothing]).fit(*source)


def test_a_checkpoint_without_permission(path, tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    locked.mkdir()
    if os.geteuid() == 0:  # who may write anywhere
        monkeypatch.setattr(os, "access", lambda name, mode: str(name) != str(locked))
    locked.chmod(0o500)
    with pytest.raises(InputError, match=r"c\.zarr' cannot be written: no permission in '.*locked'"):
        ODMClassifier(**SETTINGS, checkpoint=str(locked / "c.zarr"), callbacks=[nothing]).fit(path)
    locked.chmod(0o700)


def test_names_of_tasks_group_by_what_they_do(client, path):
    model = ODMClassifier(**SETTINGS)
    with get_task_stream(client) as stream:
        model.fit(path)
    seen = {key_split(task["key"]) for task in stream.data}
    assert {"landmarks", "strata", "shuffle", "seal", "solve_8_partitions", "solve_1_partitions"} <= seen
    allowed = {f"solve_{n}_partitions" for n in (8, 4, 2, 1)} | {"landmarks", "groups", "strata", "shuffle", "seal"}
    allowed |= {f"{name}-shared" for name in allowed}  # what the tasks of a name are all given
    assert seen <= allowed | {f"gaps_of_{n}_partitions" for n in (8, 4, 2, 1)} | {"pass-total"}
    rows = da.from_array(np.zeros((20, 4)), chunks=(10, 4), name="rows")
    seen = {key_split(key) for lazy in (model.predict(path), model.predict(rows)) for key in lazy.__dask_graph__()}
    assert {"predict", "label"} <= seen <= {"predict", "label", "model", "rows", "astype", "array-rows"}


def test_names_of_passes_say_what_is_summed(client, path):
    """Not the classes of what is summed: dashboards are for users."""
    with get_task_stream(client) as stream, dask.config.set({"dask_odm.read-into-memory": 0}):
        ODMClassifier("linear", scale="standard", loo=True).fit(path).score(path)
    assert {key_split(task["key"]) for task in stream.data} == {"pass-sums", "pass-leverages", "pass-score"}
    with get_task_stream(client) as stream, dask.config.set({"dask_odm.read-into-memory": 0}):
        ODMClassifier(scale="standard", solver=Landmark(20), loo=True, random_state=0).fit(path)
    seen = {key_split(task["key"]) for task in stream.data}
    passes = {f"pass-{what}" for what in ("sums", "product", "support", "hessian", "leverages")}
    assert {"pass-sums", "pass-hessian"} <= seen <= passes | {"joined-pass-sums", "landmarks", "landmarks-shared"}
    with get_task_stream(client) as stream:
        SaddleSVC(solver=Saddle(n_clients=2), max_iter=20).fit(path)
    seen = {key_split(task["key"]) for task in stream.data}
    assert {"clients-begin-all", "clients-step-all", "clients-answer", "pass-totals"} <= seen
