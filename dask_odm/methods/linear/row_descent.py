"""Dual coordinate descent over sparse rows, for one linear machine: for text, whose rows have few features in common.

A sweep visits every row once in random order, and maximises the dual in the row's variable, as
`dask_odm.methods.linear.sparse_descent` does for many machines at once. The gap is computed after every `SWEEPS`
sweeps. The descent ends once the gap is small enough, or no longer falls quickly: coordinate descent is slow for rows
that have much in common.

Source: Hsieh, Chang, Lin, Keerthi and Sundararajan, *A dual coordinate descent method for large-scale linear SVM*, ICML
2008.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.sparse_linear import SparsePrimal
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.step_log import Record, StepLog

SWEEPS = 4  # sweeps between two computations of the gap
FALLS = 0.5  # share of the gap that so many sweeps may leave
END = np.ones(1)  # end of the segment from the dual variables to themselves


def descend_rows(
    problem: SparsePrimal, settings: SolverSettings, on_step: Callable[[Record], object] = lambda record: None
) -> PrimalSolution[None]:
    """Minimise P from zero, in up to ``settings.max_iter`` sweeps over unscaled rows."""
    log = StepLog(on_step)
    rng = np.random.default_rng(settings.seed)
    n = len(problem.y)
    norms = problem.norms()
    stiffness = problem.loss.row_stiffness(problem.y, problem.weight)
    w = np.zeros(problem.features.k)
    dual = np.zeros(n)
    sweeps = 0
    gap = np.inf
    while True:
        for _ in range(min(SWEEPS, settings.max_iter - sweeps)):
            problem.sweep(stiffness, norms, rng.permutation(n), w, dual)
            sweeps += 1
        before = gap
        scores = problem.scores(w)
        primal = 0.5 * float(w @ w) + problem.losses(scores)[0]
        gap = float(problem.segment_gaps(scores, dual, dual, END)[0]) / primal
        log.add(gap, primal, sweeps + len(log.history) + 1)
        if gap <= settings.tol or gap > FALLS * before or sweeps >= settings.max_iter:
            break
    log.settle()
    return PrimalSolution(w, primal, gap, gap <= settings.tol, log.history, sweeps)
