"""Predictions to files, and evaluation, against scikit-learn's metrics and the plain decision values."""

import csv
import errno
import os

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dask_odm import MDDRidge, ODMClassifier, SaddleSVC, Store, open_store, plot_confusion
from dask_odm.data.store.records import read_record
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics.evaluation import Evaluation, blocks, evaluate
from dask_odm.diagnostics.predictions import write_predictions
from dask_odm.errors import InputError, MemoryLimitError, StoreError
from dask_odm.events import Progress, listen
from dask_odm.learning.training.recipe import Schema
from dask_odm.models.linear_model import LinearModel
from small_problems import blobs
from small_stores import store_of

ROWS = 100


def of_features(weights: np.ndarray, *classes: object) -> ODMClassifier:
    """A model whose scores are features times weights, and whose log-odds are its scores."""
    model = ODMClassifier("linear", theta=0.25)
    link = {"probability_link_": np.array([[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]])}
    model._take(Schema(3, classes=np.array(classes)), LinearModel(weights, np.zeros(len(weights))), link)
    return model


def first_feature(*classes: object) -> ODMClassifier:
    """A model whose score is the first feature."""
    return of_features(np.eye(1, 3), *classes)


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, 3)).astype(np.float32), rng.integers(0, 3, ROWS), rng.uniform(size=ROWS)


def write(path, codes=None, weight=None, classes=("no", "yes", "maybe")) -> Store:
    with StoreWriter(path, chunk_rows=33) as writer:
        writer.append(rows()[0], codes, weight)
        return writer.finish(classes)


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_counted(tmp_path, weighted):
    X, codes, weight = rows()
    codes[codes == 2] = -1
    store = write(tmp_path / "a.zarr", codes, weight if weighted else None, ("no", "yes"))
    found = evaluate(first_feature("no", "yes"), store, keep_margins=True)
    known, predicted = codes >= 0, (X[:, 0] > 0).astype(int)
    facts = found.facts()
    np.testing.assert_array_equal(found.confusion, confusion_matrix(codes[known], predicted[known]))
    title, *lines = (line.split() for line in found.table().splitlines())
    assert title == ["true", "\\", "predicted", "no", "yes"]
    assert lines == [[name, *map(str, row)] for name, row in zip(("no", "yes"), found.confusion.tolist(), strict=True)]
    assert facts["accuracy"] == accuracy_score(codes[known], predicted[known])
    weight = weight[known] if weighted else None
    np.testing.assert_allclose(
        facts["weighted_accuracy"], accuracy_score(codes[known], predicted[known], sample_weight=weight)
    )
    assert (facts["rows"], facts["unlabelled_rows"], facts["other_label_rows"]) == (known.sum(), (~known).sum(), 0)
    margins = np.where(codes == 1, 1, -1)[known] * X[known, 0]
    np.testing.assert_array_equal(np.concatenate(found.margins), margins)
    for name, value in {"minimum": margins.min(), "mean": margins.mean(dtype=float), "maximum": margins.max()}.items():
        np.testing.assert_allclose(facts["margins"][name], value, rtol=1e-6)
    np.testing.assert_allclose(facts["margins"]["variance"], margins.var(dtype=float), rtol=1e-6)
    assert facts["margins"]["below_band"] == (margins <= 0.75).sum()
    assert facts["margins"]["in_band"] == ((margins > 0.75) & (margins < 1.25)).sum()
    assert facts["margins"]["above_band"] == (margins >= 1.25).sum()


