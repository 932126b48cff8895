"""A metric that is learned from labels: the kernel sees T x, where T stretches the directions in which labels change.

A machine over landmarks is fitted to a sample. The average outer product of its gradients (AGOP), by scaled features,
is T² of the next round, up to a factor that keeps the mean squared distance of rows, so that γ keeps its meaning. A
share of the sample is held out of all fits. The round that predicts it best is kept; the first one has no metric.

Source: Radhakrishnan, Beaglehole, Pandit, Belkin: *Mechanism for feature learning in neural networks and
backpropagation-free machine learning models*, Science 383, 2024. Beaglehole, Holzmüller, Radhakrishnan, Belkin: *xRFM*,
arXiv 2508.10053, 2025, has it for tables.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from scipy.linalg import eigh

from dask_odm.data.rows.scaling import Stretch
from dask_odm.errors import InputError
from dask_odm.events import Progress, report
from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.named import RBF, Laplacian
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import landmark_weights
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import compiled_in_order
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.cells.choosing import gamma_of_cells
from dask_odm.methods.metric_settings import Metric
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.search.axes import TUNING
from dask_odm.methods.search.trials import Splits, TrialRows, trial_landmarks
from dask_odm.methods.settings import Cells
from dask_odm.models.kernel_model import most_rows
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
F = TypeVar("F", bound=ODMFit)
Band = tuple[float, float, float]  # λ/M, υ, θ
MOST_FEATURES = 1000  # of a matrix, which has 8 MB then, and of a metric that a search tries
# A search goes on with rounds as long as they gain so much of the first loss, and with a metric only if it gains more,
# and if so few directions matter, as a share of all if they mattered alike. Where not, a metric is noise of the rows
# that it was learned from (benchmarks/tables.py: a7a, diamonds, clouds).
LEAST = 0.003
WORTH = 0.06
FEW = 0.8


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """What rounds found: the ``metric`` of scaled features, None if none is better, and the γ for it.

    ``importances`` (d,) are mean squared gradients along the features, in units of their deviation, of the fit that the
    metric is made of, or of the one without; their sum is 1, or 0 if labels change nowhere. ``loss`` is the mean one of
    held-out rows.
    """

    metric: Stretch | None
    gamma: float
    importances: Array
    loss: float


def with_metric(data: TrainingData, fit: F) -> tuple[F, dict[str, Any]]:
    """Return the settings of a fit with the metric that they ask for, learned, and the fitted attributes of it."""
    if fit.metric is None:
        return fit, {}
    band = fit.odm.lam / data.total_weight, fit.odm.upsilon, fit.odm.theta
    asked = Metric(fit.metric) if isinstance(fit.metric, str) else fit.metric
    if asked.values is not None:
        return replace(fit, kernel=replace(fit.kernel, metric=Stretch.of(asked.values, data.features))), {}
    in_cells = isinstance(fit.own, Cells)
    found = learn_metric(data, followed(fit.kernel) if in_cells else fit.kernel, band, asked, fit.run)
    chosen = isinstance(fit.kernel.gamma, str)
    kernel = replace(fit.kernel, metric=found.metric, gamma=found.gamma if chosen else fit.kernel.gamma)
    fit = replace(fit, kernel=kernel)
    if in_cells and chosen:
        fit = replace(fit, kernel=replace(fit.kernel, gamma=gamma_of_cells(data, fit)))
    return fit, {"gamma_": fit.kernel.gamma, "feature_importances_": found.importances}


def followed(kernel: KernelChoice) -> KernelChoice:
    """Return the kernel by which the metric of Laplacian cells is learned: RBF, which landmarks can follow.

    On 40,000 rows of covtype, these cells have .909 right without a metric, .922 with that of landmarks of their own
    kernel, and .935 with that of RBF.
    """
    return replace(kernel, kernel=RBF.name, gamma="scale") if kernel.kernel == Laplacian.name else kernel


def learn_metric(
    data: TrainingData,
    kernel: KernelChoice,
    band: Band,
    metric: Metric,
    run: FitRun,
    *,
    held: Array | None = None,
    start: float | None = None,
    count: int = TUNING.more_landmarks,
) -> LearnedMetric:
    """Learn a metric from a sample of the rows, with λ/M, υ and θ of a ``band``; γ is chosen unless it is a number.

    A search names the rows that are ``held`` out, a mask of ``data`` in memory, the γ to ``start`` from, and the
    ``count`` of landmarks. The same rows and seed give the same metric, whatever the number of workers. Raises
    InputError for a kernel that is not of distances, and for a matrix of sparse rows or many features; MemoryLimitError
    if the sample and its fits do not fit into this process.
    """
    _require_possible(data, kernel, metric)
    count = min(count, metric.rows)
    _require_memory(data, kernel, metric, count, run)
    sample = data.sample(metric.rows, run.seed)
    rounds = _Rounds(sample, kernel, band, count, run.seed, held)
    with single_threaded_blas:
        tried = rounds.run(metric, start)
    best = min(tried, key=lambda each: each.loss)
    # of the fit that made the metric: one by the metric itself may have no slope left between rows of two words
    made = tried[max(tried.index(best) - 1, 0)].product
    if start is not None and (best.loss > (1.0 - WORTH) * tried[0].loss or rounds.directions(made) > FEW):
        best = tried[0]
    logger.info(
        "metric: the loss of held-out rows is %.4g without, and %.4g after %d rounds, with gamma %.4g",
        tried[0].loss, best.loss, tried.index(best), best.gamma
    )  # fmt: skip
    mass = (np.diagonal(made) if metric.kind == "full" else made) * rounds.variance
    return LearnedMetric(_stretch(best.metric), best.gamma, mass / (float(mass.sum()) or 1.0), best.loss)


def _stretch(metric: Array | None) -> Stretch | None:
    return None if metric is None else Stretch(metric)


def _require_possible(data: TrainingData, kernel: KernelChoice, metric: Metric) -> None:
    if kernel.kernel not in (RBF.name, Laplacian.name):
        raise InputError(
            f"metric={metric.kind!r} is for kernel='rbf' or 'laplacian', not for {kernel.kernel!r}; "
            "set metric to None, or choose another kernel."
        )
    if metric.kind == "full" and (data.is_sparse or data.features > MOST_FEATURES):
        rows = "sparse rows" if data.is_sparse else f"rows of {data.features} features"
        raise InputError(
            f"metric='full' mixes all features with each other, up to {MOST_FEATURES} of dense rows, and these are "
            f"{rows}; take metric='diagonal'."
        )


def _require_memory(data: TrainingData, kernel: KernelChoice, metric: Metric, count: int, run: FitRun) -> None:
    """Raise MemoryLimitError unless a sample, its trials and the sums of gradients fit into this process."""
    rows = min(metric.rows, data.labelled_rows)
    count = min(count, rows)
    d = data.features
    width = min(d, 1 + math.ceil(2 * data.density * d)) if data.is_sparse else d
    needed = rows * data.dtype.itemsize * (2 * width + count + count // 4)  # raw and scaled, and Nyström features
    hessians = 26  # of the groups of a pass, their sums, factors and changes, and the landmarks' own matrices
    dense = 0 if data.is_sparse and kernel.alike.takes_csr else count  # landmarks
    needed += 8 * (hessians * count**2 + (2 * dense + 4 * min(BLOCK, most_rows(d))) * d)
    needed += 48 * d * d if metric.kind == "full" else 0
    run.here().require(needed, 1, f"Learning a metric from {rows} rows", "Use fewer rows of Metric, or more memory.")


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A fit of the rows that are not held out: its ``loss`` on the others, and what its gradients are made of."""

    loss: float
    place: int  # of its γ among those of the search
    landmarks: Landmarks
    scaled: Any  # the rows as the kernel sees them
    coefficients: Array  # (machines, r) of the landmarks


