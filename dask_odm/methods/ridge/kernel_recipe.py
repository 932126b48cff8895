"""Recipes of kernel ridge regression by shards: exact, by factors of the shards' matrices, or on Nyström features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from dask_odm.engine.partition.random import RandomPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels.pivots import choose
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import Choice, Recipe
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.steps import report_step, rescaling_advised
from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.learning.training.training_data import KernelData, PartitionedRows, Purpose, TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.ridge.fixed_point import ExchangeSolution, ExchangeState, solve_exchange
from dask_odm.methods.ridge.least_squares import learn, warning_of
from dask_odm.methods.ridge.moments import InSpan
from dask_odm.methods.ridge.settings import CONSENSUS, MDDFit
from dask_odm.methods.ridge.thresholds import contraction
from dask_odm.methods.ridge.workers import KernelShards, Mix, ShardExchange, kernel_mix, kernel_rounds, stacked_states
from dask_odm.models.kernel import KernelModel
from dask_odm.typing import Array

ADVICE = "Use more n_partitions, n_landmarks=, or more memory."
EXCHANGE = Purpose("the exchange of shards' values", lambda n, d, itemsize: 10 * 8 * n, ADVICE)


def train_exact_kernel(data: TrainingData, fit: MDDFit) -> Trained:
    """Train by a Cholesky factor of every shard's kernel matrix, with a product by the whole kernel matrix each round.

    Raises
    ------
    InputError
        There are fewer rows than shards or several values of lam, or the discrepancy is beyond its threshold.
    MemoryLimitError
        The factors do not fit.
    """
    if len(fit.lams) > 1 or fit.loo:
        raise InputError("leaving one out, by loo or of several values of lam, needs n_landmarks; give it, or one lam.")
    fit.require_rows(data.rows)
    assert fit.kernel is not None
    seen = data.seen_by(fit.kernel)
    workers = data.cluster.workers
    each = -(-data.rows // fit.n_partitions)
    needed = -(-fit.n_partitions // workers) * 8 * each * each  # checked before rows are moved
    data.cluster.require(needed, 1, f"Factors of {fit.n_partitions} shards of {each} rows", ADVICE)
    with rescaling_advised(), seen.partitions(RandomPartitioner(fit.n_partitions, fit.run.seed), always=True) as rows:
        solution, q = _solve(seen, rows, data, fit)
        return _finish(seen, rows, solution, q, fit)


def train_landmark_kernel(data: TrainingData, fit: MDDFit) -> Trained:
    """Train by `dask_odm.methods.ridge.least_squares` on the rows' Nyström features."""
    assert fit.kernel is not None
    assert fit.n_landmarks is not None
    seen = data.seen_by(fit.kernel)
    count = min(fit.n_landmarks, data.rows)
    with rescaling_advised():
        with single_threaded_blas:
            landmarks = choose(seen.kernel, seen.pivots(count, "uniform"), count, seed=fit.run.seed)
        r = len(landmarks)
        found = learn(data, fit, InSpan(landmarks, seen.scaling), "mdd-landmark", np.ones(r), np.zeros(r))
        raw, numbers = seen.chosen_pivots(landmarks.index)
        alpha = solve_triangular(landmarks.factor, found.w, lower=True, trans="T").T
    return _trained(seen, raw, numbers, alpha, found.attributes, found.warning)


def _solve(seen: KernelData, rows: PartitionedRows, data: TrainingData, fit: MDDFit) -> tuple[ExchangeSolution, float]:
    """Run the rounds. Returns their solution, and the factor by which a round shrinks the error."""
    consensus = fit.mode == CONSENSUS
    m = fit.n_partitions
    strength = fit.discrepancy if fit.exchanges else 0.0
    shards = KernelShards(
        rows.partitions,
        rows.scaling,
        seen.kernel,
        fit.lams[0],
        1.0 + strength if consensus else 1.0,
        strength if consensus else -strength,
    )
    held = shards.factor_bytes(data.cluster.workers)
    data.cluster.require(held, 1, f"Factors of {m} shards of {max(rows.partitions.counts)} rows", ADVICE)
    y, weight = rows.partitions.labels(0, m)
    n = len(weight)
    t = y.reshape(len(weight), -1).shape[1]
    resume, save = open_steps("mdd-kernel", data.fingerprint, fit, ExchangeState)
    require_state(fit, resume is None or resume.solutions.shape == resume.sides.shape == (n, t))
    states = None if resume is None else stacked_states(resume.solutions, resume.sides, rows.partitions.counts)
    with _mixed(rows, fit, held) as mix, _asked(shards, data, fit, states, mix) as exchange:
        if consensus:
            q = strength / (1.0 + strength)
        else:
            q = contraction(fit, exchange, lambda v: mix([v]), n, 1.0, strength)
        solution = solve_exchange(
            exchange,
            q,
            math.fsum(weight),
            tol=fit.tol,
            max_iter=fit.max_iter,
            resumed=() if resume is None else resume.history,
            on_step=report_step,
            on_state=save,
        )
    return solution, q


@contextmanager
def _mixed(rows: PartitionedRows, fit: MDDFit, held: int) -> Iterator[Mix]:
    """Open the kernel products that make each round's message to the shards; without an exchange it is empty."""
    if not fit.exchanges:
        yield lambda parts: np.empty(0)
        return
    with rows.products(EXCHANGE, held) as products:
        yield kernel_mix(products)


@contextmanager
def _asked(shards: KernelShards, data: TrainingData, fit: MDDFit, states: Any, mix: Mix) -> Iterator[ShardExchange]:
    """Open the exchange between the shards, on the workers or in this process."""
    asks = data.cluster.client is not None
    with scratch_folder() if asks else nullcontext(None) as folder, single_threaded_blas:
        yield ShardExchange(kernel_rounds(data.cluster, shards, states, folder), mix)


def _finish(seen: KernelData, rows: PartitionedRows, solution: ExchangeSolution, q: float, fit: MDDFit) -> Trained:
    """Build the model: the mean of the shards' functions, with all rows as support in their original order."""
    numbers = rows.partitions.row_numbers(0, fit.n_partitions)
    order = np.argsort(numbers, kind="stable")
    raw, kept = rows.chosen(numbers[order])
    alpha = np.concatenate(solution.parts)[order].T / fit.n_partitions
    attributes = {
        "lam_": fit.lams[0],
        "gap_": solution.gap,
        "contraction_": q,
        "n_iter_": max(1, solution.rounds),
        "history_": solution.history,
    }
    return _trained(seen, raw, kept, alpha, attributes, warning_of(solution, fit))


def _trained(
    seen: KernelData, raw: Any, numbers: Array, alpha: Array, attributes: dict[str, Any], warning: str | None
) -> Trained:
    require_finite_solution(alpha)
    model = KernelModel(seen.kernel, seen.scaling, raw, np.ascontiguousarray(alpha), np.zeros(len(alpha)))
    return Trained(model, attributes | {"support_": numbers}, warning)


KERNEL_RIDGE_RECIPES: dict[str, Recipe[MDDFit]] = {
    "exact": Recipe(train_exact_kernel),
    "landmark": Recipe(train_landmark_kernel),
}


def choose_kernel_ridge(fit: MDDFit) -> Choice[MDDFit]:
    """Choose Nyström features if ``n_landmarks`` is given, else exact factors of the shards' matrices."""
    name, why = ("exact", "no landmarks asked for") if fit.n_landmarks is None else ("landmark", "n_landmarks")
    return Choice(name, why, KERNEL_RIDGE_RECIPES[name])
