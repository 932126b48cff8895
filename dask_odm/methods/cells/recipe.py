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
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.engine.cluster import FEW_TASKS, Cluster
from dask_odm.engine.partitioners import GroupedPartitioner
from dask_odm.errors import InputError
from dask_odm.events import Meter
from dask_odm.learning.solution import Record, step_record
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.memory_data import MemoryKernelData
from dask_odm.learning.training.recipe import Trained, report_step, require_finite_solution, stopped_at
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.cells.growing import grow, levels_of, places_in, slabs_of
from dask_odm.methods.cells.memory import CellMemory, sample_rows
from dask_odm.methods.cells.workers import (
    CHOSEN,
    FIGURES,
    CellSettings,
    KnownStatistics,
    SolvedBin,
    StoredBins,
    read_support,
    save_start,
    save_support,
    solve_bin,
    solve_stored_bin,
)
from dask_odm.methods.left_out import OF_MACHINE, joined_left_out, of_two_classes, warn_if_hopeful
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.cell_model import CellModel, CellTree
from dask_odm.typing import Array

ADVICE = ("a smaller cell_rows",)
BINS = 64  # of many rows, at least, so that workers and threads end together
SAMPLED_ROWS = 1000  # for each bin, on which the tree of the bins is grown
STEPS = 16  # lines of the history, and checkpoints, of a fit, about


@dataclass(frozen=True, eq=False)
class CellsState:
    """Bins that are solved, as a checkpoint has them: the packed numbers and shapes of each, one after the other."""

    bins: Array  # numbers of the bins, ascending
    sizes: Array  # packed numbers of each
    numbers: Array
    shapes: Array  # (bins, arrays, 3)
    history: list[Record]

    @classmethod
    def of(cls, solved: dict[int, SolvedBin], history: list[Record]) -> CellsState:
        packed = [solved[k].packed() for k in sorted(solved)]
        sizes = np.array([float(len(numbers)) for numbers, _ in packed])
        numbers = np.concatenate([numbers for numbers, _ in packed])
        return cls(np.array(sorted(solved), np.float64), sizes, numbers, np.stack([s for _, s in packed]), history)

    def solved(self) -> dict[int, SolvedBin]:
        """Return the bins; raise ValueError if numbers and shapes do not fit each other."""
        ends = np.cumsum(self.sizes).astype(np.int64)
        numbers = np.split(self.numbers, ends)
        if len(numbers[-1]) or not len(self.bins) == len(self.sizes) == len(self.shapes):
            raise ValueError(f"{len(self.numbers)} numbers of {len(self.bins)} bins")
        bins = self.bins.astype(np.int64).tolist()
        found = zip(bins, numbers, self.shapes, strict=False)  # nothing is left of the numbers
        return {k: SolvedBin.unpacked(own, shapes) for k, own, shapes in found}