@dataclass(frozen=True, eq=False)
class _Round:
    """A round: its metric, and loss, γ and mean outer product of the gradients, by scaled features, of its fit."""

    metric: Array | None
    loss: float
    gamma: float
    product: Array


class _Rounds:
    """Fits of a sample by any metric and γ."""

    def __init__(
        self, data: MemoryData, kernel: KernelChoice, band: Band, count: int, seed: int, held: Array | None
    ) -> None:
        self._data = data
        several = data.n_targets > 1
        self._targets = [data.of_target(i) for i in range(data.n_targets)] if several else [data]
        self._kernel = kernel
        self._band = band
        self._count = min(count, data.rows)
        self._seed = seed
        self._tol = TUNING.tol if held is not None else TUNING.tol**2
        if held is None:  # a fifth of the sample judges rounds, whatever rows take no part
            parts = Splits(0.2, seed).parts(np.arange(data.rows), 0)
            assert parts is not None
            held = parts[1]
        self._held: Array = held
        self._learned: Array = held if held.all() else ~held  # of very few rows, all may be held out
        self._statistics = data.statistics(kernel.scale)
        self._scaling = kernel.scaling(self._statistics)
        self._gamma = float(kernel.make(self._statistics).parameters()["gamma"])
        self._places = range(len(TUNING.gammas)) if isinstance(kernel.gamma, str) else [TUNING.gammas.index(1.0)]
        self.variance: Array = self._statistics.variance * self._scaling.factor**2  # of scaled features
        self._covariance = np.zeros((0, 0))  # of scaled features, for a matrix

    def run(self, metric: Metric, start: float | None) -> list[_Round]:
        """Return all rounds, the last two of which predict held-out rows no better than one before, or the most.

        The first two try both neighbours of γ, and others one. From a γ to ``start`` from, rounds are as cheap as may
        be: each tries one neighbour, and they end sooner.
        """
        scales = np.array(TUNING.gammas)
        place = int(np.argmin(np.abs(np.log(scales * self._gamma / (start or self._gamma)))))
        ways, least = ([-1, 1], 0.0) if start is None else ([1], LEAST)
        T = None
        found: list[_Round] = []
        for number in range(metric.rounds + 1):
            report(Progress("metric", number, metric.rounds + 1, "rounds"))
            fitted = self._climbed(T, place, ways)
            if number or start is not None:  # the best γ moves far with the first metric, and little afterwards
                ways = [int(np.sign(fitted.place - place)) or -ways[0]]
            place = fitted.place
            M = self._outer_product(fitted, T, full=metric.kind == "full")
            found.append(_Round(T, fitted.loss, self._gamma * TUNING.gammas[place], M))
            T = self._root(M)
            losses = [each.loss for each in found]
            if T is None or (number >= 2 and min(losses[-2:]) >= min(losses[:-2]) - least * losses[0]):
                break
        report(Progress("metric", metric.rounds + 1, metric.rounds + 1, "rounds"))
        return found

    def _climbed(self, metric: Array | None, place: int, ways: Sequence[int]) -> _Fitted:
        """Return the fit with the best γ, as far as neighbours on these ways are better, from that of the ``place``."""
        best = self._fit(metric, place)
        tried = {place}
        while True:
            near = {best.place + way for way in ways} & set(self._places) - tried
            tried |= near
            better = min((self._fit(metric, each) for each in sorted(near)), key=lambda each: each.loss, default=best)
            if not better.loss < best.loss:
                return best
            best = better

    def _fit(self, metric: Array | None, place: int) -> _Fitted:
        kernel = replace(self._kernel, metric=_stretch(metric), gamma=self._gamma * TUNING.gammas[place])
        seen = self._data.seen_by(kernel)
        landmarks, values = trial_landmarks(seen, self._count, self._seed)
        loss = 0.0
        coefficients = []
        for target in self._targets:
            given = target.y, target.weight, target.class_weights, target.kept
            trial = TrialRows(FeatureMap(values.shape[1], 0.0), values, *given)
            learned = np.where(self._learned, trial.learned_weight, 0.0)
            held = np.where(self._held, trial.learned_weight, 0.0)
            for machine in trial.machines:
                ((_, losses, w, _),) = trial.solved(machine, [self._band], learned, self._tol)
                loss += losses.evaluate(trial.features.scores(values, w), machine[0], held)[0]
                coefficients.append(landmark_weights(landmarks, w))
        return _Fitted(loss, place, landmarks, seen.scaled, np.stack(coefficients))

    def _outer_product(self, fitted: _Fitted, metric: Array | None, *, full: bool) -> Array:
        """Return the mean outer product (d, d) of gradients by scaled features, or its diagonal (d,)."""
        if full and metric is None:
            mean = (self._statistics.mean - self._scaling.shift) * self._scaling.factor  # of scaled rows
            self._covariance = self._mean(fitted.scaled, lambda X: [X - mean], full=True)
        M = self._mean(fitted.scaled, lambda X: gradients(fitted.landmarks, fitted.coefficients, X), full=full)
        if metric is None:
            return M
        return M * metric**2 if metric.ndim == 1 else metric @ M @ metric

    def _mean(self, scaled: Any, vectors: Callable[[Any], list[Array]], *, full: bool) -> Array:
        """Return the weighted mean, over the learned rows, of the products or squares of their ``vectors``."""
        rows = np.flatnonzero(self._learned)
        weight = self._data.total_weights
        d = self._data.features
        total = np.zeros((d, d) if full else d)
        step = min(BLOCK, most_rows(d))
        for some in (rows[start : start + step] for start in range(0, len(rows), step)):
            for G in vectors(scaled[some].astype(np.float64)):
                w = weight[some]
                total += (G * w[:, None]).T @ G if full else w @ np.square(G)
        return total / float(weight[rows].sum())

    def directions(self, M: Array) -> float:
        """Return how many directions matter, as the share of all that gives the same sum of squares."""
        A = M * self.variance if M.ndim == 1 else M @ self._covariance
        squares = float(A @ A if M.ndim == 1 else (A * A.T).sum())
        total = float(A.sum() if M.ndim == 1 else np.trace(A))
        return total**2 / (len(A) * squares) if squares > 0 else 1.0

    def _root(self, M: Array) -> Array | None:
        """Return the metric of which M is the square but for floor and factor, or None if M is 0 or not finite."""
        v = self.variance
        mean = float((np.diagonal(M) if M.ndim == 2 else M) @ v) / len(v)
        if not (math.isfinite(mean) and mean > 0):
            return None
        # Every column gets a hundredth of the mean squared slope; covtype loses .002 with a thousandth, a7a and cod-rna
        # nothing. A column of large numbers is not kept large by it.
        floor = 0.01 / np.maximum(v, v.mean())
        if M.ndim == 1:
            T = np.sqrt(M / mean + floor)
            share = v @ T**2 / v.sum()
        else:
            squares, vectors = eigh(M / mean + np.diag(floor))
            T = (vectors * np.sqrt(np.maximum(squares, 0.0))) @ vectors.T
            T = 0.5 * (T + T.T)
            share = ((T @ self._covariance) * T).sum() / np.trace(self._covariance)
        return T / math.sqrt(share)


