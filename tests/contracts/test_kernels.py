"""Every kernel with every solver and estimator, through the registries: the optimum of its plain matrix, or why not."""

from functools import partial

import numpy as np
import pytest
from sklearn.base import is_regressor
from sklearn.metrics import pairwise

import reference
from contracts.cases import GRID, scores
from dask_odm import InputError, ODMClassifier, ODMClassifierCV, load_model
from dask_odm.estimators.registry import ESTIMATORS, ODM_SOLVERS
from dask_odm.kernels import KERNELS
from dask_odm.methods.recipes import RECIPES, recipe_of
from small_problems import blobs

GAMMA = 0.5
PLAIN = {
    "rbf": partial(pairwise.rbf_kernel, gamma=GAMMA),
    "laplacian": partial(pairwise.laplacian_kernel, gamma=GAMMA),
    "poly": partial(pairwise.polynomial_kernel, gamma=GAMMA, degree=2, coef0=1.0),
    "linear": pairwise.linear_kernel,
}
SOLVERS = [name.lower() for name in ODM_SOLVERS]
WITH_KERNEL = [entry.load() for entry in ESTIMATORS.values() if "kernel" in entry.load()._parameter_constraints]
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


@each_kernel
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_ends_at_the_optimum_of_every_kernel_or_says_whose_it_is(solver, kernel):
    """So few rows are one partition, one cell, and all of them landmarks."""
    X, y = blobs(60, 3, seed=2)
    odm = {"lam": 100.0, "upsilon": 0.3, "theta": 0.1}
    settings = {"gamma": GAMMA, "degree": 2, "coef0": 1.0, "scale": None, "tol": 1e-8, "max_iter": 4000}
    model = ODMClassifier(kernel, solver=solver, random_state=0, **odm, **settings)
    own = kernel == "linear" if recipe_of(solver).linear else kernel != "linear" or solver not in RECIPES
    if not own:
        with pytest.raises(InputError, match=r"is for kernel='linear'|is for kernels other than 'linear'"):
            model.fit(X, y)
        return
    K = PLAIN[kernel](X, X) + 1.0
    s, objective = reference.solve_two_variable_dual(K, y, *odm.values())
    expected = K @ (y * s)
    found = model.fit(X, y).decision_function(X)
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    assert model.history_[-1]["objective"] == pytest.approx(objective, rel=1e-6)


@each_kernel
@pytest.mark.parametrize("kind", WITH_KERNEL, ids=lambda kind: kind.__name__)
def test_every_estimator_learns_by_every_kernel_and_is_saved(kind, kernel, tmp_path):
    X, y = blobs(60, 3, seed=2, distance=6.0)
    more = GRID if kind is ODMClassifierCV else {}
    model = kind(**more | {"kernel": kernel}).fit(X, X[:, 0] if is_regressor(kind()) else y)
    assert np.isfinite(scores(model, X)).all()
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert again.kernel == kernel
    np.testing.assert_array_equal(scores(again, X), scores(model, X))
