"""Recipe for linear machines of many classes, one against the rest, over sparse rows of many features: all in one
sweep.

Text has more features than rows, and few of them in each row. Dual descent (`dask_odm.methods.linear.sparse_descent`)
then takes less time than Newton, whose systems have all features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.targets import OneOfMany
from dask_odm.learning.machines import Joined, joined_attributes
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.learning.training.model_building import finish_weights
from dask_odm.learning.training.steps import report_step, rescaling_advised
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.linear.sparse_descent import SparseProblem, descend_machines
from dask_odm.methods.settings import ODMFit


def suits_sparse(data: TrainingData, fit: ODMFit) -> bool:
    """Return whether the rows are unscaled and sparse, and no start, path, checkpoint or loo is asked for."""
    if data.held is None or not issparse(data.held.X):
        return False
    plain = fit.kernel.scale is None and not fit.loo and fit.run.checkpoint is None
    return plain and not fit.lams and not fit.starts and data.features > EXACT_FEATURES


def train_sparse(data: TrainingData, fit: ODMFit, machines: Sequence[OneOfMany]) -> Trained:
    """Train a machine for every class."""
    features = FeatureMap(data.features, fit.kernel.bias)
    count = len(machines)
    needed = 8 * count * (3 * features.k + 2 * data.rows)
    data.cluster.require(needed, 1, f"{count} machines of {features.k} weights")
    with rescaling_advised():
        found = descend_machines(_problem(data, fit), count, fit.solver, CPU_COUNT, report_step)
    join = Joined(0, joined_attributes)
    for each in found:
        solution: PrimalSolution[None] = PrimalSolution(
            each.x[: features.k], each.primal, each.gap, each.converged, each.history, each.steps
        )
        join.add(finish_weights(features, solution, fit.solver.tol, fit.solver.max_iter))
    return join.trained()


def _problem(data: TrainingData, fit: ODMFit) -> SparseProblem:
    held = data.held
    assert held is not None
    X = held.X
    codes = held.y.astype(np.int64)
    stiffness = RowLosses(fit.odm, held.y, held.total_weights).stiffness_low
    return SparseProblem(X.data, X.indices, X.indptr, data.features, codes, stiffness, fit.kernel.bias, fit.odm)