def test_labels_are_matched_by_value_and_others_are_wrong(tmp_path):
    X, codes, _ = rows()
    store = write(tmp_path / "a.zarr", codes, None, (1, -1, 7))
    found = evaluate(first_feature(-1.0, 1.0), store)
    labels, predicted = np.array([1, -1, 7])[codes], np.where(X[:, 0] > 0, 1, -1)
    facts = found.facts()
    assert found.accuracy == accuracy_score(labels, predicted)
    assert (facts["other_label_rows"], facts["other_labels"]) == ((labels == 7).sum(), {"7": (labels == 7).sum()})
    assert facts["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    precision = precision_score(labels, predicted, average=None, labels=[-1, 1])
    assert list(facts["precision"].values()) == pytest.approx(precision)
    assert found.table().splitlines()[-1].split() == ["7", "(unknown)", *map(str, found.confusion[2])]
    assert np.shape(facts["confusion"]) == (2, 2)
    assert found.margins is None


def test_of_many_unknown_labels_a_few_are_shown():
    found = Evaluation(["no", "yes"], None, [f"id {i}" for i in range(30)])
    found.add(np.arange(32), np.linspace(-1.0, 1.0, 32), None)
    lines = found.table().splitlines()
    assert (len(lines), lines[-1]) == (12, "… and 22 more unknown labels")


def test_a_score_a_class(tmp_path):
    X, codes, _ = rows()
    store = write(tmp_path / "a.zarr", codes)
    model = of_features(np.eye(3), "no", "yes", "maybe")
    model.theta = None
    found = evaluate(model, store, keep_margins=True)
    np.testing.assert_array_equal(found.confusion, confusion_matrix(codes, X.argmax(axis=1)))
    others = [max(value for j, value in enumerate(row) if j != code) for row, code in zip(X, codes, strict=True)]
    np.testing.assert_array_equal(np.concatenate(found.margins), X[np.arange(ROWS), codes] - others)
    assert set(found.facts()["margins"]) == {"minimum", "mean", "variance", "maximum"}
    write_predictions(model, store, tmp_path / "s.csv", what="scores")
    title, *lines = csv.reader((tmp_path / "s.csv").read_text().splitlines())
    assert title == ["score no", "score yes", "score maybe"]
    np.testing.assert_array_equal(np.array(lines, dtype=np.float32), X)
    write_predictions(model, store, tmp_path / "s.zarr", what="scores")
    np.testing.assert_array_equal(read_record(tmp_path / "s.zarr", "prediction").array("score"), X)


def test_without_labels_there_is_nothing_to_compare(tmp_path):
    for number, codes in enumerate((None, np.full(ROWS, -1))):
        store = write(tmp_path / f"{number}.zarr", codes)
        with pytest.raises(InputError, match="has no labels to compare with"):
            evaluate(first_feature("no", "yes"), store)
    with pytest.raises(InputError, match="holds real targets"):
        evaluate(first_feature("no", "yes"), write(tmp_path / "real.zarr", np.linspace(0, 1, ROWS), classes=None))


def test_a_store_may_be_named_or_open(tmp_path):
    model, store = first_feature("no", "yes"), write(tmp_path / "a.zarr", rows()[1])
    expected = evaluate(model, store).facts()
    for given in (str(tmp_path / "a.zarr"), tmp_path / "a.zarr", open_store(tmp_path / "a.zarr")):
        assert evaluate(model, given).facts() == expected
    for given in (rows()[0], open_store(tmp_path / "a.zarr").isel(sample=slice(5))):
        with pytest.raises(InputError, match=r"takes a store, its path, or \(X, y\). Got "):
            evaluate(model, given)


def test_progress_and_order(tmp_path):
    events = []
    store = write(tmp_path / "a.zarr")
    with listen(events.append):
        found = np.concatenate(list(blocks(store, first_feature(0, 1).decision_function(store.path), "p")))
    np.testing.assert_array_equal(found, rows()[0][:, 0])
    assert (events[0], events[-1]) == (Progress("p", 0, 4), Progress("p", 4, 4))


@pytest.mark.parametrize("classes", [("nein", 'ja, "gewiß"'), (-1, 1), (0.5, 1.5), (False, True)])
def test_labels_as_csv(tmp_path, classes):
    store, model = write(tmp_path / "a.zarr"), first_feature(*classes)
    assert write_predictions(model, store, tmp_path / "p.csv") == ROWS
    title, *lines = csv.reader((tmp_path / "p.csv").read_text("utf-8").splitlines())
    assert title == ["label"]
    assert [line[0] for line in lines] == [str(label) for label in model.predict(store.path).compute().tolist()]


def test_scores_as_csv_keep_their_bits(tmp_path):
    store = write(tmp_path / "a.zarr")
    write_predictions(first_feature(0, 1), store, tmp_path / "p.csv", what="scores")
    title, *lines = (tmp_path / "p.csv").read_text().splitlines()
    assert title == "score"
    np.testing.assert_array_equal(np.array(lines, dtype=np.float32), rows()[0][:, 0], strict=True)


def test_predictions_as_zarr(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_odm.data.store.records.STORE_CHUNK_BYTES", 40)  # blocks and chunks end at different rows
    store, model = write(tmp_path / "a.zarr"), first_feature("a", "b")
    write_predictions(model, store, tmp_path / "s.zarr", what="scores")
    write_predictions(model, store, tmp_path / "y.zarr")
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "s.zarr", mode="r")["score"][:], rows()[0][:, 0])
    record = read_record(tmp_path / "y.zarr", "prediction")
    labels = np.array(record.attributes["classes"])[record.array("y")]
    np.testing.assert_array_equal(labels, model.predict(store.path).compute())


