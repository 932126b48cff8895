"""The gap of a model with the decision values of `predict`, instead of those that its solver had.

P of a model is ``½‖w‖² + Σ loss_i(f(x_i))``. The solver's f and the model's differ by rounding, of float32 if the rows
are float32. Large coefficients that nearly cancel amplify it. The lower bound D of every model's P does not depend on
f. So the training rows are predicted once more, unless a bound shows that rounding is negligible. If float32 rounding
keeps the model from its gap, the model predicts in float64 from then on.

The bound: a kernel value in float64, and a sum of such, is within ``ε √(κ(x, x) κ(z, z))`` of the true one. So f(x) is
within ``δ = ε √κ(x, x) Σ|a_j| √κ(x_j, x_j)``. As the losses are smooth, P is larger by at most ``δ Σ|s| + ½ Λ δ²``,
with Λ the sum of the largest second derivatives. The errors of ``sᵀQs`` in D are independent: together they are about
``ε Σ s² κ(x, x)``. D is reduced by as much as errors of that size may explain.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.memory import merge_equal
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.shape import Shape
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import PredictedLoss, relative_gap
from dask_odm.learning.training.recipe import Trained, stopped_at
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.row_passes import PassBytes, RowBlock
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.kernel_model import KernelModel, predicting_bytes
from dask_odm.typing import Array

NEGLIGIBLE = 1e-8  # share of P by which rounding may move it without a check
SUM_ERROR = 100.0  # float64 units by which a kernel value, or a sum of them, is off without the effect of features
FIGURES = ("gap", "objective")
TOGETHER = 0.2  # share of ε that independent errors add up to, measured on 170 random problems
UNIT = 0.5 * float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Claim:
    """A solver's knowledge of its model: P by its scores, and the lower bound D of every model's P.

    ``half_norm`` is ½‖w‖², or None to compute it from kernel values among the support when needed. ``dual`` (n,) are
    the dual variables of D, or None if they are the model's own coefficients.
    """

    primal: float
    bound: float
    half_norm: float | None = None
    dual: Array | None = None

    @property
    def gap(self) -> float:
        square = 0.0 if self.half_norm is None else 2.0 * self.half_norm
        return relative_gap(self.primal, self.primal - self.bound, square)


def held_as_predicted(
    trained: Trained, claim: Claim, kernel: Kernel, data: TrainingData, fit: ODMFit, figures: Collection[str] = FIGURES
) -> Trained:
    """Return the model with gap and objective as it predicts ``data``.

    ``trained`` is the result of one machine; its warning stays, unless rounding is what keeps it from its gap.
    ``kernel`` is that of the training, with its bias. ``figures`` says which of "gap" and "objective" in the last
    record are the model's.
    """
    if not math.isfinite(claim.primal) or math.isinf(claim.gap):
        return trained
    model = trained.model
    tol = fit.solver.tol
    rise, square = _rounding(model, claim, kernel, data, fit)
    if rise + square <= NEGLIGIBLE * claim.primal and _in_float64(model, data):
        return replace(trained, was_finite=True)  # within a finite bound of the solver's scores
    solved = claim
    enough = max(NEGLIGIBLE, tol if claim.gap <= tol else claim.gap + tol)
    half_norm = _half_norm(model, kernel) if claim.half_norm is None else claim.half_norm
    twice = 2.0 * claim.bound  # D, reduced for an sᵀQs that is larger by as much as rounding may hide
    claim = replace(claim, bound=claim.bound * (twice / max(twice + square, TINY)), half_norm=half_norm)
    found = _predicted(model, claim, data, fit)
    if isinstance(model, KernelModel) and found.gap > enough and not _in_float64(model, data):
        wide = replace(model, double_precision=True)
        again = _predicted(wide, claim, data, fit)
        if again.gap <= enough or again.primal < 0.5 * found.primal:
            model = wide
            found = again
    # where υ = 0 an infinite value on the right side costs nothing, and P does not tell
    was_finite = fit.odm.upsilon > 0 and math.isfinite(found.primal)
    trained = replace(trained, model=model, was_finite=was_finite)
    return _with_figures(trained, solved, replace(found, bound=claim.bound), enough, tol, figures)


def require_prediction(kernel: Kernel, data: TrainingData) -> None:
    """Raise MemoryLimitError unless tasks can predict a store's rows by a model of all of them (`_predicted`)."""
    if data.in_memory:
        return
    needed = 0
    if not data.is_sparse:  # sparse rows are not made dense
        needed = predicting_bytes(Shape(kernel, data.rows, data.features, data.raw_dtype.itemsize, 1), data.rows)
    if data.cluster.client is not None:
        needed += 3 * data.nbytes  # the model as it is sent, and as it is unpacked, beside what a worker read to solve
    what = f"Predicting by a model of up to {data.rows} rows"
    data.require_pass(PassBytes(8, 3 * 8, needed), what, ("solver='landmark'", "fewer rows"))


