"""The place where tasks run: the active client's workers, or threads of this process.

Only this module and `watch`, which supervises whatever is waited for here, meet a Client.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial, reduce
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import dask
import psutil
from dask._task_spec import Task, TaskRef
from dask.base import annotate, compute, normalize_token, persist
from dask.callbacks import Callback as Callbacks
from dask.core import flatten
from dask.delayed import Delayed
from dask.optimization import cull
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes

import dask_odm.data.rows.stored  # noqa: F401  (tasks import it, so it belongs to the baseline)
from dask_odm.data.storage.files import load_bytes, save_bytes
from dask_odm.engine.tasks import TOLD, aligned, this_task, this_worker, worker_task
from dask_odm.errors import ASYNCHRONOUS, ClusterError, InputError, MemoryLimitError
from dask_odm.events import Progress, report
from dask_odm.linalg.threads import return_free_memory, run_threads, single_threaded_blas
from dask_odm.typing import Array

if TYPE_CHECKING:
    from distributed import Client

    from dask_odm.engine.watch import Watch

logger = logging.getLogger("dask_odm")
T = TypeVar("T")
USABLE = 0.65  # share of a worker's memory limit: it pauses at 0.8, and the allocator takes its part
# Files of control groups, versions 1 and 2, in which Dask's workers look for their memory limit too.
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory.low",
)
TRIM = "MALLOC_TRIM_THRESHOLD_"  # set by the nanny; every array that is read then needs fresh pages
GRAPH_BLOCKS = 64  # blocks of a graph, at least: whoever computes a block looks through the graph that it is in
FEW_TASKS = 128  # of equal work, so that progress is seen; a scheduler takes 1 to 2 ms for each (benchmarks/scale.py)
JOINED = 8  # tasks whose results a worker joins at a time, if there are many
GATHERED = 16  # results that are asked for at a time; one after the other, each takes a message there and back
MORE_PARTITIONS = ("more partitions",)  # advice, see `Cluster.require`


def active_client() -> Client | None:
    """Return the Dask client whose workers may be waited for, or None.

    A task has none, and so have other threads of a worker's process, and those in which its coroutine waits: all
    threads of the workers may be taken by tasks that wait like this one. A task that left its worker's thread pool
    (`distributed.secede`) has one. Raises ClusterError if the client runs in the event loop of this thread, which a
    wait would stop.
    """
    distributed: Any = sys.modules.get("distributed")  # it takes long to load, and is not loaded for this
    if distributed is None or worker_of_task() is not None:
        return None
    try:
        found: Client = distributed.get_client()
    except ValueError:  # there is none
        return None
    if found.asynchronous:
        raise ClusterError(ASYNCHRONOUS)
    if this_worker() is not None:
        return found if _has_seceded() else None
    return None if found.id.startswith("Client-worker-") else found  # so Dask names a worker's own


def worker_of_task() -> Any:
    """Return the Dask worker whose thread the task that calls this takes; None without one."""
    worker = this_worker()
    is_running = worker is not None and threading.get_ident() in worker.active_threads
    return worker if is_running and not _has_seceded() else None


def _has_seceded() -> bool:
    """Return whether the task that calls this has left the thread pool of its worker."""
    from distributed.threadpoolexecutor import thread_state

    return not getattr(thread_state, "proceed", True)  # `secede` unsets it


def computed(*lazy: Any) -> tuple[Any, ...]:
    """Compute lazy values on the active client's workers, or in this process.

    Raises ClusterError as `Cluster.results` does.
    """
    client = active_client()
    if client is None:
        found: tuple[Any, ...] = compute(*lazy)
        return found
    # not Dask's own wait, which never ends if the client is closed meanwhile
    watch = _watch(client)
    with watch.errors():
        return tuple(watch.results(client.compute(list(lazy))))


def computed_in_order(lazy: Any) -> Iterator[Array]:
    """Yield the blocks of a lazy array in order, as `computed` does, but a few of them at a time.

    A client's workers have two tasks for each thread, or more, ahead of what is asked for.
    """
    client = active_client()
    if client is None:
        for graph, keys in _parts(lazy, 2 * CPU_COUNT):
            yield from compute(*[Delayed(key, graph) for key in keys])
        return
    watch = _watch(client)
    with watch.errors():
        workers = watch.identity()["workers"].values()
        started: deque[list[Any]] = deque()
        try:
            for graph, keys in _parts(lazy, max(1, sum(worker["nthreads"] for worker in workers))):
                started.append(client.get(_NamedGraph(graph), keys, sync=False))
                if len(started) > 2:
                    yield from _results_of(client, started.popleft())
            while started:
                yield from _results_of(client, started.popleft())
        finally:  # a notebook keeps the traceback of an error, and with it the futures
            _release(chain.from_iterable(started))


def computed_once(lazy: Sequence[Any], together: int) -> Iterator[Any]:
    """Compute lazy values at once, as `computed` does, but take only so many ``together`` from a client's workers.

    Workers keep the others until then. The values come in order.
    """
    client = active_client()
    if client is None:
        yield from compute(*lazy)
        return
    with _watch(client).errors():
        yield from _results_of(client, client.compute(list(lazy)), together)


def _parts(lazy: Any, together: int) -> Iterator[tuple[dict[Any, Any], list[Any]]]:
    """Yield graphs of so many blocks of a lazy array each, with their keys."""
    keys = list(flatten(lazy.__dask_keys__()))
    step = -(-GRAPH_BLOCKS // together) * together
    for i in range(0, len(keys), step):
        some = keys[i : i + step]
        graph = dict(lazy.__dask_optimize__(lazy.dask, some))
        for j in range(0, len(some), together):
            own = some[j : j + together]
            yield cull(graph, own)[0], own


def _results_of(client: Client, futures: list[Any], together: int = GATHERED) -> Iterator[Any]:
    """Yield the results of futures in order, a few at a time, and let go of them."""
    try:
        for i in range(0, len(futures), together):
            some = futures[i : i + together]
            yield from _watch(client).results(some)  # whoever takes the results may have paused for long
            _release(some)
    finally:
        _release(futures)


def _release(futures: Iterable[Any]) -> None:
    for future in futures:
        future.release()


def _watch(client: Client, preferring: Sequence[str] = ()) -> Watch:
    """Return the `Watch` of a client. It loads `distributed`, which whoever has a client has loaded already."""
    from dask_odm.engine.watch import Watch

    return Watch(client, preferring)


def baseline_bytes(warm_up: Callable[[], object]) -> int:
    """Return this process's resident bytes after ``warm_up``, which imports and compiles what tasks need."""
    warm_up()
    return_free_memory()
    return int(psutil.Process().memory_info().rss)


