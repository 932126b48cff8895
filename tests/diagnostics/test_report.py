"""Reports: one page without a network, whatever the model is; numbers are those of evaluate; names do no harm."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dask_odm as odm
from dask_odm.cli import main
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.errors import InputError
from dask_odm.solvers import Cells
from small_problems import blobs
from small_stores import store_of

VOID = {"meta", "br", "img", "link"}
HOSTILE = ["<script>alert(1)</script>", "$x^{", 'a & b "c"']


class Page(HTMLParser):
    """Tags, attributes and cells of a page; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "h2"):
            (self.cells if tag == "td" else self.headings).append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "h2"):
            (self.cells if self.open[-1] == "td" else self.headings)[-1] += data


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
        "What was learned", "How good it is", "By class", "Margins", "ROC", "Probabilities", "Steps of the fit",
        "Which features matter",
    ]  # fmt: skip
    assert page.tags.count("svg") == 6
    assert page.cells[page.cells.index("Accuracy") + 1] == f"{found.accuracy:.4g}"
    assert page.cells[page.cells.index("Score of the training rows, left out") + 1] == f"{model.loo_score_:.4g}"
    assert set(HOSTILE) <= set(page.cells)
    assert {"yes <b>", "no & more"} <= set(page.cells)
    assert "at most" in page.cells[page.cells.index("Certificate") + 1]
    again = (tmp_path / "report.html").read_bytes()
    reported(model, store, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == again
    assert "Which features matter" not in reported(model, store, tmp_path, importance=False).headings


def test_many_classes_cells_one_class_and_regressors(tmp_path):
    X, y = rows()
    three = np.where(X[:, 0] > 1.0, "third", y)
    store = store_of(tmp_path / "three.zarr", X, three)
    page = reported(odm.ODMClassifier(solver=Cells(100)).fit(X, three), store, tmp_path)
    assert "each region for its own rows" in page.cells[page.cells.index("Certificate") + 1]
    assert "ROC" not in page.headings
    page = reported(odm.ODMClassifier().fit(X, three), store, tmp_path)
    assert {"By class", "Which features matter"} <= set(page.headings)
    signs = store_of(tmp_path / "signs.zarr", X, np.where(X[:, 0] > 0, 1, -1))
    assert "ROC" in reported(odm.OneClassODM().fit(X), signs, tmp_path).headings
    real = store_of(tmp_path / "real.zarr", X, X[:, 0] + X[:, 1] ** 2, real=True)
    page = reported(odm.MDDRidge().fit(real), real, tmp_path)
    assert "R²" in page.cells
    assert page.tags.count("svg") == 2


def test_without_matplotlib_tables_are_left(store, tmp_path, monkeypatch):
    model = odm.ODMClassifier().fit(*rows())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = reported(model, store, tmp_path)
    assert "svg" not in page.tags
    assert "Accuracy" in page.cells


def test_in_the_shell_and_what_it_refuses(store, tmp_path):
    model = odm.ODMClassifier().fit(*rows())
    model.save(tmp_path / "m.zarr")
    arguments = ["report", str(tmp_path / "m.zarr"), store.path, str(tmp_path / "page.html")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert CliRunner().invoke(main, arguments).exit_code == 2
    with pytest.raises(InputError, match="exists"):
        odm.report(model, store, tmp_path / "page.html")
    with pytest.raises(InputError, match="takes a store"):
        odm.report(model, rows()[0], tmp_path / "other.html")
    with pytest.raises(InputError, match="no folder"):
        odm.report(model, store, tmp_path / "nowhere" / "page.html")
    assert len(list(tmp_path.iterdir())) == 2, "nothing else is left"
