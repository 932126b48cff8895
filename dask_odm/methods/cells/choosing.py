"""Compare cells with landmarks, by the rows that each leaves wrong in some regions of the data.

A region is a cell. Its exact machine is compared with the machine in the span of as many landmarks as the whole fit
has, drawn among all rows, over the same rows of the region. They differ in nothing but what the landmarks cannot tell
apart. Both leave every row out in closed form. Many classes have a machine for each class of the region. How large the
regions are follows from counts alone, so that the comparison depends on data and seed.
"""

from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from functools import partial

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.data.rows.targets import drawn_rows
from dask_odm.errors import MemoryLimitError
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.problem.losses import BandLoss, RowLosses
from dask_odm.learning.problem.products import RowProducts
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import rescaling_advised
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.memory import CellMemory, sample_rows
from dask_odm.methods.cells.trials import chosen_cells
from dask_odm.methods.exact.gram import gram_of
from dask_odm.methods.exact.recipe import NEWTON
from dask_odm.methods.left_out import kernel_leverages, left_out
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.pairs.descent import PairValues, descend_pair
from dask_odm.methods.pairs.recipe import solve_pair
from dask_odm.methods.settings import Cells
from dask_odm.typing import Array


def are_possible(data: TrainingData, fit: ODMFit, *, pairs: bool = False) -> bool:
    """Return whether cells could take the place of landmarks, with machines for all ``pairs`` of classes or others.

    The kernel must have a name, a sample more rows than a cell, and workers the memory that landmarks do without.
    """
    cell_rows = min(Cells().most_rows(pairs=pairs), data.labelled_rows)
    if not fit.kernel.is_named or sample_rows(data) < cell_rows:
        return False
    needed = CellMemory(data, fit).cell(cell_rows) + (0 if data.in_memory else 3 * COPIED_BYTES)
    rows = min(2 * _region_rows(data, fit), data.labelled_rows)  # as many as `chosen_cells` draws at most
    region = 8 * rows * (2 * rows + fit.own.n_landmarks) + CellMemory(data, replace(fit, loo=True)).cell(rows)
    here = fit.run.here()
    try:
        data.cluster.require(needed, data.cluster.slots, "Cells")
        here.require(region, min(AUTO.trial_cells, here.slots), "Regions")
    except MemoryLimitError:
        return False
    return True


def gain_of_cells(data: TrainingData, fit: ODMFit, narrower: float = 1.0) -> tuple[float, float]:
    """Return what share of all rows cells get right and landmarks do not, as estimated, and its standard deviation.

    The γ of cells is ``narrower`` times that of landmarks.
    """
    count = fit.own.n_landmarks
    most = AUTO.region_sample * count
    # the first of the rows that a tree of cells is grown on; twice as many from a store, whose number varies
    sample = data.sample(2 * most, data.run.seed).sample(most, data.run.seed).seen_by(fit.kernel)

    def landmarks_of_sample() -> Landmarks:
        found = Landmarks.of(sample.kernel, sample.scaled[drawn_rows(sample.data.kept, count, fit.run.seed)])
        found.prepare()
        return found

    regions_of = partial(chosen_cells, data, sample, fit.kernel, _region_rows(data, fit))
    landmarks, regions = run_threads(lambda make: make(), (landmarks_of_sample, regions_of), CPU_COUNT)

    def difference(region: tuple[MemoryData, float]) -> tuple[float, float]:
        rows, share = region
        odm = replace(fit.odm, lam=fit.odm.lam * rows.total_weight / data.total_weight)
        # nobody hears of its steps
        return Context().run(_difference, rows, replace(fit, odm=odm), landmarks, share, narrower)

    found = np.array(run_threads(difference, regions, CPU_COUNT))
    return float(found[:, 0].sum()), float(np.sqrt(found[:, 1].sum()))


def _region_rows(data: TrainingData, fit: ODMFit) -> int:
    """Return how many rows a region has, about."""
    machines = max(1.0, 0.5 * len(data.class_weights))
    found = round((data.labelled_rows * fit.own.n_landmarks**2 / (AUTO.region_work * machines)) ** (1 / 3))
    return min(Cells().most_rows(pairs=False), max(1, found))


def _difference(
    region: MemoryData, fit: ODMFit, landmarks: Landmarks, share: float, narrower: float
) -> tuple[float, float]:
    """Return what a region that stands for a ``share`` of all rows adds to the gain of cells, and to its variance."""
    if len(np.unique(region.y)) < 2:
        return 0.0, 0.0
    seen = region.seen_by(fit.kernel)
    features = landmarks.features(seen.scaled[np.arange(region.rows)])
    choice = fit.kernel
    if narrower != 1.0:
        choice = replace(choice, gamma=narrower * seen.kernel.parameters()["gamma"])
    with rescaling_advised():
        with region.seen_by(choice).products(NEWTON) as products:
            K = gram_of(products.kernel, products.rows(np.arange(region.rows)), np.dtype(np.float64))
        exact = _wrong(region, fit, K)
        spanned = _wrong(region, fit, features @ features.T)
    each = region.weight * (spanned.astype(np.float64) - exact) * (share / region.total_weight)
    return float(each.sum()), float(np.square(each).sum())


def _wrong(region: MemoryData, fit: ODMFit, K: Array) -> Array:
    """Return which rows of a region exact machines get wrong if they are left out, (n,).

    Their kernel values are ``K`` (n, n). Descent finds most of the solution, as for pairs of classes. Newton's steps
    alone, which are not compiled, would double the time of many classes.
    """
    codes = np.unique(region.y)
    loss = BandLoss(fit.odm, region.total_weight)
    settings = replace(fit.solver, tol=min(fit.solver.tol, AUTO.region_gap))
    products = RowProducts(Precomputed(0.0, K), np.arange(float(len(K)))[:, None], 0)

    def scores(code: float) -> Array:
        positive = region.y == code
        y = np.where(positive, 1.0, -1.0)
        order = np.argsort(positive, kind="stable")
        rest, own = np.split(order, [np.count_nonzero(~positive)])
        across = K[np.ix_(rest, own)]
        values = PairValues(K[np.ix_(rest, rest)], K[np.ix_(own, own)], across, np.ascontiguousarray(across.T))
        losses = RowLosses(fit.odm, y[order], region.weight[order])
        found = descend_pair(losses, values, settings.tol, settings.seed)
        if not found.converged:
            found = solve_pair(losses, values.matrix(), settings, found)
        there = np.empty(len(y))
        there[order] = found.scores
        (_, leverages), _ = kernel_leverages(RowLosses(fit.odm, y, region.weight), products, there)
        return left_out(loss, there, leverages, positive.astype(np.int8), region.weight)[0]

    if len(codes) == 2:
        best = (scores(codes[1]) > 0).astype(np.int64)
    else:
        best = np.argmax([scores(code) for code in codes], axis=0)
    wrong: Array = codes[best] != region.y
    return wrong
