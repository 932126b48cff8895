"""Regression by the ODM's loss, beside ridge regression, a smooth solver, refits, and its own promises."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import minimize
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GroupKFold, LeaveOneOut

from dask_odm import InputError, ODMRegressor, ODMRegressorCV, load_model, report
from dask_odm.cli import main
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.learning.problem.losses import ResidualLoss, ResidualSettings
from dask_odm.methods.search.trials import explained
from dask_odm.solvers import Cells, Landmark
from small_stores import store_of

GAMMA = 0.3
exact = {"gamma": GAMMA, "scale": None, "fit_intercept": False, "solver": "exact", "tol": 1e-10}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    return X, 40.0 + 5.0 * (X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.3 * rng.normal(size=160))


def in_units(y, weight=None):
    mean = np.average(y, weights=weight)
    return mean, np.sqrt(np.average((y - mean) ** 2, weights=weight))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("solver", ["exact", Landmark(160)])
def test_without_band_it_is_kernel_ridge_regression(rows, solver, dtype):
    X, y = rows
    mean, unit = in_units(y)
    model = ODMRegressor(**{**exact, "solver": solver}, lam=4.0 * len(y)).fit(X.astype(dtype), y)
    ridge = KernelRidge(alpha=0.25, kernel="rbf", gamma=GAMMA).fit(X, (y - mean) / unit)
    atol = (1e-6 if dtype == "float64" else 1e-5) * unit
    np.testing.assert_allclose(model.predict(X), mean + unit * ridge.predict(X), rtol=0, atol=atol)
    assert model.dual_gap_ <= 1e-6


def test_weights_and_features_are_those_of_ridge_regression(rows):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    mean, unit = in_units(y, weight)
    model = ODMRegressor("linear", lam=2.0 * weight.sum(), scale=None, fit_intercept=False, tol=1e-10)
    ridge = Ridge(alpha=0.5, fit_intercept=False).fit(X, (y - mean) / unit, weight)
    model.fit(X, y, weight)
    np.testing.assert_allclose(model.coef_, unit * ridge.coef_, rtol=1e-8)
    assert model.intercept_ == pytest.approx(mean)


@pytest.mark.filterwarnings("ignore:Rounding leaves the model")  # of float32
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("upsilon", "theta"), [(0.2, 0.0), (1.0, 0.4), (5.0, 0.1)])
def test_expectiles_and_bands_are_those_of_a_smooth_solver(rows, upsilon, theta, weighted, dtype):
    """A smooth solver finds which residuals cost something; the least squares of these are the optimum, exactly."""
    X, y = rows[0].astype(dtype), rows[1]
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y)) if weighted else np.ones(len(y))
    mean, unit = in_units(y, weight)
    targets = (y - mean) / unit
    root = np.linalg.cholesky(rbf_kernel(X.astype(float), gamma=GAMMA) + 1e-12 * np.eye(len(y)))

    def cost(v):
        residuals = targets - root @ v
        return weight * ((residuals > theta) + upsilon * (residuals < -theta)), residuals - theta * np.sign(residuals)

    def objective(v):
        costs, beyond = cost(v)
        return 0.5 * v @ v + costs @ beyond**2, v - 2.0 * root.T @ (costs * beyond)

    found = minimize(objective, np.zeros(len(y)), jac=True, method="L-BFGS-B", options={"maxiter": 9999, "gtol": 1e-10})
    costs, beyond = cost(found.x)
    aims = beyond + root @ found.x
    least = np.linalg.solve(np.eye(len(y)) + 2.0 * root.T * costs @ root, 2.0 * root.T @ (costs * aims))
    np.testing.assert_array_equal(cost(least)[0], costs)
    model = ODMRegressor(**exact, upsilon=upsilon, theta=theta).fit(X, y, weight)
    assert model.history_[-1]["objective"] == pytest.approx(objective(least)[0], rel=1e-6)
    rtol = 1e-6 if dtype == "float32" else 0.0
    np.testing.assert_allclose(model.predict(X), mean + unit * (root @ least), rtol, atol=1e-6 * unit)


@pytest.mark.parametrize("upsilon", [0.3, 2.0])
def test_the_loss_has_the_derivatives_that_it_says(upsilon):
    rng = np.random.default_rng(2)
    loss = ResidualLoss(ResidualSettings(7.0, upsilon, 0.3), 20.0)
    y, weight, scores = rng.normal(size=20), rng.uniform(0.5, 2.0, 20), rng.normal(size=20)
    _, dual, curvature = loss.evaluate(scores, y, weight)
    for i, step in enumerate(1e-4 * np.eye(20)):
        above, below = (loss.evaluate(scores + side * step, y, weight) for side in (1.0, -1.0))
        assert dual[i] == pytest.approx((below[0] - above[0]) / 2e-4, rel=1e-6, abs=1e-6)
        assert curvature[i] == pytest.approx((below[1][i] - above[1][i]) / 2e-4, rel=1e-6, abs=1e-6)
    packed = loss.pack(curvature, y, weight)
    np.testing.assert_array_equal(loss.unpack(packed, y, weight), curvature)
    assert packed.nbytes == 2 * 3, "two bits a row, as passes over stores count them"
    assert (curvature <= loss.row_stiffness(y, weight) * (1.0 + 1e-12)).all()
    steps = np.array([0.0, 0.5])
    slopes = loss.slopes(scores, np.ones(20), y, weight, steps)
    np.testing.assert_allclose(slopes, [-loss.evaluate(scores + step, y, weight)[1].sum() for step in steps])


@pytest.mark.parametrize("solver", ["exact", Landmark(160), "linear"])
def test_left_out_predictions_are_those_of_refits(rows, solver):
    X, y = rows
    kernel = {"kernel": "linear", "solver": "newton"} if solver == "linear" else {"solver": solver}
    mean, unit = in_units(y)
    settings = {**exact, **kernel, "lam": 2.0 * len(y)}
    model = ODMRegressor(**settings, loo=True).fit(X, y)
    for i in (0, 77, 159):
        rest = np.arange(len(y)) != i
        if solver == "linear":
            refit = Ridge(alpha=0.5, fit_intercept=False).fit(X[rest], (y[rest] - mean) / unit)
        else:
            refit = KernelRidge(alpha=0.5, kernel="rbf", gamma=GAMMA).fit(X[rest], (y[rest] - mean) / unit)
        assert model.loo_prediction_[i] == pytest.approx(mean + unit * refit.predict(X[i : i + 1])[0], rel=1e-5)
    assert model.loo_score_ == pytest.approx(1.0 - np.mean((model.loo_prediction_ - y) ** 2) / unit**2)


def test_every_cell_has_the_ridge_regression_of_its_rows(rows):
    X, y = rows
    mean, unit = in_units(y)
    model = ODMRegressor(**{**exact, "solver": Cells(60)}, lam=4.0 * len(y), loo=True).fit(X, y)
    cells = model._model.cells_of(X)
    for cell in range(4):
        own = np.flatnonzero(cells == cell)
        ridge = KernelRidge(alpha=0.25, kernel="rbf", gamma=GAMMA)
        found = ridge.fit(X[own], (y[own] - mean) / unit).predict(X[own])
        np.testing.assert_allclose(model.predict(X[own]), mean + unit * found, rtol=0, atol=1e-4)
        refit = ridge.fit(X[own[1:]], (y[own[1:]] - mean) / unit).predict(X[own[:1]])
        assert model.loo_prediction_[own[0]] == pytest.approx(mean + unit * refit[0], abs=1e-4)
    assert len(np.unique(cells)) == len(model.intercept_) == 4
    assert model.loo_score_ == pytest.approx(1.0 - np.mean((model.loo_prediction_ - y) ** 2) / unit**2)


@pytest.mark.parametrize("solver", ["exact", Cells(60), Landmark(160), "newton"])
def test_a_warm_start_goes_on_in_other_units(rows, solver):
    X, y = rows
    kernel = {"kernel": "linear", "fit_intercept": True} if solver == "newton" else {}
    kernel |= {"loo": True, "noise": "uneven"} if solver in ("newton", "exact") else {}
    options = {**exact, **kernel, "solver": solver, "upsilon": 0.3, "theta": 0.1, "tol": 1e-6}
    model = ODMRegressor(**options, warm_start=True).fit(X, 7.0 - 3.0 * y)
    model.fit(X, y)
    assert model.fit(X, y).n_iter_ == 1, "nothing is left to do"
    np.testing.assert_allclose(model.predict(X), ODMRegressor(**options).fit(X, y).predict(X), atol=0.01)


def test_groups_are_left_out_together(rows):
    X, y = rows
    mean, unit = in_units(y)
    groups = np.arange(len(y)) % 7
    model = ODMRegressor(**exact, loo=True).fit(X, y, groups=groups)
    rest = groups != 3
    refit = KernelRidge(alpha=0.5, kernel="rbf", gamma=GAMMA).fit(X[rest], (y[rest] - mean) / unit)
    np.testing.assert_allclose(model.loo_prediction_[~rest], mean + unit * refit.predict(X[~rest]), rtol=1e-5)


@pytest.mark.parametrize("noise", ["even", "heavy"])
def test_intervals_hold_new_targets_as_often_as_they_say(noise):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2600, 2))
    drawn = rng.normal(size=2600) if noise == "even" else rng.standard_t(2, 2600)
    y = np.sin(X[:, 0]) + 0.5 * drawn
    model = ODMRegressor(loo=True).fit(X[:600], y[:600])
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(X[600:], coverage).T
        assert abs(np.mean((low <= y[600:]) & (y[600:] <= high)) - coverage) < 0.04  # 2.0 deviations of 600 residuals


@pytest.fixture(scope="module")
def uneven():
    """Rows with noise that differs over the space: deviations of 0.1 to 1.1; the last 6,000 are new."""
    rng = np.random.default_rng(7)
    X = rng.uniform(-2.0, 2.0, size=(7500, 2))
    deviation = 0.1 + 0.5 * np.abs(X[:, 0])
    return X, np.sin(2.0 * X[:, 1]) + deviation * rng.normal(size=len(X)), deviation


@pytest.mark.parametrize("solver", ["exact", Landmark(200)])
def test_intervals_of_uneven_noise_hold_everywhere(uneven, solver):
    X, y, deviation = uneven
    model = ODMRegressor(gamma=1.0, solver=solver, noise="uneven", loo=True, random_state=0).fit(X[:1500], y[:1500])
    plain = ODMRegressor(gamma=1.0, solver=solver, loo=True, random_state=0).fit(X[:1500], y[:1500])
    np.testing.assert_allclose(model.predict(X), plain.predict(X), atol=1e-6)
    assert model.dual_coef_.shape == model.support_.shape
    low, high = model.predict_interval(X[1500:]).T
    inside = (low <= y[1500:]) & (y[1500:] <= high)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    for few, most in ((0.1, 0.35), (0.35, 0.6), (0.6, 0.85), (0.85, 1.1)):
        here = (few < deviation[1500:]) & (deviation[1500:] <= most)
        assert inside[here].mean() == pytest.approx(0.9, abs=0.03)


def test_intervals_of_even_noise_are_hardly_wider_where_models_of_it_waver():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.1 * rng.normal(size=200)
    models = (ODMRegressor(noise=noise, loo=True).fit(X, y) for noise in ("even", "uneven"))
    plain, uneven = (np.ptp(model.predict_interval(X, 0.95), axis=1).mean() for model in models)
    assert uneven < 1.5 * plain


def test_sides_of_intervals_are_expectiles_by_iterated_weights(rows):
    X, y = rows
    mean, unit = in_units(y)
    lam = 2.0 * len(y)
    model = ODMRegressor(**exact, lam=lam, noise="uneven", loo=True).fit(X, y)
    values = replace(model._model, spread=False).values(X)
    for column, upsilon, least in ((1, 4.0, 0.25), (2, 0.25, 1.0)):
        residuals = np.ones(len(y))
        for _ in range(50):  # weighted ridge regression until no residual changes its side
            weight = least * np.where(residuals > 0, 1.0, upsilon)
            ridge = KernelRidge(alpha=len(y) / lam, kernel="rbf", gamma=GAMMA).fit(X, (y - mean) / unit, weight)
            residuals = (y - mean) / unit - ridge.predict(X)
        np.testing.assert_allclose(values[:, column], mean + unit * ridge.predict(X), rtol=0, atol=1e-4)


def test_constant_targets_are_predicted():
    X = np.random.default_rng(4).normal(size=(30, 2))
    for solver in ("exact", Cells(10)):
        np.testing.assert_allclose(ODMRegressor(solver=solver).fit(X, np.full(30, 7.0)).predict(X), 7.0)


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**10])
def test_what_a_search_finds_does_not_depend_on_the_scale_of_weights(rows, scale):
    X, y = rows[:2]
    weight = np.random.default_rng(0).uniform(0.5, 1.5, len(y))
    found, scaled = (ODMRegressorCV("rbf", scale="minmax").fit(X, y, each) for each in (weight, scale * weight))
    assert scaled.best_params_ == {**found.best_params_, "lam": pytest.approx(found.best_params_["lam"])}


@pytest.mark.parametrize("given", [{"kernel": []}, {"gammas": []}, {"lams": [0.0, 1.0]}, {"lams": [np.nan]}])
def test_values_to_choose_from_are_checked(rows, given):
    with pytest.raises(InputError, match=next(iter(given)).rstrip("s")):
        ODMRegressorCV(**given).fit(*rows)


@pytest.mark.parametrize(("cv", "groups", "message"), [
    (None, np.arange(50) % 5, r"groups must have shape \(160,\)"),
    ([(range(50), range(100, 161))], None, "cv names row 160, but rows are numbered from 0 to 159"),
    ([], None, "cv must be a number, a splitter, or pairs"),
])  # fmt: skip
def test_rows_that_are_left_out_are_checked(rows, cv, groups, message):
    with pytest.raises(InputError, match=message):
        ODMRegressorCV("rbf", cv=cv).fit(*rows, groups=groups)


def test_a_score_needs_a_target_and_a_weight_for_each_row(rows):
    X, y = rows
    model = ODMRegressor("linear").fit(X, y)
    for wrong in ((X, y[:50]), (X[:50], y), (X, y, np.ones(50))):
        with pytest.raises(InputError, match="inconsistent numbers of samples"):
            model.score(*wrong)


def test_equal_targets_are_scored_by_the_deviation_of_all():
    y, weight = np.full(3, 0.1), np.ones(3)
    assert explained(y, y, weight) == 1.0
    assert explained(y + 0.5, y, weight) == pytest.approx(0.75)


def test_folds_of_one_row_score_as_rows_that_are_left_out(rows):
    X, y = rows[0][:40], rows[1][:40]
    search = ODMRegressorCV("linear", scale="standard", lams=[80.0], cv=LeaveOneOut()).fit(X, y)
    left_out = ODMRegressor("linear", scale="standard", lam=80.0, loo=True).fit(X, y)
    assert search.best_score_ == pytest.approx(left_out.loo_score_, abs=0.02)
    assert search.best_score_ > 0.4


def test_errors_say_where_targets_are_infinite(rows):
    X, y = rows
    with pytest.raises(InputError, match="y holds infinity in 1 row, first in row 7"):
        ODMRegressor().fit(X, np.where(np.arange(len(y)) == 7, np.inf, y))


@pytest.mark.parametrize("power", [-900, 900])
def test_units_of_targets_change_nothing_but_units(rows, power):
    X, y = rows
    plain, moved = (ODMRegressor(**exact, loo=True).fit(X, targets) for targets in (y, np.ldexp(y, power)))
    np.testing.assert_array_equal(moved.predict_interval(X), np.ldexp(plain.predict_interval(X), power))
    assert moved.loo_score_ == plain.loo_score_


@pytest.mark.parametrize("solver", ["exact", "newton"])
def test_targets_far_from_zero_keep_their_digits(rows, tmp_path, solver):
    xr = pytest.importorskip("xarray")
    X, y = rows[0].astype(np.float32), rows[1] - 40.0
    kernel = {"kernel": "linear" if solver == "newton" else "rbf", "solver": solver, "loo": True}
    near, far = ODMRegressor(**kernel).fit(X, y), ODMRegressor(**kernel).fit(X, 1e9 + y)
    expected = near.predict(X).astype(np.float64)
    assert near.predict(X).dtype == np.float32
    far.save(tmp_path / "m.zarr")
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=50, real=True).path
    cube = xr.DataArray(X.reshape(16, 10, 3), dims=("y", "x", "feature"))
    cubed = ODMRegressor(**kernel).fit(cube, xr.DataArray(1e9 + y.reshape(16, 10), dims=("y", "x")))
    for found in (
        far.predict(X),
        load_model(tmp_path / "m.zarr").predict(X),
        far.predict(store),
        cubed.predict(cube).to_numpy().ravel(),
        far.predict_interval(X).mean(axis=1),
        far.predict_interval(store).mean(axis=1),
        cubed.predict_interval(cube).mean("end").to_numpy().ravel(),
    ):
        assert found.dtype == np.float64
        np.testing.assert_allclose(np.asarray(found) - 1e9, expected, rtol=0, atol=1e-4)


def test_intervals_say_what_they_need(rows):
    X, y = rows
    model = ODMRegressor().fit(X, y)
    with pytest.raises(InputError, match="fit with loo=True"):
        model.predict_interval(X)
    for coverage in (1.0, np.nan, "all"):
        with pytest.raises(InputError, match="coverage must be a number between 0 and 1"):
            ODMRegressor(loo=True).fit(X, y).predict_interval(X, coverage)
    with pytest.raises(InputError, match="set loo to True"):
        model.fit(X, y, groups=np.arange(len(y)) % 2)


@pytest.mark.parametrize("noise", ["even", "uneven"])
def test_intervals_have_the_form_of_the_rows(rows, tmp_path, noise):
    X, y = rows
    xr = pytest.importorskip("xarray")
    model = ODMRegressor(loo=True, noise=noise).fit(X, y)
    expected = model.predict_interval(X)
    lazy = model.predict_interval(store_of(tmp_path / "a.zarr", X, y, chunk_rows=50, real=True).path)
    assert lazy.chunks[1] == (2,)
    np.testing.assert_allclose(lazy.compute(), expected)
    found = model.predict_interval(xr.DataArray(X, dims=("row", "feature")))
    assert found.dims == ("row", "end")
    np.testing.assert_array_equal(found.sel(end="high"), expected[:, 1])
    cube = xr.Dataset({f"x{j}": (("y", "x"), X[:, j].reshape(16, 10)) for j in range(3)})
    cube["target"] = (("y", "x"), y.reshape(16, 10))
    mapped = ODMRegressor(loo=True, noise=noise).fit(cube, "target").predict_interval(cube.drop_vars("target"))
    assert mapped.dims == ("y", "x", "end")
    np.testing.assert_allclose(mapped.to_numpy().reshape(-1, 2), expected, rtol=1e-4)


@pytest.mark.parametrize("noise", ["even", "uneven"])
def test_an_evaluation_and_a_report_tell_how_often_intervals_hold(uneven, tmp_path, noise):
    pytest.importorskip("matplotlib")
    X, y, _ = uneven
    model = ODMRegressor(gamma=1.0, solver=Landmark(50), noise=noise, loo=True, random_state=0).fit(X[:900], y[:900])
    weight = np.where(np.arange(1000) % 2, 1.0, 3.0)
    store = store_of(tmp_path / "a.zarr", X[900:1900], y[900:1900], weight=weight, chunk_rows=300, real=True)
    low, high = model.predict_interval(X[900:1900], 0.9).T
    inside = (low <= y[900:1900]) & (y[900:1900] <= high)
    told = evaluate(model, store).facts()["intervals"]["0.9"]
    assert told["held"] == pytest.approx(np.average(inside, weights=weight))
    assert told["width"] == pytest.approx(np.average(high - low, weights=weight), rel=1e-4)
    report(model, store, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"those for 90% hold {told['held']:.1%} of the rows here" in page
    assert page.index("Predictions") < page.index("Intervals</")
    model.save(tmp_path / "m.zarr")
    shown = ["evaluate", str(tmp_path / "m.zarr"), store.path, "--pictures", str(tmp_path / "p")]
    found = CliRunner().invoke(main, shown)
    assert f"intervals for 90%    {told['held']:.1%} hold the target of their row" in found.stdout, found.output
    assert sorted(each.name for each in (tmp_path / "p").iterdir()) == ["predictions.png", "residuals.png"]


def test_the_search_finds_what_left_out_rows_say(rows):
    X, y = rows
    given = {"gammas": [0.03, 0.3], "lams": [16.0, 1600.0], "scale": None, "random_state": 0}
    search = ODMRegressorCV("rbf", loo=True, **given).fit(X, y)
    found = {
        (gamma, lam): ODMRegressor(gamma=gamma, lam=lam, scale=None, loo=True).fit(X, y).loo_score_
        for gamma in given["gammas"]
        for lam in given["lams"]
    }
    best = max(found, key=found.__getitem__)
    assert search.best_params_ == {"kernel": "rbf", "gamma": best[0], "lam": best[1]}
    assert search.best_score_ == pytest.approx(found[best], abs=0.01)
    assert search.loo_score_ == pytest.approx(found[best], abs=1e-3)
    assert search.best_score_ >= search.nested_score_
    alone = ODMRegressor(**search.best_params_, scale=search.scale_, loo=True).fit(X, y)
    np.testing.assert_allclose(alone.predict(X), search.predict(X))


def test_the_search_learns_a_metric_where_columns_do_not_matter_alike():
    X = np.random.default_rng(0).normal(size=(2000, 20)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + 0.5 * np.random.default_rng(1).normal(size=2000)
    given = {"kernel": "rbf", "gammas": [0.03, 0.1, 0.3], "lams": [1e4, 1e6], "scale": "standard", "random_state": 0}
    found = ODMRegressorCV(**given).fit(X[:1000], y[:1000])
    plain = ODMRegressorCV(**given, metric=None).fit(X[:1000], y[:1000])
    assert found.score(X[1000:], y[1000:]) > plain.score(X[1000:], y[1000:]) + 0.05
    assert found.feature_importances_[:2].sum() > 0.9
    again = ODMRegressor(**found.best_params_, scale="standard", random_state=0).fit(X[:1000], y[:1000])
    np.testing.assert_array_equal(again.predict(X), found.predict(X))


def test_the_search_judges_by_scorers_in_the_targets_own_units(rows):
    X, y = rows
    weight = np.random.default_rng(6).uniform(0.25, 1.0, len(y))  # a fit takes more for copies
    names = ["neg_root_mean_squared_error", "neg_mean_absolute_error", "r2"]
    given = {"gammas": [0.03, 0.3], "lams": [16.0, 1600.0], "scale": None, "random_state": 0}
    search = ODMRegressorCV("rbf", scoring=names, refit="neg_mean_absolute_error", **given).fit(X, y, weight)
    left = ODMRegressor(**search.best_params_, scale=None, loo=True).fit(X, y, weight).loo_prediction_
    errors = {
        "neg_root_mean_squared_error": -np.sqrt(np.average((left - y) ** 2, weights=weight)),
        "neg_mean_absolute_error": -np.average(np.abs(left - y), weights=weight),
        "r2": r2_score(y, left, sample_weight=weight),
    }
    for name, expected in errors.items():
        assert search.cv_results_[f"mean_test_{name}"][search.best_index_] == pytest.approx(expected, rel=0.02)
    assert search.cv_results_["rank_test_neg_mean_absolute_error"][search.best_index_] == 1
    assert search.nested_score_ == pytest.approx(search.best_score_, rel=0.05), "of parts, which weigh alike"
    with pytest.raises(InputError, match="refit must be one of the scores"):
        ODMRegressorCV(refit="r2").fit(X, y)
    with pytest.raises(InputError, match="Logarithmic"):
        ODMRegressorCV(scoring="neg_mean_squared_log_error", **given).fit(X, -y)


@pytest.mark.parametrize("cv", [4, 0.3, GroupKFold(3)])
def test_the_search_validates_by_what_it_is_given(rows, cv):
    X, y = rows
    groups = np.arange(len(y)) // 8 if isinstance(cv, GroupKFold) else None
    search = ODMRegressorCV(gammas=[0.3], lams=[160.0, 1600.0], cv=cv, random_state=0).fit(X, y, groups=groups)
    assert 0.5 < search.best_score_ < 1.0


def test_the_search_leaves_out_groups_that_learn_nothing_from_themselves():
    rng = np.random.default_rng(5)
    places = np.repeat(rng.normal(size=(40, 2)), 5, axis=0)
    X, y = places + 0.01 * rng.normal(size=(200, 2)), np.repeat(rng.normal(size=40), 5)  # a field has its own value
    groups = np.repeat(np.arange(40), 5)
    search = ODMRegressorCV("rbf", random_state=0)
    assert search.fit(X, y).best_score_ > 0.9 > 0.3 > search.fit(X, y, groups=groups).best_score_


def test_the_shell_searches_and_writes_intervals(rows, tmp_path):
    X, y = rows
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=50, real=True).path
    run = CliRunner()
    judged = [store, "--scoring", "r2,neg_mean_absolute_error", "--json"]
    learned = run.invoke(
        main, ["search", store, str(tmp_path / "m.zarr"), "--estimator", "regressor", "--kernel", "linear", "--loo"]
    )
    assert "by left-out rows, the best of" in learned.stdout, learned.output
    told = json.loads(run.invoke(main, ["evaluate", str(tmp_path / "m.zarr"), *judged]).stdout)
    assert told["scores"]["r2"] == pytest.approx(told["r2"])
    assert told["scores"]["neg_mean_absolute_error"] == pytest.approx(-told["mean_absolute_error"])
    assert run.invoke(main, ["predict", str(tmp_path / "m.zarr"), store, str(tmp_path / "p.csv"), "--sets", "0.8"])
    found = np.loadtxt(tmp_path / "p.csv", delimiter=",", skiprows=1)
    assert (tmp_path / "p.csv").read_text().startswith("prediction,low,high\n")
    model = load_model(tmp_path / "m.zarr")
    np.testing.assert_allclose(found, np.column_stack([model.predict(X), model.predict_interval(X, 0.8)]), rtol=1e-5)