def train_cells(data: TrainingData, fit: ODMFit, *, pairs: bool = False) -> Trained:
    """Train one machine for two classes in every cell, or those of many classes, for all ``pairs`` or for each."""
    if fit.kernel.kernel == "linear":
        raise InputError("solver='cells' is for kernels other than 'linear', which solver='newton' learns exactly.")
    fit.kernel.require_named("cells, which divide the space of the features")
    if fit.own.settings == "each" and fit.axes is None:
        raise InputError("Cells(settings='each') needs values to choose from, which ODMClassifierCV has; use that.")
    began = time.perf_counter()
    seen = data.seen_by(fit.kernel)
    factors = data.class_weights
    last = fit.last if fit.last is not None and fit.last.was_of(data) else None
    plain = replace(fit, own=None, last=last, run=replace(fit.run, checkpoint=None, resume=False))
    settings = CellSettings(plain, factors, pairs, data.total_weight, fit.own.most_rows(pairs=pairs), fit.own.overlap)
    fit.require_machines(settings.machines)
    rows = data.labelled_rows
    bin_rows = rows_of_bin(data, settings)
    sample = sampled(data, fit.kernel, fit.run.seed, SAMPLED_ROWS * -(-rows // bin_rows))
    known = None if last is None or last.tree is None else last.tree.rescaled(last.scaling, seen.scaling)
    top, _, grown = grow(sample.scaled, max(1, round(bin_rows * sample.data.rows / rows)), fit.run.seed, known)
    del sample  # a scaled copy of the rows, if these are few
    if known is not None:
        settings = replace(settings, known=known, places=places_in(known, top))
    resume, save = open_steps(f"cells {top.count} {pairs} {fit.loo}", data.fingerprint, fit, CellsState)
    solved: dict[int, SolvedBin] = {}
    history: list[Record] = []
    every = -(-top.count // STEPS)
    if resume is not None:
        try:
            solved, history = resume.solved(), list(resume.history)
        except (ValueError, IndexError):
            require_state(fit, False)
        require_state(fit, all(k < top.count and _fits(each, settings, data) for k, each in solved.items()))
        require_state(fit, all(k in solved for k in range(min(every * len(history), top.count))))
        began -= history[-1]["seconds"]

    def tell() -> None:
        """Add the records of the bins that are solved now, in the order of the bins; save them, and report them."""
        before = len(history)
        while (told := every * len(history)) < top.count:
            after = min(told + every, top.count)
            if not all(k in solved for k in reversed(range(told, after))):  # the last are mostly solved last
                break
            bins = [solved[k] for k in range(after)]
            history.append(_record(bins, len(history), rows, time.perf_counter() - began))
        if len(history) > before and fit.run.checkpoint is not None:
            save(CellsState.of(solved, history))  # all of them, which takes longer the more there are
        for record in history[before:]:
            report_step(record)

    tell()  # of bins that a checkpoint has, but not yet a record of
    with Meter("cells", top.count, "bins") as meter:
        meter.add(len(solved))
        lock = threading.Lock()
        ended = False
        context = copy_context()  # in which records are heard, from whatever thread

        def keep(k: int, each: SolvedBin) -> None:
            nonlocal ended
            with lock:
                if ended:  # by what a callback raised: nothing is told after that
                    return
                ended = True
                solved[k] = each
                meter.add()
                context.run(tell)
                ended = False

        support = _solve_bins(seen, top, solved, settings, keep)
    return _finish(seen, top, grown, [solved[k] for k in range(top.count)], support, history, settings)


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


def _solve_bins(
    seen: KernelData,
    top: CellTree,
    solved: dict[int, SolvedBin],
    settings: CellSettings,
    keep: Callable[[int, SolvedBin], None],
) -> Any:
    """Solve the bins that are not yet ``solved``, and return the raw support rows of all, in the order of the bins.

    ``keep``, which adds to those that are solved, is called with number and solution of each, in any order.
    """
    data = seen.data
    left = [k for k in range(top.count) if k not in solved]
    held = data.held
    whole = KnownStatistics(data.statistics())
    if held is not None:
        bins = np.concatenate(run_threads(lambda span: top(seen.scaled[span]), slabs_of(seen.scaled), CPU_COUNT))
        largest = int(np.bincount(bins).max())
        memory = CellMemory(data, settings.fit, settings.machines)
        # few bins of one cell each are fewer cells than there are threads, of which a cell then takes several
        together = CPU_COUNT if largest > settings.cell_rows else min(CPU_COUNT, max(1, len(left)))
        of_cell_threads = CPU_COUNT // together
        needed = memory.bin(largest, 1, settings.cell_rows, of_cell_threads)
        cluster = data.cluster.without(data.held_bytes())
        cluster.require(needed, together, f"A bin of {largest} rows", ADVICE)
        left_to_cell = cluster.share(together)[0] - memory.solved(largest)
        of_cell = replace(held.run, memory_limit=left_to_cell, threads=of_cell_threads)
        factors = tuple(1.0 for _ in held.factors)
        plain = replace(held, run=of_cell, weight=held.total_weights, factors=factors, whole=whole)

        def solve(k: int) -> None:
            # a thread that finds no other bin takes cells of this one
            keep(k, solve_bin(plain._at(np.flatnonzero(bins == k)), settings, k, CPU_COUNT))

        run_threads(solve, left, CPU_COUNT)
        numbers = np.concatenate([solved[k].numbers for k in range(top.count)]).astype(np.int64)
        return held.raw(np.searchsorted(held.kept, numbers))
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
        last = settings.fit.last
        start = ""
        if last is not None:
            start = os.path.join(partitions.path, "start-")
            spans = slabs_of(last.rows)
            of_rows = run_threads(lambda span: top(seen.scaling(last.rows[span])), spans, CPU_COUNT)
            save_start(start, last, np.concatenate(of_rows), top.count)
        settings = replace(settings, fit=replace(settings.fit, run=of_cell, last=None))
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


def _fits(solved: SolvedBin, settings: CellSettings, data: TrainingData) -> bool:
    """Return whether a bin of a checkpoint has the shapes of one of this fit."""
    cells = solved.thresholds.size + 1
    machines = settings.machines
    support = solved.numbers.size
    left = solved.left_rows.size
    shapes = {
        "planes": (cells - 1, data.features),
        "numbers": (support,),
        "coefficients": (machines, support),
        "sizes": (cells,),
        "intercept": (cells, machines),
        "figures": (cells, machines, len(FIGURES)),
        "counts": (cells, 3),
        "seconds": (cells - 1,),
        "left_rows": (left,),
        "left": (machines, left),
        "parameters": (cells,),
        "chosen": (cells, len(CHOSEN)),
    }
    try:
        solved.tree.require_sound()
    except ValueError:
        return False
    if any(getattr(solved, name).shape != shape for name, shape in shapes.items()):
        return False
    given = data.row_numbers[0]
    numbers = np.concatenate([solved.numbers, solved.left_rows])
    inside = not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < given)
    whole = solved.sizes.sum() == support and bool((solved.sizes >= 0).all() and (solved.chosen >= 0).all())
    return inside and whole


def _gaps(bins: list[SolvedBin]) -> tuple[Array, Array, Array]:
    """Return P and D of every machine over all cells, and the gap of every cell's worst machine."""
    figures = np.concatenate([each.figures for each in bins])
    primal = figures[:, :, 0]
    short = np.maximum(primal - figures[:, :, 1], 0.0)
    gaps = (short / np.maximum(primal, np.finfo(np.float64).tiny)).max(axis=1)
    return primal.sum(axis=0), short.sum(axis=0), gaps


def _record(bins: list[SolvedBin], number: int, rows: int, seconds: float) -> dict[str, Any]:
    """Return the record of the bins that are solved so far."""
    primal, short, gaps = _gaps(bins)
    counts = np.concatenate([each.counts for each in bins])
    done = int(counts[:, 0].sum())
    gap = float((short / np.maximum(primal, np.finfo(np.float64).tiny)).max())
    told = step_record(number, gap, float(primal.sum()), done / rows, seconds)
    return told | {
        "rows": done,
        "cells": len(counts),
        "mean_rows": float(counts[:, 0].mean()),
        "mean_classes": float(counts[:, 1].mean()),
        "worst_gap": float(gaps.max()),
        "mean_gap": float(gaps.mean()),
    }


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
    if not coefficients.shape[1]:
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
    gaps = _gaps(bins)[2]
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
    codes = np.zeros(total, np.int64)
    codes[at] = y if len(settings.factors) > 2 else y > 0
    parameters = float(sum(each.parameters.sum() for each in bins))
    if settings.machines == 1:
        shares = counted / np.array(settings.factors)[codes]
        warn_if_hopeful(parameters, int(np.count_nonzero(counted)))
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
    return joined_left_out(machines, pairs=settings.pairs)
