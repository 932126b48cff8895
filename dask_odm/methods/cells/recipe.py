"""Recipe of cells: rows are divided into bins by a tree, once, and the cells of every bin are solved where they are.

The tree of the bins is grown on a sample of the rows. Rows in memory are looked up in it; rows of a store are shuffled
once, so that every bin is a partition on disk. A bin grows its own tree over all of its rows, down to the cells. Bins
share nothing: threads take bins of rows in memory, workers those of a store. Neither the number of threads nor of
workers changes a bit.

What is certified is the decomposed problem: P and D are sums over the cells. They say nothing of one machine for all
rows. Sources: see `dask_odm.methods.cells.growing`; Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel
support vector machines* (ICML 2014), whose early prediction is the same with kernel k-means for the tree.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.storage.files import save_array
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.futures import FEW_TASKS
from dask_odm.engine.partitioners import GroupedPartitioner
from dask_odm.errors import InputError
from dask_odm.learning.solution import Record, StepClock
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.memory_data import MemoryKernelData
from dask_odm.learning.training.recipe import Trained, require_finite_solution, stopped_at
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.cells.growing import grow, levels_of, places_in, slabs_of
from dask_odm.methods.cells.memory import CellMemory, sample_rows
from dask_odm.methods.cells.solved_bins import BinLog, CellsState, Keep, gaps_of
from dask_odm.methods.cells.workers import (
    CHOSEN,
    CellSettings,
    KnownStatistics,
    SolvedBin,
    StoredBins,
    read_support,
    save_support,
    solve_bin,
    solve_stored_bin,
)
from dask_odm.methods.left_out import OF_MACHINE, joined_left_out, of_two_classes, spread, warn_if_hopeful
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.cell_model import CellModel, CellTree
from dask_odm.typing import Array

ADVICE = ("a smaller cell_rows",)
BINS = 64  # of many rows, at least, so that workers and threads end together
SAMPLED_ROWS = 1000  # for each bin, on which the tree of the bins is grown


def train_cells(data: TrainingData, fit: ODMFit, *, pairs: bool = False) -> Trained:
    """Train one machine in every cell, or those of many classes, for all ``pairs`` or for each."""
    if fit.kernel.kernel == "linear":
        raise InputError("solver='cells' is for kernels other than 'linear', which solver='newton' learns exactly.")
    fit.kernel.require_named("cells, which divide the space of the features")
    if fit.own.settings == "each" and fit.axes is None:
        raise InputError("Cells(settings='each') needs values to choose from, as ODMClassifierCV alone has.")
    clock = StepClock()
    seen = data.seen_by(fit.kernel)
    factors = data.class_weights
    last = fit.last if fit.last is not None and fit.last.was_of(data) else None
    plain = replace(fit, own=None, last=last, run=replace(fit.run, checkpoint=None, resume=False))
    settings = CellSettings(plain, factors, pairs, data.total_weight, fit.own.most_rows(pairs=pairs), fit.own.overlap)
    fit.require_machines(settings.machines)
    rows = data.labelled_rows
    bin_rows = rows_of_bin(data, settings)
    sample = sampled(data, fit.kernel, fit.run.seed, SAMPLED_ROWS * -(-rows // bin_rows))
    known = None
    if last is not None and last.tree is not None and last.scaling.sees_alike(seen.scaling):
        known = last.tree.rescaled(last.scaling, seen.scaling)
    top, _, grown = grow(sample.scaled, max(1, round(bin_rows * sample.data.rows / rows)), fit.run.seed, known)
    del sample  # a scaled copy of the rows, if these are few
    if known is not None:
        settings = replace(settings, known=known, places=places_in(known, top))
    resume, save = open_steps(f"cells {top.count} {pairs} {fit.loo}", data.fingerprint, fit, CellsState)
    log = BinLog(top.count, rows, clock, None if fit.run.checkpoint is None else save)
    require_state(fit, resume is None or log.resume(resume, settings, data))
    with log.kept() as keep:
        left = [k for k in range(top.count) if k not in log.solved]
        solve: Any = _solve_in_memory if isinstance(seen, MemoryKernelData) else _solve_stored
        support = solve(seen, top, left, log.solved, settings, keep)
    return _finish(seen, top, grown, [log.solved[k] for k in range(top.count)], support, log.history, settings)


def rows_of_bin(data: TrainingData, settings: CellSettings) -> int:
    """Return how many rows a bin has at most, about.

    All their copies have `COPIED_BYTES`. If cells overlap, each copy has, since a cell does not see rows of other bins.
    """
    most = sample_rows(data)
    found = min(16 * settings.cell_rows, most) if settings.overlap else min(data.labelled_rows // BINS, most // 3)
    return max(settings.cell_rows, found)


def cells_tasks(cluster: Cluster) -> int:
    """Return the number of tasks that solve the bins of a store, as many for each thread; they differ in time."""
    return cluster.slots * -(-2 * FEW_TASKS // cluster.slots)


def sampled(data: TrainingData, choice: KernelChoice, seed: int, rows: float = math.inf) -> MemoryKernelData:
    """Return the sample that a tree is grown on, as the kernel sees it: about ``rows``, and bounded in bytes."""
    return data.sample(int(min(rows, sample_rows(data))), seed).seen_by(choice)


def _solve_in_memory(
    seen: MemoryKernelData, top: CellTree, left: list[int], solved: dict[int, SolvedBin], settings: CellSettings,
    keep: Keep,
) -> Any:  # fmt: skip
    """Solve the bins that are ``left``, which ``keep`` adds to those ``solved``; return the raw support rows of all."""
    data = seen.data
    bins = np.concatenate(run_threads(lambda span: top(seen.scaled[span]), slabs_of(seen.scaled), CPU_COUNT))
    largest = int(np.bincount(bins).max())
    memory = CellMemory(data, settings.fit, settings.machines)
    # few bins of one cell each are fewer cells than there are threads, of which a cell then takes several
    together = CPU_COUNT if largest > settings.cell_rows else min(CPU_COUNT, max(1, len(left)))
    of_cell_threads = CPU_COUNT // together
    cluster = data.cluster.without(data.held_bytes())
    needed = memory.bin(largest, 1, settings.cell_rows, of_cell_threads)
    cluster.require(needed, together, f"A bin of {largest} rows", ADVICE)
    left_to_cell = cluster.share(together)[0] - memory.solved(largest)
    of_cell = replace(data.run, memory_limit=left_to_cell, threads=of_cell_threads)
    plain = replace(data.weighed(), run=of_cell, whole=KnownStatistics(data.statistics(settings.fit.kernel.scale)))

    def solve(k: int) -> None:
        # a thread that finds no other bin takes cells of this one
        keep(k, solve_bin(plain._at(np.flatnonzero(bins == k)), settings, k, CPU_COUNT))

    run_threads(solve, left, CPU_COUNT)
    numbers = np.concatenate([solved[k].numbers for k in range(top.count)]).astype(np.int64)
    return data.raw(np.searchsorted(data.kept, numbers))


def _solve_stored(
    seen: KernelData, top: CellTree, left: list[int], solved: dict[int, SolvedBin], settings: CellSettings, keep: Keep
) -> Array:
    """Solve bins that are partitions on disk, as `_solve_in_memory` does others."""
    data = seen.data
    by_bin = GroupedPartitioner(top, top.count, settings.fit.run.seed, shuffled=False)
    with seen.partitions(by_bin) as rows:
        partitions = rows.partitions
        assert isinstance(partitions, StoredPartitions)
        cluster = rows.cluster
        largest = max(partitions.counts)
        memory = CellMemory(data, settings.fit, settings.machines)
        cells = max(1, data.labelled_rows // (top.count * settings.cell_rows))  # of a bin, about
        group = max(1, min(len(left), -(-CPU_COUNT // cells) if cluster.client is None else len(left)))
        available, threads = cluster.share(group)
        needed = memory.bin(largest, threads, settings.cell_rows)
        cluster.require(needed, group, f"A bin of {largest} rows", ADVICE)
        of_cell = replace(settings.fit.run, memory_limit=(available - memory.solved(largest)) // threads, threads=1)
        start = _saved_start(seen, top, partitions.path, settings)
        settings = replace(settings, fit=replace(settings.fit, run=of_cell, last=None))
        whole = KnownStatistics(data.statistics(settings.fit.kernel.scale))
        told = StoredBins(partitions, whole, settings, threads, start)
        for k, each in solved.items():
            save_support(partitions, k, each)
        for i in range(0, len(left), group):
            some = left[i : i + group]
            ones = [(k,) for k in some]
            for first, found in cluster.finished(
                solve_stored_bin, ones, cells_tasks(cluster), "bins", told, folder=partitions.path
            ):
                for k, each in zip(some[first:], found, strict=False):
                    keep(k, each)
                    partitions.remove(k)
        ends = np.cumsum([0, *(solved[k].numbers.size for k in range(top.count))])
        raw = np.empty((int(ends[-1]), data.features), partitions.dtype)
        run_threads(lambda k: read_support(partitions, k, raw[ends[k] : ends[k + 1]]), range(top.count), CPU_COUNT)
        return raw


def _saved_start(seen: KernelData, top: CellTree, folder: str, settings: CellSettings) -> str:
    """Save the last fit's rows of every bin, for tasks; return the path prefix of the files, or "" without any."""
    last = settings.fit.last
    if last is None:
        return ""
    start = os.path.join(folder, "start-")
    of_rows = run_threads(lambda span: top(seen.scaling(last.rows[span])), slabs_of(last.rows), CPU_COUNT)
    bins = np.concatenate(of_rows)
    for k in range(top.count):
        own = np.flatnonzero(bins == k)
        save_array(f"{start}{k}.npy", np.vstack([last.numbers[own], last.coefficients[:, own]]))
    return start


