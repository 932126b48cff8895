"""Cards of models, histories and stores in notebooks: what they say, that names do no harm, and where they link."""

import pickle
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression

import dask_odm as odm
from dask_odm.estimators import cards
from dask_odm.estimators.registry import ESTIMATORS
from html_page import HOSTILE, Page
from small_problems import blobs
from small_stores import store_of
from small_tables import made_table

ROOT = Path(__file__).parents[2]
SITE = "https://pages.example/odm"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    X, y = blobs(300, 3, seed=5)
    labels = np.where(y > 0, *HOSTILE[::2])
    return store_of(tmp_path_factory.mktemp("store") / "rows.zarr", X, labels, chunk_rows=80, names=HOSTILE)


@pytest.fixture(scope="module")
def model(store):
    return odm.ODMClassifier(lam=10.0, loo=True, random_state=0).fit(store)


def told(html: str) -> dict[str, str]:
    """The cells of a card, by the first of each line; fails on tags that do not close."""
    page = Page(html)
    assert not set(page.tags) & {"script", "b", "img"}
    return dict(zip(page.cells[::2], page.cells[1::2], strict=False))


def test_a_fitted_model_tells_what_it_learned_below_scikit_learns_diagram(model, tmp_path):
    html = model._repr_html_()
    assert html.index("sk-container-id") < html.index("What was learned")
    assert html.count("<script") == clone(model)._repr_html_().count("<script")
    assert not any(name in html for name in HOSTILE if "<" in name)
    found = told(html[html.index('<div class="odm-card">') :])
    assert found["Rows"] == "300"
    assert found["Features"] == "3"
    assert found["Classes"] == ", ".join(model.classes_)
    assert found["Support rows"] == str(len(model.support_))
    assert found["Left out"] == f"accuracy {model.loo_score_:.1%} on training rows left out"
    assert f"within {100 * model.dual_gap_:.2g}% of the optimum" in found["Certificate"]
    assert found["Learned by"].startswith("exact: ")
    assert model._repr_mimebundle_()["text/html"].endswith(html[html.index('<div class="odm-card">') :])
    model.save(tmp_path / "model.zarr")
    assert odm.load_model(tmp_path / "model.zarr")._card() == model._card()
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}


def test_other_models_have_cards(model, store):
    X, y = blobs(300, 3, seed=5)
    landmarks = odm.ODMClassifier(solver=odm.solvers.Landmark(40), random_state=0).fit(X, y)
    found = told(landmarks._card())
    assert found["Landmarks"] == "40"
    assert found["Certificate"].startswith("none")
    assert found["Certificate"].endswith(" a fit with solver=dask_odm.solvers.Landmark(certify=True) does")
    ridge = odm.MDDRidge().fit(X, y)
    assert told(ridge._card())["Rows"] == "300"
    assert "Classes" not in told(ridge._card())
    assert told(ridge.update(X[:20], y[:20])._card())["Rows"] == "320"


@pytest.mark.parametrize("entry", ESTIMATORS.values(), ids=list(ESTIMATORS))
def test_an_estimator_that_is_not_fitted_looks_like_scikit_learns(entry):
    estimator = entry.load()()
    assert estimator._repr_html_().count('<div class="odm-card">') == 0
    assert type(estimator)._repr_html_ is BaseEstimator._repr_html_


def test_a_history_is_a_list_with_tables(model):
    assert isinstance(model.history_, list)
    again = pickle.loads(pickle.dumps(model.history_))
    assert again == model.history_ == list(model.history_)
    assert repr(again) == repr(list(again))
    page = Page(again._repr_html_())
    assert page.cells[:2] == ["Solver", "exact"]
    objectives = [f"{record['objective']:.4g}" for record in model.history_]
    assert [cell for cell in page.cells if cell in objectives] == objectives
    hostile = type(again)([{"solver": HOSTILE[0], "why": HOSTILE[2], HOSTILE[0]: HOSTILE[0], "seconds": 1.0}])
    assert "script" not in Page(hostile._repr_html_()).tags
    assert told(type(again)()._repr_html_()) == {}


def test_a_store_tells_its_sizes_and_classes(store):
    found = told(store._repr_html_())
    assert found["Rows"] == "300"
    assert found["Chunks"].startswith("4 of 80 rows")
    counts = dict(zip(store.classes, store.class_counts, strict=True))
    assert {label: int(found[label]) for label in counts} == counts
    assert not any(name in odm.open_store(store.path)._repr_html_() for name in HOSTILE if "<" in name)


def test_a_model_and_a_store_of_a_table_tell_how_its_columns_are_read(tmp_path):
    table = made_table().rename(columns={"job": HOSTILE[0]})
    store = odm.ingest((table.drop(columns="kind"), table["kind"]), tmp_path / "a.zarr")
    for found in (store._repr_html_(), odm.ODMClassifier("linear").fit(store)._card()):
        page = Page(found)
        assert "script" not in page.tags
        at = page.cells.index(HOSTILE[0])
        assert page.cells[at + 1 : at + 4] == ["words", "nurse, smith, cook", "8"]


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name in odm.__all__])
def test_the_diagram_links_to_our_reference(name, monkeypatch):
    monkeypatch.setattr("dask_odm.estimators.cards.documentation", lambda: f"{SITE}/")
    estimator = ESTIMATORS[name].load()()
    assert estimator._get_doc_link() == f"{SITE}/reference/generated/dask_odm.{name}.html"
    assert estimator._get_doc_link() in estimator._repr_html_()
    monkeypatch.setattr("dask_odm.estimators.cards.documentation", lambda: "")
    assert estimator._get_doc_link() == ""
    assert "dask_odm." not in LogisticRegression()._get_doc_link()


def test_the_address_of_the_documentation_is_the_projects(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    class Installed:
        def get_all(self, name):
            return [f"{key}, {url}" for key, url in project["urls"].items()] if name == "Project-URL" else None

    monkeypatch.setattr(cards, "metadata", lambda name: Installed())
    assert cards.documentation.__wrapped__() == project["urls"]["Documentation"].rstrip("/") + "/"