def test_probabilities(tmp_path):
    store, model = write(tmp_path / "a.zarr"), first_feature("a", "b, c")
    expected = model.predict_proba(store.path).compute()
    write_predictions(model, store, tmp_path / "p.csv", what="probabilities")
    title, *lines = csv.reader((tmp_path / "p.csv").read_text().splitlines())
    assert title == ["probability a", "probability b, c"]
    np.testing.assert_array_equal(np.array(lines, dtype=np.float64), expected)
    write_predictions(model, store, tmp_path / "p.zarr", what="probabilities")
    record = read_record(tmp_path / "p.zarr", "prediction")
    np.testing.assert_array_equal(record.array("probability"), expected, strict=True)
    assert record.attributes["classes"] == ["a", "b, c"]


def test_what_a_model_does_not_give(tmp_path):
    store = write(tmp_path / "a.zarr")
    for model, what, message in (
        (object(), "scores", r"a regressor has no decision function \(--decision-function\)"),
        (object(), "probabilities", r"a regressor has no probabilities \(--proba\)"),
        (SaddleSVC(), "probabilities", r"SaddleSVC has no probabilities; .*loo=True \(--loo\)"),
        (ODMClassifier(), "probabilities", r"this ODMClassifier is fitted without; fit it with loo=True \(--loo\)"),
    ):
        if type(model) is not object:
            model.classes_ = np.array([0, 1])
        with pytest.raises(InputError, match=message):
            write_predictions(model, store, tmp_path / "p.csv", what=what)
    assert os.listdir(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("p.txt", "must end in .csv or .zarr"), ("no/p.csv", "there is no folder"), ("d.csv", "is a folder; choose"),
     ("a.zarr", "is not a prediction; remove")],
)  # fmt: skip
def test_an_output_that_cannot_be(tmp_path, name, message):
    store = write(tmp_path / "a.zarr")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match=message):
        write_predictions(None, store, tmp_path / name, overwrite=True)
    store.verify()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    store = write(tmp_path / "a.zarr")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write '.*p\.csv': No space left"):
        write_predictions(first_feature(0, 1), store, tmp_path / "p.csv")
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_labels_of_another_kind_are_no_accuracy_of_zero(tmp_path):
    store = write(tmp_path / "a.zarr", rows()[1])
    with pytest.raises(InputError, match="none of the labels of store"):
        evaluate(first_feature(-1, 1), store)


def test_many_classes_take_no_table_of_all(tmp_path):
    """Twenty thousand classes: their confusion as a table would take three gigabytes."""
    count = 20_000
    found = Evaluation([f"c{i}" for i in range(count)], None, ["other"])
    codes = np.array([0, 1, 1, 2, 3, -1, count])
    scores = np.zeros((len(codes), count), np.float32)
    scores[np.arange(len(codes)), [0, 2, 2, 2, 4, 0, 5]] = 1.0
    found.add(codes, scores, None)
    facts = found.facts()
    assert (facts["accuracy"], facts["unlabelled_rows"], facts["other_labels"]) == (2 / 6, 1, {"other": 1})
    assert (facts["recall"]["c1"], facts["precision"]["c2"], facts["confusion"]) == (0.0, 1 / 3, None)
    lines = [line.split() for line in found.table().splitlines()]
    assert lines[1:] == [["true", "predicted", "rows"], ["c1", "c2", "2"], ["c3", "c4", "1"], ["other", "c5", "1"]]
    with pytest.raises(InputError, match="a confusion of 20,000 classes is too large for a plot"):
        plot_confusion(found)