def _finish(
    seen: KernelData,
    top: CellTree,
    grown: Array,
    bins: list[SolvedBin],
    support: Any,
    history: list[Record],
    settings: CellSettings,
) -> Trained:
    data = seen.data
    fit = settings.fit
    coefficients = np.concatenate([each.coefficients for each in bins], axis=1)
    intercept = np.concatenate([each.intercept for each in bins])
    require_finite_solution(coefficients, intercept)
    if not coefficients.shape[1] and settings.factors:
        raise InputError("no cell has rows of two classes: choose a larger cell_rows, or solver='exact'.")
    numbers = np.concatenate([each.numbers for each in bins]).astype(np.int64)
    figures = np.concatenate([each.figures for each in bins])
    tree = top.grafted([each.tree for each in bins])
    chosen = np.concatenate([each.chosen for each in bins])
    model = CellModel(
        replace(seen.kernel, bias=0.0),
        seen.scaling,
        support,
        coefficients,
        intercept,
        len(settings.factors) if settings.pairs else 0,
        bool(figures[:, :, 3].any()),
        tree=tree,
        starts=np.cumsum([0, *np.concatenate([each.sizes for each in bins])]).astype(np.int64),
        gammas=np.where(chosen[:, 0] > 0, chosen[:, 0], seen.kernel.parameters()["gamma"]),
    )
    gaps = gaps_of(bins)[2]
    cell_rows = np.concatenate([each.counts[:, 2] for each in bins]).astype(np.int64)
    levels = levels_of(tree, cell_rows, np.concatenate([grown, *(each.seconds for each in bins)]))
    attributes = {
        "dual_gap_": history[-1]["gap"],
        "history_": levels + history,
        "n_iter_": max(1, int(figures[:, :, 2].max())),
        "support_": numbers,
    }
    if fit.axes is not None:
        attributes |= _searched(chosen, np.concatenate([each.counts for each in bins]), settings)
    warning = None
    over = int(np.count_nonzero(gaps > fit.solver.tol))
    if over:
        warning = (
            f"{over} of {len(gaps)} cells stopped short. {stopped_at(float(gaps.max()), fit.solver.tol)} Increase "
            f"max_iter ({fit.solver.max_iter} steps), scale the features, or decrease lam."
        )
    return Trained(model, attributes | _left_out(data, bins, settings), warning)


