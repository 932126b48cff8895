"""The place where tasks run: the active client's workers, or threads of this process, and the memory they may take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_odm.engine.client import active_client, watch_of, worker_of_task
from dask_odm.engine.futures import Tasks
from dask_odm.engine.limits import TRIM, USABLE, baseline_bytes, facts_of_worker, memory_limit_of_system, parse_limit
from dask_odm.errors import ClusterError, MemoryLimitError

logger = logging.getLogger("dask_odm")
MORE_PARTITIONS = ("more partitions",)  # advice, see `Cluster.require`


@dataclass(frozen=True, eq=False)
class Cluster(Tasks):
    """Threads and memory that tasks may use."""

    memory: int  # bytes that all tasks of one worker may take together, without its baseline
    limit: int  # the worker's memory limit in bytes, for messages
    held: int = 0  # bytes that a worker has in use before any task, for messages
    left: int = 0  # of these, bytes that earlier work has left, which a new process would not have
    reserved: int = 0  # bytes that a fit holds beside its tasks, which `memory` lacks

    def __str__(self) -> str:
        where = f"{self.workers} workers of {self.threads} threads" if self.client else f"{self.threads} threads here"
        return f"{where}, {format_bytes(self.memory)} for tasks"

    @classmethod
    def current(cls, memory_limit: int | str | None = None, warm_up: Callable[[], object] = lambda: None) -> Cluster:
        """Return the active client's workers, or this process; ``memory_limit`` is a further bound for each.

        Workers call ``warm_up`` before their memory is measured, so that it counts what tasks import and compile.
        Raises ClusterError if there are no workers, or if client, scheduler and workers differ in versions.
        """
        client = active_client()
        if client is None:
            return cls.local(memory_limit)
        from dask_odm.engine.watch import warn_of_settings

        limit = None if memory_limit is None else parse_limit(memory_limit)
        watch = watch_of(client)
        with watch.errors():
            # ask the scheduler: what the client remembers may lack the workers
            workers = watch.workers()
            if not workers:
                raise ClusterError(
                    "The Dask cluster has no workers; add some, or close the client to run in this process."
                )
            try:
                watch.wait(client.get_versions, check=True)
            except ValueError as error:
                raise ClusterError(f"Versions differ between client, scheduler and workers: {error}") from error
            warn_of_settings(watch)
            warm_up()  # workers on this machine then load loops from disk: compiling would take memory for good
            baselines, left, trims = zip(*watch.ask_workers(facts_of_worker, warm_up), strict=True)
            if any(trims):
                logger.info("%s is set on workers: reading chunks is up to three times slower; unset it.", TRIM)
        smallest = min(worker["memory_limit"] or memory_limit_of_system() for worker in workers.values())
        smallest = smallest if limit is None else min(limit, smallest)
        threads = max(worker["nthreads"] for worker in workers.values())
        held = max(baselines)
        return cls(client, len(workers), threads, int(USABLE * smallest) - held, smallest, held, max(left))

    @classmethod
    def local(cls, memory_limit: int | str | None = None, threads: int = CPU_COUNT) -> Cluster:
        """Return threads of this process, with ``memory_limit`` or half of the free memory.

        A task of a worker may take no more than an equal part of what this has left for each of its threads.
        """
        free = min(psutil.virtual_memory().available, memory_limit_of_system())
        memory = limit = free // 2 if memory_limit is None else parse_limit(memory_limit)
        worker = worker_of_task()
        if worker is not None and worker.memory_manager.memory_limit:
            own = worker.memory_manager.memory_limit
            limit = own if memory_limit is None else min(limit, own)
            left = int(USABLE * own) - baseline_bytes(lambda: None)
            memory = min(memory, max(0, left) // worker.state.nthreads)
        return cls(None, 1, threads, memory, limit)

    @classmethod
    def present(cls) -> Cluster:
        """Return the active client's workers, or this process, for tasks of which none is refused for its memory."""
        client = active_client()
        if client is None:
            return cls.local()
        threads = [worker["nthreads"] for worker in watch_of(client).workers().values()] or [1]
        return cls(client, len(threads), max(threads), 0, 0)

    def without(self, nbytes: int) -> Cluster:
        """Return the cluster while a fit holds ``nbytes`` beside its tasks."""
        return replace(self, memory=self.memory - nbytes, reserved=self.reserved + nbytes)

    def share(self, tasks: int) -> tuple[int, int]:
        """Return the bytes and threads for each of ``tasks`` equal tasks that run at the same time."""
        # memory is for the worst case: Dask may run the tasks on fewer workers than there are
        each = min(self.threads, -(-tasks // self.workers))
        return self.memory // min(self.threads, tasks), max(1, self.threads // each)

    def require(self, nbytes: int, tasks: int, what: str, advice: str | tuple[str, ...] = ()) -> None:
        """Raise MemoryLimitError, with both figures and advice, unless ``tasks`` tasks of ``nbytes`` each fit.

        ``advice`` is a sentence, or what to use apart from more memory, and from fewer threads if there are several.
        """
        available, _ = self.share(tasks)
        if nbytes <= available:
            self.told.append((what, int(nbytes)))
            return
        together = min(self.threads, tasks)
        # what is reserved is needed too: "0 B are free" would tell no shortage
        beside = self.reserved // together
        free = max(0, available + beside)
        if not free:  # less work does not help
            advice = "Use more memory."
        if not isinstance(advice, str):
            ways = list(advice)
            if self.client is not None and together > 1:
                ways.append("fewer threads a worker")
            advice = f"Use {', '.join(ways)} or more memory." if ways else "Use more memory."
        holds = ""
        if self.client is not None:
            holds = f" It holds {format_bytes(self.held)} already"
            if together * nbytes <= self.memory + self.left:
                holds += f", {format_bytes(self.left)} of them from earlier work, which client.restart() frees"
            holds += "."
        raise MemoryLimitError(
            f"{what} needs {format_bytes(nbytes + beside)} per task, but only {format_bytes(free)} of a worker's limit "
            f"of {format_bytes(self.limit)} are free for it.{holds} {advice}"
        )
