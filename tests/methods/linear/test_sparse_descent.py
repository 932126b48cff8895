"""Dual descent over sparse rows: machines of many classes at once. One machine alone is in test_sparse_solvers.py."""

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dask_odm.kernels import Linear
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.learning.problem.sparse_linear import SparsePrimal
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.linear.sparse_solvers import descend_machines
from small_problems import SETTINGS, SmallProblem

N, D, CLASSES = 60, 40, 3


def problem(setting: tuple[float, float, float], codes: np.ndarray) -> SparsePrimal:
    X = csr_array(random_array((N, D), density=0.2, random_state=0))
    weight = np.random.default_rng(1).uniform(0.5, 2.0, N)
    return SparsePrimal(FeatureMap(D, 0.5), BandLoss(ODMSettings(*setting), weight.sum()), X, codes, weight)


def least(p: SparsePrimal, positive: int) -> float:
    """The least P of the machine of one class against the rest."""
    y = np.where(p.y == positive, 1.0, -1.0)
    odm = p.loss.settings
    return SmallProblem(Linear(0.5), p.X.toarray(), y, p.weight, odm.lam, odm.upsilon, odm.theta).optimum()[1]


@pytest.mark.parametrize(("setting", "most"), [*((each, 2000) for each in SETTINGS), ((1e6, 0.2, 0.2), 200)], ids=str)
def test_machines_end_at_their_optima_whatever_the_threads(setting, most):
    """Also those of a large lam, for which sweeps of all machines together are slow."""
    p = problem(setting, np.random.default_rng(2).integers(0, CLASSES, N))
    found = [descend_machines(p, CLASSES, SolverSettings(1e-4, most, 3), threads) for threads in (1, 2, 5)]
    for code, solution in enumerate(found[0]):
        assert solution.converged
        assert solution.steps <= 500 or most > 500
        assert solution.x.shape == (D + 1,)
        best = least(p, code)
        assert best * (1 - 1e-9) <= solution.primal <= best + 1.1e-4 * solution.primal
        assert all(np.array_equal(solution.x, other[code].x) for other in found)
