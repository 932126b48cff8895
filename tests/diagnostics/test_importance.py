"""Importance of features over stores: beside scikit-learn's, closed forms, any workers, the shell."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.inspection import permutation_importance as of_scikit_learn
from sklearn.metrics import check_scoring, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

import dask_odm as odm
from cli.running import run, run_json
from dask_odm.errors import InputError
from small_stores import store_of
from small_tables import made_table

NAMES = ["height", "weight", "noise"]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Labels of which the first feature tells most, the second some, and the third nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    return X, np.where(2.0 * X[:, 0] + X[:, 1] + rng.normal(size=len(X)) > 0, "tall", "small")


@pytest.fixture(scope="module")
def model(rows):
    return odm.ODMClassifier("linear", lam=100.0).fit(*rows)


@pytest.fixture(scope="module")
def store(rows, tmp_path_factory):
    """Rows sorted by label, so that those of a chunk are all alike: others are drawn from all of the store."""
    X, y = rows
    order = np.argsort(y, kind="stable")
    return store_of(tmp_path_factory.mktemp("store") / "rows.zarr", X[order], y[order], chunk_rows=300, names=NAMES)


def test_it_is_that_of_scikit_learn(rows, model, store):
    found = odm.permutation_importance(model, store, n_repeats=20)
    expected = of_scikit_learn(model, *rows, n_repeats=20, random_state=0)
    np.testing.assert_allclose(found.importances_mean, expected.importances_mean, atol=0.01)
    np.testing.assert_allclose(found.importances_std, expected.importances_std, atol=0.005)
    assert found.importances.shape == (3, 20)
    assert found.score == pytest.approx(model.score(store))
    assert found.feature_names == NAMES


@pytest.mark.parametrize("scoring", [None, "balanced_accuracy"])
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, lambda X: pd.DataFrame(X, columns=NAMES)])
def test_rows_in_memory_are_taken_as_by_scikit_learn(rows, form, scoring):
    X, y = form(rows[0][:200]), rows[1][:200]
    model = odm.ODMClassifier("linear", lam=100.0).fit(X, y)
    found = odm.permutation_importance(model, X, y, scoring=scoring, n_repeats=2, random_state=3)
    expected = of_scikit_learn(model, np.asarray(X) if isinstance(X, list) else X, y, scoring=scoring, n_repeats=2,
                               random_state=3)  # fmt: skip
    np.testing.assert_array_equal(found.importances, expected.importances)
    assert found.score == check_scoring(model, scoring=scoring)(model, X, y)
    assert found.feature_names == (NAMES if isinstance(X, pd.DataFrame) else ["0", "1", "2"])


def test_labels_may_be_a_column_by_name_also_of_dask(rows):
    frame, y = pd.DataFrame(rows[0][:200], columns=NAMES), rows[1][:200]
    model = odm.ODMClassifier("linear", lam=100.0).fit(frame, y)
    expected = odm.permutation_importance(model, frame, y, n_repeats=1)
    named = frame.assign(label=y)
    for given in (named, dd.from_pandas(named, npartitions=3)):
        found = odm.permutation_importance(model, given, "label", n_repeats=1)
        np.testing.assert_array_equal(found.importances, expected.importances)
        assert found.feature_names == NAMES


def test_a_seed_of_none_draws_other_rows(model, store):
    first, again = (odm.permutation_importance(model, store, n_repeats=1, random_state=None) for _ in range(2))
    assert (first.importances != again.importances).any()


def test_of_some_rows_it_is_about_that_of_all(model, store):
    found = odm.permutation_importance(model, store, n_repeats=5, max_samples=1000)
    expected = odm.permutation_importance(model, store, n_repeats=5)
    np.testing.assert_allclose(found.importances_mean, expected.importances_mean, atol=0.03)
    assert found.score != expected.score
    with pytest.raises(InputError, match="'max_samples' parameter of permutation_importance"):
        odm.permutation_importance(model, store, max_samples=0)


def test_of_a_table_whole_columns_are_moved(tmp_path):
    table = made_table(300)
    X, y = table.drop(columns="kind"), table["kind"]
    model = odm.ODMClassifier("linear").fit(X, y)
    columns = model.column_recipe_
    names = {}
    for name, given in (("whole", X), ("fewer", X.assign(smoker=None))):
        store = odm.ingest((given, y), tmp_path / f"{name}.zarr", columns=columns if name == "whole" else None)
        names[name] = odm.permutation_importance(model if name == "whole" else model.fit(store), store).feature_names
    assert names == {"whole": list(X.columns), "fewer": ["age", "job", "when"]}
    model.fit(X, y)
    found = odm.permutation_importance(model, tmp_path / "whole.zarr", n_repeats=20)
    expected = of_scikit_learn(model, X, y, n_repeats=20, random_state=0)
    np.testing.assert_allclose(found.importances_mean, expected.importances_mean, atol=0.03)
    assert found.importances_mean[1] > 0.15, "a job is all of its levels"


def test_of_a_linear_regression_it_is_twice_the_share_of_the_variance(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 3)).astype(np.float32)
    y = X @ np.array([2.0, 1.0, 0.0]) + rng.normal(size=len(X))
    y[7] = np.nan  # takes no part
    weight = rng.uniform(0.5, 2.0, len(y))
    store = store_of(tmp_path / "rows.zarr", X, y, weight=weight, chunk_rows=700, real=True)
    model = odm.MDDRidge().fit(store)
    found = odm.permutation_importance(model, store, n_repeats=10)
    known = np.arange(len(y)) != 7
    assert found.score == pytest.approx(r2_score(y[known], model.predict(X[known]), sample_weight=weight[known]))
    expected = 2.0 * model.coef_**2 * X.var(axis=0) / np.var(y[known])
    np.testing.assert_allclose(found.importances_mean, expected, atol=0.03)


def test_targets_far_from_zero_lose_no_digits(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=len(X))
    found = []
    for k, shift in enumerate((0.0, 1e7)):
        store = store_of(tmp_path / f"{k}.zarr", X, y + shift, chunk_rows=90, real=True)
        found.append(odm.permutation_importance(odm.MDDRidge(1e-9).fit(store), store))
    assert found[1].score == pytest.approx(found[0].score, abs=1e-4)
    np.testing.assert_allclose(found[1].importances, found[0].importances, atol=1e-3)


@pytest.mark.slow
def test_any_workers_give_the_same_bits(model, store, start_workers):
    expected = odm.permutation_importance(model, store)
    with start_workers(2):
        np.testing.assert_array_equal(odm.permutation_importance(model, store).importances, expected.importances)


def test_in_the_shell(model, store, tmp_path):
    model.save(tmp_path / "m.zarr")
    path = str(tmp_path / "m.zarr")
    found = run_json("importance", path, store.path)
    assert [each["name"] for each in found["features"]] == NAMES
    assert found["features"][0]["lost"] == odm.permutation_importance(model, store).importances_mean[0]
    assert "height" in run("importance", path, store.path).stdout.splitlines()[0]


def test_it_is_drawn(model, store):
    ax = odm.plot_importance(odm.permutation_importance(model, store, n_repeats=2), most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["weight", "height"]


def test_what_it_refuses(rows, model, store, tmp_path):
    with pytest.raises(InputError, match="of rows in memory needs y"):
        odm.permutation_importance(model, rows[0])
    with pytest.raises(InputError, match="leave y and scoring out"):
        odm.permutation_importance(model, store, scoring="f1_macro")
    with pytest.raises(InputError, match="scoring must be one score"):
        odm.permutation_importance(model, *rows, scoring=["accuracy"])
    with pytest.raises(InputError, match="permutation_importance takes an estimator of dask_odm, or a Pipeline"):
        odm.permutation_importance(make_pipeline(StandardScaler(), SVC()).fit(*rows), store)
    with pytest.raises(InputError, match="n_repeats"):
        odm.permutation_importance(model, store, n_repeats=0)
    bare = store_of(tmp_path / "bare.zarr", rows[0], None, names=NAMES)
    with pytest.raises(InputError, match="labels"):
        odm.permutation_importance(model, bare)
    ridge = odm.MDDRidge().fit(rows[0], rows[0][:, 0])
    with pytest.raises(InputError, match="needs real targets"):
        odm.permutation_importance(ridge, store)
    with pytest.raises(InputError, match="needs real targets"):
        ridge.score(store)
    same = store_of(tmp_path / "same.zarr", rows[0], np.full(len(rows[0]), 3.0), names=NAMES, real=True)
    with pytest.raises(InputError, match="all targets are the same"):
        odm.permutation_importance(ridge, same)
    several = odm.MDDRidge().fit(rows[0], rows[0][:, :2])
    with pytest.raises(InputError, match="one target"):
        odm.permutation_importance(several, store)


def test_of_a_pipeline_it_is_that_of_the_columns_before_its_steps(rows, store):
    steps = StandardScaler(), PolynomialFeatures(2, include_bias=False)
    pipe = make_pipeline(*steps, odm.ODMClassifier("linear", lam=100.0)).fit(*rows)
    found = odm.permutation_importance(pipe, store, n_repeats=20)
    expected = of_scikit_learn(pipe, *rows, n_repeats=20, random_state=0)
    np.testing.assert_allclose(found.importances_mean, expected.importances_mean, atol=0.01)
    assert (found.feature_names, found.importances.shape) == (NAMES, (3, 20))
    assert found.score == pytest.approx(pipe.score(*rows), abs=1e-3)


def test_columns_are_prepared_by_their_names(rows, store):
    named = pd.DataFrame(rows[0], columns=NAMES)
    chosen = ColumnTransformer([("some", StandardScaler(), ["height", "weight"])])
    pipe = make_pipeline(chosen, odm.ODMClassifier("linear", lam=100.0)).fit(named, rows[1])
    found = odm.permutation_importance(pipe, store, n_repeats=2)
    assert (found.importances[2] == 0).all()
    assert found.importances_mean[0] > 0.1
