"""Small ODM problems for the tests of problems, solvers and strategies, and their kernels written plainly.

The matrices come from SciPy's explicit differences and NumPy's products, and share no code with dask_odm.kernels.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.spatial.distance import cdist

import reference
from dask_odm import ODMClassifier
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.kernels.base import Kernel
from dask_odm.learning.problem.losses import ODMSettings, RowLosses
from dask_odm.linalg.rows import ArrayRows

# (lam, upsilon, theta): both sides of the band, no upper side, no band, nearly no loss, nearly nothing but loss.
SETTINGS = [(100.0, 0.5, 0.2), (1e4, 0.3, 0.1), (32.0, 1.0, 0.0), (1e3, 0.0, 0.4), (1e-3, 0.2, 0.3)]


def matrix(kernel: Kernel, X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
    """κ(X, Z) in float64 from its formula."""
    X = np.asarray(X, np.float64)
    Z = X if Z is None else np.asarray(Z, np.float64)
    if isinstance(kernel, RBF):
        values = np.exp(-kernel.gamma * cdist(X, Z, "sqeuclidean"))
    elif isinstance(kernel, Laplacian):
        values = np.exp(-kernel.gamma * cdist(X, Z, "cityblock"))
    elif isinstance(kernel, Polynomial):
        values = (kernel.gamma * (X @ Z.T) + kernel.coef0) ** kernel.degree
    else:
        assert isinstance(kernel, Linear)
        values = X @ Z.T
    return values + kernel.bias


@dataclass(frozen=True, eq=False)
class SmallProblem:
    """Rows, labels, weights and parameters, with the plain values of everything."""

    kernel: Kernel
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    lam: float
    upsilon: float
    theta: float

    def __repr__(self) -> str:
        return f"SmallProblem({self.kernel}, {self.X.shape}, {self.X.dtype}, {self.lam, self.upsilon, self.theta})"

    @cached_property
    def K(self) -> np.ndarray:  # noqa: N802
        return matrix(self.kernel, self.X)

    @property
    def parameters(self) -> tuple:
        return self.lam, self.upsilon, self.theta, self.weight

    @property
    def losses(self) -> RowLosses:
        return RowLosses(ODMSettings(self.lam, self.upsilon, self.theta), self.y, self.weight)

    @property
    def rows(self) -> ArrayRows:
        return ArrayRows(self.X)

    def primal(self, s: np.ndarray) -> float:
        return reference.primal_value(self.K, self.y, s, *self.parameters)

    def dual(self, s: np.ndarray) -> float:
        return reference.dual_value(self.K, self.y, s, *self.parameters)

    def gap(self, s: np.ndarray) -> float:
        return reference.relative_gap(self.K, self.y, s, *self.parameters)

    def optimum(self) -> tuple[np.ndarray, float]:
        """Dual variables and objective of the papers' two-variable dual."""
        return self._optimum

    @cached_property
    def _optimum(self) -> tuple[np.ndarray, float]:
        return reference.solve_two_variable_dual(self.K, self.y, *self.parameters)

    @cached_property
    def coefficients(self) -> np.ndarray:
        """Coefficients of the optimum, to rounding, by a plain solver of active sets."""
        return self.y * reference.solve_by_active_sets(self.K, self.y, *self.parameters)

    def decision(self, s: np.ndarray) -> np.ndarray:
        return self.K @ (self.y * s)


def blobs(n: int, d: int = 3, seed: int = 0, *, distance: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping normal clouds in random order, labels -1.0 and 1.0."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    return rng.standard_normal((n, d)) + 0.5 * distance / np.sqrt(d) * y[:, None], y


def small_problem(
    n: int = 60,
    setting: tuple[float, float, float] = SETTINGS[0],
    *,
    kernel: Kernel | None = None,
    weighted: bool = False,
    dtype: str = "float64",
    seed: int = 0,
    d: int = 3,
) -> SmallProblem:
    X, y = blobs(n, d, seed)
    rng = np.random.default_rng(seed + 1)
    weight = rng.integers(1, 5, n) * rng.choice([0.25, 1.0, 2.0], n) if weighted else np.ones(n)
    return SmallProblem(kernel or RBF(1.0, 0.5), X.astype(dtype), y, weight, *setting)


def linear_problem(n: int = 300, setting=SETTINGS[0], *, bias: float = 1.0, **options) -> SmallProblem:
    return small_problem(n, setting, kernel=Linear(bias), **options)


def wide(problem: SmallProblem) -> np.ndarray:
    """Rows with the constant feature last, where there is one."""
    X, bias = problem.X.astype(np.float64), problem.kernel.bias
    return np.column_stack([X, np.full(len(X), np.sqrt(bias))]) if bias else X


def dual_of(model: ODMClassifier, y: np.ndarray) -> np.ndarray:
    """Dual variables of the rows of a fit."""
    s = np.zeros(len(y))
    s[model.support_] = y[model.support_] * model.dual_coef_[0]
    return s


def any_dual(problem: SmallProblem, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Dual variables far from the optimum, feasible where upsilon is 0."""
    s = scale * np.random.default_rng(seed).standard_normal(len(problem.y))
    s[::5] = 0.0
    return s if problem.upsilon > 0 else np.maximum(s, 0.0)
