"""Models and rows that the tests of models share."""

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.kernels import RBF
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.pair_model import PairModel
from small_problems import matrix

GAUSS = RBF(gamma=0.5)
SCALING = Scaling(np.array([1.0, -2.0, 0.0]), np.array([0.5, 1.0, 2.0]))


def make(kernel=GAUSS, n: int = 130, dtype: str = "float64", outputs: int = 1) -> KernelModel:
    rng = np.random.default_rng(0)
    support = rng.normal(size=(n, 3)).astype(dtype)
    return KernelModel(kernel, SCALING, support, rng.normal(size=(outputs, n)), 0.25 + np.arange(outputs))


def make_pairs() -> PairModel:
    """A model of four classes, one of them without support."""
    rng = np.random.default_rng(0)
    starts = np.array([0, 300, 301, 301, 420])
    support, coefficients = rng.normal(size=(420, 3)), rng.normal(size=(3, 420))
    return PairModel(GAUSS, SCALING, support, coefficients, np.arange(6.0), 4, starts=starts)


def rows(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, 3)).astype(dtype)


def expected(model: KernelModel, X: np.ndarray) -> np.ndarray:
    """The formula, (n, outputs)."""

    def scaled(Z):
        return (np.asarray(Z, np.float64) - SCALING.shift) * SCALING.factor

    return matrix(model.kernel, scaled(X), scaled(model.support[:])) @ model.coefficients.T + model.intercept
