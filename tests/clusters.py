"""Workers for tests: processes of this machine under nannies, as a user has them."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import dask
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

from quick_workers import quick_settings

TRIM = "MALLOC_TRIM_THRESHOLD_"
SETTINGS = {
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.comm.timeouts.connect": "60s",
    # Dask looks that long after a death whether the worker is back, and gives its nanny up where another death, of
    # the same worker, has just happened.
    "distributed.deploy.lost-worker-timeout": "1h",
}


class Workers(LocalCluster):
    """A local cluster that closes after the death of a worker that it has not yet heard of, which Dask's does not."""

    def _update_worker_status(self, op: str, message: object) -> None:
        with suppress(KeyError):
            super()._update_worker_status(op, message)


@contextmanager
def workers(count: int, **settings) -> Iterator[Client]:
    """A client of ``count`` worker processes of one thread and 1 GB each.

    BLAS has two threads in this process and one in workers: no bit may depend on it.
    """
    with (
        trim_restored(),
        threadpool_limits(2, "blas"),
        dask.config.set({**quick_settings(), **SETTINGS, **settings}),
        Workers(
            n_workers=count,
            threads_per_worker=1,
            memory_limit="1GB",
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def trim_restored() -> Iterator[None]:
    """Put the allocator's setting back: nannies set it for their parent too, and leave it."""
    before = os.environ.get(TRIM)
    try:
        yield
    finally:
        os.environ.pop(TRIM, None)
        if before is not None:
            os.environ[TRIM] = before


@pytest.fixture(scope="session")
def start_workers() -> Callable[..., Iterator[Client]]:
    return workers


def scale(client: Client, count: int) -> None:
    """Go on with ``count`` workers: those that are there, and as many more or less."""
    client.cluster.scale(count)
    client.wait_for_workers(count, timeout=60)
    deadline = time.monotonic() + 60
    while len(client.nthreads()) != count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="session")
def scale_workers() -> Callable[[Client, int], None]:
    return scale


@contextmanager
def alone() -> Iterator[None]:
    """This process does the work itself, though it has workers."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("cluster", "lazy"):
            patch.setattr(f"dask_odm.engine.{module}.active_client", lambda: None)
        yield


@pytest.fixture(scope="session")
def without_workers() -> Callable[[], AbstractContextManager[None]]:
    return alone


@pytest.fixture(scope="module")
def client(start_workers) -> Iterator[Client]:
    """Two workers that the tests of a module share."""
    with start_workers(2) as client:
        yield client


class Killer:
    """A callback that kills a worker process at the first event it is told to wait for."""

    def __init__(self, client: Client, when: Callable[[object], bool]) -> None:
        self.client, self.when, self.killed = client, when, 0

    def __call__(self, event: object) -> None:
        if not self.killed and self.when(event):
            self.killed = next(iter(self.client.run(os.getpid).values()))
            os.kill(self.killed, signal.SIGKILL)


@pytest.fixture(scope="session")
def killer() -> type[Killer]:
    return Killer