def test_decision_values_of_a_chunk_must_fit(tmp_path):
    model = of_features(np.zeros((20_000, 3)), *range(20_000)).set_params(memory_limit="10MB")
    with pytest.raises(MemoryLimitError, match=r"of 33 rows, a chunk, for 20,000 classes needs .* chunks: chunk_rows"):
        evaluate(model, write(tmp_path / "a.zarr", rows()[1]))


def test_rows_in_memory_are_evaluated_as_the_model_reads_them():
    X, y = blobs(200, 2, seed=3)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(word=np.where(X[:, 0] > 0, "up", "down"))
    model = ODMClassifier().fit(frame, y)
    assert evaluate(model, (frame[["word", "b", "a"]], y)).accuracy == model.score(frame, y)


def test_a_pipeline_prepares_the_words_and_gaps_of_rows_in_memory():
    """Words before the first step are no columns that `ingest` reads, and columns may be labels by name."""
    X, y = blobs(200, 2, seed=3)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(word=np.where(X[:, 0] > 0, "up", "down"))
    table = make_column_transformer((OneHotEncoder(), ["word"]), remainder=SimpleImputer()).fit(frame)
    pipe = make_pipeline(table, ODMClassifier("linear")).fit(frame, y)
    gaps = frame.assign(b=frame["b"].where(frame["b"] < 1))
    for rows in (frame, gaps):
        expected = pipe.score(rows, y)
        assert evaluate(pipe, (rows, y)).accuracy == evaluate(pipe, (rows.assign(kind=y), "kind")).accuracy == expected
    with pytest.raises(InputError, match=r"^a pipeline prepares words in memory alone: pass frame\.compute\(\)"):
        evaluate(pipe, (dd.from_pandas(frame, npartitions=2), y))
    texts = frame["word"].tolist()
    of_texts = make_pipeline(TfidfVectorizer(), ODMClassifier("linear")).fit(texts, y)
    assert evaluate(of_texts, (texts, y)).accuracy == of_texts.score(texts, y)


def test_rows_are_evaluated_with_gaps_and_labels_as_they_are_scored():
    X, y = blobs(200, 2, seed=3)
    numbers = pd.DataFrame(X, columns=["a", "b"])
    gaps = numbers.assign(b=numbers["b"].where(numbers["b"] < 1))
    model = ODMClassifier().fit(numbers, y)
    assert evaluate(model, (gaps, y)).accuracy == model.score(gaps, y)
    words = numbers.assign(word=np.where(X[:, 0] > 0, "up", "down"), kind=y)
    model = ODMClassifier().fit(words, "kind")
    lazy = dd.from_pandas(words, npartitions=3)
    assert evaluate(model, (words, "kind")).accuracy == model.score(words, "kind")
    assert evaluate(model, (lazy, "kind")).accuracy == model.score(words, "kind")
    for rows in (words, lazy):
        with pytest.raises(InputError, match="evaluate needs labels or targets, but y is None"):
            evaluate(model, (rows, None))
    with pytest.raises(InputError, match=r"in the label, y \(1 row\), .*; fill them in, or leave those rows out\.$"):
        evaluate(model, (words, np.where(np.arange(200) == 3, np.nan, y)))
    with pytest.raises(InputError, match=r"takes an estimator of dask_odm, .* Got LinearRegression"):
        evaluate(LinearRegression().fit(X, y), (X, y))


def test_a_pipeline_of_numbers_is_evaluated_and_what_is_not_fitted_is_not(tmp_path):
    X, y = blobs(200, 3, seed=3)
    store = store_of(tmp_path / "a.zarr", X, y)
    for model in (ODMClassifier(), make_pipeline(StandardScaler(), ODMClassifier())):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            evaluate(model, store)
    pipe = make_pipeline(StandardScaler(), MDDRidge()).fit(X, X[:, 0])
    with pytest.raises(InputError, match="evaluate needs real targets"):
        evaluate(pipe, store)
    numbers = store_of(tmp_path / "b.zarr", X, X[:, 0], real=True)
    assert evaluate(pipe, numbers).facts()["r2"] == pytest.approx(pipe.score(X, X[:, 0]), abs=1e-6)
