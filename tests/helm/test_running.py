"""The chart, run: its commands start, its probes are answered, its job learns, and faults cost nothing but time."""

import os
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest
from charts import Document, documents_of, render, template
from pods import TICK, Job, Machine, Pod, can_bind_loopback, confining_user, until

from dask_odm import DaskODMError, ingest, load_model
from dask_odm.data.store.records import read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_bind_loopback(), reason="the loopback network has one address only"),
]

# Steps enough to be struck in the midst of, each with its checkpoint.
STEPS = ["--kernel", "linear", "--solver", "dsvrg", "--max-iter", "60", "--tol", "1e-300", "--random-state", "0"]
CLAIM = "claims/odm-dask-odm-data"
BUCKET = "s3://rows/released"


def rows(count: int = 4000, width: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, width))
    return X, np.where(X[:, 0] + 0.5 * rng.standard_normal(count) > 0, "yes", "no")


def upload(pod: Pod) -> None:
    """Upload rows as the chart's notes say."""
    text = "\n".join(",".join([*(f"{x:.6f}" for x in row), label]) for row, label in zip(*rows(), strict=True))
    command = "dask-odm ingest - /data/train.zarr --format csv --label 10 --chunk-rows 250"
    done = pod.run(command.split(), input=text)
    assert done.returncode == 0, done.stderr


def job_of(documents: list[Document]) -> Document:
    (found,) = [each for each in documents if each["kind"] == "Job"]
    return found


def start_job(machine: Machine, model: str, data: str = "/data") -> Job:
    """Train on ``data``, a folder of the volume or an address, and write model and checkpoint there."""
    values = {"store": f"{data}/train.zarr", "model": f"{data}/{model}.zarr", "checkpoints": data, "args": STEPS}
    return machine.start_job(job_of(render("objects", {"train": values})))


def data_of(machine: Machine, job: Job) -> str:
    """Where a job has its store, model and checkpoint, as this process sees it."""
    (container,) = job.document["spec"]["template"]["spec"]["containers"]
    data = container["args"][1].removesuffix("/train.zarr")
    return str(machine.folder / CLAIM) if data == "/data" else data


def bits(machine: Machine, job: Job, model: str) -> dict[str, bytes]:
    """What a model that a job wrote consists of."""
    path = f"{data_of(machine, job)}/{model}.zarr"
    record = read_record(path, "model")
    record.verify()
    assert len(load_model(path).classes_) == 2
    return {name: record.array(name).tobytes() for name in record.arrays}


def steps_done(machine: Machine, job: Job) -> int:
    """Steps in the job's checkpoint."""
    try:
        found = read_record(f"{data_of(machine, job)}/{job.name}.checkpoint.zarr", "checkpoint")
        return len(found.attributes["history"])
    except (DaskODMError, OSError):
        return 0


def await_midst(machine: Machine, job: Job) -> None:
    until(lambda: steps_done(machine, job) > 2 or not job.is_running(), "some steps", lambda: job.pods[-1].log)
    assert job.is_running(), job.pods[-1].log


def kill_in_a_step(machine: Machine, job: Job, scheduler: Pod) -> int:
    """Kill the scheduler until the job fails of it, and return how often: between two steps a fit just joins again."""
    kills = 0
    while len(job.pods) == 1 and job.is_running():
        done, kills = steps_done(machine, job), kills + 1
        time.sleep(2 * TICK)  # the step that follows the checkpoint just seen has begun by then, most likely
        scheduler.kill()
        until(lambda done=done: len(job.pods) > 1 or not job.is_running() or steps_done(machine, job) > done + 1,
              "the job to fail or go on", lambda: job.pods[-1].log)  # fmt: skip
    return kills


@pytest.fixture(scope="module")
def machine(tmp_path_factory, object_server) -> Iterator[Machine]:
    secrets = {"bucket": object_server.environment}
    with Machine(tmp_path_factory.mktemp("release"), render("objects"), secrets=secrets).running() as machine:
        upload(machine.component("worker")[0])
        yield machine


@pytest.fixture(scope="module")
def reference(machine) -> dict[str, bytes]:
    """The bits of the model where nothing goes wrong."""
    job = start_job(machine, "reference")
    job.await_end()
    assert len(job.pods) == 1
    assert "2 workers of 1 threads" in job.pods[0].log
    assert "The scheduler at" not in job.pods[0].log  # no complaint about its settings
    return bits(machine, job, "reference")


def test_a_job_trains_a_model_that_loads(machine, reference):
    assert sum(map(len, reference.values())) >= 8 * 10
    assert [pod.starts for pod in machine.pods] == [1] * len(machine.pods)
    data = machine.folder / CLAIM
    assert load_model(data / "reference.zarr").score(str(data / "train.zarr")) > 0.8


