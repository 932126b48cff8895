"""Tell the seconds, memory and tasks that a fit over many rows takes on so many workers, from short fits here.

A solver learns a few made-up rows of as many features, and then more, by passes over a store. The processor time that
the more rows take is what a row costs a thread in a pass; the rest does not depend on rows, and is the client's. A pass
takes as long as its longest task. Client and scheduler take their time for every task, and for what travels. Memory and
numbers of tasks are the engine's own projections. Nothing is known here of data that take more steps than the made-up
ones, of storage that is slower than memory, and of workers slower than this machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dask

from dask_odm.data.ingest import ingest
from dask_odm.data.store.layout import Layout, rows_of_chunk
from dask_odm.data.store.statistics import TargetFacts
from dask_odm.data.store.store import Store
from dask_odm.datasets import make_chessboard, make_overlapping, make_shells
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.limits import USABLE, baseline_bytes
from dask_odm.engine.passes import StorePasses, groups_of
from dask_odm.engine.pivot_passes import proposal_bytes
from dask_odm.engine.shuffle import shuffle_bytes
from dask_odm.engine.workers import local_workers
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.odm_regressor import ODMRegressor
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES, PrimalProblem
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.learning.training.run import KernelChoice
from dask_odm.linalg.row_passes import PassBytes, tree_nodes
from dask_odm.methods.cells.memory import CellMemory
from dask_odm.methods.cells.recipe import cells_tasks, rows_of_bin
from dask_odm.methods.cells.workers import CellSettings
from dask_odm.methods.landmark.memory import LandmarkMemory
from dask_odm.methods.landmark.query import drawn_bytes
from dask_odm.methods.landmark.sketch import SKETCH
from dask_odm.methods.landmark.solver import FIRST_STRIDE, start_rows
from dask_odm.methods.settings import Cells, Landmark

# Numbers in the rows of the larger fit here, and the most rows: so many take the processor about a second.
NUMBERS = {"newton": (20_000_000, 1_000_000), "landmark": (10_000_000, 300_000), "cells": (4_000_000, 40_000)}
ENOUGH = 0.8  # efficiency below which more workers are not worth it


@dataclass(frozen=True)
class Costs:
    """Measured costs of a solver: fixed seconds, seconds of a thread for each row in a pass, and passes.

    ``support`` is the share of the rows that the model keeps.
    """

    fixed: float
    row: float
    passes: float
    support: float


@dataclass(frozen=True)
class Machine:
    """Measured costs of a machine: seconds of client and scheduler for a task, bytes of idle workers and clients."""

    hop: float
    worker: int
    client: int


@dataclass(frozen=True)
class Plan:
    """Planned costs of a fit: seconds, core-hours of the workers, passes, tasks, and bytes of each process.

    ``worker_bytes`` are the least limit of a worker under which the fit is not refused, and ``fits`` says whether the
    given one is as large. ``efficiency`` is the share of the time for which workers compute, and ``enough`` how many
    workers compute for 0.8 of it.
    """

    solver: str
    seconds: float
    core_hours: float
    efficiency: float
    enough: int
    passes: float
    tasks: int
    worker_bytes: int
    client_bytes: int
    scheduler_bytes: int
    fits: bool


def measured_machine() -> Machine:
    """Return the time of a task and the memory of processes, measured here by one worker process."""
    limit = 1_000_000_000
    with local_workers(1, memory_limit=limit):
        cluster = Cluster.current(limit)
        hops = 200  # tasks that do nothing, as those of a pass
        taken = []
        for _ in range(3):
            serial = uuid4().hex
            keys = [f"hop-{serial}-{i}" for i in range(hops)]
            graph: dict[str, Any] = dict.fromkeys(keys, (abs, -1))
            graph[f"hops-{serial}"] = (sum, keys)
            began = time.process_time()  # the scheduler is in this process
            assert list(cluster.done(cluster.started(graph, [f"hops-{serial}"]))) == [(0, hops)]
            taken.append(time.process_time() - began)
    return Machine(min(taken) / hops, int(USABLE * limit) - cluster.memory, baseline_bytes(lambda: None))


def measured_costs(solver: str, features: int, *, real: bool = False) -> Costs:
    """Return the costs of a solver of `NUMBERS`, from fits of made-up rows here, in seconds of the processor."""
    numbers, most = NUMBERS[solver]
    many = max(2000, min(most, numbers // features))
    with tempfile.TemporaryDirectory() as folder, dask.config.set({"dask_odm.read-into-memory": 0}):
        _fitted(solver, 2000, features, folder, real)  # compiles
        first, _, before = _fitted(solver, many // 4, features, folder, real)
        second, support, passes = _fitted(solver, many, features, folder, real)
    # the lesser fit may take more passes, and what is measured is never exact
    row = max(second - first, 0.1 * second) / max(passes * many - before * (many // 4), 0.5 * passes * many)
    return Costs(max(0.0, second - passes * many * row), row, passes, support / many)


def _fitted(solver: str, rows: int, features: int, folder: str, real: bool = False) -> tuple[float, int, float]:
    """Fit ``rows`` made-up rows; return seconds of the processor, support rows, and passes."""
    path = os.path.join(folder, f"{rows}.zarr")
    if solver == "newton":
        made: Any = make_overlapping(rows, features, accuracy=0.8)
        settings: Any = {"kernel": "linear", "scale": None}
    elif solver == "landmark":
        made = make_shells(rows, features)
        settings = {"solver": Landmark(), "scale": "standard", "theta": 0.2}
    else:  # squares of two thousand rows
        squares = max(2, round((rows / 2000) ** 0.5))
        made = make_chessboard(rows, max(2, features), n_squares=squares)
        settings = {"solver": Cells(), "scale": None, "gamma": 8.0, "theta": 0.3}
    X, y = made
    estimator: Any = ODMClassifier
    if real:
        y, estimator = (y == y[0]) * 1.0, ODMRegressor
        settings["theta"] = 0.0
    ingest((X, y), path, target="real" if real else "classes", overwrite=True)
    model = estimator(**settings, lam=0.1 * rows, random_state=0)
    began = time.process_time()
    model.fit(path)
    seconds = time.process_time() - began
    return seconds, len(getattr(model, "support_", ())), float(model.history_[-1].get("passes", 1))


@dataclass(frozen=True)
class _Work:
    """Work that a fit makes for a cluster, apart from what each row costs.

    ``longest`` is the share of the rows that the busiest thread has. ``sent`` are the bytes that pass the client in the
    whole fit; the others are those of a task, and of client and scheduler beside what they have before.
    """

    longest: float
    tasks: int
    sent: float
    task_bytes: int
    client_bytes: float
    scheduler_bytes: float


@dataclass(frozen=True)
class Asked:
    """Question to a plan: a number of rows to learn from, and of workers of one thread with so many bytes each."""

    rows: int
    features: int
    workers: int
    memory: int
    real: bool = False  # whether targets are real


def planned(solver: str, costs: Costs, machine: Machine, asked: Asked) -> Plan:
    """Return the plan of a fit by a solver of `NUMBERS`."""
    rows = asked.rows
    free = int(USABLE * asked.memory) - machine.worker
    chunk_rows = min(rows, rows_of_chunk(None, asked.features, "float32"))
    layout = Layout(rows, asked.features, chunk_rows, "float32", "float64" if asked.real else "int8")
    counts = rows // 2, rows - rows // 2
    facts = TargetFacts(None, None, None, rows, rows) if asked.real else TargetFacts((0, 1), counts, None, rows)
    store = Store("/nowhere", "store", "0" * 64, layout, facts, "", None)
    thread_seconds = costs.passes * rows * costs.row

    def on(count: int) -> tuple[_Work, float, float]:
        """Return work, seconds and efficiency of ``count`` workers."""
        cluster = Cluster(None, count, 1, free, asked.memory)
        work = _WORK[solver](store, cluster, costs)
        # client and scheduler pass on 90 MB of a pass in .75 s (benchmarks/scale.py)
        seconds = costs.fixed + thread_seconds * work.longest + machine.hop * work.tasks + work.sent / 1e8
        return work, seconds, thread_seconds / count / seconds

    enough, most = 1, 2
    while on(most)[2] >= ENOUGH:
        enough, most = most, 2 * most
    while most - enough > 1:
        middle = (enough + most) // 2
        enough, most = (middle, most) if on(middle)[2] >= ENOUGH else (enough, middle)
    work, seconds, efficiency = on(asked.workers)
    return Plan(
        solver,
        seconds,
        seconds * asked.workers / 3600,
        efficiency,
        enough,
        costs.passes,
        work.tasks,
        int((machine.worker + work.task_bytes) / USABLE),
        int(machine.client + work.client_bytes),
        int(machine.worker + 55_000 * asked.workers + work.scheduler_bytes),  # benchmarks/scale.py
        work.task_bytes <= free,
    )


def _newton(store: Store, cluster: Cluster, costs: Costs) -> _Work:
    passes = StorePasses(store, cluster)
    problem = PrimalProblem(FeatureMap(store.features, 1.0), BandLoss(ODMSettings(1.0, 0.0, 0.0), 1.0), passes)
    forms = problem.k <= EXACT_FEATURES and passes.fits(problem.pass_bytes("full"))
    needed = problem.pass_bytes("full" if forms else "diagonal")
    return _by_passes(passes, costs.passes, needed, needed.sums)


def _landmark(store: Store, cluster: Cluster, costs: Costs) -> _Work:
    n = store.rows
    r = min(n, Landmark().n_landmarks)
    row = store.features, store.dtype.itemsize
    memory = LandmarkMemory(r, n, *row)
    passes = StorePasses(store, cluster)
    sent = SKETCH * r * drawn_bytes(*row)  # about, since one or two passes of a dozen draw all rows of a sample
    work = _by_passes(passes, costs.passes, memory.streamed(start_rows(n, r)), sent, memory.solve(), kept=True)
    drawing = proposal_bytes(store, -(-r // FIRST_STRIDE), store.dtype.itemsize, "uniform")
    return replace(work, task_bytes=max(work.task_bytes, drawing))


def _by_passes(
    passes: StorePasses, count: float, needed: PassBytes, nbytes: int, held: float = 0.0, *, kept: bool = False
) -> _Work:
    """Return the work of ``count`` passes with sums of ``nbytes``, and perhaps values that are ``kept`` on workers."""
    store = passes.store
    groups = groups_of(store)
    levels = passes.levels(nbytes, kept=kept)
    longest = max(groups[run.stop - 1].stop - groups[run.start].start for run in levels[0])
    rounds = -(-len(levels[0]) // passes.cluster.slots)
    sent = nbytes * sum(len(tree_nodes((0, g, 0) for g in run)) for run in levels[-1])
    return _Work(
        rounds * longest / store.n_chunks,
        round(count * sum(map(len, levels))),
        count * sent,
        passes.task_bytes(needed),
        held + sent,
        sent / 2,  # as was measured
    )


def _cells(store: Store, cluster: Cluster, costs: Costs) -> _Work:
    """Return the work of a shuffle to bins and of their solution, which meets in the client."""
    data: Any = SimpleNamespace(features=store.features, dtype=store.dtype, labelled_rows=store.rows, in_memory=False)
    fit: Any = SimpleNamespace(axes=None, loo=False, kernel=KernelChoice("rbf"))
    cell_rows = min(store.rows, Cells().most_rows(pairs=False))
    settings = CellSettings(fit, (1.0, 1.0), False, 1.0, cell_rows, 0.0)
    bin_rows = rows_of_bin(data, settings)
    bins = 1 << (-(-store.rows // bin_rows) - 1).bit_length()
    runs = min(store.n_chunks, cluster.tasks)
    tasks = min(bins, cells_tasks(cluster))
    support = costs.support * store.rows
    return _Work(
        -(-bins // cluster.slots) / bins,
        2 * runs + min(bins, cluster.tasks) + tasks,
        # numbers and coefficients, how many rows each run has of a bin, and sums of what was written: all by files
        16 * support + 6 * runs * bins,
        max(shuffle_bytes(store), CellMemory(data, fit, settings.machines).bin(bin_rows, 1, cell_rows)),
        support * (store.features * store.dtype.itemsize + 32),  # benchmarks/cells_store.py
        0.0,
    )


_WORK = {"newton": _newton, "landmark": _landmark, "cells": _cells}
