"""Workers that are started or joined: what they are given, what they used, and clear errors."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import dask
import psutil
import pytest
from distributed import Event, LocalCluster, get_worker

from dask_odm.engine import workers
from dask_odm.engine.client import active_client
from dask_odm.engine.workers import joined, local_workers, members, peak_bytes, retire, seconds_of, security_of
from dask_odm.errors import ClusterError, InputError, MemoryLimitError


def _environment() -> tuple[str | None, object]:
    return os.environ.get("MALLOC_TRIM_THRESHOLD_"), signal.getsignal(signal.SIGINT)


def test_workers_are_as_asked_for_and_can_be_joined():
    with dask.config.set({"scheduler-address": "tcp://127.0.0.1:1"}), local_workers(1, 2, "700MB") as client:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert (worker["nthreads"], worker["memory_limit"]) == (2, 700_000_000)
        assert set(client.run(_environment).values()) == {(None, signal.SIG_IGN)}
        (peak,) = client.run(peak_bytes).values()
        assert 50 << 20 < peak < 700_000_000
        assert active_client() is client
        with joined(client.scheduler.address) as second:
            assert second.submit(sum, [1, 2]).result() == 3
    assert active_client() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_dies_again_and_again_is_started_again():
    """Dask forgets one that is away for some time after it died, here at once: none is left for what comes."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}), local_workers(1, 1, "700MB") as client:
        (nanny,) = client.cluster.workers.values()
        os.kill(killed := nanny.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while nanny.pid in (killed, None) or nanny.worker_address not in client.cluster.scheduler.workers:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(client.cluster.workers.values()) == [nanny]


def test_peak_is_at_least_what_is_used_now():
    assert peak_bytes() >= 0.9 * psutil.Process().memory_info().rss


@pytest.mark.parametrize(("count", "threads", "limit"), [(0, 1, "auto"), (1, 0, "auto"), (1, 1, "lots")])
def test_numbers_that_cannot_be(count, threads, limit):
    with pytest.raises(InputError, match="must be"), local_workers(count, threads, limit):
        pass


def test_a_scheduler_that_does_not_answer():
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        expected = f"cannot join the scheduler at '{address}': "
        with pytest.raises(ClusterError, match=expected), joined(address, wait="1s"):
            pass
        assert active_client() is None


def test_too_little_memory_to_start_is_refused_at_once():
    with pytest.raises(MemoryLimitError, match=r"10MB is too little.*some 200 MB.*at least 400MB"):
        local_workers(1, 1, "10MB").__enter__()
    assert active_client() is None


def test_workers_that_do_not_start(monkeypatch):
    """As those that end for lack of memory while they start, again and again."""
    start = workers.Client
    monkeypatch.setattr(workers, "Client", lambda **options: start(**options | {"n_workers": 0}))
    with pytest.raises(ClusterError, match=r"0 of 2 workers started within 0\.5 s, most likely for lack of memory"):
        local_workers(2, start_seconds=0.5).__enter__()
    assert active_client() is None


@pytest.mark.usefixtures("quick_workers")
def test_who_joins_may_wait_for_workers():
    with local_workers(1, 1, "700MB") as client:
        address = client.scheduler.address
        with joined(address, workers=1) as second:
            (member,) = members(second)
            assert (member.threads, member.memory, member.address) == (1, 700_000_000, *client.nthreads())
        expected = rf"1 of 2 workers joined the scheduler at '{address}' within 1s; start more"
        with pytest.raises(ClusterError, match=expected), joined(address, wait="1s", workers=2):
            pass


def test_a_scheduler_may_start_later_than_who_joins_it():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start_later() -> LocalCluster:
        time.sleep(1)
        return LocalCluster(n_workers=0, scheduler_port=port, processes=False, dashboard_address=":0")

    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(start_later)
        with joined(f"tcp://127.0.0.1:{port}", wait="60s") as client:
            assert members(client) == []
        starting.result().close()


def sleeping_worker() -> str:
    """Sleep, and return the address of the worker that did."""
    Event("sleeps").set()
    time.sleep(2)
    return get_worker().address


def test_a_worker_hands_over_what_it_holds_and_finishes_what_it_runs(client):
    first, second = members(client)
    held = client.submit(bytes, 1000, workers=[first.address], allow_other_workers=True)
    running = client.submit(sleeping_worker, workers=[first.address], allow_other_workers=True)
    held.result()
    assert Event("sleeps", client).wait(60)
    assert retire(client, [first.name, "nobody"], "1m") == [first.name]
    assert running.result(60) == first.address, "no other worker began anew"
    assert second.address in client.who_has([held])[held.key]
    assert {client.submit(abs, i).result() for i in range(20)} == set(range(20))
    assert set(client.has_what()[second.address]) >= {held.key}
    assert retire(client, ["nobody"], "1m") == []
    with pytest.raises(ClusterError, match=f"no other worker can take what {second.name} holds"):
        retire(client, [second.name], "1m")


def test_files_of_tls(tmp_path):
    (tmp_path / "pem").touch()
    there, gone = str(tmp_path / "pem"), str(tmp_path / "gone")
    assert security_of(None, None, None) is None
    assert security_of(there, there, there).require_encryption
    with pytest.raises(InputError, match=r"missing: certificate, key\."):
        security_of(there, None, None)
    with pytest.raises(InputError, match=f"TLS key '{gone}' cannot be read: No such file"):
        security_of(there, there, gone)


@pytest.mark.parametrize("wait", ["soon", "0s", "-1m", ""])
def test_times_that_cannot_be(wait):
    assert (seconds_of("2m"), seconds_of("15")) == (120, 15)
    with pytest.raises(InputError, match="wait must be"):
        seconds_of(wait)
