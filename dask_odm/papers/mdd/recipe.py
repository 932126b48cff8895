"""Recipes of ridge regression by shards: on the rows, on Nyström features, or exact, by factors of kernel matrices.

Least squares on the rows or on their Nyström features takes moments in one pass, then small systems. This process holds
them, since a worker would be told of a round for longer than it computes. A round sends one message to all shards, of d
numbers for a linear model and a number a row for a kernel model. Every shard answers with its solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.partitioners import EvenDealer, RandomPartitioner, require_rows
from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.kernels.pivots import choose
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import KernelFeatures, landmark_weights
from dask_odm.learning.problem.products import Purpose
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import (
    NOT_FINITE,
    Choice,
    Recipe,
    Trained,
    advice_on_features,
    require_finite_solution,
    rescaling_advised,
)
from dask_odm.learning.training.training_data import KernelData, PartitionedRows, TrainingData
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.papers.mdd.exchange import Attributes, Exchanged, run_exchange
from dask_odm.papers.mdd.fixed_point import ShardSystem
from dask_odm.papers.mdd.kept_moments import KeptMoments
from dask_odm.papers.mdd.least_squares import learn
from dask_odm.papers.mdd.moments import ORIGIN_ROWS, Embedding, MomentQuery, centred, point_near
from dask_odm.papers.mdd.settings import CONSENSUS, MDDFit
from dask_odm.papers.mdd.sum_tree import MomentSums
from dask_odm.papers.mdd.workers import hold_shard
from dask_odm.typing import Array

ADVICE = "Use more n_partitions, n_landmarks=, or more memory."
EXCHANGE = Purpose.of_products("the exchange of shards' values", 10 * 8, ADVICE)


class MomentRecipe(Recipe[MDDFit]):
    """Fit least squares on the rows themselves. A model of one shard keeps its moments, for `update_ridge`."""

    linear: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: MDDFit) -> Trained:
        with rescaling_advised():
            bounds = np.full((2, data.features), np.nan)
            if fit.run.scale is not None:
                statistics = data.statistics()
                bounds = np.stack([statistics.minimum, statistics.maximum])
            near, y_near = point_near(*data.first_rows(min(ORIGIN_ROWS, data.block_rows)))
            query, sums = _sums(data, fit, Embedding(FeatureMap(data.features, 0.0), near), y_near)
            trained = _ridge(query, sums.total(query.k), bounds, fit, data)
            if fit.n_partitions > 1:
                return trained
            sparse = bool(issparse(data.X))
            kept = KeptMoments(query, sums, bounds, data.raw_dtype.name, sparse, not data.in_memory)
            return replace(trained, attributes=trained.attributes | kept.attributes())


def update_ridge(kept: KeptMoments, blocks: Iterable[RowBlock], fit: MDDFit) -> Trained:
    """Fit least squares on the rows of a fit and more ``blocks``, to the bits of a fit on all of them.

    Their y is (n, t), and they have weights. Raises InputError for settings that need all rows.
    """
    if fit.n_partitions > 1:
        raise InputError("update is for one shard, since more rows would move others between shards; n_partitions=1.")
    if len(fit.lams) > 1 or fit.loo:
        raise InputError("update cannot leave rows out that it does not read; give one lam, without loo, or fit all.")
    if fit.run.scale is not None and np.isnan(kept.bounds).any():
        raise InputError(f"scale={fit.run.scale!r} needs what a fit without it did not keep; fit all rows, with scale.")
    with rescaling_advised(), single_threaded_blas:
        kept = kept.with_rows(blocks)
        total = kept.sums.total(kept.query.k)
        _require_sums(total)
        trained = _ridge(kept.query, total, kept.bounds, fit, None)
        trained.history[0].update(solver=MOMENTS.solver, why=MOMENTS.why)
        return replace(trained, attributes=trained.attributes | kept.attributes())


def _ridge(query: MomentQuery, total: Array, bounds: Array, fit: MDDFit, data: TrainingData | None) -> Trained:
    """Return the model of the moments of all rows; ``bounds`` (2, d) are those of features, if they are scaled."""
    factor = np.ones(query.embedding.width)
    zero = np.zeros(query.embedding.width)
    if fit.run.scale is not None:
        scaling = Scaling.of_features(_statistics(total, query, bounds), fit.run.scale, fit.run.marks)
        factor = scaling.factor
        zero = scaling.shift
    moments = centred(total, query, factor, None if fit.fit_intercept else zero)
    w, found = learn(data, fit, query.embedding, moments, "mdd-ridge", intercept=fit.fit_intercept)
    weights = (w * factor[:, None]).T
    intercept = moments.y_mean - weights @ moments.mean
    require_finite_solution(weights, intercept)
    return Trained(LinearModel(weights, intercept), *found)


def _statistics(total: Array, query: MomentQuery, bounds: Array) -> Statistics:
    """Return statistics of the features from the moments of all rows (shards, k, k), and from their bounds (2, d)."""
    d = query.embedding.width
    whole = total.sum(axis=0)
    shift = whole[-1, :d] / whole[-1, -1]
    variance = np.maximum(np.diag(whole)[:d] / whole[-1, -1] - shift**2, 0.0)
    mean = np.clip(query.embedding.origin + shift, *bounds)
    return Statistics(bounds[0], bounds[1], mean, np.where(bounds[0] == bounds[1], 0.0, variance))


class SpanRecipe(Recipe[MDDFit]):
    """Fit least squares on the rows' Nyström features."""

    def train(self, data: TrainingData, fit: MDDFit) -> Trained:
        assert fit.kernel is not None
        assert fit.n_landmarks is not None
        seen = data.seen_by(fit.kernel)
        count = min(fit.n_landmarks, data.rows)
        with rescaling_advised():
            landmarks = choose(seen.kernel, seen.pivots(count, "uniform"), count, seed=fit.run.seed)
            r = len(landmarks)
            embedding = Embedding(KernelFeatures.of(landmarks, seen.scaling), np.zeros(r))
            _, y_origin = point_near(*data.first_rows(ORIGIN_ROWS))
            query, sums = _sums(data, fit, embedding, y_origin)
            moments = centred(sums.total(query.k), query, np.ones(r), np.zeros(r))
            w, found = learn(data, fit, embedding, moments, "mdd-landmark", intercept=False)
            raw, numbers = seen.chosen_pivots(landmarks.index)
            return _trained(seen, raw, numbers, landmark_weights(landmarks, w).T, *found)


