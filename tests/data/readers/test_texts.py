"""Texts: the rows are those of scikit-learn's hashing and weighting, whatever holds the texts and however it is cut."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from dask_odm import InputError, Store, StoreError, ingest
from dask_odm.data.readers.texts import count_words
from dask_odm.data.store.layout import crc32c, seal
from data.doors import through
from data.reading import stored
from small_stores import forge
from small_texts import made_texts, pipeline, write_lines

TEXTS, TOPICS = made_texts()
ROWS = pipeline().fit_transform(TEXTS)


def require_same(store: Store, expected) -> None:
    found = stored(store)[0]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    assert abs(found - expected).max() < (1e-7 if store.dtype == np.float32 else 1e-15)


def held(kind: str, folder: Path):
    """The texts, with their topics and two columns more, as a source of this kind."""
    frame = pd.DataFrame({"id": range(len(TEXTS)), "topic": TOPICS, "body": TEXTS, "more": ["x"] * len(TEXTS)})
    return through(kind, frame, folder)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "feather", "frame", "dask"])
def test_rows_are_those_of_scikit_learn(tmp_path, kind):
    store = ingest(held(kind, tmp_path), tmp_path / "a.zarr", text="body", label="topic", dtype="float64")
    assert store.is_sparse
    require_same(store, ROWS)
    assert stored(store)[1].tolist() == TOPICS.tolist()
    assert store.text_recipe.column == "body"
    np.testing.assert_allclose(store.text_recipe.idf, pipeline().fit(TEXTS)[-1].idf_, rtol=1e-14)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_blocks_change_no_bit(tmp_path, kind):
    whole = ingest(held(kind, tmp_path), tmp_path / "a.zarr", text="body", label="topic")
    cut = ingest(held(kind, tmp_path), tmp_path / "b.zarr", text="body", label="topic", block_bytes=900, chunk_rows=37)
    assert cut.n_chunks > whole.n_chunks
    found, expected = stored(cut)[0], stored(whole)[0]
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


letters = st.text(st.sampled_from("abcABC019_ -.'\n\0éÉßẞıİΣςσ猫ǆ²½\u0301\u200d\U0001d400😀\ud800")) | st.text()


@settings(max_examples=200, deadline=None)
@given(st.lists(letters, min_size=1, max_size=6), st.sampled_from([1, 7, 2**20]))
def test_words_of_any_letters_are_hashed_as_by_scikit_learn(texts, n_features):
    found = count_words(texts, n_features, str)
    expected = HashingVectorizer(n_features=n_features, norm=None, alternate_sign=False).transform(texts)
    expected.sort_indices()
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_weights_are_those_of_the_training_rows(tmp_path):
    source = held("jsonl", tmp_path)
    train, test = ingest(source, tmp_path / "a.zarr", text="body", label="topic", test_size=0.3, n_features=2**12)
    counts = HashingVectorizer(n_features=2**12, norm=None, alternate_sign=False).transform(TEXTS)
    unweighted = ingest((counts, np.arange(300)), tmp_path / "c.zarr", test_size=0.3, target="real")
    drawn = [store.read_column("y").astype(int) for store in unweighted]
    weigh = TfidfTransformer().fit(counts[drawn[0]])
    for store, rows in zip((train, test), drawn, strict=True):
        require_same(store, weigh.transform(counts[rows]))
        np.testing.assert_array_equal(store.text_recipe.idf, train.text_recipe.idf)


def test_a_recipe_makes_rows_of_other_texts_and_copies_keep_it(tmp_path):
    others, _ = made_texts(50, seed=1)
    first = ingest(held("jsonl", tmp_path), tmp_path / "a.zarr", text="body", label="topic", n_features=2**10)
    second = write_lines(tmp_path / "b.jsonl", body=others, label=range(50))
    store = ingest(second, tmp_path / "b.zarr", text=first.text_recipe, sparse=True)
    require_same(store, pipeline(2**10).fit(TEXTS).transform(others))
    copy = ingest(store, tmp_path / "c.zarr", dtype="float64")
    assert copy.text_recipe.column == "body"
    np.testing.assert_array_equal(copy.text_recipe.idf, first.text_recipe.idf)


def test_few_features_make_a_dense_store(tmp_path):
    store = ingest(held("csv", tmp_path), tmp_path / "a.zarr", text=2, label="topic", n_features=64)
    assert not store.is_sparse
    expected = pipeline(64).fit_transform(TEXTS).toarray()
    np.testing.assert_allclose(stored(store)[0], expected, atol=1e-7)


def test_missing_texts_are_counted_or_dropped(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", body=["one word", None, "two words", ""], label=[0, 1, 1, 0])
    with pytest.raises(InputError, match=r"missing values in column 'body' \(1 row\), first at line 2; fill them in"):
        ingest(source, tmp_path / "a.zarr", text="body")
    store = ingest(source, tmp_path / "a.zarr", text="body", drop_missing=True)
    require_same(store, pipeline().fit_transform(["one word", "two words", ""]))


@pytest.mark.parametrize(("columns", "options", "message"), [
    ({"body": ["a", 5]}, {}, "line 2, column 'body': '5' .int. is no text; each text must be one string"),
    ({"text": ["a"]}, {}, "no text column 'body'; the columns are text"),
    ({"body": ["a"]}, {"label": "body"}, "the column of texts cannot be that of the labels or weights"),
    ({"body": ["a"]}, {"n_features": 0}, r"n_features must be between 1 and 10000000\. Got 0"),
    ({"body": ["a"]}, {"n_features": 10**8}, r"n_features must be between 1 and 10000000\. Got 100000000"),
])  # fmt: skip
def test_texts_that_cannot_be_read(tmp_path, columns, options, message):
    with pytest.raises(InputError, match=message):
        ingest(write_lines(tmp_path / "a.jsonl", **columns), tmp_path / "a.zarr", text="body", **options)
    assert not (tmp_path / "a.zarr").exists()


# Damage and lies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.5, -3.0])
def test_weights_that_lie_are_refused(tmp_path, value):
    store = ingest(held("jsonl", tmp_path), tmp_path / "a.zarr", text="body", label="topic", n_features=2**12)
    path = Path(store.path, "idf/c/0")
    weights = np.frombuffer(path.read_bytes()[:-4]).copy()
    weights[7] = value
    data = seal(weights.tobytes())
    forge(store.path, lambda m: m["chunks"]["idf"].__setitem__(0, [len(data), crc32c(data[:-4])]))
    path.write_bytes(data)
    with pytest.raises(StoreError, match="array 'idf', chunk 0: a weight of a word that is below 1 or not finite"):
        Store.open(store.path).text_recipe  # noqa: B018


@pytest.mark.parametrize("text", ["", 3, ["body"], None, ...])
def test_a_column_that_lies_is_refused(tmp_path, text):
    store = ingest(held("jsonl", tmp_path), tmp_path / "a.zarr", text="body", label="topic", n_features=2**12)
    forge(store.path, lambda m: m["layout"].pop("text") if text is ... else m["layout"].update(text=text))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        Store.open(store.path)
