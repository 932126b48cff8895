"""Cheaper routes to linear models over rows in memory: rows that are mostly zeros, and fewer rows than features.

Dense rows that are mostly zeros are converted to sparse ones. If a Hessian summed entry by entry costs little, Newton
forms it. Otherwise steps need products alone: Newton's by conjugate gradients or, for fewer rows than weights, those of
dual coordinate descent, since such rows have little in common. Machines of many classes, one against the rest, over
text (many features, few of them in each row) are learned in joint sweeps of dual descent.

Far fewer rows than features are solved by their Gram matrix, like a kernel's (Gram or kernel-trick reduction,
`FewRows`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import csr_array, issparse

from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.machines import joined, joined_attributes
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.sparse_linear import SparsePrimal, as_sparse, is_thin
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Machines, Trained, finish_weights, report_step, rescaling_advised
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.exact.solver import solve_gram
from dask_odm.methods.linear.sparse_solvers import descend_machines, descend_rows
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")

FEW_FEATURES = 64  # of dense rows, however many are zeros: a Hessian of so few costs little


def read_sparsely(data: TrainingData, fit: ODMFit) -> TrainingData:
    """Return the data as sparse rows if they are in memory, mostly zeros, and have more than a few features."""
    if fit.loo or not isinstance(data, MemoryData) or data.features <= FEW_FEATURES:
        return data
    return data if issparse(data.X) or not is_thin(data.X) else replace(data, X=as_sparse(data.X, CPU_COUNT))


def forms_hessian(data: TrainingData, fit: ODMFit) -> bool | None:
    """Return whether Newton forms the Hessian of mostly-zero rows, by its cost; None leaves it to the solver."""
    X = data.X
    if fit.loo or data.features <= FEW_FEATURES or not issparse(X) or not is_thin(X):
        return None
    entries = X.nnz
    # 75 multiplications of a factorisation take as long as one entry in a pass
    passes = 0.25 * entries / data.rows + data.features**3 / (3.0 * 75 * max(1, entries))
    # a Hessian that costs more passes is not formed
    return bool(data.features < EXACT_FEATURES and passes <= 12)


def thin_problem(features: FeatureMap, data: TrainingData, fit: ODMFit) -> SparsePrimal | None:
    """Return the problem over mostly-zero rows, fewer than weights, that dual descent solves first, or None.

    It is None if a Hessian or checkpoint is wanted, or rows are shifted. Rows that are scaled without a shift become a
    scaled copy. Raises MemoryLimitError if the solver's vectors do not fit.
    """
    if fit.has_real_targets or forms_hessian(data, fit) is not False or fit.run.checkpoint is not None:
        return None
    X, scaling = data.X, features.scaling
    if data.rows >= features.k or (scaling is not None and scaling.shift.any()):
        return None
    active = X.data.nbytes + X.indices.nbytes  # of rows whose dual variables are not zero
    copied = 0 if scaling is None else 8 * X.nnz
    needed = active + 2 * copied + 8 * (10 * features.k + 8 * data.rows)
    data.cluster.require(needed, 1, f"Steps of {features.k} weights")
    if scaling is not None:
        X = csr_array((X.data * scaling.factor[X.indices], X.indices, X.indptr), shape=X.shape)
    return SparsePrimal(replace(features, scaling=None), fit.loss(data), X, *data.columns(), CPU_COUNT)


def solve_thin(problem: SparsePrimal, w: Array, fit: ODMFit) -> PrimalSolution[None]:
    """Return the best solution that dual descent reaches from the dual variables at the margins of ``w`` (k,).

    They are multiplied by the number that takes their weights nearest to ``w``, since λ may be another one.
    """
    settings = replace(fit.solver, max_iter=10 * fit.solver.max_iter)
    _, dual = problem.losses(problem.scores(w))
    image = problem.image(dual)
    share = float(w @ image) / max(float(image @ image), np.finfo(float).tiny)
    start = (share * image, share * dual) if share > 0 else None
    return descend_rows(problem, settings, report_step, start=start)[0]


def scaling_asked_for(data: TrainingData, fit: ODMFit) -> Scaling | None:
    """Return the scaling of features, or None if none is asked for; then no pass is spent on statistics."""
    if fit.kernel.scale is None:
        return None
    statistics = data.statistics(fit.kernel.scale)
    fit.kernel.make(statistics)  # raises an error if features or gamma are out of range
    scaling = fit.kernel.scaling(statistics, sparse=data.keeps_zeros)
    length = float((((statistics.mean - scaling.shift) ** 2 + statistics.variance) * scaling.factor**2).sum())
    forms = data.features < EXACT_FEATURES  # a Hessian, of which a few suffice for any λ
    if data.is_sparse and not forms and fit.odm.lam * length > AUTO.large_lam * data.total_weight:
        _advise_lam(fit.kernel.scale, fit.odm.lam, length, float(f"{data.total_weight / length:.1g}"))
    return scaling


@cache
def _advise_lam(scale: str, lam: float, length: float, better: float) -> None:
    """Say, once for all machines, that scaled sparse rows are too long for their λ."""
    logger.warning(
        "scale=%r makes rare features large, so that rows have a mean ‖x‖² of %.4g: with lam=%g the fit may take long. "
        "Texts need no scaling (scale=None, --scale none); else take a smaller lam, of about %g.",
        scale, length, lam, better,
    )  # fmt: skip


def train_sparse(data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
    """Train a machine for every class against the rest, over sparse rows of many features, in joint sweeps.

    Returns None for other rows, for ``pairs``, or if a start, path, checkpoint or loo is asked for. Rows that are
    scaled without a shift are swept as a scaled copy; None if sweeps of it do not converge.
    """
    X = data.X
    if pairs or not issparse(X) or data.features <= EXACT_FEATURES:
        return None
    if fit.loo or fit.run.checkpoint is not None or fit.lams or fit.starts:
        return None
    scaling = scaling_asked_for(data, fit)
    if scaling is not None:
        if scaling.shift.any():
            return None
        X = csr_array((scaling.entries(X), X.indices, X.indptr), shape=X.shape)
    features = FeatureMap(data.features, fit.kernel.bias)
    count = len(machines)
    needed = 8 * count * (3 * features.k + 2 * data.rows) + (0 if scaling is None else X.data.nbytes)
    needed += min(CPU_COUNT, count) * (X.data.nbytes + X.indices.nbytes)  # active rows of machines that go on alone
    data.cluster.require(needed, 1, f"{count} machines of {features.k} weights")
    loss = BandLoss(fit.odm, data.total_weight)
    _, y, weight = data.taking_part
    problem = SparsePrimal(features, loss, X, y.astype(np.int64), weight, CPU_COUNT)
    with rescaling_advised():
        found = descend_machines(problem, count, fit.solver, CPU_COUNT, report_step)
    if scaling is not None and not all(each.converged for each in found):
        return None
    features = replace(features, scaling=scaling)
    trained = (finish_weights(features, each, fit.solver.tol, fit.solver.max_iter) for each in found)
    return joined(trained, 0, joined_attributes)


def _gram(features: FeatureMap, block: Any) -> Array:
    """Return ``Φ Φᵀ``, constant feature included; sparse rows, which are scaled, are shifted in the products."""
    exact = block.astype(np.float64, copy=False)
    scaling = features.scaling
    if scaling is None or not issparse(block):
        return np.asarray(exact @ exact.T) + features.bias
    shift = scaling.shift * scaling.factor
    scaled = exact.multiply(scaling.factor[None, :]).tocsr()
    along = scaled @ shift
    products = np.asarray((scaled @ scaled.T).toarray())
    return products - along[:, None] - along[None, :] + float(shift @ shift) + features.bias


@dataclass(frozen=True, eq=False)
class FewRows:
    """Rows in memory, far fewer than features: ``block`` (n, d) of `FeatureMap.block`, and their Gram matrix (n, n)."""

    features: FeatureMap
    block: Any
    gram: Array

    @classmethod
    def of(cls, features: FeatureMap, data: TrainingData, fit: ODMFit) -> FewRows | None:
        """Compute the Gram matrix, summed in float64, or return None if it is no gain.

        Sparse rows have one only if they are scaled. Their products are cheap, but scaling inflates rare features,
        which would take thousands of products.
        """
        # with fewer than 512 features, the Hessian costs little
        few = not fit.has_real_targets and 2 * data.rows <= features.k >= 512 and data.rows <= EXACT_FEATURES
        X = data.X
        if not few or X is None or fit.starts:
            return None
        if issparse(X) and features.scaling is None:
            return None
        n = data.rows
        copies = 0 if issparse(X) else n * features.d * (8 + (0 if features.scaling is None else X.dtype.itemsize))
        # the Gram matrix of rows in float64, what it is made of, and that of the active rows
        if copies + 8 * 8 * n * n > data.cluster.memory:
            return None
        block = features.block(X)
        return cls(features, block, _gram(features, block))

    def solve(self, fit: ODMFit, data: TrainingData) -> PrimalSolution[Any]:
        """Solve by the Gram matrix; return the optimum as weights (k,), with their gap by the rows themselves."""
        _, y, weight = data.taking_part
        losses = fit.row_losses(y, weight)
        # rows in float32 lack the digits of their Gram matrix
        found = solve_gram(losses, self.gram, replace(fit.solver, tol=0.1 * fit.solver.tol))
        w = self.features.weighted_sum(self.block, found.coefficients)
        margins = losses.y * self.features.scores(self.block, w)
        primal = 0.5 * float(w @ w) + float(losses.losses(margins).sum())
        gap = float(losses.row_gaps(losses.y * found.coefficients, margins).sum()) / primal
        history = [*found.history[:-1], found.history[-1] | {"gap": gap, "objective": primal}]
        for record in history:
            report_step(record)
        return PrimalSolution(w, primal, gap, gap <= fit.solver.tol, history, len(history) - 1)
