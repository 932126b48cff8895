"""Workers and scheduler in a few processes, and stand-ins for tasks that sleep and answer in the size of the real ones.

`scale.py` gives the stand-ins to the engine, which cannot tell them from rows. Workers import them from here.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array  # which tasks of predictions import once in a process
import numpy as np
from distributed import Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.iostream import IOStream

from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.workers import UNPROFILED
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.cells.workers import CHOSEN, FIGURES, SolvedBin

CHUNK_ROWS = 10_000
NOISE = np.random.default_rng(0).integers(0, 256, 1 << 23, np.uint8)  # which no compression makes smaller
SLEPT: Counter[int] = Counter()  # milliseconds by thread, which is one worker
# Many workers in a process share its memory, which says nothing of theirs, and all look at the same loop and system.
SETTINGS = UNPROFILED | {
    f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause", "terminate")
}
SETTINGS |= {"distributed.admin.tick.interval": "10s", "distributed.admin.system-monitor.interval": "60s"}


def sleep(seconds: float) -> None:
    """Sleep instead of computing."""
    time.sleep(seconds)
    SLEPT[threading.get_ident()] += round(1000 * seconds)


def noise(nbytes: int) -> np.ndarray:
    """Return an array of so many bytes."""
    return NOISE[:nbytes]


# What is computed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SleepingStore(Store):
    """A store of which reading and using a chunk takes ``seconds``; its rows have no columns."""

    seconds: float = 0.0

    def buffer(self) -> Any:
        return np.empty(0, np.uint8)

    def read(self, i: int, out: Any = None) -> StoreBlock:
        sleep(self.seconds)
        return self.read_columns(i)

    def read_columns(self, i: int) -> StoreBlock:
        rows = self.chunk_slice(i)
        return StoreBlock(np.empty((rows.stop - rows.start, 0)), np.empty(0), None, rows.start)

    def require_classes(self, what: str) -> None:
        """Its rows have no labels that are read."""


def no_columns(block: StoreBlock) -> tuple[np.ndarray, np.ndarray]:
    """Return no targets and no weights."""
    return np.empty(0), np.empty(0)


@dataclass(frozen=True, eq=False)
class Answer:
    """A sum of fixed size, with what is kept of each block."""

    total: np.ndarray
    kept: tuple[Any, ...] = ()

    def __add__(self, other: Answer) -> Answer:
        return Answer(self.total, self.kept + other.kept)


@dataclass(frozen=True, eq=False)
class Question:
    """A query that carries an array, and answers with ``answer`` bytes and ``kept`` bytes for each block."""

    carried: np.ndarray
    answer: int
    kept: int = 0

    def sums(self, blocks: Iterable[RowBlock], *arguments: Any) -> Answer:
        kept = tuple(noise(self.kept) for _ in blocks)
        return Answer(noise(self.answer), (kept,) if self.kept else ())


@dataclass(frozen=True)
class Everyone:
    """Targets of a store whose rows all take part."""

    y_type: str = "int8"


def count_run(store: Store, targets: Any, group_of: Any, n_groups: int, folder: str, chunks: range) -> np.ndarray:
    """Sleep instead of counting the rows of some chunks in every group, to which the rows of the store go in turn."""
    blocks = [store.read(chunk) for chunk in chunks]
    rows = sum(len(block.X) for block in blocks)
    counts = np.full(n_groups, rows // n_groups)
    first = blocks[0].first % n_groups
    more = rows % n_groups
    counts[first : first + more] += 1
    counts[: max(0, first + more - n_groups)] += 1
    return counts.astype(np.min_scalar_type(counts.max()))


def deal_run(
    store: Store, targets: Any, partitions: Any, folder: str, assign: Any, chunks: range, number: int
) -> np.ndarray:
    """Sleep instead of dealing the rows of a run of chunks."""
    for chunk in chunks:
        store.read(chunk)
    return np.zeros(1, np.int64)


def join(partitions: Any, folder: str, runs: Any, i: int, count: int) -> None:
    """Sleep for 0.4 ms per 1,000 rows instead of writing a piece of a partition."""
    sleep(count * 4e-7)


def solve_bin(bins: Any, number: int) -> SolvedBin:
    """Sleep for 10 ms per 1,000 rows instead of solving a bin, and return cells of 4,096 rows with 4 support rows."""
    rows = bins.partitions.counts[number]
    features = bins.partitions.features
    sleep(rows * 1e-5)
    cells = max(1, rows // 4096)
    support = 4 * cells
    return SolvedBin(
        np.ones((cells - 1, features)), np.ones(cells - 1), np.ones((cells - 1, 2), np.int64), np.arange(support),
        np.ones((1, support)), np.full(cells, 4), np.ones((cells, 1)), np.ones((cells, 1, len(FIGURES))),
        np.ones((cells, 3)), np.ones(cells - 1), np.empty(0), np.empty((1, 0)), np.ones(cells),
        np.ones((cells, len(CHOSEN))),
    )  # fmt: skip


def read_support(partitions: Any, number: int, into: np.ndarray) -> None:
    """Read nothing: the rows of `solve_bin` are zeros."""
    into[:] = 0.0


def remove(partitions: Any, number: int) -> None:
    """Remove nothing, since there are no files."""


@dataclass(frozen=True, eq=False)
class StandInModel:
    """Takes as many bytes as 1,000 landmarks of 50 features."""

    landmarks: np.ndarray = field(default_factory=lambda: noise(200_000))
    outputs: ClassVar[int] = 1

    def value_type(self, dtype: Any) -> Any:
        return dtype

    @property
    def nbytes(self) -> int:
        return self.landmarks.nbytes


def values_of_chunks(model: Any, store: Store, chunks: range) -> np.ndarray:
    """Sleep instead of predicting a run of chunks."""
    return np.concatenate([np.zeros(len(store.read(i).X), np.float32) for i in chunks])


@dataclass(frozen=True, eq=False)
class ScoreQuery:
    """A query that counts all rows as predicted right."""

    model: Any
    store: Store
    classes: Any

    def score(self, blocks: Iterable[RowBlock], threads: int) -> np.ndarray:
        return np.full(2, float(sum(CHUNK_ROWS for _ in blocks)))


# Processes ---------------------------------------------------------------------------------------------------------


class Figures(SchedulerPlugin):
    """Bytes that this process sends and receives, and tasks that its scheduler, if it is one, is given."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.tasks = 0
        for name in ("read_from_fd", "write_to_fd"):
            setattr(IOStream, name, self._counted(name, getattr(IOStream, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any) -> Any:
            found = method(*arguments)
            self.bytes[name] += found or 0
            return found

        return call

    def update_graph(self, scheduler: Any, *, tasks: Any, **more: Any) -> None:
        self.tasks += len(tasks)

    def reset(self) -> None:
        """Begin to count, and forget the peak of memory."""
        self.bytes.clear()
        self.tasks = 0
        self.cpu = time.process_time()
        SLEPT.clear()
        Path("/proc/self/clear_refs").write_text("5")

    def found(self) -> dict[str, float]:
        """Return what was counted since: seconds of processor time, bytes, tasks, peak memory, seconds of sleep."""
        status = Path("/proc/self/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return {
            "cpu": time.process_time() - self.cpu,
            "received": self.bytes["read_from_fd"],
            "sent": self.bytes["write_to_fd"],
            "tasks": self.tasks,
            "peak": 1024 * int(peak[1]),
            "slept": sum(SLEPT.values()) / 1000,
            "longest": max(SLEPT.values(), default=0) / 1000,
        }


def _answer(pipe: Any, figures: Figures, end: Callable[[], None]) -> None:
    """Answer what is asked through a pipe, until that is closed."""
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            break
        pipe.send(getattr(figures, question)())
    end()


def _run(process: Coroutine[Any, Any, None]) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of connections that end with the benchmark
    with dask.config.set(SETTINGS):
        asyncio.run(process)


def _schedule(pipe: Any) -> None:
    async def run() -> None:
        figures = Figures()
        loop = asyncio.get_running_loop()
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            scheduler.add_plugin(figures)
            pipe.send(scheduler.address)
            done = asyncio.Event()
            thread = threading.Thread(target=_answer, args=(pipe, figures, lambda: loop.call_soon_threadsafe(done.set)))
            thread.start()
            await done.wait()
        os._exit(0)

    _run(run())


def _work(pipe: Any, address: str, names: list[int]) -> None:
    async def run() -> None:
        figures = Figures()
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            workers = [
                Worker(
                    address,
                    nthreads=1,
                    name=name,
                    memory_limit="4GB",
                    host="127.0.0.1",
                    dashboard=False,
                    local_directory=folder,
                )
                for name in names
            ]
            for i in range(0, len(workers), 25):
                await asyncio.gather(*workers[i : i + 25])
            pipe.send("ready")
            done = asyncio.Event()
            thread = threading.Thread(target=_answer, args=(pipe, figures, lambda: loop.call_soon_threadsafe(done.set)))
            thread.start()
            await done.wait()
        os._exit(0)  # closing a thousand workers takes a while, and tells nothing

    _run(run())


@contextmanager
def sleeping_cluster(workers: int, processes: int) -> Iterator[tuple[str, list[Any]]]:
    """Start a scheduler and ``workers`` of one thread; yield its address, and pipes to it and to the processes."""
    spawn = multiprocessing.get_context("spawn")

    def start(function: Callable[..., None], *arguments: Any) -> Any:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        stack.callback(process.join, 20)
        stack.callback(ours.close)
        return ours

    with ExitStack() as stack:
        pipes = [start(_schedule)]
        address = pipes[0].recv()
        pipes += [start(_work, address, list(range(p, workers, processes))) for p in range(min(processes, workers))]
        for pipe in pipes[1:]:
            pipe.recv()
        yield address, pipes


def ask(pipes: list[Any], question: str) -> list[Any]:
    """Return the answers of the processes behind ``pipes``."""
    for pipe in pipes:
        pipe.send(question)
    return [pipe.recv() for pipe in pipes]