class ExactRecipe(Recipe[MDDFit]):
    """Fit by a Cholesky factor of every shard's kernel matrix, and a product by the whole matrix in each round.

    Raises InputError if there are fewer rows than shards or several values of lam, or the discrepancy is beyond its
    threshold, and MemoryLimitError if the factors do not fit.
    """

    def train(self, data: TrainingData, fit: MDDFit) -> Trained:
        if len(fit.lams) > 1 or fit.loo:
            raise InputError(
                "leaving one out, by loo or of several values of lam, needs n_landmarks; give it, or one lam."
            )
        if data.n_targets > 1 and not data.in_memory:
            raise InputError("kernel matrices of a store are for one target of a row; give n_landmarks.")
        require_rows(data.rows, fit.n_partitions)
        assert fit.kernel is not None
        seen = data.seen_by(fit.kernel)
        workers = data.cluster.workers
        each = -(-data.rows // fit.n_partitions)
        needed = -(-fit.n_partitions // workers) * 8 * each * each  # checked before rows are moved
        data.cluster.require(needed, 1, f"Factors of {fit.n_partitions} shards of {each} rows", ADVICE)
        partitioner = RandomPartitioner(fit.n_partitions, fit.run.seed)
        with rescaling_advised(), seen.partitions(partitioner, always=True) as rows:
            parts, attributes, warning = _exchange(seen, rows, data, fit)
            # the mean of the shards' functions, with all rows as support in their original order
            numbers = rows.partitions.row_numbers(0, fit.n_partitions)
            order = np.argsort(numbers, kind="stable")
            raw, kept = rows.chosen(numbers[order])
            alpha = np.concatenate(parts)[order].T / fit.n_partitions
            return _trained(seen, raw, kept, alpha, attributes | {"lam_": fit.lams[0]}, warning)


def _exchange(seen: KernelData, rows: PartitionedRows, data: TrainingData, fit: MDDFit) -> Exchanged:
    """Run the rounds over the shards, on the workers or in this process."""
    counts = rows.partitions.counts
    m = len(counts)
    strength = fit.discrepancy if fit.exchanges else 0.0
    stretch, pull, bound = 1.0, -strength, strength
    if fit.mode == CONSENSUS:
        stretch, pull, bound = 1.0 + strength, strength, strength / (1.0 + strength)
    largest = max(counts)
    held = -(-m // data.cluster.workers) * 8 * largest * (largest + rows.partitions.features + 8)
    data.cluster.require(held, 1, f"Factors of {m} shards of {largest} rows", ADVICE)
    _, threads = data.cluster.share(m)
    hold = partial(hold_shard, rows.partitions, rows.scaling, seen.kernel, fit.lams[0], stretch, pull, threads)
    y, weight = rows.partitions.labels(0, m)
    t = y.reshape(len(y), -1).shape[1]
    asks = data.cluster.client is not None
    with _mixed(rows, fit, held) as mix, scratch_folder() if asks else nullcontext(None) as folder:
        rounds_of = partial(Rounds, data.cluster, range(m), ShardSystem.begin, name="shards", hold=hold, scratch=folder)
        shapes = [(count, t) for count in counts]
        total = math.fsum(weight)
        return run_exchange(data, fit, "mdd-kernel", shapes, rounds_of, mix, pull=pull, bound=bound, weight=total)


@contextmanager
def _mixed(rows: PartitionedRows, fit: MDDFit, held: int) -> Iterator[Callable[[Array], Array]]:
    """Open the array of the products ``K w`` (N, t), a round's message to the shards; it is empty without an exchange.

    The shards' factors take ``held`` bytes of a worker.
    """
    if not fit.exchanges:
        yield lambda solutions: np.empty(0)
        return
    with rows.products(EXCHANGE, held) as products:
        multiply = products.among(np.arange(products.n), double_precision=None)
        yield lambda w: np.stack([multiply(np.ascontiguousarray(column)) for column in w.T], axis=1)


def _trained(
    seen: KernelData, raw: Any, numbers: Array, alpha: Array, attributes: Attributes, warning: str | None
) -> Trained:
    require_finite_solution(alpha)
    model = KernelModel(seen.kernel, seen.scaling, raw, np.ascontiguousarray(alpha), np.zeros(len(alpha)))
    return Trained(model, attributes | {"support_": numbers}, warning)


def _sums(data: TrainingData, fit: MDDFit, embedding: Embedding, y_origin: Array) -> tuple[MomentQuery, MomentSums]:
    """Sum the moments of all shards in one pass.

    Raises InputError if a shard has no rows, or rows are too large for float64, and MemoryLimitError if the moments do
    not fit.
    """
    require_rows(data.rows, fit.n_partitions)
    m, (given, numbers) = fit.n_partitions, data.row_numbers
    shard_of = EvenDealer((given,), m, fit.run.seed).partition_of if m > 1 else None
    query = MomentQuery(embedding, y_origin, data.block_rows, m, shard_of, numbers if m > 1 else None)
    what = f"Moments of {m} shards of {embedding.width} features" if m > 1 else f"Moments of {embedding.width} features"
    data.require_pass(query.pass_bytes(data.rows), what)
    passes = data.passes(math.ceil(query.k * math.sqrt(m)), full=True)
    sums: MomentSums = passes.run(query, MomentQuery.sums, nbytes=8 * m * query.k * query.k)
    _require_sums(sums.total(query.k))
    return query, sums


def _require_sums(total: Array) -> None:
    """Raise InputError unless the moments (shards, k, k) are finite, and every shard has rows."""
    if not np.isfinite(total).all():
        raise InputError(NOT_FINITE)
    empty = np.flatnonzero(~(total[:, -1, -1] > 0))
    if len(empty) == len(total):
        raise InputError("no row has both a target and a positive weight.")
    if len(empty):
        raise InputError(
            f"shard {empty[0]} of {len(total)} has no row with a target and a positive weight; use a smaller "
            "n_partitions."
        )


MOMENTS: Choice[MDDFit] = Choice(
    "moments",
    "least squares needs one pass",
    MomentRecipe(),
    "its moments have as many entries as the features squared, so choose fewer features, ",
)


class KernelRidgeFamily(Family[MDDFit]):
    """Kernel ridge regression: on Nyström features if ``n_landmarks`` is given, else by exact factors of matrices."""

    def choose(self, fit: MDDFit, rows: int, features: int) -> Choice[MDDFit]:
        if fit.n_landmarks is None:
            return Choice("exact", "no landmarks asked for", ExactRecipe())
        return Choice("landmark", "n_landmarks", SpanRecipe())

    def train(self, choice: Choice[MDDFit], data: TrainingData, fit: MDDFit) -> Trained:
        assert fit.kernel is not None
        return replace(super().train(choice, data, fit), advice=advice_on_features(data, fit.kernel))