def weights_as_predicted(
    trained: Trained, solution: PrimalSolution[Any], features: FeatureMap, data: TrainingData, fit: ODMFit
) -> Trained:
    """Return the model of feature weights (k,) with gap and objective as it predicts by weights of raw features.

    The solver may have summed the loss of unscaled rows as predicted. Else rows of a store are read again only if a
    bound of the rounding is not small beside ``tol``; rows in memory unless it is negligible. Without a scaling, their
    statistics would take as long as their predictions.
    """
    claim = Claim(solution.primal, solution.primal * (1.0 - solution.gap), 0.5 * float(solution.x @ solution.x))
    tol = fit.solver.tol
    if not math.isfinite(claim.primal):
        return trained
    enough = max(NEGLIGIBLE, tol if claim.gap <= tol else claim.gap + tol)
    if solution.sums is not None and features.scaling is None:
        predicted = solution.sums.loss if _in_float64(trained.model, data) else solution.sums.predicted
        if math.isfinite(predicted):
            assert claim.half_norm is not None
            return _with_figures(trained, claim, replace(claim, primal=claim.half_norm + predicted), enough, tol)
    if not data.in_memory or features.scaling is not None:
        most = NEGLIGIBLE if data.in_memory else 0.01 * tol
        if _weights_rise(claim, trained.model, features, data, fit) <= most * claim.primal:
            return trained
    return _with_figures(trained, claim, _predicted(trained.model, claim, data, fit), enough, tol)


def _weights_rise(claim: Claim, model: Any, features: FeatureMap, data: TrainingData, fit: ODMFit) -> float:
    """Return how far rounding may move P: of sums in float64, and of scaled rows and scores in their own type."""
    statistics = data.statistics()
    scaling = features.scaling
    shift = np.zeros(data.features) if scaling is None else scaling.shift
    weights = np.abs(model.weights[0])
    unit = 0.5 * float(np.finfo(data.raw_dtype).eps)
    far = np.maximum(np.abs(statistics.maximum - shift), np.abs(statistics.minimum - shift))  # of any row
    moved = (SUM_ERROR + data.features) * UNIT * float(weights @ (far + np.abs(shift)))
    moved += unit * (0.0 if scaling is None else float(weights @ far))
    stiffness = fit.odm.stiffness
    written = 4.0 * unit * claim.primal + 4.0 * unit**2 * stiffness  # of the scores themselves, which are about 1 ± θ
    return moved * math.sqrt(2.0 * stiffness * claim.primal) + 0.5 * stiffness * moved**2 + written


def _with_figures(
    trained: Trained, solved: Claim, found: Claim, enough: float, tol: float, figures: Collection[str] = FIGURES
) -> Trained:
    """Return the trained model with the ``found`` figures, or unchanged if these nearly equal the ``solved`` ones."""
    gap = max(found.gap, replace(found, primal=solved.primal).gap)
    moved = max(abs(found.primal - solved.primal) / max(solved.primal, TINY), gap - solved.gap)
    if moved <= NEGLIGIBLE:
        return trained
    told = {name: value for name, value in {"gap": gap, "objective": found.primal}.items() if name in figures}
    *before, last = trained.history or [{}]  # machines in lockstep have no records of their own
    history = [*before, last | told] if last else []
    attributes = trained.attributes | {"dual_gap_": gap, "history_": history}
    warning = trained.warning
    if math.isinf(gap):
        warning = stopped_at(gap, tol)
    elif gap > enough:
        warning = (
            f"Rounding leaves the model, as it predicts, at a relative gap of {gap:.1e}, above tol={tol:g}: its "
            "coefficients are too large for the digits of its kernel. Scale the features (scale='minmax'), or decrease "
            "lam."
        )
    return replace(trained, attributes=attributes, warning=warning)


