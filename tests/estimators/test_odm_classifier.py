"""ODMClassifier against the slow reference: the model, its attributes, weights, scaling, labels, bad input."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array, hstack
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import linear_kernel

import reference
from dask_odm import InputError, MDDRidge, ODMClassifier, SaddleSVC, ingest, load_model
from dask_odm.solvers import SODM
from estimators.odm_models import LABELS, SETTINGS
from small_problems import blobs
from small_stores import store_of

ODM = (100.0, 0.3, 0.1)


def test_attributes_make_the_decision_function(rows):
    X, y = rows
    model = ODMClassifier(**SETTINGS).fit(X, y)
    assert model.dual_coef_.shape == (1, len(model.support_))
    assert model.support_.tolist() == sorted(set(model.support_.tolist()))
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    by_hand = reference.rbf(X, model.support_vectors_, 0.5) @ model.dual_coef_[0] + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), by_hand, atol=1e-10)
    for name in ("classes_", "support_", "dual_coef_", "intercept_", "support_vectors_"):
        assert type(getattr(model, name)) is np.ndarray
    assert type(model.dual_gap_) is float
    json.dumps(model.history_)


@pytest.mark.parametrize("solver", ["auto", "newton", "sodm", SODM(4)], ids=str)
@pytest.mark.parametrize("scale", [None, "minmax", "standard"])
def test_linear_kernel_is_the_primal_optimum(rows, scale, solver):
    X, y = rows
    X = X * [1.0, 3.0, 0.5] + [0.0, 5.0, 1.0]
    settings = {"lam": 100.0, "upsilon": 0.3, "theta": 0.1, "tol": 1e-12}
    model = ODMClassifier("linear", **settings, scale=scale, solver=solver).fit(X, y)
    shift, width = {
        None: (np.zeros(3), np.ones(3)),
        "minmax": (X.min(axis=0), np.ptp(X, axis=0)),
        "standard": (X.mean(axis=0), X.std(axis=0)),
    }[scale]
    w, value = reference.solve_primal_linear(np.column_stack([(X - shift) / width, np.ones(90)]), y, *ODM)
    assert model.coef_.shape == (1, 3)
    np.testing.assert_allclose(model.coef_[0], w[:3] / width, atol=1e-5)
    np.testing.assert_allclose(model.intercept_[0], w[3] - (w[:3] / width) @ shift, atol=1e-5)
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_[0] + model.intercept_[0], atol=1e-10)
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=1e-7)


def test_attributes_of_the_last_fit_only(rows):
    model = ODMClassifier("linear").fit(*rows)
    assert hasattr(model, "coef_")
    assert not any(hasattr(model, name) for name in ("support_", "support_vectors_", "dual_coef_"))
    model.set_params(kernel="rbf").fit(*rows)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("scale", ["minmax", "standard"])
@pytest.mark.parametrize("kernel", ["rbf", "poly", "linear"])
@pytest.mark.parametrize("gamma", ["scale", "auto", 0.7])
def test_scaling_is_scaling_by_hand(rows, scale, kernel, gamma):
    X, y = rows
    X = np.column_stack([X * [1.0, 100.0, 0.01] + 3.0, np.full(90, 7.0)])
    shift, width = (X.min(axis=0), np.ptp(X, axis=0)) if scale == "minmax" else (X.mean(axis=0), X.std(axis=0))
    by_hand = (X - shift) / np.where(width > 1e-9, width, np.inf)
    settings = {"kernel": kernel, "gamma": gamma, "lam": 100.0}
    inside = ODMClassifier(**settings, scale=scale).fit(X, y)
    outside = ODMClassifier(**settings, scale=None).fit(by_hand, y)
    np.testing.assert_allclose(inside.decision_function(X), outside.decision_function(by_hand), atol=1e-7)


def test_class_weight_is_a_weight_of_rows(rows):
    X, y = rows
    X, y = X[20:], np.where(np.arange(70) < 15, 1.0, y[20:])
    own = np.random.default_rng(1).uniform(0.5, 2.0, 70)
    by_class = ODMClassifier(**SETTINGS, class_weight={-1.0: 0.5, 1.0: 3.0}).fit(X, y, own)
    by_row = ODMClassifier(**SETTINGS).fit(X, y, own * np.where(y > 0, 3.0, 0.5))
    np.testing.assert_allclose(by_class.decision_function(X), by_row.decision_function(X), atol=1e-9)
    balanced = ODMClassifier(**SETTINGS, class_weight="balanced").fit(X, y)
    share = np.where(y > 0, 35 / (y > 0).sum(), 35 / (y < 0).sum())
    by_row = ODMClassifier(**SETTINGS).fit(X, y, share)
    np.testing.assert_allclose(balanced.decision_function(X), by_row.decision_function(X), atol=1e-9)


@pytest.mark.parametrize("labels", LABELS, ids=lambda a: a.dtype.str)
@pytest.mark.parametrize("solver", ["auto", SODM(3)], ids=str)
def test_labels_come_back_as_they_went_in(rows, labels, solver):
    X, y = rows
    model = ODMClassifier(**SETTINGS, solver=solver).fit(X, labels[(y > 0).astype(int)])
    assert model.classes_.dtype == labels.dtype
    assert model.classes_.tolist() == labels.tolist()
    predicted = model.predict(X)
    assert predicted.dtype == labels.dtype
    assert set(predicted.tolist()) == set(labels.tolist())
    assert model.score(X, labels[(y > 0).astype(int)]) > 0.8


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_dtype_is_kept(rows, dtype):
    X, y = (10 * rows[0]).astype(dtype), rows[1]
    model = ODMClassifier(scale="minmax").fit(X, y)
    kept = "float32" if dtype == "float32" else "float64"
    assert model.decision_function(X).dtype == kept
    assert model.support_vectors_.dtype == kept


def test_rows_far_from_zero(rows):
    X, y = rows
    near, far = ODMClassifier(**SETTINGS).fit(X, y), ODMClassifier(**SETTINGS).fit(X + 1e6, y)
    np.testing.assert_allclose(far.decision_function(X + 1e6), near.decision_function(X), atol=1e-5)


def test_not_converging_warns():
    X, y = blobs(1200, 3)
    with pytest.warns(ConvergenceWarning, match=r"stopped at a relative gap of .* above tol=1e-12.* \(1 steps\)"):
        model = ODMClassifier(lam=1e6, max_iter=1, tol=1e-12, solver="sodm").fit(X, y)
    assert model.dual_gap_ > 1e-12


@pytest.mark.parametrize("limit", ["many", "-1 GB", "2 GBB"])
def test_a_memory_limit_that_is_none(rows, limit):
    with pytest.raises(InputError, match="memory_limit must be"):
        ODMClassifier(memory_limit=limit).fit(*rows)


def test_weights_whose_sum_overflows_are_an_error():
    X, y = blobs(60, 2)
    with pytest.raises(InputError, match="sum is not finite"), np.errstate(over="ignore"):
        ODMClassifier().fit(X, y, sample_weight=np.full(60, 1e308))


def test_a_parameter_of_the_last_version_is_told_where_it_went():
    for kind in (ODMClassifier, SaddleSVC, MDDRidge):
        with pytest.raises(InputError, match=r"has no parameter 'scratch': .*'temporary-directory'.*\(--scratch\)"):
            kind(scratch="/disk")


def test_defaults_suit_a_table_of_unlike_columns():
    X, y = load_breast_cancer(return_X_y=True)
    units = 10.0 ** np.random.default_rng(0).integers(-3, 4, X.shape[1])
    model = ODMClassifier().fit(X[::2] * units, y[::2])
    assert model.score(X[1::2] * units, y[1::2]) > 0.95
    values = ODMClassifier().fit(X[::2], y[::2]).decision_function(X)
    np.testing.assert_allclose(model.decision_function(X * units), values, atol=1e-3)


@pytest.mark.parametrize("weight", [None, 0.5])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_defaults_are_twice_the_weight_of_the_rows_and_standard(rows, tmp_path, kernel, weight):
    X, y = rows
    weights = None if weight is None else np.full(len(y), weight)
    lam = 2.0 * len(y) * (weight or 1.0)
    expected = ODMClassifier(kernel, lam=lam, scale="standard", random_state=0).fit(X, y, sample_weight=weights)
    model = ODMClassifier(kernel, random_state=0)
    store = store_of(tmp_path / "rows.zarr", X, y, weight=weights)
    for fitted in (clone(model).fit(X, y, sample_weight=weights), clone(model).fit(store)):
        assert (fitted.lam_, fitted.scale_) == (lam, "standard")
        np.testing.assert_array_equal(fitted.decision_function(X), expected.decision_function(X))
    assert (expected.lam_, expected.scale_) == (lam, "standard")
    assert (model.lam, model.scale) == ("auto", "auto")


def test_balanced_classes_weigh_as_many_rows_as_there_are(rows):
    assert ODMClassifier(class_weight="balanced").fit(*rows).lam_ == pytest.approx(2.0 * len(rows[1]))


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_wide_sparse_rows_are_not_scaled_by_default(rows, tmp_path, kernel):
    X, y = rows
    wide = csr_array(hstack([X, csr_array((len(X), 2048))]))
    expected = ODMClassifier(kernel, lam=2.0 * len(y), scale=None, random_state=0).fit(wide, y)
    for given in ((wide, y), (ingest((wide, y), tmp_path / "rows.zarr", dtype="float64"),)):
        model = ODMClassifier(kernel, random_state=0).fit(*given)
        assert model.scale_ is None
        np.testing.assert_allclose(model.decision_function(wide), expected.decision_function(wide), atol=1e-3)
    assert ODMClassifier(kernel).fit(csr_array(X), y).scale_ == "standard", "a table, in the form of sparse rows"


def test_kernels_of_the_user_see_the_rows_as_they_are(rows):
    X, y = rows
    by_hand = ODMClassifier("precomputed", random_state=0).fit(X @ X.T, y)
    function = ODMClassifier(linear_kernel, random_state=0).fit(X, y)
    without = ODMClassifier("linear", fit_intercept=False).fit(X, y)
    assert by_hand.scale_ is function.scale_ is without.scale_ is None
    np.testing.assert_allclose(by_hand.decision_function(X @ X.T), function.decision_function(X), atol=1e-6)


def test_a_path_and_a_file_keep_what_was_taken(rows, tmp_path):
    path = ODMClassifier("linear").lam_path(*rows, lams=[1.0, 10.0])
    assert [(each.lam, each.lam_, each.scale_) for each in path] == [(lam, lam, "standard") for lam in (1.0, 10.0)]
    ODMClassifier().fit(*rows).save(tmp_path / "model.zarr")
    model = load_model(tmp_path / "model.zarr")
    assert (model.lam_, model.scale_, model.lam, model.scale) == (2.0 * len(rows[1]), "standard", "auto", "auto")
