"""Recipes of ridge regression by shards: on the rows, on Nyström features, or exact, by factors of kernel matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.dealing import require_rows
from dask_odm.engine.partitioners import RandomPartitioner
from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.kernels.pivots import choose
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import KernelFeatures, landmark_weights
from dask_odm.learning.training.recipe import Choice, Recipe
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.learning.training.training_data import KernelData, PartitionedRows, Purpose, TrainingData
from dask_odm.methods.ridge.exchange import Exchanged, run_exchange
from dask_odm.methods.ridge.least_squares import learn
from dask_odm.methods.ridge.moments import Embedding
from dask_odm.methods.ridge.settings import CONSENSUS, MDDFit
from dask_odm.methods.ridge.shard_systems import begin
from dask_odm.methods.ridge.workers import KernelShards
from dask_odm.models.kernel import KernelModel
from dask_odm.models.linear import LinearModel
from dask_odm.typing import Array

ADVICE = "Use more n_partitions, n_landmarks=, or more memory."
EXCHANGE = Purpose("the exchange of shards' values", lambda n, d, itemsize: 10 * 8 * n, ADVICE)


def train_ridge(data: TrainingData, fit: MDDFit) -> Trained:
    """Least squares on the rows themselves."""
    with rescaling_advised():
        factor = np.ones(data.features)
        zero = np.zeros(data.features)
        if fit.run.scale is not None:
            scaling = Scaling.of_features(data.statistics(), fit.run.scale)
            factor = scaling.factor
            zero = scaling.shift
        embedding = Embedding(FeatureMap(data.features, 0.0), data.origin()[0])
        w, moments, found = learn(data, fit, embedding, "mdd-ridge", factor, None if fit.fit_intercept else zero)
        weights, intercept = moments.raw_weights(w)
        require_finite_solution(weights, intercept)
        return Trained(LinearModel(weights, intercept), found.attributes, found.warning)


def train_landmark_kernel(data: TrainingData, fit: MDDFit) -> Trained:
    """Least squares on the rows' Nyström features."""
    assert fit.kernel is not None
    assert fit.n_landmarks is not None
    seen = data.seen_by(fit.kernel)
    count = min(fit.n_landmarks, data.rows)
    with rescaling_advised():
        landmarks = choose(seen.kernel, seen.pivots(count, "uniform"), count, seed=fit.run.seed)
        r = len(landmarks)
        embedding = Embedding(KernelFeatures.of(landmarks, seen.scaling), np.zeros(r))
        w, _, found = learn(data, fit, embedding, "mdd-landmark", np.ones(r), np.zeros(r))
        raw, numbers = seen.chosen_pivots(landmarks.index)
        return _trained(seen, raw, numbers, landmark_weights(landmarks, w).T, found)


def train_exact_kernel(data: TrainingData, fit: MDDFit) -> Trained:
    """A Cholesky factor of every shard's kernel matrix, with a product by the whole kernel matrix each round.

    Raises InputError if there are fewer rows than shards or several values of lam, or the discrepancy is beyond its
    threshold, and MemoryLimitError if the factors do not fit.
    """
    if len(fit.lams) > 1 or fit.loo:
        raise InputError("leaving one out, by loo or of several values of lam, needs n_landmarks; give it, or one lam.")
    require_rows(data.rows, fit.n_partitions)
    assert fit.kernel is not None
    seen = data.seen_by(fit.kernel)
    workers = data.cluster.workers
    each = -(-data.rows // fit.n_partitions)
    needed = -(-fit.n_partitions // workers) * 8 * each * each  # checked before rows are moved
    data.cluster.require(needed, 1, f"Factors of {fit.n_partitions} shards of {each} rows", ADVICE)
    partitioner = RandomPartitioner(fit.n_partitions, fit.run.seed)
    with rescaling_advised(), seen.partitions(partitioner, always=True) as rows:
        found = _exchange(seen, rows, data, fit)
        # the mean of the shards' functions, with all rows as support in their original order
        numbers = rows.partitions.row_numbers(0, fit.n_partitions)
        order = np.argsort(numbers, kind="stable")
        raw, kept = rows.chosen(numbers[order])
        alpha = np.concatenate(found.parts)[order].T / fit.n_partitions
        trained = _trained(seen, raw, kept, alpha, found)
        trained.attributes["lam_"] = fit.lams[0]
        return trained


def _exchange(seen: KernelData, rows: PartitionedRows, data: TrainingData, fit: MDDFit) -> Exchanged:
    """Run the rounds over the shards, on the workers or in this process."""
    counts = rows.partitions.counts
    m = len(counts)
    strength = fit.discrepancy if fit.exchanges else 0.0
    stretch, pull, bound = 1.0, -strength, strength
    if fit.mode == CONSENSUS:
        stretch, pull, bound = 1.0 + strength, strength, strength / (1.0 + strength)
    _, threads = data.cluster.share(m)
    shards = KernelShards(rows.partitions, rows.scaling, seen.kernel, fit.lams[0], stretch, pull, threads)
    held = shards.factor_bytes(data.cluster.workers)
    data.cluster.require(held, 1, f"Factors of {m} shards of {max(counts)} rows", ADVICE)
    y, weight = rows.partitions.labels(0, m)
    t = y.reshape(len(y), -1).shape[1]
    asks = data.cluster.client is not None
    with _mixed(rows, fit, held) as mix, scratch_folder() if asks else nullcontext(None) as folder:
        rounds_of = partial(Rounds, data.cluster, range(m), begin, name="shards", hold=shards.hold, scratch=folder)
        shapes = [(count, t) for count in counts]
        total = math.fsum(weight)
        return run_exchange(data, fit, "mdd-kernel", shapes, rounds_of, mix, pull=pull, bound=bound, weight=total)


@contextmanager
def _mixed(rows: PartitionedRows, fit: MDDFit, held: int) -> Iterator[Callable[[Array], Array]]:
    """Open the products ``K w`` (N, t), which are each round's message to the shards; without an exchange it is empty.

    The shards' factors take ``held`` bytes of a worker.
    """
    if not fit.exchanges:
        yield lambda solutions: np.empty(0)
        return
    with rows.products(EXCHANGE, held) as products:
        gram = products.among(np.arange(products.n), double_precision=None)
        yield lambda w: np.stack([gram.matvec(np.ascontiguousarray(column)) for column in w.T], axis=1)


def _trained(seen: KernelData, raw: Any, numbers: Array, alpha: Array, found: Exchanged) -> Trained:
    require_finite_solution(alpha)
    model = KernelModel(seen.kernel, seen.scaling, raw, np.ascontiguousarray(alpha), np.zeros(len(alpha)))
    return Trained(model, found.attributes | {"support_": numbers}, found.warning)


MOMENTS: Choice[MDDFit] = Choice("moments", "least squares needs one pass", Recipe(train_ridge, linear=True))


def choose_kernel_ridge(fit: MDDFit) -> Choice[MDDFit]:
    """Choose Nyström features if ``n_landmarks`` is given, else exact factors of the shards' matrices."""
    if fit.n_landmarks is None:
        return Choice("exact", "no landmarks asked for", Recipe(train_exact_kernel))
    return Choice("landmark", "n_landmarks", Recipe(train_landmark_kernel))
