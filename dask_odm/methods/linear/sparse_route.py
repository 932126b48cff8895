"""The sparse route: linear models over rows in memory that are mostly zeros, solved in the cheapest way.

Dense rows that are mostly zeros are converted to sparse ones. If a Hessian summed entry by entry costs little, Newton
forms it. Otherwise steps need products alone. If there are fewer rows than features, dual coordinate descent comes
first, since such rows have little in common. Quasi-Newton steps follow.
"""

from __future__ import annotations

from dataclasses import replace

from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES
from dask_odm.learning.problem.linear_loops import MOST_FEATURES
from dask_odm.learning.problem.sparse_linear import SparsePrimal, as_sparse, is_thin
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.steps import report_step, reported_after
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.linear.quasi_newton import MEMORY, solve_quasi_newton
from dask_odm.methods.linear.sparse_descent import descend_rows
from dask_odm.methods.settings import ODMFit
from dask_odm.typing import Array


def read_sparsely(data: TrainingData, fit: ODMFit) -> TrainingData:
    """Return the data as sparse rows if they are in memory, mostly zeros, and have more than a few features."""
    if fit.loo or not isinstance(data, MemoryData) or data.features <= MOST_FEATURES:
        return data
    held = data.held
    if issparse(held.X) or not is_thin(held.X):
        return data
    return replace(data, held=replace(held, X=as_sparse(held.X, CPU_COUNT)))


def forms_hessian(data: TrainingData, fit: ODMFit) -> bool | None:
    """Return whether Newton forms the Hessian of mostly-zero rows, by its cost; None leaves it to the solver."""
    if fit.loo or not _are_thin(data):
        return None
    assert data.held is not None
    entries = data.held.X.nnz
    # 75 multiplications of a factorisation take as long as one entry in a pass
    passes = 0.25 * entries / data.rows + data.features**3 / (3.0 * 75 * max(1, entries))
    # a Hessian that costs more passes is not formed
    return bool(data.features < EXACT_FEATURES and passes <= 12)


def thin_problem(features: FeatureMap, data: TrainingData, fit: ODMFit) -> SparsePrimal | None:
    """Return the problem over mostly-zero rows to be solved by products, or None if a Hessian or checkpoint is wanted.

    Raises MemoryLimitError if the solver's vectors do not fit.
    """
    if forms_hessian(data, fit) is not False or fit.run.checkpoint is not None:
        return None
    held = data.held
    assert held is not None
    data.cluster.require(8 * ((2 * MEMORY + 10) * features.k + 8 * data.rows), 1, f"Steps of {features.k} weights")
    return SparsePrimal(features, fit.loss(data), held.X, held.codes, held.block_weights, CPU_COUNT)


def solve_thin(problem: SparsePrimal, w: Array, fit: ODMFit) -> PrimalSolution[None]:
    """Return the best solution that descent and quasi-Newton steps reach from ``w`` (k,)."""
    settings = fit.solver
    ahead = None
    n, d = problem.X.shape
    if n < d and problem.features.scaling is None and not w.any():
        ahead = descend_rows(problem, settings, report_step)
        if ahead.converged:
            return ahead
        w = ahead.x
    most = 10 * settings.max_iter
    tell = reported_after(ahead)
    return solve_quasi_newton(problem, w, tol=settings.tol, max_iter=most, on_step=tell).after(ahead)


def _are_thin(data: TrainingData) -> bool:
    if data.held is None or data.features <= MOST_FEATURES:
        return False
    return bool(issparse(data.held.X)) and is_thin(data.held.X)
