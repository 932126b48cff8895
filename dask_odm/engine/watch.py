"""Watch over a cluster while something is waited for, and name what goes wrong there.

A worker that is silent for a minute is restarted, so that its tasks run again. Tasks that prefer a lost worker are
freed to run anywhere. A `ClusterError` is raised if the scheduler is lost or silent, or if the cluster stays without
workers or does nothing although it has some. Only this module and `cluster` meet a Client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for_one
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client as Client  # others take it from here
from distributed import Security as Security
from distributed import as_completed
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.deploy.spec import SpecCluster
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from dask_odm.errors import ClusterError, DaskODMError

logger = logging.getLogger("dask_odm")
WANTED_SETTINGS = "distributed: {scheduler: {allowed-failures: 3, worker-ttl: 60s, no-workers-timeout: 60s}}"
RUNNING = {"executing", "long-running", "cancelled", "resumed"}  # states of a worker's tasks
ABOUT_TO_RUN = {"ready", "constrained", "fetch", "flight", "waiting"}
_WARNED: set[str] = set()  # addresses of schedulers whose settings were checked
LOST = "The Dask scheduler was lost; start it anew, connect to it and fit again."
CLOSED = "The Dask client or its cluster was closed; connect to one, or to none to run in this process, and try again."
RESTARTED = "The Dask cluster was restarted (client.restart), which ends all tasks; try again."
CANCELLED = (
    "Tasks, or what they need, were cancelled (client.cancel), or lost by a restart (client.restart); try again."
)


@dataclass(frozen=True)
class Patience:
    """Seconds that a `Watch` waits before it acts."""

    silence: float = 60.0  # for which a worker or the scheduler may be silent
    workerless: float = 300.0  # for which a cluster may have no workers: some take minutes to start one
    idle: float = 300.0  # for which workers may do nothing at all, though tasks are waited for
    restart: float = 30.0  # within which a nanny must end a silent worker: it takes 5, but Dask copes badly with less
    poll: float = 5.0  # between two checks of the cluster
    poll_of_worker: float = 0.02  # at least, for each worker: what the scheduler tells of 1,000 is megabytes


PATIENCE = Patience()


class Watch:
    """Supervision of a cluster while something is waited for; it makes sure that the wait ends.

    A worker is silent if it gives no sign of life for `Patience.silence`, or is paused for so long although it runs
    nothing. Its nanny restarts it; without a nanny, the scheduler removes it. Its tasks run again elsewhere. Times are
    of this process, since clocks of machines differ.

    Dask lets a task run anywhere if the worker it prefers is gone, but only while other workers are there. A task that
    became ready when there was none waits for ever for that very address, which no worker will have again. Such tasks
    are told to run anywhere. ``preferring`` are the keys of the tasks that prefer a worker, and that the result may
    depend on.
    """

    def __init__(self, client: Any, preferring: Sequence[str] = ()) -> None:
        now = time.monotonic()
        self.client = client
        self._preferring = list(preferring)
        self._due = now + PATIENCE.poll
        self._scheduler: str | None = None  # its own name, which another one at its address does not have
        self._answered = now
        self._inhabited = now
        self._busy = now
        self._signs: dict[str, tuple[Any, float]] = {}  # by worker: its last sign of life, and when that was new

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an error of a call into ClusterError if the client was closed, the cluster lost or tasks cancelled."""
        try:
            yield
        except Exception as error:
            found = None if isinstance(error, DaskODMError) else _cause(self.client, error)
            if found is None:
                raise
            raise ClusterError(found) from error

    def completed(self, futures: Sequence[Any], most: int) -> Iterator[list[Any]]:
        """Yield futures as they finish, up to ``most`` at a time, and fewer only every tenth of a second."""
        waiting = as_completed(futures)
        left = len(futures)
        self._busy = time.monotonic()
        while not waiting.is_empty():

            def enough(wanted: int = min(most, left)) -> bool:
                return bool(waiting.queue.qsize() >= wanted)

            with waiting.thread_condition:  # results that are asked for one by one take a message there and back each
                waiting.thread_condition.wait_for(enough, 0.1)
            ready = list(waiting.next_batch(block=False))
            left -= len(ready)
            for i in range(0, len(ready), most):
                yield ready[i : i + most]
                self._busy = time.monotonic()
            if not ready:
                self.check(tasks=True)

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """Return the results of futures, in order."""
        waiting = [future for future in futures if not future.done()]  # to hear of those that are done takes a while
        if waiting:
            for _ in self.completed(waiting, len(waiting)):
                pass
        return list(self.wait(self.client.gather, list(futures)))

    def wait(self, method: Callable[..., Any], *arguments: Any, checked: bool = True, **options: Any) -> Any:
        """Return the result of a client's method, which is called in the client's loop and returns an awaitable there.

        The cluster is watched meanwhile, unless ``checked`` is False, as for the calls that watch it.
        """

        async def call() -> Any:
            return await method(*arguments, **options)

        self._require_open()
        future = asyncio.run_coroutine_threadsafe(call(), self.client.loop.asyncio_loop)
        try:
            while not wait_for_one([future], PATIENCE.poll).done:
                self._require_open()  # its loop may have stopped
                if checked:
                    self.check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def ask_workers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the answers of all workers that are there to give one."""
        while True:
            answers = self.wait(self.client.run, function, *arguments, on_error="return").values()
            for error in answers:
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    raise error
            found = [answer for answer in answers if not isinstance(answer, OSError)]
            if found:
                return found
            time.sleep(0.1)  # all of them died meanwhile
            self.check()

    def check(self, tasks: bool = False) -> None:
        """Check the cluster if it is due; raise ClusterError if no result can be expected any more.

        If ``tasks`` are waited for, workers are expected to do something.
        """
        self._require_open()
        if time.monotonic() < self._due:
            return
        workers = self.identity()["workers"]
        now = time.monotonic()
        self._due = now + max(PATIENCE.poll, PATIENCE.poll_of_worker * len(workers))
        if workers:
            self._inhabited = now
        elif now - self._inhabited > PATIENCE.workerless:
            raise ClusterError(f"No worker was there for {PATIENCE.workerless:g} s; start some and fit again.")
        self._restart(self._silent(workers, now))
        if workers:
            self.rerun("no-worker")
        if not tasks or not workers or any(_tasks_in(each, RUNNING | ABOUT_TO_RUN) for each in workers.values()):
            self._busy = now
        elif now - self._busy > PATIENCE.idle:
            raise ClusterError(
                f"No progress: none of {len(workers)} workers had anything to do for {PATIENCE.idle:g} s, although "
                "tasks are waited for. Restart the cluster and fit again."
            )

    def rerun(self, *states: str, others: bool = False) -> None:
        """Rerun the tasks in one of ``states``, on any worker. With ``others``, tasks yet to run are freed as well."""
        if self._preferring:
            with suppress(KeyError):  # the scheduler forgot a task meanwhile; the next check frees the others
                self.wait(self._run_again, states, others, checked=False)

    async def _run_again(self, states: tuple[str, ...], others: bool) -> None:
        scheduler = self.client.scheduler
        found = await scheduler.get_task_status(keys=self._preferring)
        lost = [key for key, state in found.items() if state in states]
        freed = [key for key, state in found.items() if state is not None] if others else lost
        if freed:
            await scheduler.set_restrictions(worker={key: [] for key in freed})
        if lost:
            logger.info("%d tasks waited for a worker that is gone: they run elsewhere.", len(lost))
            for key in await scheduler.retry(keys=lost):
                future = self.client.futures.get(key)
                if future is not None and future.status == "error":
                    future.retry()

    def identity(self) -> dict[str, Any]:
        """Return the scheduler's description of itself and its workers."""

        async def ask() -> Any:
            return await asyncio.wait_for(self.client.scheduler.identity(n_workers=-1), PATIENCE.silence)

        while True:
            with suppress(OSError):  # includes TimeoutError; for example while the client reconnects
                found: dict[str, Any] = self.wait(ask, checked=False)
                if self._scheduler not in (None, found["id"]):  # a client connects to any that is at the address
                    raise ClusterError(LOST)
                self._scheduler = found["id"]
                self._answered = time.monotonic()
                return found
            if time.monotonic() - self._answered > PATIENCE.silence:
                raise ClusterError(
                    f"The Dask scheduler at {self.client.scheduler.address} has not answered for "
                    f"{PATIENCE.silence:g} s. See whether it runs and can be reached, and fit again."
                )
            time.sleep(0.1)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the scheduler's description of every worker by address; raise ClusterError if the cluster is lost."""
        with self.errors():
            found: dict[str, dict[str, Any]] = self.identity()["workers"]
            return found

    def runs_tasks(self, addresses: Iterable[str]) -> bool:
        """Return whether one of some workers ran a task when it last reported."""
        workers = self.workers()
        return any(_tasks_in(workers[address], RUNNING) for address in addresses if address in workers)

    def _require_open(self) -> None:
        if self.client.status == "closed":
            raise ClusterError(_closed(self.client))

    def _silent(self, workers: dict[str, dict[str, Any]], now: float) -> list[str]:
        """Return the workers that gave no sign of life for too long."""
        before = self._signs
        self._signs = {}
        for address, worker in workers.items():
            stuck = worker["status"] == "paused" and not _tasks_in(worker, RUNNING)
            sign = "paused" if stuck else worker["last_seen"]
            last = before.get(address)
            self._signs[address] = last if last is not None and last[0] == sign else (sign, now)
        return [address for address, (_, since) in self._signs.items() if now - since > PATIENCE.silence]

    def _restart(self, workers: list[str]) -> None:
        if not workers:
            return
        names = ", ".join(workers)
        logger.warning("no sign of life of %s for %g s: restarted, and tasks run again.", names, PATIENCE.silence)
        options = {"timeout": PATIENCE.restart, "wait_for_workers": False, "on_error": "return"}
        options |= {"workers": workers, "stimulus_id": f"dask-odm-silence-{time.time()}"}
        try:
            self.client.sync(self.client.scheduler.restart_workers, callback_timeout=2 * PATIENCE.restart, **options)
        except Exception as error:
            raise ClusterError(
                f"No sign of life of {names} for {PATIENCE.silence:g} s, and the scheduler could not restart it "
                f"({error}); restart it yourself and fit again."
            ) from error