def _predicted(model: Any, claim: Claim, data: TrainingData, fit: ODMFit) -> Claim:
    """Return the claim with P of a model as it predicts; infinite if some value is not finite."""
    assert claim.half_norm is not None
    loss = fit.loss(data)
    if isinstance(model, KernelModel) and data.X is not None:  # threads share the support, packed once
        whole = RowBlock(data.X, *data.columns())
        total = PredictedLoss(model, loss, CPU_COUNT).total([whole])
    else:
        total = float(data.passes(0).run(PredictedLoss(model, loss), PredictedLoss.total))
    primal = claim.half_norm + total
    return replace(claim, primal=primal if math.isfinite(primal) else math.inf)


def _in_float64(model: Any, data: TrainingData) -> bool:
    return data.raw_dtype == np.float64 and (not isinstance(model, KernelModel) or model.support.dtype == np.float64)


def _rounding(model: Any, claim: Claim, kernel: Kernel, data: TrainingData, fit: ODMFit) -> tuple[float, float]:
    """Return bounds of how far float64 rounding may move P, and ``sᵀQs`` of the dual variables."""
    a, own = _coefficients(model, kernel)
    units, largest = 0.0, math.inf
    if isinstance(model, KernelModel):  # else values are a user's, whose rounding is unknown
        units, largest = kernel.float64_errors(model.scaling.farthest(data.statistics(fit.kernel.scale)))
    error = (SUM_ERROR + units) * UNIT
    whole = float(a**2 @ own) if claim.dual is None else float(own.max() * (claim.dual @ claim.dual))
    square = TOGETHER * error * whole
    if claim.dual is None and square > NEGLIGIBLE * claim.primal:  # the values of equal rows are rounded alike
        merged, once = _merged(a, own, model)
        cancelling = 4.0 * UNIT * whole  # of sums of cancelling coefficients
        square = TOGETHER * error * float(merged**2 @ once) + cancelling
    stiffness = fit.odm.stiffness
    slopes = float(np.abs(a if claim.dual is None else claim.dual).sum())
    slopes += math.sqrt(2.0 * stiffness * claim.gap * claim.primal)  # losses' slopes may be so far from s
    moved = error * math.sqrt(largest) * float(np.abs(a) @ np.sqrt(own))
    return moved * slopes + 0.5 * stiffness * moved**2, square


def _coefficients(model: Any, kernel: Kernel) -> tuple[Array, Array]:
    """Return the coefficients of a model's support, and the kernel's values of these rows with themselves."""
    if not isinstance(model, KernelModel):  # one weight for the column of each training row
        numbers = np.flatnonzero(model.weights[0])
        return model.weights[0, numbers], np.abs(kernel.diagonal(numbers[:, None]))
    a = model.coefficients[0]
    if kernel.of_distances:
        return a, np.full(len(a), 1.0 + kernel.bias)
    X = model.raw_support
    if issparse(X):
        return a, kernel.diagonal(model.scaling.of_csr(X.astype(np.float64)))
    return a, kernel.diagonal(model.scaling(np.asarray(X, dtype=np.float64)))


def _merged(a: Array, own: Array, model: Any) -> tuple[Array, Array]:
    """Return coefficients and kernel values with equal rows merged, even those of different classes."""
    if not isinstance(model, KernelModel) or not isinstance(model.support, np.ndarray):
        return a, own
    first, of = merge_equal(model.support, np.zeros(len(a)))
    return np.bincount(of, a, len(first)), own[first]


def _half_norm(model: Any, kernel: Kernel) -> float:
    """Return ½‖w‖² of a model that was just made, from kernel values in float64 among its support."""
    if isinstance(kernel, Precomputed):
        a = model.weights[0]
        used = np.flatnonzero(model.weights[0])
        scores = kernel.matrix[used] @ a + model.intercept[0]
        return 0.5 * float(a[used] @ scores)
    scores = replace(model, double_precision=True).machine_scores(model.raw_support, CPU_COUNT)
    return 0.5 * float(np.vdot(model.coefficients, scores))
