"""Get workers: join a scheduler, or start processes on this machine; and tell how much memory they used.

Joining may ask for encryption and wait for a number of workers. A joined worker can also hand over what it holds.

Workers that are started here keep freed memory: with `MALLOC_TRIM_THRESHOLD_`, every read of a chunk would need fresh
pages. If they are silent for a minute, they and their tasks are given up.
"""

from __future__ import annotations

import logging
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_timedelta

from dask_odm.engine.client import active_client
from dask_odm.engine.limits import parse_limit
from dask_odm.engine.tasks import STATUS, resident
from dask_odm.engine.watch import PATIENCE, Client, Security, Watch
from dask_odm.errors import ClusterError, InputError, MemoryLimitError

# Dask notes a hundred times a second what each process runs, times its loop fifty times, and asks twice a second what
# the system does, for pages that nobody opens here; and nannies look ten times a second at what workers hold. That
# takes 15 % of a core with two idle workers, and 2.5 % by these settings.
UNPROFILED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "500ms",
}
NEEDED = "a worker takes some 200 MB before it has any data, and may fill two thirds of its limit"


def security_of(ca: str | None, certificate: str | None, key: str | None) -> Security | None:
    """Return TLS settings from three PEM files; None, which leaves them to Dask's configuration, if no file is given.

    Raises InputError if only some of the files are given, or one cannot be read.
    """
    files = {"certificate authority": ca, "certificate": certificate, "key": key}
    missing = [name for name, path in files.items() if path is None]
    if len(missing) == len(files):
        return None
    if missing:
        raise InputError(f"TLS needs the files of authority, certificate and key; missing: {', '.join(missing)}.")
    for name, path in files.items():
        try:
            open(path or "", "rb").close()
        except OSError as error:
            raise InputError(f"TLS {name} '{path}' cannot be read: {error.strerror}.") from error
    return Security(tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key, require_encryption=True)


@contextmanager
def joined(address: str, *, security: Security | None = None, wait: str = "15s", workers: int = 0) -> Iterator[Any]:
    """Make the scheduler at ``address`` (such as ``tcp://host:8786``) the active one, and yield the client.

    ``security`` comes from `security_of`; by default it is that of Dask's configuration. ``wait``, such as ``"5m"``, is
    how long to wait for the scheduler's answer and for so many ``workers``. Raises ClusterError if nothing answers
    there, encryption fails, or too few workers are there in time, and InputError if ``wait`` is not a time.
    """
    deadline = time.monotonic() + seconds_of(wait)
    before = active_client()
    try:
        client = Client(address, timeout=wait, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        left = active_client()
        if left is not None and left is not before:
            left.close(timeout=1)  # or the failed client would stay the active one
        reason = str(error) or type(error).__name__
        raise ClusterError(f"cannot join the scheduler at '{address}': {reason}") from error
    with client:
        if workers > 0:
            advice = "start more, ask for fewer, or wait longer (--min-workers, --wait)"
            seconds = deadline - time.monotonic()
            _wait_for(client, workers, seconds, f"joined the scheduler at '{address}' within {wait}; {advice}")
        yield client


def seconds_of(wait: str) -> float:
    """Return the seconds of a time such as ``"5m"``; raise InputError if it is none."""
    try:
        found = float(parse_timedelta(wait, default="s"))
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"wait must be a time such as '30s' or '5m'. Got {wait!r} instead.") from error
    if found <= 0:
        raise InputError(f"wait must be positive. Got {wait!r} instead.")
    return found


def _wait_for(client: Any, count: int, seconds: float, what: str) -> None:
    """Wait until ``count`` workers are there; raise ClusterError, saying how many did ``what``, if not in time."""
    try:
        with Watch(client).errors():
            client.wait_for_workers(count, timeout=max(0.1, seconds))
    except TimeoutError as error:
        there = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(f"{there} of {count} workers {what}.") from error


