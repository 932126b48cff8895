"""Compare two solvers by trials: both learn from a third of the rows, and predict the others. Try settings on cells.

A trial also has a third of the landmarks, and of the rows of a cell. So rows are as many for each landmark as in a fit,
and cells as many, but a trial takes about a tenth of the time. Neither solver has learned from the rows that judge it,
so that the comparison holds for any λ and any kernel. It depends on data and seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.data.rows.targets import drawn_rows
from dask_odm.errors import MemoryLimitError
from dask_odm.learning.machines import joined_attributes, train_machines
from dask_odm.learning.training.memory_data import MemoryData, MemoryKernelData
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.growing import grow, slabs_of
from dask_odm.methods.cells.memory import CellMemory, sample_rows
from dask_odm.methods.cells.recipe import sampled
from dask_odm.methods.exact.systems import LIMITS
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.search.axes import TUNING
from dask_odm.methods.search.trials import LeftOut, Splits, accuracy, explained, trial_rows
from dask_odm.methods.settings import Cells
from dask_odm.models.predict import code_block, finite_values
from dask_odm.typing import Array


def are_possible(data: TrainingData, fit: ODMFit) -> bool:
    """Return whether cells could take the place of landmarks.

    The kernel must have a name, a sample more rows than a cell, and workers the memory that landmarks do without.
    """
    cell_rows = min(Cells().most_rows(pairs=fit.has_pairs(data)), data.labelled_rows)
    if not fit.kernel.is_named or sample_rows(data) < cell_rows:
        return False
    needed = CellMemory(data, fit).cell(cell_rows) + (0 if data.in_memory else 3 * COPIED_BYTES)
    try:
        data.cluster.require(needed, data.cluster.slots, "Cells")
    except MemoryLimitError:
        return False
    return True


def gain_of(
    other: Choice[ODMFit], choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, narrower: float = 1.0
) -> tuple[float, float, bool]:
    """Return the share of rows that ``other`` gets right beyond ``choice``, its standard error, and whether it may tie.

    Two tie that differ on few rows beside those outside the largest class, if ``choice`` takes many passes. Of real
    targets, the gain is a share of the loss of their mean. The γ of ``other`` is ``narrower`` times that of
    ``choice``. Raises MemoryLimitError or InputError if a trial cannot be made.
    """
    trial = _Trial(data, fit)
    if len(trial.classes) == 1:
        return 0.0, 0.0, False
    # nobody hears of the steps of a trial
    of_other, _ = Context().run(trial.right, other, narrower)
    of_choice, passes = Context().run(trial.right, choice, 1.0)
    more = (of_other - of_choice) * trial.shares
    rarer = 1.0 - np.bincount(np.unique(trial.y, return_inverse=True)[1], trial.shares).max()
    tie = np.abs(more).sum() <= AUTO.agreeing * rarer and passes * (len(trial.classes) - 1) >= AUTO.many_passes
    return float(more.sum()), float(np.sqrt(more @ more)), bool(tie)  # error of a gain of 0: one row is in doubt


def right_of(choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, known: Any = None) -> tuple[Array, Array]:
    """Return which rows a trial gets right, or minus their loss, (n,), and their shares; raises as `gain_of`.

    With the numbers of rows ``known`` to a metric, even none, it learns two thirds of the rows, with all of these.
    """
    trial = _Trial(data, fit, known)
    return Context().run(trial.right, choice, 1.0)[0], trial.shares


def learned_rows(data: TrainingData, *, apart: bool) -> int:
    """Return how many rows of a sample a trial learns: a third, or two thirds ``apart`` from those that judge."""
    most = min(TUNING.rows[1] if apart else AUTO.trial_rows, sample_rows(data), data.rows)
    return most - most // AUTO.trial_part if apart else most // AUTO.trial_part


class _Trial:
    """A third of a sample of the rows, from which solvers learn, and the others, which they predict.

    With ``known`` rows, it is two thirds, of at most as many rows as a search has in its larger sample.
    """

    def __init__(self, data: TrainingData, fit: ODMFit, known: Any = None) -> None:
        self._data = data
        self._fit = fit
        seed = data.run.seed
        most = min(AUTO.trial_rows if known is None else TUNING.rows[1], sample_rows(data))
        # twice as many from a store, whose number varies
        drawn = data.sample(2 * most, seed).sample(most, seed)
        sample = replace(drawn.weighed(), whole=data)
        some = np.flatnonzero(~np.isin(sample.kept, () if known is None else known))
        some = some[drawn_rows(sample.kept[some], sample.rows // AUTO.trial_part, seed)]
        others = np.delete(np.arange(sample.rows), some)
        inside, outside = (some, others) if known is None else (others, some)
        learned = sample._at(inside)
        self.classes = np.empty(0)
        if not fit.has_real_targets:
            self.classes, codes = np.unique(learned.y, return_inverse=True)
            y = np.where(codes == 1, 1.0, -1.0) if len(self.classes) == 2 else codes.astype(np.float64)
            learned = replace(learned, y=y, factors=(1.0,) * len(self.classes))
        self._learned = learned
        X = sample.X[outside]
        self._X = np.require(X, requirements="C") if isinstance(X, np.ndarray) else X
        self.y: Array = sample.y[outside]
        self.shares: Array = drawn.weight[outside] / drawn.weight[outside].sum()  # rows count as in any score

    def right(self, each: Choice[ODMFit], times: float) -> tuple[Array, float]:
        """Return which of the other rows a solver gets right, (n,), or minus their loss, and its passes.

        Its γ is ``times`` that of the fit.
        """
        fit, learned, classes = self._fit, self._learned, self.classes
        trial = _trial_of(each.solver, self._data, fit, learned.total_weight / self._data.total_weight)
        if times != 1.0:
            gamma = times * learned.seen_by(fit.kernel).kernel.parameters()["gamma"]
            trial = replace(trial, kernel=replace(fit.kernel, gamma=gamma))
        if len(classes) > 2:
            trained = train_machines(each, learned, trial, trial.scheme, joined_attributes)
        else:
            trained = each.train(learned, trial)
        with single_threaded_blas:
            values = finite_values(trained.model.label_values(self._X, CPU_COUNT))
        if fit.has_real_targets:
            at_mean = self.shares @ _losses(-self.y, fit)
            found = -_losses(values - self.y, fit) / max(at_mean, np.finfo(float).tiny)
        else:
            found = (classes[code_block(values)] == self.y).astype(np.float64)
        return found, trained.history[-1]["passes"]


def gamma_of_cells(data: TrainingData, fit: ODMFit) -> float:
    """Return the γ by which some cells predict left-out rows best: that of ``fit``, which is a number, or a larger one.

    A metric is learned with a γ that landmarks can follow. All rows of a trial's cell are landmarks.
    """
    rows = min(fit.own.most_rows(pairs=False), TUNING.more_landmarks)
    seed = data.run.seed
    band = fit.odm.lam / data.total_weight, fit.odm.upsilon, fit.odm.theta
    cells = chosen_cells(data, sampled(data, fit.kernel, seed), fit.kernel, rows)
    kernel = fit.kernel
    gamma = float(kernel.gamma)
    best = -np.inf
    while True:
        seen = (trial_rows(cell, kernel, rows, data.run, leaves_one=True) for cell in cells)
        left = LeftOut.joined([each.left_out([band], Splits(None, seed))[0] for each in seen])
        score = left.scores(explained if fit.has_real_targets else accuracy)[0, -1]
        if not score > best:
            return gamma
        best = score
        gamma = float(kernel.gamma)
        kernel = replace(kernel, gamma=2.0 * gamma)


def chosen_cells(
    data: TrainingData, sample: MemoryKernelData, choice: KernelChoice, cell_rows: int, count: int = AUTO.trial_cells
) -> list[MemoryData]:
    """Return ``count`` cells of about ``cell_rows`` rows, or fewer if there are fewer cells.

    They are leaves of a tree that is grown on a ``sample`` by `sampled`, drawn in proportion to how mixed their labels
    are, since rows are wrong where these are mixed. Of a cell that has more than twice as many rows, because nothing
    divides equal rows, twice as many are drawn.
    """
    scaled = sample.scaled
    seed = data.run.seed
    tree, _, _ = grow(scaled, max(1, round(cell_rows * sample.data.rows / data.labelled_rows)), seed)
    cells = np.concatenate([tree(scaled[span]) for span in slabs_of(scaled)])
    codes = np.unique(sample.data.y, return_inverse=True)[1]
    counts = np.zeros((tree.count, codes.max() + 1))
    np.add.at(counts, (cells, codes), 1.0)
    mixed = counts.sum(axis=1) - counts.max(axis=1)  # rows of other classes than the most frequent one
    places = (np.arange(count) + 0.5) / count * max(mixed.sum(), 1.0)
    drawn = np.minimum(np.searchsorted(np.cumsum(mixed), places), tree.count - 1)
    chosen = np.unique(drawn)
    found = []
    for held, scaled_rows in data.scaled_blocks(choice):
        of_rows = np.concatenate([tree(scaled_rows[span]) for span in slabs_of(scaled_rows)])
        found.append([held._at(np.flatnonzero(of_rows == cell)) for cell in chosen])
    return [replace(_join(parts), whole=data).sample(2 * cell_rows, seed) for parts in zip(*found, strict=True)]


def _join(parts: Sequence[MemoryData]) -> MemoryData:
    """Return the rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts]) for name in ("X", "y", "weight", "kept")
    }
    return replace(parts[0], **arrays, given=arrays["X"])


def _losses(residuals: Array, fit: ODMFit) -> Array:
    """Return twice the loss of a row of weight 1 at every residual (n,), for λ = M."""
    below, above = fit.odm.outside(residuals)
    return below**2 + fit.odm.upsilon * above**2


def _trial_of(solver: str, data: TrainingData, fit: ODMFit, share: float) -> ODMFit:
    """Return the settings of a trial on rows that have a ``share`` of the weight of all."""
    own: Any = fit.own
    if solver == "landmark":
        own = fit.with_own(n_landmarks=max(1, own.n_landmarks // AUTO.trial_part)).own
    elif solver == "cells":
        own = Cells(Cells().most_rows(pairs=fit.has_pairs(data)) // AUTO.trial_part)
    return replace(
        fit,
        own=own,
        odm=replace(fit.odm, lam=share * fit.odm.lam),
        solver=replace(fit.solver, tol=max(fit.solver.tol, LIMITS.rough)),
        run=replace(fit.run, checkpoint=None, resume=False),
        loo=False,
        trial=True,
        groups=None,
        last=None,
    )
