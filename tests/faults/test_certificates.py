"""What a model says of its objective and its gap is true of the model as it predicts."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from tries.base import generator
from tries.certificates import Machine, Problem, check

from dask_odm import ODMClassifier, load_model

SOME = 20  # of the 500 that the campaign tries


def test_random_problems():
    for number in range(SOME):
        problem = Problem.drawn(number, generator(0, "certificates", number))
        wrong = check(problem)
        assert not wrong, f"{number}, {problem.kernel} of {problem.X.dtype}: {wrong}"


def test_kernels_without_a_formula_are_no_gaussians():
    problem = Problem.drawn(0, generator(0, "certificates", 0))
    model = problem.model().fit(problem.given, problem.y)
    assert problem.matrix(model).diagonal().min() >= 1
    with pytest.raises(ValueError, match="no formula of kernel 'another'"):
        replace(problem, kernel="another").matrix(model)


def wine(theta: float, dtype: str = "float64", upsilon: float = 0.0):
    """Unscaled rows whose kernel has values of 1e10, labels, and a model of them."""
    X, y = load_wine(return_X_y=True)
    X, y = X.astype(dtype), np.where(y == 1, 1.0, -1.0)
    shape = {"gamma": 1 / 13, "degree": 2, "scale": None}
    model = ODMClassifier("poly", **shape, lam=1e6, theta=theta, upsilon=upsilon, solver="exact")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        return X, y, model.fit(X, y), heard


def predicted(X, y, model) -> float:
    """The objective of a model of wine as it predicts."""
    wide, a = X.astype(np.longdouble), np.zeros(len(y), np.longdouble)
    a[model.support_] = model.dual_coef_[0]
    K = (np.longdouble(1 / 13) * (wide @ wide.T) + 1) ** 2 + 1
    machine = Machine(K, y, np.ones(len(y)), {"lam": 1e6, "theta": model.theta, "upsilon": 0.0})
    return float(0.5 * (a @ K @ a) + machine.losses(model.decision_function(X).astype(np.longdouble)))


@pytest.mark.parametrize("theta", [0.5, 0.2])
def test_a_kernel_of_many_magnitudes(theta):
    """Scores that Newton carries along lose all digits on the way."""
    X, y, model, heard = wine(theta)
    assert not heard
    assert model.history_[-1]["objective"] == pytest.approx(predicted(X, y, model), rel=1e-6)
    assert model.dual_gap_ < 1e-3


def test_float32_predicts_in_float64_where_that_mends_it(tmp_path):
    X, y, model, heard = wine(0.5, "float32")
    assert model.history_[-1]["objective"] == pytest.approx(predicted(X, y, model), rel=1e-3)
    assert model.dual_gap_ < 1e-3 or any("Rounding" in str(each.message) for each in heard)
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr").decision_function(X)
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, model.decision_function(X))


def test_rounding_that_nothing_mends_is_said():
    """The square of the coefficients has too few digits left."""
    _, _, model, heard = wine(0.2, upsilon=0.2)
    assert model.dual_gap_ > 1e-3
    assert issubclass(heard[0].category, ConvergenceWarning)
    for part in ("Rounding leaves the model", "Scale the features", "decrease lam"):
        assert part in str(heard[0].message)


@pytest.mark.parametrize("solver", ["exact", "sodm"])
@pytest.mark.parametrize("kernel", ["precomputed", "callable"])
def test_a_kernel_matrix_that_is_not_positive_semidefinite_certifies_nothing(solver, kernel):
    """Values of a wide kernel in float32: ‖w‖² is negative where coefficients are large.

    Rounding, and so the processor, decides whether the last model's is, which the message names; none is certified.
    """
    problem = Problem.drawn(147, generator(10, "certificates", 147))

    def rounded(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        same = (A[:, None] == B[None]).all(axis=2)
        return problem.function(A.astype(np.float32), B.astype(np.float32)) - np.float32(1e-5) * same

    given = rounded(problem.X, problem.X)
    assert np.linalg.eigvalsh(given.astype(np.float64)).min() < -5e-6
    model = problem.model().set_params(solver=solver, kernel="precomputed" if kernel == "precomputed" else rounded)
    with pytest.warns(ConvergenceWarning, match=r"not positive semidefinite|at a relative gap of"):
        model.fit(given if kernel == "precomputed" else problem.X, problem.y, sample_weight=problem.weight)
    assert model.dual_gap_ > 0.9


@pytest.mark.parametrize("solver", ["exact", "sodm"])
def test_a_function_that_no_step_goes_along_leaves_a_zero_model(solver):
    """All curvature is negative along the labels; the rows that a check looks at have zeros only."""
    n = 511
    y = np.where(np.arange(n) % 4 < 2, 1, -1)
    X = np.c_[y * (np.arange(n) % 2), np.arange(n)].astype(float)

    def attracting(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return -np.outer(A[:, 0], B[:, 0]) * (A[:, 1, None] != B[None, :, 1])

    model = ODMClassifier(attracting, solver=solver)
    with pytest.warns(ConvergenceWarning, match="relative gap of 1"):
        model.fit(X, y)
    assert model.dual_gap_ == pytest.approx(1.0)
    np.testing.assert_array_equal(model.decision_function(X), 0.0)
