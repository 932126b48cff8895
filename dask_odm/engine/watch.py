"""Looks after what runs on a cluster while it is waited for, and names what goes wrong there.

A worker that says nothing for a minute is restarted, so that its tasks run again; tasks that prefer a worker which is
gone are freed to run anywhere; a scheduler that is lost or says nothing, a cluster that stays without workers, or one
that does nothing although it has some, is a `ClusterError`. `cluster` is the other that meets a Client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for_one
from contextlib import contextmanager, suppress
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
SILENCE_SECONDS = 60.0  # that a worker or the scheduler may say nothing
WORKERLESS_SECONDS = 300.0  # that a cluster may be without workers: some take minutes to start one
IDLE_SECONDS = 300.0  # that workers may do nothing at all, though something is waited for
RESTART_SECONDS = 30.0  # that a nanny has for ending a silent worker, which takes it five; Dask does not take less well
POLL_SECONDS = 5.0
WANTED_FAILURES = 3
WANTED_SETTINGS = "distributed: {scheduler: {allowed-failures: 3, worker-ttl: 60s, no-workers-timeout: 60s}}"
RUNNING = {"executing", "long-running", "cancelled", "resumed"}  # states of a worker's tasks
ABOUT_TO_RUN = {"ready", "constrained", "fetch", "flight", "waiting"}
_WARNED: set[str] = set()  # schedulers whose settings were complained about
LOST = "The Dask scheduler was lost; start it anew, connect to it and fit again."
CLOSED = "The Dask client or its cluster was closed; connect to one, or to none to run in this process, and try again."
RESTARTED = "The Dask cluster was restarted (client.restart), which ends all tasks; try again."
CANCELLED = "Tasks, or what they need, were cancelled (client.cancel); try again."


class Watch:
    """Waits for what runs on a cluster, and sees to it that the wait ends.

    A worker that says nothing for `SILENCE_SECONDS`, or that is paused for so long although it runs nothing, is
    restarted by its nanny, or taken off the scheduler's list if it has none; its tasks run again elsewhere. Times
    are of this process: clocks of machines differ.

    Dask lets a task run anywhere if the worker it prefers is gone, but only while others are there: one that became
    ready to run when there was none waits for that very address for ever, which no worker will have again. Such
    tasks are told to run anywhere.

    Parameters
    ----------
    client : Client
    preferring : sequence of str
        Keys of tasks that prefer a worker, and that what is waited for may hang on.
    """

    def __init__(self, client: Client, preferring: Sequence[str] = ()) -> None:
        now = time.monotonic()
        self.client = client
        self._preferring = list(preferring)
        self._freed = False
        self._due = now + POLL_SECONDS
        self._answered = now
        self._inhabited = now
        self._busy = now
        self._signs: dict[str, tuple[Any, float]] = {}  # a worker's last sign of life, and since when it is the last

    def completed(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Futures as they finish."""
        waiting = as_completed(futures)
        self._busy = time.monotonic()
        while not waiting.is_empty():
            for future in waiting.next_batch(block=False):
                yield future
                self._busy = time.monotonic()
            if not waiting.has_ready() and not waiting.is_empty():
                with waiting.thread_condition:
                    waiting.thread_condition.wait(0.1)
                self.check(tasks=True)

    def wait(self, method: Callable[..., Any], *arguments: Any, checked: bool = True, **options: Any) -> Any:
        """Result of a method of the client's, which returns an awaitable where the client's loop calls it.

        The cluster is looked after meanwhile, unless that is what is waited for.
        """

        async def call() -> Any:
            return await method(*arguments, **options)

        loop: Any = self.client.loop
        self._require_open()
        future = asyncio.run_coroutine_threadsafe(call(), loop.asyncio_loop)
        try:
            while not wait_for_one([future], POLL_SECONDS).done:
                self._require_open()  # its loop may have stopped
                if checked:
                    self.check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def ask_workers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Answers of all workers that are there to give one."""
        while True:
            answers = self.wait(self.client.run, function, *arguments, on_error="return").values()
            for error in answers:
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    raise error
            found = [answer for answer in answers if not isinstance(answer, OSError)]
            if found:
                return found
            time.sleep(0.1)  # they died meanwhile
            self.check()

    def check(self, tasks: bool = False) -> None:
        """Look after the cluster, if it is time to; raise ClusterError where nothing more is to be expected.

        Workers are expected to do something if it is ``tasks`` that are waited for.
        """
        self._require_open()
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
        if workers:
            self._again("no-worker")
        if tasks:
            self._notice_idleness(workers, now)

    def free_all(self) -> bool:
        """Let all tasks that prefer a worker run anywhere, and those given up again; False after the first time."""
        freed = self._freed
        self._freed = True
        if not freed:
            self._again("no-worker", "erred", others=True)
        return not freed

    def _again(self, *states: str, others: bool = False) -> None:
        """Let tasks in one of ``states`` run again, and anywhere; with ``others``, those yet to come as well."""
        if self._preferring:
            with suppress(KeyError):  # the scheduler forgot a task meanwhile: those that are left come next time
                self.wait(self._run_again, states, others, checked=False)

    async def _run_again(self, states: tuple[str, ...], others: bool) -> None:
        scheduler: Any = self.client.scheduler
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

    def _notice_idleness(self, workers: dict[str, dict[str, Any]], now: float) -> None:
        """Raise ClusterError where workers are there but none did anything for long."""
        if not workers or any(_tasks_in(worker, RUNNING | ABOUT_TO_RUN) for worker in workers.values()):
            self._busy = now
        elif now - self._busy > IDLE_SECONDS:
            raise ClusterError(
                f"No progress: none of {len(workers)} workers had anything to do for {IDLE_SECONDS:g} s, although "
                "tasks are waited for. Restart the cluster and fit again."
            )

    def identity(self) -> dict[str, Any]:
        """What the scheduler says of itself and its workers."""

        async def ask() -> Any:
            scheduler: Any = self.client.scheduler
            return await asyncio.wait_for(scheduler.identity(n_workers=-1), SILENCE_SECONDS)

        while True:
            with suppress(OSError):  # includes TimeoutError; while the client connects again, say
                found: dict[str, Any] = self.wait(ask, checked=False)
                self._answered = time.monotonic()
                return found
            if time.monotonic() - self._answered > SILENCE_SECONDS:
                raise ClusterError(
                    f"The Dask scheduler at {_address(self.client)} has not answered for {SILENCE_SECONDS:g} s. "
                    "See whether it runs and can be reached, and fit again."
                )
            time.sleep(0.1)

    def _require_open(self) -> None:
        if self.client.status == "closed":
            raise ClusterError(_closed(self.client))

    def _silent(self, workers: dict[str, dict[str, Any]], now: float) -> list[str]:
        """Workers that gave no sign of life for too long."""
        before = self._signs
        self._signs = {}
        for address, worker in workers.items():
            stuck = worker["status"] == "paused" and not _tasks_in(worker, RUNNING)
            sign = "paused" if stuck else worker["last_seen"]
            last = before.get(address)
            self._signs[address] = last if last is not None and last[0] == sign else (sign, now)
        return [address for address, (_, since) in self._signs.items() if now - since > SILENCE_SECONDS]

    def _restart(self, workers: list[str]) -> None:
        if not workers:
            return
        names = ", ".join(workers)
        logger.warning("no sign of life of %s for %g s: restarted, and tasks run again.", names, SILENCE_SECONDS)
        scheduler: Any = self.client.scheduler
        options = {"timeout": RESTART_SECONDS, "wait_for_workers": False, "on_error": "return"}
        try:
            self.client.sync(
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
def cluster_errors(client: Client) -> Iterator[None]:
    """Name what calls raise when a client is closed, its cluster restarted, tasks cancelled, or workers lost."""
    try:
        yield
    except DaskODMError:
        raise
    except Exception as error:
        found = _cause(client, error)
        if found is None:
            raise
        raise ClusterError(found) from error


def _cause(client: Client, error: Exception) -> str | None:
    """What became of the cluster, by an error of a call into it; None if that is an error of a task, say."""
    if client.status in ("closing", "closed"):
        return _closed(client)  # what calls raise then differs from call to call
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
    """Why a client is closed: it forgets its connection when that breaks, and not when it is closed."""
    return CLOSED if client.scheduler_comm is not None else LOST


def warn_of_settings(watch: Watch) -> None:
    """Warn, once a scheduler, of settings with which a lost worker costs more than its tasks."""
    address = _address(watch.client)
    if address in _WARNED:
        return
    _WARNED.add(address)
    try:
        found = watch.wait(watch.client.run_on_scheduler, dask.config.get, "distributed.scheduler")
    except (ValueError, OSError):  # some do not allow to run anything there
        return
    complaints = complaints_about(found)
    if complaints:
        # who started one from here loses it with this process, and most likely runs it on this very machine
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
    """What is wrong with a scheduler's settings, `distributed.scheduler` of Dask's configuration."""
    found = []
    prefix = "distributed.scheduler."
    failures = settings.get("allowed-failures", WANTED_FAILURES)
    ttl = settings.get("worker-ttl")
    if failures < WANTED_FAILURES:
        found.append(f"{prefix}allowed-failures={failures} gives a task up after {failures + 1} lost workers")
    if ttl is None or parse_timedelta(ttl) > SILENCE_SECONDS:
        waits = "for ever" if ttl is None else f"for {ttl}"
        found.append(f"{prefix}worker-ttl={ttl} lets a prediction wait {waits} for a worker that stopped")
    if settings.get("no-workers-timeout") is None:
        found.append(f"{prefix}no-workers-timeout=None lets a prediction wait for ever once all workers are lost")
    return found


def runs_tasks(worker: dict[str, Any]) -> bool:
    """Whether a worker, as the scheduler's identity has it, ran a task when it last said something."""
    return _tasks_in(worker, RUNNING) > 0


def _tasks_in(worker: dict[str, Any], states: set[str]) -> int:
    """Tasks of a worker that were in one of ``states`` when it last said something."""
    counts: dict[str, int] = worker["metrics"].get("task_counts", {})
    return sum(number for state, number in counts.items() if state in states)


def _address(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)
