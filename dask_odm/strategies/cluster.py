"""Where tasks run: the active client's workers, or threads of this process. The only module that meets a Client."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil
from dask.base import compute, persist, tokenize
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes
from distributed import Client, as_completed, get_client
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
        # asked for anew: what the client remembers may lack the workers
        scheduler: Any = client.scheduler
        workers = client.sync(scheduler.identity, n_workers=-1)["workers"]
        if not workers:
            raise ClusterError("The Dask cluster has no workers; add some, or close the client to run in this process.")
        try:
            client.get_versions(check=True)
        except ValueError as error:
            raise ClusterError(f"Versions differ between client, scheduler and workers: {error}") from error
        warm_up()  # so that workers of this machine load what is compiled here: compiling takes memory for good
        baseline = max(client.run(baseline_bytes).values())
        if any(client.run(os.environ.get, TRIM_THRESHOLD).values()):
            logger.info("%s is set on workers: reading chunks is up to three times slower; unset it.", TRIM_THRESHOLD)
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
        return list(self.client.persist(list(tasks)))

    def results(self, tasks: Sequence[Delayed]) -> Iterator[tuple[int, Any]]:
        """Number and result of every task, as they finish; without a client, once all have finished.

        Raises
        ------
        ClusterError
            A task's workers died too often.
        """
        if self.client is None:
            yield from enumerate(compute(*tasks, scheduler="threads", num_workers=self.threads))
            return
        futures = self.client.compute(list(tasks))
        number = {future: i for i, future in enumerate(futures)}
        try:
            for future in as_completed(futures):
                yield number[future], future.result()
        except BaseException as error:
            # after a success they are let go, not cancelled: persisted ones are inputs of what comes next
            self.client.cancel(futures)
            if isinstance(error, NoWorkerError):
                raise ClusterError("No worker is left to run tasks; start some and fit again.") from error
            if not isinstance(error, KilledWorker):
                raise
            raise ClusterError(
                f"A task was given up because {error.allowed_failures + 1} workers died while running it, most likely "
                "of memory: use more partitions, or workers with more."
            ) from error

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
