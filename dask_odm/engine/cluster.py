"""Where tasks run: the active client's workers, or threads of this process.

With `watch`, which looks after whatever is waited for here, the only module that meets a Client.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import psutil
from dask.base import compute, persist
from dask.callbacks import Callback as Callbacks
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes

import dask_odm.data.rows.stored  # noqa: F401  (part of what tasks import, and so of the baseline)
from dask_odm.errors import ClusterError, InputError, MemoryLimitError
from dask_odm.events import Progress, report
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.methods.tree.partition_solver import warm_up

if TYPE_CHECKING:
    from distributed import Client

    from dask_odm.engine.watch import Watch

logger = logging.getLogger("dask_odm")
T = TypeVar("T")
TRIM_THRESHOLD = "MALLOC_TRIM_THRESHOLD_"  # the nanny sets it, and every array read then pays for its pages anew
USABLE = 0.65  # of a worker's limit: it pauses at 0.8, and the allocator takes its share
_LIBC = ctypes.CDLL(None) if os.name == "posix" else None
# As Dask's workers look for their own limit: of control groups' versions 1 and 2.
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory.low",
)
ADVICE = "Use more partitions, fewer threads a worker or more memory."
LOCAL_SHARE = 0.5  # of this machine's free memory, where no limit was given


def active_client() -> Client | None:
    """The current Dask client, or None; `distributed`, which takes long to load, is not loaded for the answer."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        found: Client = distributed.get_client()
        return found
    except ValueError:
        return None


def computed(*lazy: Any) -> tuple[Any, ...]:
    """Compute lazy values on the active client's workers, or in this process.

    Raises
    ------
    ClusterError
        As `Cluster.results`.
    """
    client = active_client()
    if client is None:
        found: tuple[Any, ...] = compute(*lazy)
        return found
    # not Dask's own wait, which has no end if the client is closed meanwhile
    with cluster_errors(client):
        futures = client.compute(list(lazy))
        watch = _watch(client)
        for _ in watch.completed(futures):
            pass
        return tuple(watch.wait(client.gather, futures))


def _watch(client: Client, preferring: Sequence[str] = ()) -> Watch:
    """What looks after a cluster; it loads `distributed`, as whoever has a client did before."""
    from dask_odm.engine.watch import Watch

    return Watch(client, preferring)


