"""Workers for those who have none yet: a scheduler to join, or processes of this machine, and what they used.

Workers that are started here keep freed memory (`MALLOC_TRIM_THRESHOLD_` makes every read of a chunk pay for
its pages anew), are given up when they say nothing for a minute, and their tasks with them.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask

from dask_odm.engine.cluster import Client, active_client, parse_limit  # type: ignore[attr-defined]
from dask_odm.errors import ClusterError, InputError, MemoryLimitError

SILENCE = "60s"
START_SECONDS = 60.0  # that workers of this machine may take to start
LEAST_BYTES = 200_000_000  # with less a worker ends before it has loaded what it needs, again and again
NEEDED = "a worker needs about 250 MB besides the data"
CONNECT = "15s"


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Make the scheduler at ``address`` (such as ``tcp://host:8786``) the active one, and yield the client.

    Raises
    ------
    ClusterError
        Nothing answers there.
    """
    before = active_client()
    try:
        client = Client(address, timeout=CONNECT)
    except (OSError, ValueError, TypeError) as error:
        left = active_client()
        if left is not None and left is not before:
            left.close(timeout=1)  # or it stays the active one, some addresses being found wrong only now
        reason = str(error) or type(error).__name__
        raise ClusterError(f"cannot join the scheduler at '{address}': {reason}") from error
    with client:
        yield client


@contextmanager
def local_workers(count: int, threads: int = 1, memory_limit: int | str = "auto") -> Iterator[Any]:
    """Start ``count`` worker processes on this machine, make them the active ones, and yield the client.

    Parameters
    ----------
    count, threads : int
        Worker processes, and threads of each.
    memory_limit : int or str
        Bytes, or "2GB", of each; the nanny ends a worker that exceeds it.

    Raises
    ------
    InputError
        A number or a limit that is none.
    MemoryLimitError
        A limit under which no worker can start.
    ClusterError
        Workers did not start within a minute.
    """
    if count < 1 or threads < 1:
        raise InputError(f"workers and threads must be positive. Got {count} and {threads} instead.")
    limit = memory_limit if memory_limit == "auto" else parse_limit(memory_limit)
    if isinstance(limit, int) and limit < LEAST_BYTES:
        raise MemoryLimitError(
            f"a worker memory of {memory_limit} is too little to start with: {NEEDED}; give at least "
            f"{LEAST_BYTES // 10**6}MB (--worker-memory)."
        )
    settings = {
        "scheduler-address": None,  # of a cluster in the user's configuration
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        "distributed.scheduler.worker-ttl": SILENCE,
        "distributed.scheduler.no-workers-timeout": SILENCE,
        # or a worker that is away this long after it died, because it died again, is not started any more
        "distributed.deploy.lost-worker-timeout": "1 day",
    }
    with dask.config.set(settings):
        with _interrupts_ignored():
            client = Client(
                n_workers=count,
                threads_per_worker=threads,
                memory_limit=limit,
                processes=True,
                dashboard_address=":0",
                silence_logs=logging.ERROR,  # it warns of all memory that tasks use, and of each that Ctrl-C ends
            )
        with client:
            _wait_for(client, count)
            yield client


def _wait_for(client: Any, count: int) -> None:
    """Wait until ``count`` workers are there; ClusterError where they are not in time."""
    try:
        client.wait_for_workers(count, timeout=START_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"{count} worker{'s' * (count > 1)} did not start within {START_SECONDS:g} s, most likely for lack of "
            f"memory: {NEEDED}. Use fewer, or give them more (--worker-memory)."
        ) from error


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C for a moment: processes started meanwhile, to which a terminal sends it as well, always will."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def peak_bytes() -> int:
    """Largest resident memory that the process it runs in has ever had; 0 where the system does not tell."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return 1024 * int(found[1])
    with suppress(ImportError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else 1024 * peak)
    return 0
