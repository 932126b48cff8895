"""The parts of scikit-learn that people put a classifier into, and parameters refused in its words."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from dask_odm import DaskODMError, ODMClassifier, open_store
from dask_odm.kernels import KERNELS
from small_problems import blobs
from small_stores import store_of


@pytest.fixture(scope="module")
def rings(make_rings):
    return make_rings(120)


def heard(event) -> None:
    """A callback that pickles by name."""


def test_groups_are_the_splitters_with_metadata_routing(rings):
    X, y = rings
    groups = np.arange(len(y)) % 4
    with config_context(enable_metadata_routing=True):
        for model in (ODMClassifier(), make_pipeline(StandardScaler(), ODMClassifier())):
            found = GridSearchCV(model, {}, cv=GroupKFold(2)).fit(X, y, groups=groups)
            assert found.best_score_ > 0.5
        asked = ODMClassifier("linear", loo=True).set_fit_request(groups=True)
        assert asked.get_metadata_routing().fit.requests == {"groups": True, "sample_weight": None}


@pytest.mark.parametrize("more", [{}, {"loo": True}, {"kernel": "linear"}], ids=str)
def test_bagging_of_a_rare_class(more):
    """A bootstrap sample without the only row of a class gives it weight 0."""
    X, y = blobs(100, 2, seed=3)
    y = np.where(np.arange(100) < 1, 2, y > 0)
    X[0] += 9.0
    model = BaggingClassifier(ODMClassifier(lam=100.0, **more), n_estimators=8, random_state=0).fit(X, y)
    assert any(0 not in drawn for drawn in model.estimators_samples_)
    rival = BaggingClassifier(SVC(kernel=more.get("kernel", "rbf")), n_estimators=8, random_state=0).fit(X, y)
    assert model.score(X, y) > rival.score(X, y) - 0.05
    assert model.decision_function(X).shape == model.predict_proba(X).shape == (100, 3)


@pytest.mark.parametrize("C", [1e-3, 1.0])
def test_without_a_band_it_is_the_squared_hinge_of_linear_svc(rows, C):
    """docs/coming_from.md: the same objective, the regularised intercept included."""
    svc = LinearSVC(C=C, tol=1e-10, max_iter=100_000).fit(*rows)
    odm = ODMClassifier("linear", theta=0.0, upsilon=0.0, lam=2 * len(rows[0]) * C, scale=None, tol=1e-12).fit(*rows)
    np.testing.assert_allclose(odm.coef_, svc.coef_, atol=1e-6)
    np.testing.assert_allclose(odm.intercept_, svc.intercept_, atol=1e-6)


def test_the_arrays_of_a_store_can_be_searched(rings, tmp_path):
    """docs/coming_from.md: a Dataset as a whole has no rows to pick, its arrays have."""
    store = open_store(store_of(tmp_path / "a.zarr", *rings).path)
    grid = {"gamma": [1e-4, 2.0]}
    stored = GridSearchCV(ODMClassifier(), grid, cv=3).fit(store.X, store.y)
    plain = GridSearchCV(ODMClassifier(), grid, cv=3).fit(*rings)
    np.testing.assert_array_equal(stored.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])


@pytest.mark.parametrize("method", ["predict", "decision_function", "score", "save"])
def test_not_fitted(method, tmp_path):
    with pytest.raises(NotFittedError):
        getattr(ODMClassifier(), method)(tmp_path / "x")


WRONG = {
    "kernel": ("sigmoid", f"a str among {{{', '.join(map(repr, sorted([*KERNELS, 'precomputed'])))}}} or a callable"),
    "gamma": (-1.0, "a str among {'auto', 'scale'} or a float in the range (0.0, inf)"),
    "degree": (0, "an int in the range [1, 1000]"),
    "coef0": (-1.0, "a float in the range [0.0, inf)"),
    "lam": (0.0, "a float in the range (0.0, inf) or a str among {'auto'}"),
    "upsilon": (1.5, "a float in the range [0.0, 1.0]"),
    "theta": (1.0, "a float in the range [0.0, 1.0)"),
    "solver": (
        "lbfgs",
        "a str among {'auto', 'cascade', 'cells', 'csvrg', 'dc', 'dip', 'dsvrg', 'exact', 'landmark', 'newton', "
        "'sodm', 'svrg'} or a solver object of dask_odm.solvers "
        "(Exact, Landmark, Cells, SODM, Cascade, DiP, DC, Newton, DSVRG, SVRG, CSVRG)",
    ),
    "tol": (0.0, "a float in the range (0.0, inf)"),
    "max_iter": (0, "an int in the range [1, inf)"),
    "warm_start": (2, "an instance of 'bool'"),
    "scale": ("robust", "a str among {'auto', 'minmax', 'ranks', 'standard'} or None"),
    "dtype": ("float16", "a str among {'float32', 'float64'} or None"),
    "multi_class": ("auto", "a str among {'ovo', 'ovr'} or None"),
    "class_weight": ("even", "a str among {'balanced'}, an instance of 'dict' or None"),
    "random_state": ("a", "an int in the range [0, 4294967295]"),
    "memory_limit": (0, "an int in the range [1, inf), an instance of 'str' or None"),
    "callbacks": (heard, "an instance of 'list', an instance of 'tuple' or None"),
    "resume": (2, "an instance of 'bool'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_parameter_errors_are_worded_as_scikit_learn_does(rings, name):
    value, must_be = WRONG[name]
    with pytest.raises(ValueError, match=f"The '{name}' parameter of ODMClassifier must be ") as error:
        ODMClassifier(**{name: value}).fit(*rings)
    assert isinstance(error.value, DaskODMError)

    # the order of a set of names is any
    def words(text: str) -> list[str]:
        return sorted(text.replace("{", "").replace("}", "").replace(",", "").split())

    found, got = str(error.value).split(" parameter of ODMClassifier must be ")[1].split(". Got ")
    assert words(found)[: len(words(must_be))] == words(must_be) or found.startswith(must_be)
    assert got == f"{value!r} instead."


@pytest.mark.parametrize("name", ["lam", "gamma", "tol", "coef0"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_parameters_are_finite(rings, name, value):
    with pytest.raises(ValueError, match=name) as error:
        ODMClassifier(kernel="poly", **{name: value}).fit(*rings)
    assert isinstance(error.value, DaskODMError)