def test_the_chart_s_own_test_passes(machine):
    (document,) = list(machine.of_kind("Pod"))
    pod = machine.make_pod("helm-test", document, {})
    assert pod.process is not None
    assert pod.process.wait(120) == 0, pod.log
    assert all(worker.name in pod.log for worker in machine.component("worker"))


def test_a_worker_and_a_scheduler_that_are_killed_cost_no_bit(machine, reference):
    """The job goes on without the worker, and from its checkpoint once the scheduler is back.

    All that lasts is in an object store here, with the bits of a job that has it on the volume.
    """
    ingest(str(machine.folder / CLAIM / "train.zarr"), f"{BUCKET}/train.zarr", chunk_rows=250)
    worker, (scheduler,) = machine.component("worker")[0], machine.component("scheduler")
    job = start_job(machine, "struck", BUCKET)
    await_midst(machine, job)
    assert list((machine.folder / CLAIM).glob(".dask-odm.*")), "what workers are to read is on the volume"
    starts, done = worker.starts, steps_done(machine, job)
    worker.kill()
    until(lambda: (worker.starts == starts + 1 and steps_done(machine, job) > done + 1) or not job.is_running(),
          "the job to go on", lambda: job.pods[-1].log)  # fmt: skip
    assert (len(job.pods), job.is_running()) == (1, True), job.pods[-1].log
    kills = kill_in_a_step(machine, job, scheduler)
    job.await_end()
    assert scheduler.starts == 1 + kills
    assert len(job.pods) > 1
    assert "The Dask scheduler was lost" in job.pods[0].log
    assert "going on from checkpoint" in job.pods[-1].log
    assert bits(machine, job, "struck") == reference
    worker.await_ready()


def test_nothing_is_written_but_to_volumes(machine, reference):
    """The root of every container is read-only in a cluster."""
    assert [str(path) for pod in machine.pods for path in (pod.home / "root").iterdir()] == []


def test_with_encryption_a_job_trains_and_a_plain_client_is_refused(tmp_path, tmp_path_factory):
    """Where the system allows it, without rights and with a read-only root."""
    values = {"workers": {"default": {"replicas": 1}}, "train": {"args": ["--kernel", "linear"]}}
    documents = documents_of(template("tls-self-signed", values))
    user = confining_user(tmp_path_factory.mktemp("tried"), 10001) if os.getuid() == 0 else None
    with Machine(tmp_path, documents, user).running() as machine:
        (worker,) = machine.component("worker")
        ingest(rows(), tmp_path / CLAIM / "train.zarr")
        machine.hand_over()
        job = machine.start_job(job_of(documents))
        job.await_end()
        assert len(load_model(tmp_path / CLAIM / "model.zarr").classes_) == 2
        check_who_is_let_in(worker, machine.component("scheduler")[0].address)
        if user is not None:
            done = worker.run(["sh", "-c", "id -u; touch /usr/x /etc/x; grep CapEff /proc/self/status"])
            assert done.stderr.count("Read-only file system") == 2
            assert done.stdout == f"{user}\nCapEff:\t0000000000000000\n"
        hook = worker.stop()  # as a drain or a smaller group does it: the preStop hook, and SIGTERM
        assert hook is not None
        assert (hook.returncode, hook.stdout[: len(worker.name)]) == (0, worker.name), hook.stderr
        assert "handed over" in hook.stdout


def check_who_is_let_in(worker: Pod, scheduler: str) -> None:
    """A client of another configuration needs the certificate."""

    def ask(protocol: str, *options: str) -> subprocess.CompletedProcess[str]:
        where = f"{protocol}://{scheduler}:8786"
        return worker.run(["dask-odm", "cluster", "--wait", "3s", "--scheduler", where, *options], ["DASK_CONFIG"])

    refused = ask("tcp")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "cannot join the scheduler" in refused.stderr
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    joined = ask("tls", *(f"--tls-{name}=/etc/dask-odm/tls/{file}" for name, file in files.items()))
    assert (joined.returncode, joined.stdout.startswith(worker.name)) == (0, True), joined.stderr


def test_names_that_are_no_service_are_not_known(machine):
    """Nothing is asked of another machine."""
    ask = "import socket, sys; print(socket.getaddrinfo(sys.argv[1], 8786)[0][4][0])"
    worker, (scheduler,) = machine.component("worker")[0], machine.component("scheduler")
    known = worker.run(["python", "-c", ask, "odm-dask-odm-scheduler.lab.svc"])
    assert known.stdout.strip() == scheduler.address, known.stderr
    assert "no Service is called elsewhere.example" in worker.run(["python", "-c", ask, "elsewhere.example"]).stderr