def cluster_errors(client: Client) -> AbstractContextManager[None]:
    """As `dask_odm.engine.watch.cluster_errors`."""
    from dask_odm.engine import watch

    return watch.cluster_errors(client)


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
        free = int(min(psutil.virtual_memory().available, memory_limit_of_system()) * LOCAL_SHARE)
        memory = free if memory_limit is None else parse_limit(memory_limit)
        return cls(None, 1, CPU_COUNT, memory, memory)

    @classmethod
    def _of_client(cls, client: Client, limit: int | None) -> Cluster:
        from dask_odm.engine.watch import warn_of_settings

        watch = _watch(client)
        with cluster_errors(client):
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
            warn_of_settings(watch)
            warm_up()  # so that workers of this machine load what is compiled here: compiling takes memory for good
            baseline = max(watch.ask_workers(baseline_bytes))
            if any(watch.ask_workers(os.environ.get, TRIM_THRESHOLD)):
                logger.info(
                    "%s is set on workers: reading chunks is up to three times slower; unset it.", TRIM_THRESHOLD
                )
        smallest = min(worker["memory_limit"] or memory_limit_of_system() for worker in workers.values())
        smallest = smallest if limit is None else min(limit, smallest)
        threads = max(worker["nthreads"] for worker in workers.values())
        return cls(client, len(workers), threads, int(USABLE * smallest) - baseline, smallest)

    @property
    def slots(self) -> int:
        """Tasks that run at the same time."""
        return self.workers * self.threads

    def share(self, tasks: int) -> tuple[int, int]:
        """Bytes and threads for each of ``tasks`` equal tasks that run at the same time."""
        # Dask may run them on fewer workers than there are: memory is for the worst case
        each = min(self.threads, -(-tasks // self.workers))
        return self.memory // min(self.threads, tasks), max(1, self.threads // each)

    def require(self, nbytes: int, tasks: int, what: str, advice: str = ADVICE) -> None:
        """Raise MemoryLimitError where ``tasks`` tasks of ``nbytes`` each do not fit, with both figures and advice."""
        available, _ = self.share(tasks)
        if nbytes > available:
            raise MemoryLimitError(
                f"{what} needs {format_bytes(nbytes)} per task, but only {format_bytes(max(0, available))} of a "
                f"worker's limit of {format_bytes(self.limit)} are free for it. {advice}"
            )

    def persist(self, tasks: Sequence[Delayed], on_done: Callable[[], object] = lambda: None) -> list[Delayed]:
        """Start ``tasks`` and return them as inputs for others; results stay where they are made.

        Without a client they are done then, and ``on_done`` was called after each.
        """
        if self.client is None:
            keys = {task.key for task in tasks}
            with Callbacks(posttask=lambda key, *_: on_done() if key in keys else None):
                return list(persist(*tasks, scheduler="threads", num_workers=self.threads))
        with cluster_errors(self.client), self._sending([task.key for task in tasks]):
            return list(self.client.persist(list(tasks)))

    @contextmanager
    def cancelled_on_error(self, tasks: Sequence[Any]) -> Iterator[None]:
        """Cancel started ``tasks`` where an error or Ctrl-C ends the block, whoever still holds on to them."""
        try:
            yield
        except BaseException:
            self._cancel(tasks)
            raise

    @contextmanager
    def _sending(self, keys: Sequence[str]) -> Iterator[None]:
        """Cancel the tasks of these ``keys`` where an error or Ctrl-C ends the block.

        An interrupt within Dask leaves tasks that were sent and futures that nobody has but the traceback, and a
        notebook keeps that.
        """
        try:
            yield
        except BaseException:
            self._cancel_keys(keys)
            raise

    def _cancel_keys(self, keys: Sequence[str]) -> None:
        from distributed import Future

        self._cancel([Future(key, self.client) for key in keys])

    def _cancel(self, tasks: Sequence[Any]) -> None:
        if self.client is not None:
            with suppress(Exception):  # of a client that lost its scheduler
                _watch(self.client).wait(self.client.cancel, tasks, checked=False)

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
        # after a success they are let go, not cancelled: persisted ones are inputs of what comes next
        with cluster_errors(self.client), self._sending([task.key for task in tasks]):
            futures = self.client.compute(list(tasks))
            number = {future: i for i, future in enumerate(futures)}
            watch = _watch(self.client)
            for future in watch.completed(futures):
                (result,) = watch.wait(self.client.gather, [future])
                yield number[future], result

    def each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str) -> list[Any]:
        """``[function(*a) for a in arguments]``, a task each; task j prefers the same worker in every call."""
        if self.client is None:
            return run_threads(lambda a: function(*a), arguments, self.threads)
        futures = self._pinned(function, arguments, name)
        return self.gather(futures, [future.key for future in futures])

    def chain(self, function: Callable[..., Any], start: Any, arguments: Sequence[tuple[Any, ...]], name: str) -> Any:
        """``start`` through ``function(x, *a)`` for each of ``arguments``, handed from worker to worker as a future.

        Neighbours prefer the same worker, the one that `each` prefers for them too: a hand-over within a worker is
        cheaper by a third. All are started at once, and kept until the last is
        done: what a lost worker held is computed again from the one before.
        """
        if self.client is None:
            return reduce(lambda x, a: function(x, *a), arguments, start)
        futures = self._pinned(function, arguments, name, start)
        with self.cancelled_on_error(futures):
            return self.gather(futures[-1:], [future.key for future in futures])[0]

    def _pinned(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str, *start: Any
    ) -> list[Any]:
        """Futures of tasks that prefer one worker each, and take any other if it is gone; a chain if ``start``ed."""
        places = self.places()
        serial = f"{name}-{uuid4().hex}"
        futures = []
        for j, more in enumerate(arguments):
            place = places[j * len(places) // len(arguments)] if places else None
            futures.append(self.submit(f"{serial}-{j}", place, function, *start, *more))
            start = (futures[-1],) if start else ()
        return futures

    def tell_workers(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function(*arguments)`` on every worker that is there, outside of its tasks; failures are ignored."""
        assert self.client is not None
        with suppress(Exception):  # of a cluster that is lost
            _watch(self.client).wait(self.client.run, function, *arguments, on_error="return")

    def places(self) -> list[str]:
        """Addresses of the workers that are there now, in a fixed order."""
        assert self.client is not None
        with cluster_errors(self.client):
            return sorted(_watch(self.client).identity()["workers"])

    def submit(self, key: str, place: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Future of ``function(*arguments)``, which prefers the worker at ``place``; futures among them are awaited.

        Wait for it by `gather`, which knows what to do when that worker is gone.
        """
        assert self.client is not None
        with cluster_errors(self.client), self._sending([key]):
            workers = None if place is None else [place]
            return self.client.submit(function, *arguments, key=key, workers=workers, allow_other_workers=bool(place))

    def gather(self, futures: Sequence[Any], keys: Sequence[str]) -> list[Any]:
        """Results of ``futures`` in order.

        Parameters
        ----------
        futures : sequence of Future
        keys : sequence of str
            Of all tasks that prefer a worker and that the results may hang on, these and the ones before them.

        Raises
        ------
        ClusterError
            As for `results`.
        """
        from distributed.scheduler import NoValidWorkerError

        assert self.client is not None
        with cluster_errors(self.client), self.cancelled_on_error(futures):
            watch = _watch(self.client, keys)
            while True:
                for _ in watch.completed(futures):
                    pass
                try:
                    return list(watch.wait(self.client.gather, list(futures)))
                except NoValidWorkerError:
                    # the scheduler gave up on a worker that is gone, though any other would do
                    if not watch.free_all():
                        raise

    def map_chunks(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], phase: str) -> list[Any]:
        """``[function(*a) for a in arguments]`` in order, a few items a task; reports `Progress`."""
        tasks = min(len(arguments), 4 * self.slots)
        bounds = [round(i * len(arguments) / tasks) for i in range(tasks + 1)]
        groups = [arguments[a:b] for a, b in pairwise(bounds)]
        run = delayed(_run_group, pure=False)
        results: list[list[Any]] = [[] for _ in groups]
        done = 0
        report(Progress(phase, 0, len(arguments)))
        serial = uuid4().hex  # tasks of two fits at the same time are not the same: one may end in an error
        started = [run(function, group, dask_key_name=f"{phase}-{serial}-{i}") for i, group in enumerate(groups)]
        for i, result in self.results(started):
            results[i] = result
            done += len(result)
            report(Progress(phase, done, len(arguments)))
        return [item for group in results for item in group]


def _run_group(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    try:
        with single_threaded_blas:
            return [function(*a) for a in while_wanted(arguments)]
    finally:
        return_free_memory()


def while_wanted(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items`` of a task, and end it if it was cancelled meanwhile: Dask lets it run to its end."""
    distributed: Any = sys.modules.get("distributed")
    task: Any = None
    if distributed is not None:
        with suppress(ValueError):  # no worker's thread
            worker = distributed.get_worker()
            task = worker.state.tasks.get(worker.active_threads.get(threading.get_ident()))
    for item in items:
        if task is not None and task.state == "cancelled":
            raise distributed.Reschedule  # the worker then forgets it, and logs nothing
        yield item


def return_free_memory() -> None:
    """Give pages the allocator holds on to back to the system: else what one task freed counts against the next.

    glibc keeps what was freed, the more so as chunks grow; other allocators are left alone.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def memory_limit_of_system() -> int:
    """Bytes that this process may use, by the machine, its control group and its own limit."""
    limits = [int(psutil.virtual_memory().total)]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max" is none
            limits.append(int(Path(path).read_text()))
    with suppress(ImportError, AttributeError):  # other systems have no such module
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    return min(limit for limit in limits if limit > 0)


def parse_limit(limit: int | str) -> int:
    """Bytes of a memory limit such as ``"2GB"``; InputError where it is none."""
    try:
        nbytes = int(parse_bytes(limit))
    except (ValueError, TypeError) as error:
        raise InputError(f"memory_limit must be bytes or a string such as '2GB'. Got {limit!r} instead.") from error
    if nbytes <= 0:
        raise InputError(f"memory_limit must be positive. Got {limit!r} instead.")
    return nbytes