_first_baseline: list[int] = []  # of this process, when it was first asked


def _facts_of_worker(warm_up: Callable[[], object]) -> tuple[int, int, bool]:
    """Return this process's `baseline_bytes`, how much more that is than at first, and whether `TRIM` is set."""
    found = baseline_bytes(warm_up)
    _first_baseline.append(found)
    del _first_baseline[1:]
    return found, max(0, found - _first_baseline[0]), bool(os.environ.get(TRIM))


@dataclass(frozen=True, eq=False)
class Cluster:
    """Threads and memory that tasks may use."""

    client: Client | None  # None runs tasks on threads of this process
    workers: int
    threads: int  # of each worker
    memory: int  # bytes that all tasks of one worker may take together, without its baseline
    limit: int  # the worker's memory limit in bytes, for messages
    held: int = 0  # bytes that a worker has in use before any task, for messages
    left: int = 0  # of these, bytes that earlier work has left, which a new process would not have
    reserved: int = 0  # bytes that a fit holds beside its tasks, which `memory` lacks
    told: list[tuple[str, int]] = field(default_factory=list)  # what tasks were said to need bytes for, and how many

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
        watch = _watch(client)
        with watch.errors():
            # ask the scheduler: what the client remembers may lack the workers
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
            warm_up()  # workers on this machine then load loops from disk: compiling would take memory for good
            baselines, left, trims = zip(*watch.ask_workers(_facts_of_worker, warm_up), strict=True)
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
        watch = _watch(client)
        with watch.errors():
            threads = [worker["nthreads"] for worker in watch.identity()["workers"].values()] or [1]
        return cls(client, len(threads), max(threads), 0, 0)

    @property
    def slots(self) -> int:
        """Number of tasks that run at the same time."""
        return self.workers * self.threads

    @property
    def tasks(self) -> int:
        """Number of tasks that equal work is cut into: one for each of many threads, and up to four for each of few."""
        return self.slots * max(1, min(4, FEW_TASKS // self.slots))

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
        # what is reserved is needed too: "0 B are free" would tell no shortage
        beside = self.reserved // together
        free = max(0, available + beside)
        raise MemoryLimitError(
            f"{what} needs {format_bytes(nbytes + beside)} per task, but only {format_bytes(free)} of a worker's limit "
            f"of {format_bytes(self.limit)} are free for it.{holds} {advice}"
        )

    def persist(self, tasks: Sequence[Delayed], on_done: Callable[[], object] = lambda: None) -> list[Delayed]:
        """Start ``tasks`` and return them as inputs for others; results stay on the workers that made them.

        Without a client, the tasks are done on return, and ``on_done`` was called after each.
        """
        if self.client is None:
            keys = {task.key for task in tasks}
            with Callbacks(posttask=lambda key, *_: on_done() if key in keys else None):
                return list(persist(*tasks, scheduler="threads", num_workers=self.threads))
        with self._sending([task.key for task in tasks]), self._sent():
            return list(self.client.persist(list(tasks)))

    @contextmanager
    def cancelled_on_error(self, tasks: Sequence[Any]) -> Iterator[None]:
        """Cancel the started ``tasks`` if an error or Ctrl-C ends the block, whoever still holds futures of them."""
        try:
            yield
        except BaseException:
            self._cancel(tasks)
            raise

    @contextmanager
    def _sending(self, keys: Sequence[str]) -> Iterator[None]:
        """Raise errors of the cluster as ClusterError, and cancel the tasks of these ``keys`` if anything is raised.

        An interrupt within Dask leaves tasks that were sent, with futures that only the traceback holds. A notebook
        keeps that.
        """
        assert self.client is not None
        with _watch(self.client).errors():
            try:
                yield
            except BaseException:
                from distributed import Future

                self._cancel([Future(key, self.client) for key in keys])
                raise

    @contextmanager
    def _sent(self) -> Iterator[None]:
        """Send tasks with what `require` was told of them; Dask does not warn of large graphs meanwhile."""
        told = {}
        if self.told:
            told[TOLD] = (*self.told[-1], max(nbytes for _, nbytes in self.told), os.getpid())
        # weights of millions of features are no mistake
        with annotate(**told), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            yield

    def _cancel(self, tasks: Sequence[Any]) -> None:
        if self.client is not None:
            with suppress(Exception):  # the client may have lost its scheduler
                _watch(self.client).wait(self.client.cancel, tasks, checked=False)

    def results(self, tasks: Sequence[Delayed]) -> Iterator[tuple[int, Any]]:
        """Yield number and result of every task as they finish; without a client, once all have finished.

        Raises ClusterError if workers died too often under a task, if no worker or scheduler is left, or if it is
        silent.
        """
        if self.client is None:
            yield from enumerate(compute(*tasks, scheduler="threads", num_workers=self.threads))
            return
        with self._sending([task.key for task in tasks]), self._sent():
            futures = self.client.compute(list(tasks))
        yield from self.done(futures)

    def started(self, graph: dict[str, Any], keys: Sequence[str]) -> list[Any]:
        """Start the tasks of a Dask graph on a client's workers, and return the futures of ``keys``."""
        assert self.client is not None
        with self._sending(keys), self._sent():
            return list(self.client.get(_NamedGraph(graph), list(keys), sync=False))

    def done(self, futures: Sequence[Any], *, valued: bool = True) -> Iterator[tuple[int, Any]]:
        """Yield number and result of the futures of a client as they finish; raises ClusterError as `results`.

        If they are not ``valued``, their results are None, and workers are not asked.
        """
        assert self.client is not None
        # after a success, tasks are released and not cancelled, since persisted ones are inputs of later tasks
        with self._sending([future.key for future in futures]):
            number = {future: i for i, future in enumerate(futures)}
            watch = _watch(self.client)
            for some in watch.completed(futures, GATHERED):
                sound = [future for future in some if future.status == "finished"]
                failed = [future for future in some if future.status != "finished"]
                for part in filter(None, (sound, failed)):  # one that failed takes no result of others with it
                    asked = valued or part is failed
                    results = watch.wait(self.client.gather, part) if asked else [None] * len(part)
                    _release(part)  # workers need not hold them any longer, nor be asked again if they die
                    for future in part:
                        yield number[future], aligned(results.pop(0))

    def each(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str, *shared: Any
    ) -> list[Any]:
        """Return ``[function(*shared, *a) for a in arguments]``, one task each.

        Task j prefers the same worker in every call. What they share is sent to each worker once.
        """
        if self.client is None:
            return run_threads(lambda a: function(*shared, *a), arguments, self.threads)
        futures = self._pinned(function, arguments, name, shared)
        return self.gather(futures, [future.key for future in futures])

    def chain(
        self, function: Callable[..., Any], start: Any, arguments: Sequence[tuple[Any, ...]], name: str, *shared: Any
    ) -> Any:
        """Apply ``x = function(x, *shared, *a)`` for each of ``arguments``, from ``start`` on, from worker to worker.

        Neighbours prefer the same worker, as in `each`, since a hand-over within a worker is cheaper by a third. All
        tasks are started at once and kept until the last is done. If a worker is lost, what it held is computed again
        from the task before.
        """
        if self.client is None:
            return reduce(lambda x, a: function(x, *shared, *a), arguments, start)
        futures = self._pinned(function, arguments, name, shared, start)
        with self.cancelled_on_error(futures):
            return self.gather(futures[-1:], [future.key for future in futures])[0]

    def _pinned(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        name: str,
        shared: tuple[Any, ...],
        *start: Any,
    ) -> list[Any]:
        """Submit one task for each of ``arguments``, which prefers one worker and takes any other if that is gone.

        With ``start``, the tasks form a chain: each gets the future of the one before as its first argument.
        """
        places = self.places()
        serial = f"{name}-{uuid4().hex}"
        sent = self.submit(f"{serial}-shared", None, _together, *shared) if shared else ()
        futures = []
        for j, more in enumerate(arguments):
            place = places[j * len(places) // len(arguments)] if places else None
            futures.append(self.submit(f"{serial}-{j}", place, _with_shared, function, sent, more, *start))
            start = (futures[-1],) if start else ()
        return futures

    def tell_workers(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function(*arguments)`` on every present worker, outside of its tasks; failures are ignored."""
        assert self.client is not None
        with suppress(Exception):  # the cluster may be lost
            _watch(self.client).wait(self.client.run, function, *arguments, on_error="return")

    def places(self) -> list[str]:
        """Return the addresses of the present workers, in a fixed order."""
        assert self.client is not None
        watch = _watch(self.client)
        with watch.errors():
            return sorted(watch.identity()["workers"])

    def submit(self, key: str, place: str | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit ``function(*arguments)``, preferably to the worker at ``place``, and return the future.

        Futures among the arguments are awaited. Wait for the result by `gather`, which knows what to do when that
        worker is gone.
        """
        assert self.client is not None
        with self._sending([key]), self._sent():
            workers = None if place is None else [place]
            return self.client.submit(function, *arguments, key=key, workers=workers, allow_other_workers=bool(place))

    def gather(self, futures: Sequence[Any], keys: Sequence[str]) -> list[Any]:
        """Return the results of ``futures`` in order; raises ClusterError as `results`.

        ``keys`` are those of all tasks with a preferred worker that the results may depend on, and of the futures
        themselves.
        """
        from distributed.scheduler import NoValidWorkerError

        assert self.client is not None
        watch = _watch(self.client, keys)
        with watch.errors(), self.cancelled_on_error(futures):
            try:
                results = watch.results(futures)
            except NoValidWorkerError:  # the preferred worker is gone, though any other would do
                watch.rerun("no-worker", "erred", others=True)
                results = watch.results(futures)
        return list(map(aligned, results))

    def map_chunks(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        phase: str,
        *shared: Any,
        folder: str | None = None,
    ) -> list[Any]:
        """Return ``[function(*shared, *a) for a in arguments]`` in order, by tasks of a few items each.

        What they share is sent to each worker once, not with every task, or through a ``folder`` as by `finished`.
        Reports `Progress`.
        """
        report(Progress(phase, 0, len(arguments)))
        done = 0
        results: dict[int, list[Any]] = {}
        for first, result in self.finished(function, arguments, self.tasks, phase, *shared, folder=folder):
            results[first] = result
            done += len(result)
            report(Progress(phase, done, len(arguments)))
        return [item for first in sorted(results) for item in results[first]]

    def finished(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        tasks: int,
        phase: str,
        *shared: Any,
        folder: str | None = None,
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the results of `map_chunks` in runs as they finish, up to ``tasks``, each with the number of its first.

        Earlier runs start first. Without a client, all have finished then. Workers join the results of many tasks,
        a few at a time: to ask a worker for a result takes a scheduler as long as a task. If all workers see a
        ``folder``, what tasks share and what they return goes through files there, and the scheduler has tasks only.
        """
        count = min(len(arguments), tasks)
        bounds = [round(i * len(arguments) / count) for i in range(count + 1)]
        runs = [arguments[a:b] for a, b in pairwise(bounds)]
        if self.client is None:
            found = run_threads(lambda run: _run_group(function, run, shared), runs, self.threads)
            yield from zip(bounds, found, strict=False)
            return
        serial = uuid4().hex  # two fits at the same time must not share tasks: one may end in an error
        keys = [f"{phase}-{serial}-{i}" for i in range(count)]
        if folder is not None:
            yield from self._through_files(function, dict(zip(keys, runs, strict=True)), bounds, folder, shared)
            return
        sent = f"{phase}-{serial}-shared"
        graph = {
            key: spread_task(key, partial(_run_group, function, run), sent) for key, run in zip(keys, runs, strict=True)
        }
        joined = JOINED if count > FEW_TASKS else 1
        if joined > 1:
            parts = [keys[i : i + joined] for i in range(0, count, joined)]
            keys = [f"{phase}-{serial}-joined-{i}" for i in range(len(parts))]
            graph |= {key: (_in_a_row, part) for key, part in zip(keys, parts, strict=True)}
        with annotate(priority=_earlier):
            futures = self.started(graph | {sent: (partial(_together, *shared),)}, keys)
        for i, result in self.done(futures):
            yield bounds[joined * i], result

    def _through_files(
        self,
        function: Callable[..., Any],
        runs: dict[str, Sequence[tuple[Any, ...]]],
        bounds: Sequence[int],
        folder: str,
        shared: tuple[Any, ...],
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the results of `finished`, of ``runs`` by key, through files of a ``folder``."""
        asked = os.path.join(folder, f"{next(iter(runs))}-shared")
        save_bytes(asked, pickled(shared))
        answers = [os.path.join(folder, key) for key in runs]
        calls = [
            partial(_run_filed, function, run, asked, answer)
            for run, answer in zip(runs.values(), answers, strict=True)
        ]
        with annotate(priority=_earlier):
            futures = self.started({key: Task(key, call) for key, call in zip(runs, calls, strict=True)}, list(runs))
        for i, _ in self.done(futures, valued=False):
            yield bounds[i], pickle.loads(load_bytes(answers[i]))
            os.unlink(answers[i])
        os.unlink(asked)


class _NamedGraph(dict[str, Any]):
    """A Dask graph that is named after its first key, which no other graph has; it is sent as a plain dict.

    Dask names a graph by a digest of all that is in it, for which the client takes longer than for all else.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@normalize_token.register(_NamedGraph)
def _name_of_graph(graph: _NamedGraph) -> str:
    return next(iter(graph))


def spread_task(key: Any, function: Callable[..., Any], shared: Any, *arguments: Any) -> Any:
    """Return the task ``key`` that calls ``function`` with the result of task ``shared``, and ``arguments``.

    Dask gives it to any worker that is idle. Else it would draw all such tasks to the one that has ``shared`` first.
    """
    return Task(key, function, TaskRef(shared), *arguments, _data_producer=True)


def pickled(value: Any) -> bytes:
    """Return ``value`` as Dask sends it to workers, of which `pickle.loads` makes it again."""
    from distributed.protocol.pickle import dumps

    found: bytes = dumps(value)
    return found


def _earlier(key: str) -> int:
    """Return the priority of a task of `Cluster.finished`, which Dask would start in any order."""
    number = key.rpartition("-")[2]
    return -int(number) if number.isdecimal() else 0


@worker_task
def _together(*shared: Any) -> tuple[Any, ...]:
    """Hold what the tasks of a call share; this is a task, so that it is made again if its worker is lost."""
    return shared


def _in_a_row(runs: Sequence[list[Any]]) -> list[Any]:
    """Join the results of neighbouring tasks of a call."""
    return list(chain.from_iterable(runs))


def _with_shared(function: Callable[..., Any], shared: tuple[Any, ...], more: tuple[Any, ...], *start: Any) -> Any:
    return function(*start, *shared, *more)


@worker_task
def _run_group(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], shared: tuple[Any, ...]
) -> list[Any]:
    with single_threaded_blas:
        return [function(*shared, *a) for a in while_wanted(arguments)]


def _run_filed(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], asked: str, answer: str) -> None:
    """Write the results of `_run_group` to the file ``answer``, given what the tasks share in the file ``asked``."""
    # many small arrays are loaded without a line of Python by protocol 4, and by 5 with several of each
    save_bytes(answer, pickle.dumps(_run_group(function, arguments, _shared_in(asked)), protocol=4))


@lru_cache(maxsize=1)  # it may be large, and threads of a worker mostly run tasks of one call
def _shared_in(path: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = pickle.loads(load_bytes(path))
    return found


def while_wanted(items: Iterable[T]) -> Iterator[T]:
    """Yield the ``items`` of a task, and end a task that was cancelled meanwhile: Dask would let it run to its end."""
    task = this_task()
    for item in items:
        if task is not None and task.state == "cancelled":
            from distributed import Reschedule

            raise Reschedule  # the worker then forgets it, and logs nothing
        yield item


@cache
def memory_limit_of_system() -> int:
    """Return the bytes that this process may use, by the machine, its control group and its own limit."""
    limits = [int(psutil.virtual_memory().total)]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # ValueError: "max" stands for no limit
            limits.append(int(Path(path).read_text()))
    with suppress(ImportError, AttributeError):  # other systems have no such module
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    return min(limit for limit in limits if limit > 0)


def parse_limit(limit: int | str) -> int:
    """Return the bytes of a memory limit such as ``"2GB"``; raise InputError if it is none."""
    try:
        nbytes = int(parse_bytes(limit))
    except (ValueError, TypeError) as error:
        raise InputError(f"memory_limit must be bytes or a string such as '2GB'. Got {limit!r} instead.") from error
    if nbytes <= 0:
        raise InputError(f"memory_limit must be positive. Got {limit!r} instead.")
    return nbytes
