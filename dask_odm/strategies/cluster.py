"""Where tasks run: the active client's workers, or threads of this process. The only module that meets a Client.

Whatever is waited for is watched: a worker that says nothing for a minute is restarted, so that its tasks run
again, and a scheduler that is lost or says nothing, or a cluster that stays without workers, is a `ClusterError`.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for_one
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask
import psutil
from dask.base import compute, persist, tokenize
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes, parse_timedelta
from distributed import Client, as_completed, get_client
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoWorkerError
from distributed.system import MEMORY_LIMIT

from dask_odm.data import partitioned  # noqa: F401  (part of what tasks import, and so of the baseline)
from dask_odm.errors import ClusterError, InputError, MemoryLimitError
from dask_odm.events import Progress, report
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.solvers.dual import warm_up

logger = logging.getLogger("dask_odm")
TRIM_THRESHOLD = "MALLOC_TRIM_THRESHOLD_"  # the nanny sets it, and every array read then pays for its pages anew
USABLE = 0.65  # of a worker's limit: it pauses at 0.8, and the allocator takes its share
_LIBC = ctypes.CDLL(None) if os.name == "posix" else None
LOCAL_SHARE = 0.5  # of this machine's free memory, where no limit was given

SILENCE_SECONDS = 60.0  # that a worker or the scheduler may say nothing
WORKERLESS_SECONDS = 300.0  # that a cluster may be without workers: some take minutes to start one
RESTART_SECONDS = 30.0  # that a nanny has for ending a silent worker, which takes it five; Dask does not take less well
POLL_SECONDS = 5.0
WANTED_FAILURES = 3
_WARNED: set[str] = set()  # schedulers whose settings were complained about


LOST = "The Dask scheduler was lost; start it anew, connect to it and fit again."


def active_client() -> Client | None:
    """The current Dask client, or None."""
    try:
        return get_client()
    except ValueError:
        return None


def baseline_bytes() -> int:
    """Resident memory of the process it runs in, once everything that solves is imported and compiled."""
    warm_up()
    return_free_memory()
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Threads and memory that tasks may use.

    Parameters
    ----------
    client : Client or None
        None runs tasks on threads of this process.
    workers, threads : int
        Workers, and threads of each.
    memory : int
        Bytes that all tasks of one worker may take together, its baseline taken off.
    limit : int
        The worker's memory limit in bytes, for messages.
    """

    client: Client | None
    workers: int
    threads: int
    memory: int
    limit: int

    def __str__(self) -> str:
        where = f"{self.workers} workers of {self.threads} threads" if self.client else f"{self.threads} threads here"
        return f"{where}, {format_bytes(self.memory)} for tasks"

    @classmethod
    def current(cls, memory_limit: int | str | None = None) -> Cluster:
        """The active client's workers, or this process; ``memory_limit`` bounds each further.

        Raises
        ------
        ClusterError
            No workers, or versions that differ between client, scheduler and workers.
        """
        client = active_client()
        if client is None:
            return cls.local(memory_limit)
        return cls._of_client(client, None if memory_limit is None else parse_limit(memory_limit))

    @classmethod
    def local(cls, memory_limit: int | str | None = None) -> Cluster:
        """Threads of this process, and ``memory_limit`` or half of the memory that is free."""
        free = int(min(psutil.virtual_memory().available, MEMORY_LIMIT) * LOCAL_SHARE)
        memory = free if memory_limit is None else parse_limit(memory_limit)
        return cls(None, 1, CPU_COUNT, memory, memory)

    @classmethod
    def _of_client(cls, client: Client, limit: int | None) -> Cluster:
        watch = Watch(client)
        with cluster_errors():
            # asked for anew: what the client remembers may lack the workers
            workers = watch.identity()["workers"]
            if not workers:
                raise ClusterError(
                    "The Dask cluster has no workers; add some, or close the client to run in this process."
                )
            try:
                watch.wait(client.get_versions, check=True)
            except ValueError as error:
                raise ClusterError(f"Versions differ between client, scheduler and workers: {error}") from error
            _read_settings(client, watch)
            warm_up()  # so that workers of this machine load what is compiled here: compiling takes memory for good
            baseline = max(watch.ask_workers(baseline_bytes))
            if any(watch.ask_workers(os.environ.get, TRIM_THRESHOLD)):
                logger.info(
                    "%s is set on workers: reading chunks is up to three times slower; unset it.", TRIM_THRESHOLD
                )
        smallest = min(worker["memory_limit"] or MEMORY_LIMIT for worker in workers.values())
        smallest = smallest if limit is None else min(limit, smallest)
        threads = max(worker["nthreads"] for worker in workers.values())
        return cls(client, len(workers), threads, int(USABLE * smallest) - baseline, smallest)

    def share(self, tasks: int) -> tuple[int, int]:
        """Bytes and threads for each of ``tasks`` equal tasks that run at the same time."""
        # Dask may run them on fewer workers than there are: memory is for the worst case
        each = min(self.threads, -(-tasks // self.workers))
        return self.memory // min(self.threads, tasks), max(1, self.threads // each)

    def require(self, nbytes: int, tasks: int, what: str) -> None:
        """Raise MemoryLimitError where ``tasks`` tasks of ``nbytes`` each do not fit, with both figures."""
        available, _ = self.share(tasks)
        if nbytes > available:
            raise MemoryLimitError(
                f"{what} needs {format_bytes(nbytes)} per task, but only {format_bytes(max(0, available))} of a "
                f"worker's limit of {format_bytes(self.limit)} are free for it. Use more partitions, fewer threads a "
                "worker or more memory."
            )

    def persist(self, tasks: Sequence[Delayed]) -> list[Delayed]:
        """Start ``tasks`` and return them as inputs for others; results stay where they are made."""
        if self.client is None:
            return list(persist(*tasks, scheduler="threads", num_workers=self.threads))
        with cluster_errors():
            return list(self.client.persist(list(tasks)))

    @contextmanager
    def cancelled_on_error(self, tasks: Sequence[Any]) -> Iterator[None]:
        """Cancel started ``tasks`` where an error or Ctrl-C ends the block, whoever still holds on to them."""
        try:
            yield
        except BaseException:
            if self.client is not None:
                with suppress(Exception):  # of a client that lost its scheduler
                    self.client.cancel(tasks)
            raise

    def results(self, tasks: Sequence[Delayed]) -> Iterator[tuple[int, Any]]:
        """Number and result of every task, as they finish; without a client, once all have finished.

        Raises
        ------
        ClusterError
            A task's workers died too often, no worker or no scheduler is left, or it says nothing.
        """
        if self.client is None:
            yield from enumerate(compute(*tasks, scheduler="threads", num_workers=self.threads))
            return
        with cluster_errors():
            futures = self.client.compute(list(tasks))
            number = {future: i for i, future in enumerate(futures)}
            # after a success they are let go, not cancelled: persisted ones are inputs of what comes next
            with self.cancelled_on_error(futures):
                watch = Watch(self.client)
                for future in watch.completed(futures):
                    (result,) = watch.wait(self.client.gather, [future])
                    yield number[future], result

    def map_chunks(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], phase: str) -> list[Any]:
        """``[function(*a) for a in arguments]`` in order, a few items a task; reports `Progress`."""
        tasks = min(len(arguments), 4 * self.workers * self.threads)
        bounds = [round(i * len(arguments) / tasks) for i in range(tasks + 1)]
        groups = [arguments[a:b] for a, b in pairwise(bounds)]
        run = delayed(_run_group, pure=False)
        results: list[list[Any]] = [[] for _ in groups]
        done = 0
        report(Progress(phase, 0, len(arguments)))
        started = [run(function, group, dask_key_name=f"{phase}-{tokenize(function, group)}-{i}")
                   for i, group in enumerate(groups)]  # fmt: skip
        for i, result in self.results(started):
            results[i] = result
            done += len(result)
            report(Progress(phase, done, len(arguments)))
        return [item for group in results for item in group]


class Watch:
    """Waits for what runs on a cluster, and sees to it that the wait ends.

    A worker that says nothing for `SILENCE_SECONDS`, or that is paused for so long although it runs nothing, is
    restarted by its nanny, or taken off the scheduler's list if it has none; its tasks run again elsewhere. Times
    are of this process: clocks of machines differ.
    """

    def __init__(self, client: Client) -> None:
        now = time.monotonic()
        self._client = client
        self._due, self._answered, self._inhabited = now + POLL_SECONDS, now, now
        self._signs: dict[str, tuple[Any, float]] = {}  # a worker's last sign of life, and since when it is the last

    def completed(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Futures as they finish."""
        waiting = as_completed(futures)
        while not waiting.is_empty():
            yield from waiting.next_batch(block=False)
            if not waiting.has_ready():
                with waiting.thread_condition:
                    waiting.thread_condition.wait(0.1)
                self.check()

    def wait(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Result of a method of the client's, which returns an awaitable where the client's loop calls it."""

        async def call() -> Any:
            return await method(*arguments, **options)

        loop: Any = self._client.loop
        future = asyncio.run_coroutine_threadsafe(call(), loop.asyncio_loop)
        try:
            while not wait_for_one([future], POLL_SECONDS).done:
                self.check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def ask_workers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Answers of all workers that are there to give one."""
        while True:
            answers = self.wait(self._client.run, function, *arguments, on_error="return").values()
            for error in answers:
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    raise error
            found = [answer for answer in answers if not isinstance(answer, OSError)]
            if found:
                return found
            time.sleep(0.1)  # they died meanwhile
            self.check()

    def check(self) -> None:
        """Look after the cluster, if it is time to; raise ClusterError where nothing more is to be expected."""
        if time.monotonic() < self._due:
            return
        workers = self.identity()["workers"]
        now = time.monotonic()
        self._due = now + POLL_SECONDS
        if workers:
            self._inhabited = now
        elif now - self._inhabited > WORKERLESS_SECONDS:
            raise ClusterError(f"No worker was there for {WORKERLESS_SECONDS:g} s; start some and fit again.")
        self._restart(self._silent(workers, now))

    def identity(self) -> dict[str, Any]:
        """What the scheduler says of itself and its workers."""
        scheduler: Any = self._client.scheduler
        while self._client.status != "closed":
            with suppress(OSError):  # includes TimeoutError; while the client connects again, say
                found: dict[str, Any] = self._client.sync(
                    scheduler.identity, n_workers=-1, callback_timeout=SILENCE_SECONDS
                )
                self._answered = time.monotonic()
                return found
            if time.monotonic() - self._answered > SILENCE_SECONDS:
                raise ClusterError(
                    f"The Dask scheduler at {_address(self._client)} has not answered for {SILENCE_SECONDS:g} s. "
                    "See whether it runs and can be reached, and fit again."
                )
            time.sleep(0.1)
        raise ClusterError(LOST)

    def _silent(self, workers: dict[str, dict[str, Any]], now: float) -> list[str]:
        """Workers that gave no sign of life for too long."""
        before, self._signs = self._signs, {}
        for address, worker in workers.items():
            stuck = worker["status"] == "paused" and not worker["metrics"].get("executing")
            sign = "paused" if stuck else worker["last_seen"]
            last = before.get(address)
            self._signs[address] = last if last is not None and last[0] == sign else (sign, now)
        return [address for address, (_, since) in self._signs.items() if now - since > SILENCE_SECONDS]

    def _restart(self, workers: list[str]) -> None:
        if not workers:
            return
        names = ", ".join(workers)
        logger.warning("no sign of life of %s for %g s: restarted, and tasks run again.", names, SILENCE_SECONDS)
        scheduler: Any = self._client.scheduler
        options = {"timeout": RESTART_SECONDS, "wait_for_workers": False, "on_error": "return"}
        try:
            self._client.sync(
                scheduler.restart_workers,
                workers=workers,
                stimulus_id=f"dask-odm-silence-{time.time()}",
                callback_timeout=2 * RESTART_SECONDS,
                **options,
            )
        except Exception as error:
            raise ClusterError(
                f"No sign of life of {names} for {SILENCE_SECONDS:g} s, and the scheduler could not restart it "
                f"({error}); restart it yourself and fit again."
            ) from error


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Name what Dask raises when workers or the scheduler are lost."""
    try:
        yield
    except NoWorkerError as error:
        raise ClusterError("No worker is left to run tasks; start some and fit again.") from error
    except KilledWorker as error:
        raise ClusterError(
            f"A task was given up because {error.allowed_failures + 1} workers died while running it, most likely "
            "of memory: use more partitions, or workers with more."
        ) from error
    except CancelledError as error:
        if getattr(error, "reason", None) == "scheduler-connection-lost":
            raise ClusterError(LOST) from error
        raise ClusterError(f"Tasks were cancelled by someone else ({error}); fit again.") from error
    except (CommClosedError, ClosedClientError) as error:
        raise ClusterError(LOST) from error


def _read_settings(client: Client, watch: Watch) -> None:
    """Warn, once a scheduler, of settings with which a lost worker costs more than its tasks."""
    address = _address(client)
    if address in _WARNED:
        return
    _WARNED.add(address)
    try:
        found = watch.wait(client.run_on_scheduler, dask.config.get, "distributed.scheduler")
    except (ValueError, OSError):  # some do not allow to run anything there
        return
    complaints = complaints_about(found)
    if complaints:
        logger.warning(
            "The scheduler at %s is set so that lost workers may cost more than they must: %s. Change it in the "
            "configuration it starts with.",
            address,
            "; ".join(complaints),
        )


def _address(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)


def complaints_about(settings: dict[str, Any]) -> list[str]:
    """What is wrong with a scheduler's settings, `distributed.scheduler` of Dask's configuration."""
    found = []
    prefix = "distributed.scheduler."
    failures, ttl = settings.get("allowed-failures", WANTED_FAILURES), settings.get("worker-ttl")
    if failures < WANTED_FAILURES:
        found.append(f"{prefix}allowed-failures={failures} gives a task up after {failures + 1} lost workers")
    if ttl is None or parse_timedelta(ttl) > SILENCE_SECONDS:
        waits = "for ever" if ttl is None else f"for {ttl}"
        found.append(f"{prefix}worker-ttl={ttl} lets a prediction wait {waits} for a worker that stopped")
    if settings.get("no-workers-timeout") is None:
        found.append(f"{prefix}no-workers-timeout=None lets a prediction wait for ever once all workers are lost")
    return found


def _run_group(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    try:
        with single_threaded_blas:
            return [function(*a) for a in arguments]
    finally:
        return_free_memory()


def return_free_memory() -> None:
    """Give pages the allocator holds on to back to the system: else what one task freed counts against the next.

    glibc keeps what was freed, the more so as chunks grow; other allocators are left alone.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


def parse_limit(limit: int | str) -> int:
    """Bytes of a memory limit such as ``"2GB"``; InputError where it is none."""
    try:
        nbytes = int(parse_bytes(limit))
    except (ValueError, TypeError) as error:
        raise InputError(f"memory_limit must be bytes or a string such as '2GB'. Got {limit!r} instead.") from error
    if nbytes <= 0:
        raise InputError(f"memory_limit must be positive. Got {limit!r} instead.")
    return nbytes
