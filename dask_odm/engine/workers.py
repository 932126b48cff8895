"""Workers for those who have none yet: a scheduler to join, or processes of this machine, and what they used.

Who joins a scheduler may ask for encryption and for a number of workers, and may have a worker hand over what it holds.

Workers that are started here keep freed memory (`MALLOC_TRIM_THRESHOLD_` makes every read of a chunk pay for
its pages anew), are given up when they say nothing for a minute, and their tasks with them.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_timedelta

from dask_odm.engine.cluster import active_client, parse_limit
from dask_odm.engine.watch import Client, Security, Watch, cluster_errors, runs_tasks
from dask_odm.errors import ClusterError, InputError, MemoryLimitError

SILENCE = "60s"
START_SECONDS = 60.0  # that workers of this machine may take to start
# The loops and libraries of a worker take 202 MB, and USABLE of its limit may be filled: of 400 MB that leaves 58 for
# tasks, while 310 would leave none.
LEAST_BYTES = 400_000_000
NEEDED = "a worker takes some 200 MB before it has any data, and may fill two thirds of its limit"
CONNECT = "15s"
HEARTBEAT_SECONDS = 1.0  # after which the scheduler knows what a worker runs


def security_of(ca: str | None, certificate: str | None, key: str | None) -> Security | None:
    """What encrypts and proves who is who, of three PEM files; None leaves it to Dask's configuration.

    Raises
    ------
    InputError
        Some of the three without the others, or a file that cannot be read.
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
def joined(address: str, *, security: Security | None = None, wait: str = CONNECT, workers: int = 0) -> Iterator[Any]:
    """Make the scheduler at ``address`` (such as ``tcp://host:8786``) the active one, and yield the client.

    Parameters
    ----------
    address : str
    security : Security, optional
        See `security_of`; without it that of Dask's configuration.
    wait : str
        How long the scheduler may take to answer, and ``workers`` to be there, such as ``"5m"``.
    workers : int
        Workers to wait for.

    Raises
    ------
    ClusterError
        Nothing answers there, encryption fails, or too few workers are there in time.
    InputError
        A ``wait`` that is no time.
    """
    deadline = time.monotonic() + seconds_of(wait)
    before = active_client()
    try:
        client = Client(address, timeout=wait, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        left = active_client()
        if left is not None and left is not before:
            left.close(timeout=1)  # or it stays the active one, some addresses being found wrong only now
        reason = str(error) or type(error).__name__
        raise ClusterError(f"cannot join the scheduler at '{address}': {reason}") from error
    with client:
        _wait_to_be(client, workers, deadline, wait)
        yield client


def seconds_of(wait: str) -> float:
    """Seconds of a time such as ``"5m"``; InputError where it is none."""
    try:
        found = float(parse_timedelta(wait, default="s"))
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"wait must be a time such as '30s' or '5m'. Got {wait!r} instead.") from error
    if found <= 0:
        raise InputError(f"wait must be positive. Got {wait!r} instead.")
    return found


def _wait_to_be(client: Any, count: int, deadline: float, wait: str) -> None:
    """Wait until ``count`` workers joined the scheduler; ClusterError where they have not in time."""
    if count < 1:
        return
    try:
        with cluster_errors(client):
            client.wait_for_workers(count, timeout=max(0.1, deadline - time.monotonic()))
    except TimeoutError as error:
        there = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{there} of {count} workers joined the scheduler at '{client.scheduler.address}' within {wait}; start "
            "more, ask for fewer, or wait longer (--min-workers, --wait)."
        ) from error


def retire(client: Any, names: Sequence[str], wait: str) -> list[str]:
    """Have workers hand over what they hold and finish what they run; they get no more tasks, and may be stopped then.

    Their processes stay. A name that no worker has is left out.

    Parameters
    ----------
    client : Client
    names : sequence of str
        Of workers, as they were started with ``--name``.
    wait : str
        How long tasks that run may take to end; those that take longer will run again elsewhere.

    Returns
    -------
    list of str
        Names of the workers that were there.

    Raises
    ------
    ClusterError
        There is no other worker that could take what one of them holds.
    """
    deadline = time.monotonic() + seconds_of(wait)
    watch = Watch(client)
    with cluster_errors(client):
        held = _addresses(client, names)
        if not held:
            return []
        # removed, a worker would end with what it runs: it leaves the scheduler when it is stopped
        done = watch.wait(client.scheduler.retire_workers, names=list(names), close_workers=False, remove=False)
        kept = [name for address, name in held.items() if address not in done]
        if kept:
            raise ClusterError(f"no other worker can take what {', '.join(kept)} holds; start one, and try again.")
        time.sleep(HEARTBEAT_SECONDS)
        while _run_tasks(watch, held) and time.monotonic() < deadline:
            time.sleep(HEARTBEAT_SECONDS)
    return list(held.values())


def _run_tasks(watch: Watch, addresses: Iterable[str]) -> bool:
    workers = watch.identity()["workers"]
    return any(runs_tasks(workers[address]) for address in addresses if address in workers)


@dataclass(frozen=True)
class Member:
    """A worker of a scheduler.

    Parameters
    ----------
    name : str
    address : str
    threads : int
    memory : int
        Its limit in bytes; 0 where it has none.
    """

    name: str
    address: str
    threads: int
    memory: int


def members(client: Any) -> list[Member]:
    """The workers of a scheduler, by name."""
    with cluster_errors(client):
        found = Watch(client).identity()["workers"]
    listed = [Member(str(w["name"]), at, w["nthreads"], w["memory_limit"] or 0) for at, w in found.items()]
    return sorted(listed, key=lambda member: member.name)


def _addresses(client: Any, names: Sequence[str]) -> dict[str, str]:
    """Names of the workers that have one of ``names``, by address."""
    return {member.address: member.name for member in members(client) if member.name in names}


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
            f"a worker memory of {memory_limit} is too little: {NEEDED}; give at least {LEAST_BYTES // 10**6}MB "
            "(--worker-memory)."
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