def retire(client: Any, names: Sequence[str], wait: str) -> list[str]:
    """Have workers hand over what they hold and finish what they run; they get no more tasks, and may then be stopped.

    Their processes stay. ``names`` are those that workers were started with (``--name``); the names of the workers that
    were there are returned. Running tasks may take the time ``wait`` to end; those that take longer will run again
    elsewhere. Raises ClusterError if there is no other worker that could take what one of them holds.
    """
    heartbeat = 1.0  # seconds after which the scheduler knows what a worker runs
    deadline = time.monotonic() + seconds_of(wait)
    watch = Watch(client)
    with watch.errors():
        held = {member.address: member.name for member in members(client) if member.name in names}
        if not held:
            return []
        # not removed, since that would end a worker with what it runs; it leaves the scheduler when it is stopped
        done = watch.wait(client.scheduler.retire_workers, names=list(names), close_workers=False, remove=False)
        kept = [name for address, name in held.items() if address not in done]
        if kept:
            raise ClusterError(f"no other worker can take what {', '.join(kept)} holds; start one, and try again.")
        time.sleep(heartbeat)
        while watch.runs_tasks(held) and time.monotonic() < deadline:
            time.sleep(heartbeat)
    return list(held.values())


@dataclass(frozen=True)
class Member:
    """A worker of a scheduler. ``memory`` is its limit in bytes, or 0 if it has none."""

    name: str
    address: str
    threads: int
    memory: int


def members(client: Any) -> list[Member]:
    """Return the workers of a scheduler, sorted by name."""
    found = Watch(client).workers()
    listed = [Member(str(w["name"]), at, w["nthreads"], w["memory_limit"] or 0) for at, w in found.items()]
    return sorted(listed, key=lambda member: member.name)


@contextmanager
def local_workers(
    count: int, threads: int = 1, memory_limit: int | str = "auto", start_seconds: float = 60.0
) -> Iterator[Any]:
    """Start ``count`` worker processes on this machine, make them the active ones, and yield the client.

    Each has ``threads``, and a ``memory_limit`` in bytes or as "2GB"; the nanny ends a worker that exceeds it. Raises
    InputError if a number is not positive or the limit is not one, MemoryLimitError if no worker can start under the
    limit, and ClusterError if workers did not start within ``start_seconds``.
    """
    if count < 1 or threads < 1:
        raise InputError(f"workers and threads must be positive. Got {count} and {threads} instead.")
    limit = memory_limit if memory_limit == "auto" else parse_limit(memory_limit)
    # Loops and libraries of a worker take 202 MB, and it may fill the share USABLE of its limit. So a limit of 400 MB
    # leaves 58 MB for tasks, and 310 MB would leave none.
    if isinstance(limit, int) and limit < 400_000_000:
        raise MemoryLimitError(
            f"a worker memory of {memory_limit} is too little: {NEEDED}; give at least 400MB (--worker-memory)."
        )
    silence = f"{PATIENCE.silence:g}s"
    settings = {
        **UNPROFILED,
        "scheduler-address": None,  # ignore a cluster in the user's configuration
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        "distributed.scheduler.worker-ttl": silence,
        "distributed.scheduler.no-workers-timeout": silence,
        # long, since a worker that is gone for this time, perhaps because it died twice, is not started again
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
                silence_logs=logging.ERROR,  # hide warnings of memory in use, and of workers that Ctrl-C ends
            )
        with client:
            advice = f"most likely for lack of memory: {NEEDED}. Use fewer, or give them more (--worker-memory)"
            _wait_for(client, count, start_seconds, f"started within {start_seconds:g} s, {advice}")
            yield client


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C for a moment. Processes that start meanwhile ignore it for good, though a terminal sends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def peak_bytes() -> int:
    """Return the largest resident memory that this process has ever had, in bytes."""
    if STATUS.exists():
        return resident()[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else 1024 * peak)
