"""Workers for the tests of the strategies: processes of this machine under nannies, as a user has them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dask
import pytest
from distributed import Client, LocalCluster

TRIM = "MALLOC_TRIM_THRESHOLD_"
QUIET = {"distributed.admin.large-graph-warning-threshold": "1GB", "distributed.comm.timeouts.connect": "60s"}


@contextmanager
def workers(count: int, **settings) -> Iterator[Client]:
    """A client of ``count`` worker processes of one thread and 1 GB each."""
    before = os.environ.get(TRIM)
    with (
        dask.config.set({**QUIET, **settings}),
        LocalCluster(
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
    os.environ.pop(TRIM, None)  # nannies set it for their parent too, and leave it
    if before is not None:
        os.environ[TRIM] = before


@pytest.fixture(scope="session")
def start_workers() -> Callable[..., Iterator[Client]]:
    return workers


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
