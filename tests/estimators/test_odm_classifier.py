"""ODMClassifier against the slow reference: the model, its attributes, weights, scaling, labels, bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.sparse import csr_array, hstack
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import linear_kernel

import reference
from dask_odm import MDDRidge, ODMClassifier, SaddleSVC, ingest, load_model
from dask_odm.errors import DaskODMError, InputError
from dask_odm.events import LevelFinished, PartitionSolved, Progress
from dask_odm.solvers import SODM
from estimators.odm_models import LABELS, SETTINGS
from small_problems import blobs
from small_stores import store_of

ODM = (100.0, 0.3, 0.1)


def expected_decision(X, y, Z, weight=None, *, bias=1.0, parameters=ODM):
    """The optimum's decision values on ``Z``, RBF of gamma 0.5, from the papers' dual; and its objective."""
    s, objective = reference.solve_two_variable_dual(reference.rbf(X, X, 0.5) + bias, y, *parameters, weight)
    return (reference.rbf(Z, X, 0.5) + bias) @ (y * s), objective


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("solver", ["auto", SODM(1), SODM(6)], ids=str)
def test_is_the_papers_optimum(rows, solver, fit_intercept):
    X, y = rows
    Z = blobs(40, 3, seed=6)[0]
    model = ODMClassifier(**SETTINGS, solver=solver, fit_intercept=fit_intercept, random_state=0).fit(X, y)
    expected, objective = expected_decision(X, y, Z, bias=float(fit_intercept))
    np.testing.assert_allclose(model.decision_function(Z), expected, atol=1e-8)
    np.testing.assert_array_equal(model.predict(Z), np.where(expected > 0, 1.0, -1.0))
    assert model.history_[-1]["objective"] == pytest.approx(objective, rel=1e-9)
    assert 0 <= model.dual_gap_ < 1e-9
    assert len(model.history_) == {"auto": model.n_iter_ + 1, "SODM(n_partitions=6)": 3}.get(str(solver), 1)
    assert model.n_iter_ >= 1


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


@pytest.mark.parametrize("solver", ["auto", SODM(3)], ids=str)
def test_weights(rows, solver):
    X, y = rows
    weight = np.random.default_rng(0).integers(0, 4, 90).astype(float)
    again = np.repeat(np.arange(90), weight.astype(int))
    settings = {"solver": solver, "random_state": 0, **SETTINGS}
    weighted = ODMClassifier(**settings).fit(X, y, sample_weight=weight)
    repeated = ODMClassifier(**settings).fit(X[again], y[again])
    expected, _ = expected_decision(X, y, X, weight)
    np.testing.assert_allclose(weighted.decision_function(X), expected, atol=1e-8)
    np.testing.assert_allclose(repeated.decision_function(X), expected, atol=1e-8)
    assert (weight[weighted.support_] > 0).all()


@pytest.mark.parametrize("scale", [None, "minmax", "standard"])
def test_weights_count_for_scaling_and_gamma_too(rows, scale):
    X, y = rows
    weight = np.random.default_rng(0).integers(0, 4, 90).astype(float)
    again = np.repeat(np.arange(90), weight.astype(int))
    weighted = ODMClassifier(scale=scale).fit(X, y, sample_weight=weight)
    repeated = ODMClassifier(scale=scale).fit(X[again], y[again])
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-7)


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


def test_labels_with_a_fraction(rows):
    X, y = rows
    assert ODMClassifier().fit(X, np.where(y > 0, 2.5, 0.5)).classes_.tolist() == [0.5, 2.5]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["auto", SODM(4)], ids=str)
@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_rows_far_from_zero_are_no_error(rows, kernel, solver):
    model = ODMClassifier(kernel, solver=solver).fit(rows[0] + 1000.0, rows[1])
    assert np.isfinite(model.decision_function(rows[0] + 1000.0)).all()


BAD_DATA = {
    "one class": (lambda X, y: (X, np.ones(len(y))), "class"),
    "a measurement": (lambda X, y: (X, X[:, 0]), "Unknown label type|continuous"),
    "half grades": (
        lambda X, y: (X, np.resize([0.5, 1.0, 1.5, 2.5], len(X))),
        r"y holds 3 different values that are not whole numbers, such as 0\.5, 1\.5, 2\.5: .* strings .*astype\(str",
    ),
    "nan in X": (lambda X, y: (np.where(X > 2, np.nan, X), y), "NaN"),
    "infinity in X": (lambda X, y: (np.where(X > 2, np.inf, X), y), "infinity"),
    "nan in y": (lambda X, y: (X, np.where(X[:, 0] > 1, np.nan, y)), "NaN"),
    "lengths": (lambda X, y: (X[:-1], y), "inconsistent numbers of samples"),
    "no rows": (lambda X, y: (X[:0], y[:0]), "0 sample"),
    "no features": (lambda X, y: (X[:, :0], y), "0 feature"),
    "no labels": (lambda X, y: (X, None), "requires y to be passed"),
    "one dimension": (lambda X, y: (X[:, 0], y), "Expected 2D array"),
    "complex": (lambda X, y: (X + 1j, y), "Complex data not supported"),
}


@pytest.mark.parametrize("what", BAD_DATA)
def test_bad_data_is_an_input_error(rows, what):
    make, message = BAD_DATA[what]
    with pytest.raises(ValueError, match=message) as error:
        ODMClassifier().fit(*make(*rows))
    assert isinstance(error.value, DaskODMError)


BAD_WEIGHTS = {
    "negative": (lambda n: -np.ones(n), "Negative values in data passed to `sample_weight`"),
    "nan": (lambda n: np.full(n, np.nan), "NaN"),
    "too few": (lambda n: np.ones(n - 1), "sample_weight"),
    "nothing": (lambda n: np.zeros(n), "zero"),
}


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights_are_an_input_error(rows, what):
    make, message = BAD_WEIGHTS[what]
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(*rows, sample_weight=make(90))


def test_prediction_checks_its_rows(rows):
    model = ODMClassifier().fit(*rows)
    with pytest.raises(InputError, match="X has 2 features, but ODMClassifier is expecting 3 features as input"):
        model.predict(rows[0][:, :2])
    with pytest.raises(InputError, match="NaN"):
        model.decision_function(np.full((2, 3), np.nan))


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


def test_seed_decides_the_bits(rows):
    first, same = (ODMClassifier(**SETTINGS, solver=SODM(4, stop_at=4), random_state=7).fit(*rows) for _ in range(2))
    np.testing.assert_array_equal(first.dual_coef_, same.dual_coef_)
    other = ODMClassifier(**SETTINGS, solver=SODM(4, stop_at=4), random_state=8).fit(*rows)
    assert first.dual_coef_.shape != other.dual_coef_.shape or (first.dual_coef_ != other.dual_coef_).any()


def test_ending_above_the_root_has_no_gap(rows):
    model = ODMClassifier(**SETTINGS, solver=SODM(8, stop_at=2, fan_in=2)).fit(*rows)
    assert math.isnan(model.dual_gap_)
    assert [entry["partitions"] for entry in model.history_] == [8, 4, 2]
    assert model.score(*rows) > 0.8


def test_not_converging_warns():
    X, y = blobs(1200, 3)
    with pytest.warns(ConvergenceWarning, match=r"stopped at a relative gap of .* above tol=1e-12.* \(1 steps\)"):
        model = ODMClassifier(lam=1e6, max_iter=1, tol=1e-12, solver="sodm").fit(X, y)
    assert model.dual_gap_ > 1e-12


def test_more_partitions_than_rows(rows):
    with pytest.raises(InputError, match=r"n_partitions must be at most the number of rows, 90\. Got 91"):
        ODMClassifier(solver=SODM(91)).fit(*rows)


@pytest.mark.parametrize("limit", ["many", "-1 GB", "2 GBB"])
def test_a_memory_limit_that_is_none(rows, limit):
    with pytest.raises(InputError, match="memory_limit must be"):
        ODMClassifier(memory_limit=limit).fit(*rows)


def test_callbacks_hear_the_tree(rows):
    heard: list = []
    ODMClassifier(**SETTINGS, solver=SODM(4), callbacks=[heard.append]).fit(*rows)
    kinds = [type(event) for event in heard if not isinstance(event, Progress)]  # of what takes long, on a busy machine
    assert kinds == [*[PartitionSolved] * 4, LevelFinished, PartitionSolved, LevelFinished]
    before = len(heard)
    ODMClassifier(**SETTINGS).fit(*rows)
    assert len(heard) == before


def test_a_class_without_weight_that_leaves_one_is_an_error():
    X, y = blobs(60, 2)
    with pytest.raises(InputError, match="are of one class"):
        ODMClassifier().fit(X, y, sample_weight=(y == y.max()).astype(float))


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
