"""Models of texts: they predict texts as scikit-learn's rows of them, from a file too; other rows are refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import LinearSVC

from dask_odm import InputError, MDDRidge, MemoryLimitError, ODMClassifier, StoreError, ingest, load_model
from dask_odm.data.store.records import read_record, write_record
from small_texts import made_texts, pipeline, write_lines

TEXTS, TOPICS = made_texts()
OTHERS, OTHER_TOPICS = made_texts(100, seed=1)
SIZE = 2**14


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    source = write_lines(folder / "docs.jsonl", body=TEXTS, topic=TOPICS.tolist())
    return Path(ingest(source, folder / "text.zarr", text="body", label="topic", n_features=SIZE).path)


@pytest.fixture(scope="module")
def saved(stored) -> Path:
    path = stored.parent / "model.zarr"
    ODMClassifier("linear", lam=100, random_state=0).fit(stored).save(path)
    return path


def test_texts_are_predicted_as_rows_of_scikit_learn(saved):
    model = load_model(saved)
    way = pipeline(SIZE).fit(TEXTS)
    scores = model.decision_function(way.transform(OTHERS))
    for texts in (
        OTHERS,
        tuple(OTHERS),
        np.array(OTHERS),
        np.array(OTHERS, object),
        pd.Series(OTHERS, index=[3] * 100),
    ):
        np.testing.assert_allclose(model.decision_function(texts), scores, atol=1e-12)
    np.testing.assert_array_equal(model.predict(OTHERS), model.classes_[scores.argmax(axis=1)])
    rival = LinearSVC().fit(way.transform(TEXTS), TOPICS)
    agreed = np.mean(rival.predict(way.transform(OTHERS)) == model.predict(OTHERS))
    assert agreed > 0.95
    assert model.score(OTHERS, OTHER_TOPICS) > rival.score(way.transform(OTHERS), OTHER_TOPICS) - 0.03


def test_the_recipe_is_that_of_the_store_and_goes_with_a_fit_on_other_rows(stored, saved):
    model = load_model(saved)
    assert model.text_recipe_.column == "body"
    np.testing.assert_array_equal(model.text_recipe_.idf, pipeline(SIZE).fit(TEXTS)[-1].idf_)
    model.fit(pipeline(SIZE).fit_transform(TEXTS), TOPICS)
    assert not hasattr(model, "text_recipe_")
    with pytest.raises(InputError, match="texts, as by scikit-learn's TfidfVectorizer"):
        model.predict([[text] for text in OTHERS])


def test_a_regression_of_texts_keeps_the_recipe_when_rows_are_added(tmp_path):
    y = np.char.str_len(np.array(TEXTS)).astype(float)
    source = write_lines(tmp_path / "docs.jsonl", body=TEXTS, length=y.tolist())
    store = ingest(source, tmp_path / "a.zarr", text="body", label="length", n_features=256, target="real")
    model = MDDRidge().fit(store)
    before = model.predict(OTHERS)
    np.testing.assert_allclose(before, model.predict(pipeline(256).fit(TEXTS).transform(OTHERS).toarray()), rtol=1e-10)
    model.update(store)
    assert model.text_recipe_.column == "body"


@pytest.mark.parametrize("text", [None, np.nan, 5, ["a"]], ids=str)
def test_what_is_no_text_is_named(saved, text):
    with pytest.raises(InputError, match="X, text 1"):
        load_model(saved).predict(["a text", text])


@pytest.mark.parametrize("held", [list, tuple, np.array, lambda x: np.array(x, object)])
def test_texts_in_lists_of_their_own_are_refused(saved, held):
    with pytest.raises(InputError, match=r"X, text 0: .*a text.* is no text; each text must be one string"):
        load_model(saved).predict(held([["a text"], ["another"]]))


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan])
def test_a_missing_first_text_is_refused(saved, missing):
    with pytest.raises(InputError, match="X, text 0: is missing; give the empty string"):
        load_model(saved).predict([missing, "a text"])


def test_a_text_that_is_in_no_list_is_refused(saved):
    model = load_model(saved)
    with pytest.raises(InputError, match=r"X is a string, but there is no such path: pass a list of texts"):
        model.predict("just one text " * 100)
    with pytest.raises(InputError, match=r"pass its column of texts, X\['body'\]"):
        model.predict(pd.DataFrame({"body": OTHERS}))
    with pytest.raises(InputError, match=r"pass its column of texts, X\['…'\]"):
        model.predict(pd.DataFrame({"text": OTHERS}))


@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_scaled_texts_take_the_same_sweeps_as_rows_that_were_scaled_before(scale):
    rows = pipeline(SIZE).fit_transform(TEXTS)
    make = MaxAbsScaler() if scale == "minmax" else StandardScaler(with_mean=False)
    model = ODMClassifier("linear", lam=1.0, scale=scale, random_state=0).fit(rows, TOPICS)
    plain = ODMClassifier("linear", lam=1.0, random_state=0).fit(make.fit_transform(rows), TOPICS)
    assert [step["passes"] for step in model.history_] == [step["passes"] for step in plain.history_]
    np.testing.assert_allclose(model.coef_ * make.scale_, plain.coef_, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_standard_texts_are_told_to_be_too_long_for_their_lam(stored, caplog):
    ODMClassifier("linear", lam=300, max_iter=1).fit(stored)
    assert "mean ‖x‖²" not in caplog.text
    ODMClassifier("linear", lam=300, max_iter=1, scale="standard").fit(stored)
    assert caplog.text.count("with lam=300 the fit may take long. Texts need no scaling (scale=None") == 1


def test_probabilities_that_need_too_many_features_point_at_calibrate(saved):
    model = load_model(saved)
    with pytest.raises(InputError, match=rf"{SIZE:,} features are too many for loo=True. After calibrate"):
        model.predict_proba(OTHERS)
    assert model.calibrate(OTHERS, OTHER_TOPICS).predict_set(OTHERS, 0.9).any()


@pytest.mark.parametrize("topics", [TOPICS, np.unique(TOPICS, return_inverse=True)[1] % 2], ids=["many", "two"])
def test_landmarks_that_do_not_fit_point_at_the_linear_kernel(topics):
    rows = pipeline(2**20).fit_transform(TEXTS)
    with pytest.raises(MemoryLimitError, match="are dense rows of 1,048,576 features: use kernel='linear'"):
        ODMClassifier(solver="landmark", memory_limit="600MB").fit(rows, topics)
    with pytest.raises(MemoryLimitError, match=r"free for it\. Use fewer landmarks \(solver=L"):
        ODMClassifier(solver="landmark", memory_limit="600kB").fit(pipeline(8).fit_transform(TEXTS), topics)


LIES = {
    "weights below 1": lambda content, arrays: arrays.update(idf=arrays["idf"] * 0.1),
    "weights that are no numbers": lambda content, arrays: arrays.update(idf=arrays["idf"] * np.nan),
    "weights of fewer features": lambda content, arrays: arrays.update(idf=arrays["idf"][:-1]),
    "weights of another type": lambda content, arrays: arrays.update(idf=arrays["idf"].astype(np.float32)),
    "weights of another shape": lambda content, arrays: arrays.update(idf=arrays["idf"][None]),
    "no weights": lambda content, arrays: arrays.pop("idf"),
    "weights of no texts": lambda content, arrays: content["schema"].pop("text"),
    "a column that is a number": lambda content, arrays: content["schema"].update(text=3),
    "a column without a name": lambda content, arrays: content["schema"].update(text=""),
}


@pytest.mark.parametrize("which", LIES)
def test_a_recipe_that_lies_is_refused(saved, tmp_path, which):
    record = read_record(saved, "model")
    arrays = {name: record.array(name) for name in record.arrays}
    LIES[which](record.attributes, arrays)
    write_record(tmp_path / "m.zarr", "model", arrays, record.attributes)
    with pytest.raises(StoreError, match=r"is not what a model is|has no array 'idf'"):
        load_model(tmp_path / "m.zarr")


def test_a_file_of_texts_alone_has_no_labels_to_warn_of(tmp_path, caplog):
    source = write_lines(tmp_path / "new.jsonl", body=TEXTS[:20])
    assert ingest(source, tmp_path / "new.zarr", text="body", n_features=SIZE).rows == 20
    assert not caplog.records
