"""Processes forked off a warm one, which has imported everything and started no thread: each costs milliseconds."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler, Worker

import dask_odm.cli
from tries.outcomes import describe, digest_of

Answer = dict[str, Any]
SETTINGS = {
    "dask_odm.read-into-memory": 0,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.no-workers-timeout": "60s",
}


class Process:
    """A forked process that gives answers, a line each.

    Parameters
    ----------
    function : callable
        Runs there, with what sends an answer through a pipe.
    log : path of a file for what it says
    """

    def __init__(self, function: Callable[[Callable[[Answer], None]], Any], log: Path) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be(function, write, log)
        os.close(write)
        self.log, self._status, self._heard = log, None, b""

    def answer(self, seconds: float) -> Answer:
        """What it answers next; that it took longer, or died, is an answer too."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._heard:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            more = os.read(self._read, 1 << 16)
            self._heard += more
            if not more:
                break
        line, end, rest = self._heard.partition(b"\n")
        if end:
            self._heard = rest
            return json.loads(line)
        if time.monotonic() >= deadline:
            return {"broken": f"hang: no end within {seconds:g} s"}
        self.wait()
        return {"broken": f"died with status {self._status}: {self.said()[-300:]}"}

    def ready(self, seconds: float) -> bool:
        """Whether there is an answer, or an end, within so many seconds."""
        return b"\n" in self._heard or bool(select.select([self._read], [], [], seconds)[0])

    def said(self) -> str:
        """Its standard error."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self, by: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, by)

    def running(self) -> bool:
        """Whether it has not ended."""
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status is None

    def wait(self) -> int:
        """Its status at its end."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def end(self) -> None:
        """Kill it, and forget about it."""
        self.kill()
        self.wait()
        os.close(self._read)


def _be(function: Callable[[Callable[[Answer], None]], Any], write: int, log: Path) -> None:
    """Be the forked process, to its end."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(said, descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def tell(answer: Answer) -> None:
        os.write(write, json.dumps(answer).encode() + b"\n")

    try:
        with dask.config.set(SETTINGS):
            function(tell)
    finally:
        os._exit(0)


def run(function: Callable[[], str], folder: Path, seconds: float, at_start: Callable[[], Any] | None = None) -> Answer:
    """What a process answers that returns a digest, or raises.

    Parameters
    ----------
    at_start : callable, default=None
        Called in the process before: it sets limits, say.
    """
    process = Process(lambda tell: tell(answer_of(function, at_start)), folder / "log.txt")
    try:
        return process.answer(seconds)
    finally:
        process.end()


def answer_of(function: Callable[[], str], at_start: Callable[[], Any] | None = None) -> Answer:
    """The digest that ``function`` returns, or what it raises, as an answer."""
    try:
        if at_start is not None:
            at_start()
        return {"digest": function()}
    except BaseException as error:
        return describe(error)


def shell(arguments: list[str], output: Path, folder: Path, seconds: float, at_start: Any = None) -> Answer:
    """What a command answers: the digest of its output, the one line it says, or what it should not."""
    process = Process(lambda tell: _command(arguments, at_start), folder / "log.txt")
    try:
        process.answer(seconds)
        if process.running():
            return {"broken": f"hang: no end within {seconds:g} s"}
        return _judge_command(process, output)
    finally:
        process.end()


def _command(arguments: list[str], at_start: Callable[[], Any] | None) -> None:
    sys.argv = ["dask-odm", *arguments]
    status: Any = 0
    try:
        if at_start is not None:
            at_start()
        dask_odm.cli.main()
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        print("Traceback:", repr(error), file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status or 0)


def _judge_command(process: Process, output: Path) -> Answer:
    status, said = process.wait(), process.said()
    if status == 0:
        return answer_of(lambda: digest_of(output))
    lines = said.splitlines() or [""]  # warnings, a line each, and the error
    if status in (2, 130) and all(line.startswith("dask-odm: ") for line in lines):
        return {"named": lines[-1][:600]}
    return {"broken": f"status {status}: {said[-600:]}"}


# A cluster of processes, of which any may be killed ---------------------------------------------------------


class SeparateCluster:
    """A scheduler and workers without nannies, each a process of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.scheduler = Process(lambda tell: asyncio.run(_schedule(tell)), folder / "scheduler.txt")
        self.address = self.scheduler.answer(60)["address"]
        self.workers = [self._worker(i) for i in range(workers)]
        self._coming, self._dead_since = set(self.workers), dict[Process, float]()
        self.wait()

    def wait(self) -> None:
        """Start what is dead, and wait for all workers."""
        self.revive(0.0)
        for worker in self._coming:
            assert "ready" in worker.answer(60), worker.said()
        self._coming.clear()

    def revive(self, away: float) -> None:
        """Start a worker in place of each that is dead for ``away`` seconds, as a supervisor of processes does."""
        for i, worker in enumerate(self.workers):
            if worker.running():
                continue
            since = self._dead_since.setdefault(worker, time.monotonic())
            if time.monotonic() >= since + away:
                del self._dead_since[worker]
                self._coming.discard(worker)
                worker.end()
                self.workers[i] = self._worker(i)
                self._coming.add(self.workers[i])

    def _worker(self, i: int) -> Process:
        return Process(lambda tell: asyncio.run(_work(self.address, tell)), self.folder / f"worker-{i}.txt")

    def sound(self) -> bool:
        """Whether all of it is there."""
        return all(each.running() for each in (self.scheduler, *self.workers))

    def connected(self, function: Callable[[], str]) -> Callable[[], str]:
        """``function`` with this cluster as Dask's client."""

        def run() -> str:
            with Client(self.address, timeout=30):
                return function()

        return run

    def end(self) -> None:
        """End all processes."""
        for each in (*self.workers, self.scheduler):
            each.end()


async def _schedule(tell: Callable[[Answer], None]) -> None:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        tell({"address": scheduler.address})
        await scheduler.finished()


async def _work(address: str, tell: Callable[[Answer], None]) -> None:
    async with Worker(address, nthreads=1, memory_limit="1GB", dashboard=False) as worker:
        tell({"ready": True})
        await worker.finished()
