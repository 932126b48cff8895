"""Texts from the shell: ingest, fit, predict, evaluate and report take the same files of texts."""

import json
from pathlib import Path

import pytest
from sklearn.metrics import accuracy_score

from cli.running import run, run_json
from dask_odm import Store, load_model
from small_texts import made_texts, write_lines

TEXTS, TOPICS = made_texts()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``docs.jsonl``, its store and a model of it."""
    made = tmp_path_factory.mktemp("texts")
    write_lines(made / "docs.jsonl", id=range(len(TEXTS)), topic=TOPICS.tolist(), body=TEXTS)
    run("ingest", made / "docs.jsonl", made / "text.zarr", "--text", "body", "--label", "topic", "--hash", "2^14")
    run("fit", made / "text.zarr", made / "model.zarr", "--kernel", "linear", "--lam", 100)
    return made


def test_words_are_hashed_to_as_many_features_as_were_asked_for(folder):
    store = Store.open(folder / "text.zarr")
    assert store.features == 2**14
    assert store.classes == tuple(sorted(set(TOPICS.tolist())))
    facts = run_json("info", folder / "text.zarr")
    assert facts["text"] == "body"
    assert run_json("info", folder / "model.zarr")["text"] == "body"


def test_predictions_of_a_file_are_those_of_its_texts(folder):
    model = load_model(folder / "model.zarr")
    expected = ["label", *model.predict(TEXTS).tolist()]
    assert run("predict", folder / "model.zarr", folder / "docs.jsonl", "-").stdout.split() == expected
    lines = (folder / "docs.jsonl").read_text(encoding="utf-8")
    assert run("predict", folder / "model.zarr", "-", "-", text=lines).stdout.split() == expected
    write_lines(folder / "bare.jsonl", words=TEXTS)
    assert (
        run("predict", folder / "model.zarr", folder / "bare.jsonl", "-", "--text", "words").stdout.split() == expected
    )
    assert run("predict", folder / "model.zarr", folder / "text.zarr", "-").stdout.split() == expected


def test_a_search_may_leave_words_unscaled(folder):
    asked = ("search", folder / "text.zarr", folder / "found.zarr", "--kernel", "linear", "--random-state", 0)
    run(*asked, "--scale", "none", "--cv", 0.2, "--lams", "100,1000")
    found = load_model(folder / "found.zarr")
    assert found.scale is None
    assert found.score(TEXTS, TOPICS) > 0.9


def test_text_that_is_no_json_is_refused(folder):
    refused = run("predict", folder / "model.zarr", "-", "-", text="Stir and simmer\n", status=2)
    assert 'Texts are lines of JSON, such as {"text": "…"}.' in refused.stderr


def test_texts_are_judged(folder):
    model = load_model(folder / "model.zarr")
    accuracy = accuracy_score(TOPICS, model.predict(TEXTS))
    judged = json.loads(
        run("evaluate", folder / "model.zarr", folder / "docs.jsonl", "--label", "topic", "--json").stdout
    )
    assert judged["accuracy"] == pytest.approx(accuracy)
    told = run("evaluate", folder / "model.zarr", folder / "docs.jsonl", "--drop", "id")
    assert "column 'topic' is taken for the labels" in told.stderr
    assert (
        "several columns that are no features"
        in run("evaluate", folder / "model.zarr", folder / "docs.jsonl", status=2).stderr
    )
    run("report", folder / "model.zarr", folder / "docs.jsonl", folder / "page.html", "--label", "topic")
    assert "<html" in (folder / "page.html").read_text(encoding="utf-8")


def test_a_size_that_is_none(folder):
    for size in ("2^x", "2^999", "many"):
        refused = run("ingest", folder / "docs.jsonl", folder / "b.zarr", "--text", "body", "--hash", size, status=2)
        assert "is not a valid integer" in refused.stderr