def _searched(chosen: Array, counts: Array, settings: CellSettings) -> dict[str, Any]:
    """Return the fitted attributes of cells that have found their settings: these, and the mean score of all rows."""
    several = counts[:, 1] > 1
    names = ("gamma", "lam", "upsilon", "theta")
    columns = chosen[:, :-1] * np.where(np.array(CHOSEN[:-1]) == "share", settings.total_weight, 1.0)
    params = {name: np.where(several, column, np.nan).tolist() for name, column in zip(names, columns.T, strict=True)}
    score = np.average(np.where(several, chosen[:, -1], 1.0), weights=counts[:, 0])  # a constant is right everywhere
    return {"cell_params_": params, "best_score_": float(score)}


def _left_out(data: TrainingData, bins: list[SolvedBin], settings: CellSettings) -> dict[str, Any]:
    """Return the fitted attributes of leave-one-out, with one link for all cells."""
    if not settings.fit.loo:
        return {}
    total, kept = data.row_numbers
    numbers = np.concatenate([each.left_rows for each in bins]).astype(np.int64)
    scores = np.full((settings.machines, total), np.nan)
    scores[:, numbers] = np.concatenate([each.left for each in bins], axis=1)
    taking, y, weight = data.taking_part
    at = taking if kept is None else kept[taking]
    counted = np.zeros(total)
    counted[at] = weight
    parameters = float(sum(each.parameters.sum() for each in bins))
    if settings.machines == 1:
        warn_if_hopeful(parameters, int(np.count_nonzero(counted)))
    if not settings.factors:
        return {OF_MACHINE: (scores[0], spread(y, total, at), counted), "loo_parameters_": parameters}
    codes = np.zeros(total, np.int64)
    codes[at] = y if len(settings.factors) > 2 else y > 0
    if settings.machines == 1:
        shares = counted / np.array(settings.factors)[codes]
        return of_two_classes(scores[0], codes == 1, counted, shares, parameters)
    classes = len(settings.factors)
    positive = list(range(classes))
    if settings.pairs:
        pairs = list(combinations(range(classes), 2))
        positive = [b for _, b in pairs]
        for of_pair, pair in zip(scores, pairs, strict=True):  # a row has values of the machines of its own class
            of_pair[~np.isin(codes, pair)] = np.nan
    machines = [
        {OF_MACHINE: (scores[i], codes == code, counted), "loo_parameters_": parameters / settings.machines}
        for i, code in enumerate(positive)
    ]
    return joined_left_out(machines)