def _cause(client: Client, error: Exception) -> str | None:
    """Return what became of the cluster, judged by an error of a call into it; None if the error is a task's own."""
    if client.status in ("closing", "closed"):
        return _closed(client)  # calls raise different errors then
    if isinstance(error, NoWorkerError | NoValidWorkerError):
        return "No worker is left to run tasks; start some and fit again."
    if isinstance(error, KilledWorker):
        return (
            f"A task was given up because {error.allowed_failures + 1} workers died while running it, most likely "
            "of memory: use more partitions, or workers with more."
        )
    if isinstance(error, CancelledError):
        reasons = {"scheduler-connection-lost": LOST, "scheduler-restart": RESTARTED}
        return reasons.get(getattr(error, "reason", ""), CANCELLED)
    return LOST if isinstance(error, CommClosedError | ClosedClientError) else None


def _closed(client: Client) -> str:
    """Return why a client is closed: it forgets its connection if that broke, but not if it was closed."""
    return CLOSED if client.scheduler_comm is not None else LOST


def warn_of_settings(watch: Watch) -> None:
    """Warn, once per scheduler, of settings with which a lost worker costs more than its tasks."""
    address = str(watch.client.scheduler.address)
    if address in _WARNED:
        return
    _WARNED.add(address)
    try:
        found = watch.wait(watch.client.run_on_scheduler, dask.config.get, "distributed.scheduler")
    except (ValueError, OSError):  # some schedulers do not allow to run functions
        return
    complaints = complaints_about(found)
    if complaints:
        # a scheduler that was started from here ends with this process, and is most likely on this machine
        level = logging.INFO if isinstance(watch.client.cluster, SpecCluster) else logging.WARNING
        logger.log(
            level,
            "The scheduler at %s is set so that lost workers may cost more than they must: %s. Add to the "
            "configuration it starts with: %s",
            address,
            "; ".join(complaints),
            WANTED_SETTINGS,
        )


def complaints_about(settings: dict[str, Any]) -> list[str]:
    """Return what is wrong with a scheduler's settings, `distributed.scheduler` of Dask's configuration."""
    found = []
    prefix = "distributed.scheduler."
    failures = settings.get("allowed-failures", 3)
    ttl = settings.get("worker-ttl")
    if failures < 3:
        found.append(f"{prefix}allowed-failures={failures} gives a task up after {failures + 1} lost workers")
    if ttl is None or parse_timedelta(ttl) > PATIENCE.silence:
        waits = "for ever" if ttl is None else f"for {ttl}"
        found.append(f"{prefix}worker-ttl={ttl} lets a prediction wait {waits} for a worker that stopped")
    if settings.get("no-workers-timeout") is None:
        found.append(f"{prefix}no-workers-timeout=None lets a prediction wait for ever once all workers are lost")
    return found


def _tasks_in(worker: dict[str, Any], states: set[str]) -> int:
    """Return the number of a worker's tasks that were in one of ``states`` when it last reported."""
    counts: dict[str, int] = worker["metrics"].get("task_counts", {})
    return sum(number for state, number in counts.items() if state in states)
