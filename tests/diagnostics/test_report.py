"""Reports: one page without a network, whatever the model is; numbers are those of evaluate; names do no harm."""

import re
import sys
from html import unescape
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import precision_score, r2_score, recall_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import dask_odm as odm
from cli.running import run, run_json
from dask_odm.diagnostics import maps
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.errors import InputError
from dask_odm.solvers import Cells
from html_page import HOSTILE, Page
from small_cubes import labels_of, scene
from small_problems import blobs
from small_stores import store_of
from small_tables import made_table


def rows(n=300, seed=5):
    X, y = blobs(n, 3, seed=seed)
    return X, np.where(y > 0, "yes <b>", "no & more")


def reported(model, store, folder: Path, **more) -> Page:
    path = folder / "report.html"
    odm.report(model, store, path, overwrite=True, **more)
    page = Page(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert all(link.startswith(("#", "data:image/png;")) for link in page.links), "nothing is loaded"
    return page


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    X, y = rows(seed=6)
    return store_of(tmp_path_factory.mktemp("store") / "rows.zarr", X, y, chunk_rows=80, names=HOSTILE)


def test_two_classes(store, tmp_path):
    model = odm.ODMClassifier(scale="minmax", loo=True).fit(*rows())
    page = reported(model, store, tmp_path)
    found = evaluate(model, store)
    assert page.headings == [
        "What was learned", "How good it is", "By class", "Margins", "ROC", "Sets of classes", "Probabilities",
        "Which features matter", "Steps of the fit",
    ]  # fmt: skip
    assert page.tags.count("svg") == 6
    assert page.cells[page.cells.index("Accuracy") + 1] == f"{found.accuracy:.4g}"
    largest = found.confusion.sum(axis=1).max() / 300
    assert page.cells[page.cells.index("Share of the largest class") + 1] == f"{largest:.4g}"
    assert page.cells[page.cells.index("kernel") + 1] == "rbf"  # though it is the default
    assert page.cells[page.cells.index("scale") + 1] == "minmax"
    assert page.cells[page.cells.index("Score of the training rows, left out") + 1] == f"{model.loo_score_:.4g}"
    assert set(HOSTILE) <= set(page.cells)
    assert {"yes <b>", "no & more"} <= set(page.cells)
    assert "of the optimum" in page.cells[page.cells.index("Certificate") + 1]
    again = (tmp_path / "report.html").read_bytes()
    assert b"<h1>ODMClassifier, 2 classes, on rows.zarr</h1>" in again
    reported(model, store, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == again


def test_the_first_screen_says_how_good_beside_chance_and_whether_to_trust_it(store, tmp_path):
    """What is not in a fold: three figures, what guessing would have, certificate, left-out score, calibration."""
    model = odm.ODMClassifier(scale="minmax", loo=True).fit(*rows())
    reported(model, store, tmp_path, importance=False)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    first, folds = text.split("<main>")
    facts = evaluate(model, store).facts()
    for score, form in {"accuracy": ".1%", "balanced_accuracy": ".1%", "auc": ".3f"}.items():
        assert f"<strong>{facts[score]:{form}}</strong>" in first
    assert (first.count("by chance 50.0%"), first.count("by chance 0.500")) == (2, 1)
    left = f"accuracy {model.loo_score_:.1%} on training rows left out, accuracy {facts['accuracy']:.1%} on the rows"
    assert left in first
    assert f"off by {facts['calibration_error']:.1%}" in first
    assert f"within {100 * model.dual_gap_:.2g}% of the optimum" in first
    assert first.count("<svg") == 1
    assert not re.search("(fill|stroke): #(0{6}|f{6})", text), "pictures have the ink of the page, and no ground"
    assert folds.count("<details>") == folds.count("<h2>") == text.count("<h2>")
    ridge = odm.MDDRidge().fit(rows()[0], rows()[0][:, 0])
    reported(ridge, (rows(seed=7)[0], rows(seed=7)[0][:, 1]), tmp_path)
    first = (tmp_path / "report.html").read_text(encoding="utf-8").split("<main>")[0]
    assert "<span>R²</span><small>by chance 0</small>" in first
    assert "not known; a fit with loo=True" in first


def test_lam_and_scaling_are_those_that_were_taken(store, tmp_path):
    X, y = rows()
    page = reported(odm.ODMClassifier("linear").fit(X, y), store, tmp_path, importance=False)
    assert float(page.cells[page.cells.index("lam") + 1].replace(",", "")) == 2 * len(y)
    assert page.cells[page.cells.index("scale") + 1] == "standard"


def test_what_a_search_tried(store, tmp_path):
    axes = {"gammas": [0.1, 1.0], "lams": [10.0, 100.0], "upsilons": [0.2], "thetas": [0.1]}
    model = odm.ODMClassifierCV(**axes).fit(*rows())
    page = reported(model, store, tmp_path, importance=False)
    assert "Search" in page.headings
    assert numbers(page, "Nested score", 1)[0] == pytest.approx(model.nested_score_, abs=1e-4)
    best = page.cells.index("Nested score") + 2
    shown = [float(page.cells[best + at].replace(",", "")) for at in (0, 1, 2, 5)]  # between them kernel and scale
    stage, gamma = model.cv_results_["iter"][model.best_index_], model.best_params_["gamma"]
    assert shown == pytest.approx([stage, 300, model.best_score_, gamma], rel=1e-3)
    assert page.cells[best + 3 : best + 5] == [model.best_params_["kernel"], model.best_params_["scale"]]
    said = f"of {len(model.cv_results_['params'])} trials, those of the last stage first, then by the logistic loss"
    assert said in (tmp_path / "report.html").read_text(encoding="utf-8")
    model.save(tmp_path / "m.zarr")
    page = reported(odm.load_model(tmp_path / "m.zarr"), store, tmp_path, importance=False)
    assert numbers(page, "gamma", 1)[0] == pytest.approx(model.best_params_["gamma"], rel=1e-3)
    assert "A saved model does not keep" in (tmp_path / "report.html").read_text(encoding="utf-8")


def numbers(page: Page, name: str, count: int) -> list[float]:
    """The numbers in the cells behind the one that says ``name``."""
    at = page.cells.index(name) + 1
    return [float(cell.replace(",", "")) for cell in page.cells[at : at + count]]


def of_classes(page: Page) -> dict[str, int]:
    """The cells of each class, in the table of a map."""
    stop = page.cells.index("(a feature is missing)")
    start = stop
    while page.cells[start - 3] not in ("Certificate", "Seconds") and "." in page.cells[start - 1]:
        start -= 3
    return {page.cells[i]: int(page.cells[i + 1]) for i in range(start, stop, 3)}


@pytest.mark.slow
def test_left_out_rows_stand_beside_those_of_the_store(store, tmp_path):
    X, y = rows(800)
    model = odm.ODMClassifier(scale="minmax", loo=True).fit(X, y)
    left = model.loo_decision_function_
    margins = np.where(y == "yes <b>", left, -left)
    from_memory = reported(model, store, tmp_path, importance=False)
    model.save(tmp_path / "m.zarr")
    page = reported(odm.load_model(tmp_path / "m.zarr"), store, tmp_path, importance=False)
    assert "Which features matter" not in page.headings
    assert page.cells == from_memory.cells, "a file tells as much"
    assert numbers(page, "0.25", 2)[1] == pytest.approx(np.quantile(margins, 0.25), abs=0.01)
    assert numbers(page, "That of the rows left out", 1)[0] == pytest.approx(roc_auc_score(y, left), abs=1e-3)


@pytest.mark.slow
def test_the_boundary_that_was_chosen(store, tmp_path):
    X, y = rows(1000)
    y[np.flatnonzero(y == "yes <b>")[::2]] = "no & more"
    model = odm.ODMClassifier(scale="minmax", loo=True).fit(X, y)
    before = model.loo_decision_function_ > 0
    page = reported(model.tune_threshold("balanced_accuracy"), store, tmp_path, importance=False)
    after = model.loo_decision_function_ > 0
    own = y == "yes <b>"
    assert "Boundary" in page.headings
    at = page.cells.index("both, on average")
    found = np.array([[float(cell) for cell in page.cells[at - 8 + 4 * i : at - 8 + 4 * i + 4][1:]] for i in (0, 1)])
    assert found[:, 0] == pytest.approx(list(evaluate(model, store).facts()["recall"].values()), abs=1e-3)
    for column, said in ((1, after), (2, before)):
        assert found[:, column] == pytest.approx([(~said[~own]).mean(), said[own].mean()], abs=2e-3)
    assert page.headings.count("Margins") == 1


def test_sets_hold_a_class_as_often_as_predict_set_says(store, tmp_path):
    model = odm.ODMClassifier(scale="minmax").fit(*rows())
    page = reported(model.calibrate(*rows(500, seed=9)), store, tmp_path, importance=False)
    inside = model.predict_set(store.read_rows(np.arange(300)).X, 0.9)
    own = rows(seed=6)[1] == "yes <b>"
    expected = [np.where(own, inside[:, 1], inside[:, 0]).mean(), inside.sum(axis=1).mean()]
    at = len(page.cells) - page.cells[::-1].index("0.95") - 1 - 4
    assert [float(cell) for cell in page.cells[at : at + 3]] == pytest.approx([0.9, *expected], abs=1e-3)
    assert "500 rows held out" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "That of the rows held out" in page.cells


@pytest.mark.slow
def test_groups_that_were_left_out(store, tmp_path):
    X, y = rows()
    groups = np.arange(300) // 10
    model = odm.ODMClassifier(scale="minmax", loo=True).fit(X, y, groups=groups)
    right = np.where(model.loo_decision_function_ > 0, "yes <b>", "no & more") == y
    np.testing.assert_allclose(model.loo_group_scores_, right.reshape(30, 10).mean(axis=1))
    model.save(tmp_path / "m.zarr")
    page = reported(odm.load_model(tmp_path / "m.zarr"), store, tmp_path, importance=False)
    assert "Score of the training rows, left out by groups" in page.cells
    assert numbers(page, "Groups", 1) == [30]
    assert numbers(page, "worst", 1)[0] == pytest.approx(right.reshape(30, 10).mean(axis=1).min())
    assert not hasattr(model.fit(X, y), "loo_group_scores_")


class TestCubes:
    """A map with the numbers of what `predict` says, and scores where there are labels."""

    def test_a_map_of_classes(self, tmp_path):
        cube = scene()
        labels = labels_of("codes")[0]
        model = odm.ODMClassifier(lam=100, scale="minmax").fit(cube, labels)
        page = reported(model, cube, tmp_path)
        predicted = model.predict(cube, decode=True).to_numpy()
        assert page.headings == ["What was learned", "Map", "Steps of the fit"]
        assert of_classes(page) == {str(label): (predicted == label).sum() for label in model.classes_}
        assert numbers(page, "(a feature is missing)", 1) == [3]
        values = model.decision_function(cube).to_numpy()
        assert numbers(page, "0.25", 1)[0] == pytest.approx(np.nanquantile(values, 0.25), rel=1e-3)
        assert any(link.startswith("data:image/png") for link in page.links)
        again = (tmp_path / "report.html").read_bytes()
        page = reported(model, cube.chunk(y=4), tmp_path)
        assert (tmp_path / "report.html").read_bytes() == again
        page = reported(model, cube, tmp_path, y=labels, importance=False)
        assert page.headings[:4] == ["What was learned", "Map", "How good it is", "By class"]
        assert numbers(page, "Accuracy", 1)[0] == pytest.approx(model.score(cube, labels), abs=1e-4)

    def test_codes_are_called_by_their_meanings(self, tmp_path):
        labels = labels_of("codes")[0].assign_attrs(flag_values=np.array([3, 4]), flag_meanings="water land")
        model = odm.ODMClassifier(lam=100, scale="minmax").fit(scene(), labels)
        page = reported(model, scene(), tmp_path, y=labels, importance=False)
        assert page.cells[page.cells.index("Classes") + 1] == "water, land"
        assert list(of_classes(page)) == ["water", "land"]
        assert page.cells.count("water") == 3, "cells, precision, confusion"
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert {"Predicted class", "no data", "water"} <= set(re.findall("<!-- (.*?) -->", text))

    @pytest.mark.parametrize("named", [True, False])
    def test_labels_and_more_among_the_variables(self, tmp_path, named):
        """Features are those of the model, as in `predict`."""
        cube = scene().to_dataset("band").assign(landcover=labels_of("codes")[0], scl=("y", np.ones(9)))
        model = odm.ODMClassifier(lam=100, scale="minmax").fit(scene(), labels_of("codes")[0])
        page = reported(model, cube, tmp_path, y="landcover" if named else cube.landcover, importance=False)
        assert numbers(page, "Accuracy", 1)[0] == pytest.approx(model.score(cube, "landcover"), abs=1e-4)

    def test_some_cells_of_many_more_dimensions_and_hostile_names(self, tmp_path, monkeypatch):
        monkeypatch.setattr(maps, "MOST_CELLS", 100)
        rng = np.random.default_rng(0)
        cube = xr.DataArray(rng.normal(size=(2, 20, 30, 2)), dims=("<b>t", "y$", "x&", "band"))
        labels = xr.DataArray(rng.choice(HOSTILE, (2, 20, 30)), dims=cube.dims[:3])
        model = odm.ODMClassifier(lam=10).fit(cube, labels)
        page = reported(model, cube, tmp_path)
        some = model.predict(cube[::3, ::3, ::3], decode=True).to_numpy()
        assert of_classes(page) == {label: (some == label).sum() for label in sorted(HOSTILE)}
        assert "Of every 3. cell" in (tmp_path / "report.html").read_text(encoding="utf-8")

    def test_a_regressor(self, tmp_path):
        cube = scene().fillna(0.0).where(np.isfinite, 0.0)
        model = odm.MDDRidge().fit(cube, cube.sum("band").rename("y"))
        page = reported(model, cube, tmp_path)
        assert page.headings == ["What was learned", "Map", "Steps of the fit"]
        assert numbers(page, "0.5", 1)[0] == pytest.approx(float(np.median(model.predict(cube))), rel=1e-3)


@pytest.mark.slow
def test_many_classes_cells_one_class_and_regressors(tmp_path):
    X, y = rows()
    three = np.where(X[:, 0] > 1.0, "third", y)
    store = store_of(tmp_path / "three.zarr", X, three)
    page = reported(odm.ODMClassifier(solver=Cells(100)).fit(X, three), store, tmp_path)
    assert "each region for its own rows" in page.cells[page.cells.index("Certificate") + 1]
    assert "ROC" not in page.headings
    assert {"By class", "Which features matter"} <= set(page.headings)
    signs = store_of(tmp_path / "signs.zarr", X, np.where(X[:, 0] > 0, 1, -1))
    assert "ROC" in reported(odm.OneClassODM().fit(X), signs, tmp_path).headings
    real = store_of(tmp_path / "real.zarr", X, X[:, 0] + X[:, 1] ** 2, real=True)
    page = reported(odm.MDDRidge().fit(real), real, tmp_path)
    assert "R²" in page.cells
    assert page.tags.count("svg") == 4


def test_what_a_metric_follows_is_told_by_columns_also_of_a_saved_model(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"noise": rng.normal(size=400), "word": rng.choice(["<a>", "b", "c"], 400)})
    table["number"] = rng.normal(size=400)
    y = (table["word"] == "b") | (table["number"] > 1)
    odm.ODMClassifier(metric="diagonal", random_state=0).fit(table, y).save(tmp_path / "m.zarr")
    model = odm.load_model(tmp_path / "m.zarr")
    assert model.feature_importances_.shape == (3,) == model.feature_names_in_.shape  # words are several features
    np.testing.assert_allclose(model.feature_importances_.sum(), 1.0)
    page = reported(model, odm.ingest((table, y), tmp_path / "rows.zarr"), tmp_path, importance=False)
    assert "What the metric follows" in page.headings
    assert model.feature_importances_[0] < 0.01 < model.feature_importances_[1]
    assert f"{model.feature_importances_[1]:.4g}" in page.cells


def test_importance_that_is_left_out_is_told(store, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_odm.diagnostics.report.MOST_VALUES", 100)
    model = odm.ODMClassifierCV(gammas=[1.0], lams=[10.0], upsilons=[0.2], thetas=[0.1]).fit(*rows())
    page = reported(model, store, tmp_path)
    assert "Which features matter" in page.headings
    said = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"Not computed, as it takes a while with {store.features} features; importance=True" in said
    assert "Seconds of the last fit, without the search" in page.cells


def test_importance_is_that_of_some_of_many_rows(store, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_odm.diagnostics.report.MOST_VALUES", 200 * store.features**2)
    monkeypatch.setattr("dask_odm.diagnostics.report.FEWEST_ROWS", 200)
    model = odm.ODMClassifier().fit(*rows())
    reported(model, store, tmp_path)
    assert "of some 200 drawn rows (importance=True" in (tmp_path / "report.html").read_text(encoding="utf-8")
    reported(model, store, tmp_path, importance=True)
    assert "drawn rows" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({}, "All others are the defaults."), ({"gamma": 0.5}, "Other parameters that are not the defaults follow.")],
)
def test_parameters_that_are_the_defaults_are_not_said_to_be_others(store, tmp_path, parameters, said):
    page = reported(odm.ODMClassifier(**parameters).fit(*rows()), store, tmp_path)
    assert f"Parameters as the fit took them. {said}" in (tmp_path / "report.html").read_text(encoding="utf-8")
    names = ["kernel", "lam", "scale", *parameters]
    at = page.cells.index("kernel")
    assert page.cells[at : at + 2 * len(names) : 2] == names


def test_without_matplotlib_tables_are_left(store, tmp_path, monkeypatch):
    model = odm.ODMClassifier().fit(*rows())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = reported(model, store, tmp_path)
    assert "Sets of classes" not in page.headings  # there are no rows left out
    assert "svg" not in page.tags
    assert "Accuracy" in page.cells
    assert "pip install 'dask-odm[plot]'" in unescape((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_in_the_shell_and_what_it_refuses(store, tmp_path):
    model = odm.ODMClassifier().fit(*rows())
    model.save(tmp_path / "m.zarr")
    arguments = "report", tmp_path / "m.zarr", store.path, tmp_path / "page.html"
    run(*arguments)
    Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    run(*arguments, status=2)
    with pytest.raises(InputError, match="exists"):
        odm.report(model, store, tmp_path / "page.html")
    with pytest.raises(InputError, match="needs the labels or targets of rows in memory; pass y"):
        odm.report(model, rows()[0], tmp_path / "other.html")
    with pytest.raises(InputError, match=r"rows and labels as \(X, y\). Got a tuple of 3"):
        odm.report(model, (*rows(), None), tmp_path / "other.html")
    with pytest.raises(InputError, match="takes a store, or rows in memory"):
        odm.report(model, *map(da.from_array, rows()[:1]), tmp_path / "other.html", y=da.from_array(rows()[1]))
    for other in (SVC(), make_pipeline(StandardScaler(), SVC())):
        with pytest.raises(InputError, match="report takes an estimator of dask_odm, or a Pipeline that ends with one"):
            odm.report(other.fit(*rows()), store, tmp_path / "other.html")
    with pytest.raises(InputError, match="no folder"):
        odm.report(model, store, tmp_path / "nowhere" / "page.html")
    assert len(list(tmp_path.iterdir())) == 2, "nothing else is left"


def test_targets_that_are_all_the_same_have_a_page_without_importance(tmp_path):
    X, _ = rows()
    for count in (1, 300):
        page = reported(odm.ODMRegressor(loo=True).fit(X, np.ones(300)), (X[:count], np.ones(count)), tmp_path)
        assert "Which features matter" not in page.headings
        assert numbers(page, "R²", 1) == [1.0]


@pytest.fixture(scope="module")
def of_several():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    return X, X @ rng.normal(size=(4, 3)) * [1.0, 10.0, 0.1] + rng.normal(size=(400, 3))


def test_several_labels_have_a_line_each(of_several, tmp_path):
    X, y = of_several
    named = pd.DataFrame(y > 0, columns=[HOSTILE[0], "b", "c"])
    model = odm.ODMClassifier(loo=True).fit(X[:300], named[:300]).tune_threshold("f1")
    page = reported(model, (X[300:], named[300:]), tmp_path)
    assert page.headings == ["What was learned", "How good it is", "By label", "Steps of the fit"]
    true, found, values = named.to_numpy()[300:], model.predict(X[300:]), model.decision_function(X[300:])
    assert numbers(page, "Accuracy", 1)[0] == pytest.approx(model.score(X[300:], true), abs=1e-4)
    areas = [roc_auc_score(true[:, j], values[:, j]) for j in range(3)]
    for j, name in enumerate(named):
        scores = [precision_score(true[:, j], found[:, j]), recall_score(true[:, j], found[:, j]), areas[j]]
        expected = [true[:, j].sum(), *scores, model.threshold_[j]]
        assert numbers(page, name, 5) == pytest.approx(expected, abs=1e-3)
    first = (tmp_path / "report.html").read_text(encoding="utf-8").split("<main>")[0]
    assert f"<strong>{min(areas):.3f}</strong>" in first
    assert "1 label" not in first
    assert "3 labels, on rows in memory" in first


def test_several_targets_have_a_line_each_and_residuals_of_the_worst(of_several, tmp_path):
    X, y = of_several
    table = pd.DataFrame(X, columns=list("abcd")).assign(word=np.where(X[:, 0] > 0, "up", "down"))
    model = odm.ODMRegressor(gamma=0.1, loo=True).fit(table[:300], y[:300], np.arange(300) % 2 + 1.0)
    table, y = table[300:], y[300:]
    page = reported(model, (table, pd.DataFrame(y, columns=["u", "v", "w"])), tmp_path)
    each = r2_score(y, model.predict(table), multioutput="raw_values")
    assert numbers(page, "R²", 1)[0] == pytest.approx(np.mean(each), abs=1e-3)
    assert page.headings[2:-1] == ["By target", "Predictions", "Intervals"]
    low, high = np.moveaxis(model.predict_interval(table, coverage=0.9), -1, 0)
    held = ((low < y) & (y < high)).mean(axis=0)
    for j, name in enumerate(["u", "v", "w"]):
        line = numbers(page, name, 5)
        assert [line[0], line[4]] == pytest.approx([each[j], held[j]], abs=1e-3)


def test_cubes_have_a_map_of_each_target_and_of_each_label(of_several, tmp_path):
    X, y = of_several
    cube = xr.DataArray(X.reshape(20, 20, 4), dims=("y", "x", "feature"))
    page = reported(odm.ODMRegressor().fit(X, y), cube, tmp_path)
    assert page.headings[1:4] == ["Map of 0", "Map of 1", "Map of 2"]
    model = odm.ODMClassifier().fit(X, y > 0)
    page = reported(model, cube, tmp_path)
    at = page.cells.index("with") + 1
    assert int(page.cells[at]) == model.predict(X)[:, 0].sum()


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_a_matrix_has_as_many_columns_as_the_model(of_several, tmp_path, columns):
    X, y = of_several
    other = np.column_stack([y, y])[:, :columns].squeeze()
    for model in (odm.ODMRegressor().fit(X, y), odm.ODMClassifier().fit(X, y > 0)):
        with pytest.raises(InputError, match=f"{columns} labels or targets a row, but the model predicts 3"):
            odm.report(model, (X, other), tmp_path / "page.html")
        with pytest.raises(InputError, match=r"is of one (target|label)\. The model predicts 3"):
            odm.report(model, (X, (y > 0) * 1), tmp_path / "page.html", importance=True)


def test_the_shell_judges_models_of_several_labels_and_targets(of_several, tmp_path):
    X, y = of_several
    y = np.where(np.arange(1200).reshape(400, 3) == 1198, np.nan, y)  # one row is not known
    known = ~np.isnan(y).any(axis=1)
    for name, kind, values in (
        ("labels", odm.ODMClassifier, np.where(known[:, None], y > 0, y)),
        ("numbers", odm.ODMRegressor, y),
    ):
        rows = store_of(tmp_path / f"{name}.zarr", X, values, real=True, weight=np.arange(400) % 3 + 1.0)
        model = kind(loo=True, gamma=0.1).fit(X[known], values[known])
        model.save(tmp_path / f"{name}-model.zarr")
        given = tmp_path / f"{name}-model.zarr", rows.path
        found = run_json("evaluate", *given, "--pictures", tmp_path / name)
        score = "accuracy" if name == "labels" else "r2"
        assert found["rows"] == found["each"]["2"]["rows"] == 399
        weight = (np.arange(400) % 3 + 1.0)[known]
        assert found[score] == pytest.approx(model.score(X[known], values[known], weight))
        assert model.score(rows) == pytest.approx(found[score])
        assert len(found["pictures"]) == (2 if name == "numbers" else 3)
        scoring = "f1_macro" if name == "labels" else "neg_mean_absolute_error"
        told = run("evaluate", *given, "--scoring", scoring).stdout
        assert told.splitlines()[0].split()[0] == name[:5].replace("numbe", "target")
        curve = run_json("curve", *given, "--scoring", scoring)
        assert (curve["points"][-1][0], curve["scoring"]) == (399, scoring)
        run("report", *given, tmp_path / f"{name}.html")
    moved = tmp_path / "moved.zarr"
    told = run("calibrate", tmp_path / "labels-model.zarr", tmp_path / "labels.zarr", moved, "--threshold", "f1").stdout
    tuned = odm.load_model(moved).threshold_
    assert told.strip().endswith("its boundary moved by " + ", ".join(f"{each:.3g}" for each in tuned))


def test_a_pipeline_over_a_store_and_over_rows_in_memory(store, tmp_path):
    X, y = rows()
    pipe = make_pipeline(StandardScaler(), odm.ODMClassifier("linear")).fit(X, y)
    page = reported(pipe, store, tmp_path)
    assert page.cells[page.cells.index("Rows prepared by") + 1] == "StandardScaler"
    seen = store.read_rows(np.arange(store.rows)).X
    accuracy = pipe.score(seen, np.array(store.classes)[store.read_column("y")])
    assert numbers(page, "Accuracy", 1)[0] == pytest.approx(accuracy, abs=1e-4)
    assert set(HOSTILE) <= set(page.cells), "importance is that of the columns of the store"
    for given in ({"store": (X, y)}, {"store": X, "y": y}):
        found = reported(pipe, folder=tmp_path, **given)
        assert numbers(found, "Accuracy", 1)[0] == pytest.approx(pipe.score(X, y), abs=1e-4)
    search = GridSearchCV(pipe, {"odmclassifier__lam": [1e3, 1e4]}, cv=2).fit(X, y)
    assert numbers(reported(search, store, tmp_path, importance=False), "Rows with a label", 1) == [300]


def test_a_pipeline_of_words(tmp_path):
    X, y = rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(region=np.where(y == y[0], "north", "south"), label=y)
    words = ColumnTransformer([("words", OneHotEncoder(), ["region"])], remainder="passthrough")
    pipe = make_pipeline(words, odm.ODMClassifier("linear")).fit(frame.drop(columns="label"), y)
    page = reported(pipe, frame, tmp_path, y="label")
    assert numbers(page, "Accuracy", 1) == [1.0]
    assert "region" in page.cells
    assert float(page.cells[page.cells.index("region") + 1]) > 0.2, "all hangs on the word"


def test_a_pipeline_whose_steps_hand_on_frames_or_that_gets_lists(tmp_path):
    X, y = rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    pipe = make_pipeline(StandardScaler(), odm.ODMClassifier("linear")).set_output(transform="pandas").fit(frame, y)
    whole = reported(pipe, (frame, y), tmp_path, importance=True)
    assert {"a", "b", "c"} <= set(whole.cells)
    assert reported(pipe, (X.tolist(), y.tolist()), tmp_path, importance=True).cells == whole.cells


def test_a_table_of_words_dates_and_gaps(tmp_path):
    table = made_table(200)
    X, y = table.drop(columns="kind"), table["kind"]
    model = odm.ODMClassifier("linear").fit(X, y)
    page = reported(model, (X, y), tmp_path, importance=True)
    assert numbers(page, "Accuracy", 1)[0] == pytest.approx(model.score(X, y), abs=1e-4)
    at = page.cells.index("job")
    assert page.cells[at + 1] == "words"
    assert "job" in page.cells[at + 1 :], "importance is that of the table's columns"
    assert "job=cook" not in page.cells
    older = make_pipeline(FunctionTransformer(lambda X: X.assign(age=X["age"] > 45)), odm.ODMClassifier("linear"))
    page = reported(older.fit(X, y), (X, y), tmp_path, importance=True)
    assert numbers(page, "Accuracy", 1)[0] == pytest.approx(older.score(X, y), abs=1e-4)
    assert page.cells.count("age") == 2


@pytest.mark.parametrize("given", [list, np.array, pd.Series])
def test_a_pipeline_of_texts(given, tmp_path):
    texts, y = ["good fine", "bad"] * 20, ["yes", "no"] * 20
    pipe = make_pipeline(TfidfVectorizer(), odm.ODMClassifier("linear")).fit(texts, y)
    assert numbers(reported(pipe, (given(texts), y), tmp_path), "Accuracy", 1) == [1.0]


def test_labels_and_names_without_end_do_not_make_a_page_without_end(tmp_path):
    X, y = rows()
    label = "L" * 100_000 + "\x1b]0;x\x07"
    model = odm.ODMClassifier("linear").fit(X, np.where(y == y[0], label, "\x1b[31ms"))
    names = [f"{'n' * 100_000}{i}" for i in range(3)]
    held = store_of(tmp_path / "a.zarr", X, np.where(y == y[0], label, "\x1b[31ms"), names=names)
    page = reported(model, held, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert text.replace("\n", "").isprintable()
    assert {name[-1] for name in page.cells if name.startswith("nnn")} == {"0", "1", "2"}