def gradients(landmarks: Landmarks, coefficients: Array, rows: Any) -> list[Array]:
    """Return the gradients (n, d) of each machine ``Σ a_i κ(z_i, ·)`` over landmarks, at rows as the kernel sees them.

    At a landmark itself, the gradient of a Laplacian kernel leaves its own term out.
    """
    kernel = replace(landmarks.kernel, bias=0.0)
    values = kernel.tile(rows, landmarks.rows.astype(np.float64))
    gamma = kernel.parameters()["gamma"]
    # sparse rows without their shift, which no difference has
    X, Z = (each.matrix() if isinstance(each, CSRRows) else each for each in (rows, landmarks.rows))
    found = []
    for a in coefficients:
        W = values * a
        if kernel.name == Laplacian.name:
            G = np.zeros(X.shape)
            _add_signs(X, Z, W, G)
            G *= -gamma
        else:  # RBF
            G = np.asarray(W @ Z - X * W.sum(axis=1)[:, None])
            G *= 2.0 * gamma
        found.append(G)
    return found


@compiled_in_order
def _add_signs(X: Array, Z: Array, W: Array, out: Array) -> None:
    """Add ``Σ_j W_ij sign(x_i − z_j)``, feature by feature, to the rows of ``out``."""
    for i in range(X.shape[0]):
        x = X[i]
        for j in range(Z.shape[0]):
            w = W[i, j]
            for k in range(x.size):
                out[i, k] += w * (np.float64(x[k] > Z[j, k]) - np.float64(x[k] < Z[j, k]))
