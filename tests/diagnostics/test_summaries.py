"""Facts of a store and a model, for programs and for people."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dask_odm import Metric
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics import summaries


def test_a_store(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    with StoreWriter(tmp_path / "a.zarr", chunk_rows=20) as writer:
        writer.append(X, np.arange(50) % 3 - 1)
        store = writer.finish(("no", "yes"), feature_names=["a", "b", "c"], source="made up")
    facts = json.loads(json.dumps(summaries.plain(summaries.store_facts(store))))
    assert facts["classes"] == [{"label": "no", "rows": 17}, {"label": "yes", "rows": 16}]
    assert (facts["rows"], facts["features"], facts["unlabelled_rows"], facts["source"]) == (50, 3, 17, "made up")
    assert facts["chunks"] == {"count": 3, "rows": 20, "bytes": 240}
    assert facts["values"]["minimum"] == X.min()
    assert facts["bytes"] == sum(path.stat().st_size for path in (tmp_path / "a.zarr").rglob("*") if path.is_file())
    text = summaries.listing(summaries.store_facts(store))
    assert "no (17 rows), yes (16 rows)" in text
    assert "a, b, c" in text


def test_a_store_of_real_targets(tmp_path):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((3, 1)), [0.5, np.nan, 2.0])
        facts = summaries.store_facts(writer.finish())
    assert (facts["y"], facts["classes"], facts["unlabelled_rows"]) == ("real", None, 1)
    assert "real" in summaries.listing(facts)


def test_a_model(tmp_path):
    model = SimpleNamespace(
        get_params=lambda deep: {"kernel": "rbf", "gamma": 0.5, "callbacks": [print]},
        classes_=np.array([0, 1]), n_features_in_=3, support_=np.arange(7), dual_gap_=float("nan"), history_=[],
    )  # fmt: skip
    facts = summaries.plain(summaries.model_facts(model, tmp_path))
    assert (facts["kernel"], facts["classes"], facts["support_rows"], facts["dual_gap"]) == ("rbf", [0, 1], 7, None)
    assert facts["parameters"] == {"kernel": "rbf", "gamma": 0.5}
    del model.support_  # as of a linear kernel on a store that is not read into memory
    facts = summaries.model_facts(model, tmp_path)
    assert facts["support_rows"] is None
    assert "support_rows" not in summaries.listing(facts)


def test_a_model_without_kernel_support_or_classes(tmp_path):
    facts = summaries.plain(
        summaries.model_facts(SimpleNamespace(get_params=lambda deep: {}, n_features_in_=3), tmp_path)
    )
    assert [facts[name] for name in ("kernel", "classes", "support_rows", "dual_gap", "solver")] == [None] * 5
    assert "support" not in summaries.listing(facts)


def test_what_a_search_found():
    tried = {"params": [{}] * 3}
    model = SimpleNamespace(
        best_params_={"gamma": 0.51234567, "lam": 1e5}, best_score_=0.75, nested_score_=0.74, best_index_=1,
        cv_results_=tried, search_seconds_={"expected": 11.9, "taken": 9.7},
    )  # fmt: skip
    facts = summaries.search_facts(model)
    line = "found gamma=0.5123, lam=1e+05: score 0.7500 by left-out rows, the best of 3 trials (nested score 0.7400)"
    assert summaries.search_text(facts) == f"{line}, in 10 s where 12 s were expected\n"
    assert summaries.search_text(summaries.search_facts(SimpleNamespace())) == ""
    metric = {"best_params": {"metric": Metric("full", values=np.eye(20).tolist()), "lam": 1.0}}
    assert summaries.search_text(facts | metric).startswith("found metric=full of 20 features, lam=1: ")
    assert summaries.listing(metric) == "best params  metric full of 20 features, lam 1"
    del model.cv_results_, model.search_seconds_  # as of a file
    assert set(summaries.search_facts(model)) == {"best_params", "best_score", "nested_score"}


@pytest.mark.parametrize(("value", "expected"), [
    (np.float32(0.5), 0.5), (np.array([1, 2]), [1, 2]),
    ({1: (np.int64(2), float("inf"))}, {"1": [2, None]}),
    pytest.param(np.random.default_rng, str(np.random.default_rng), id="function"),
    (True, True),
])  # fmt: skip
def test_plain_values(value, expected):
    assert summaries.plain(value) == expected
    assert type(summaries.plain(value)) is type(expected)


def test_labels_and_names_are_printable_short_and_not_without_end():
    label = "\x1b]0;x\x07\nrows  5" + "L" * 100_000
    facts = {
        "path": "a\x1b\udcff.zarr", "classes": [{"label": label, "rows": 3}], "recall": {label: 0.5},
        "precision": {f"c{i}": 0.5 for i in range(20_000)}, "feature_names": [label],
    }  # fmt: skip
    text = summaries.listing(facts)
    assert text.count("\n") == len(facts) - 1
    assert text.replace("\n", "").isprintable()
    assert len(text) < 2000
    assert r"\x1b]0;x\x07\nrows" in text
    assert ", … (20000)" in text
    parameters = {f"parameter{i}": i for i in range(25)}
    assert "parameter24 24" in summaries.listing({"parameters": parameters}), "all of an estimator are told"


def test_sets_of_classes_are_told_in_words():
    lines = summaries.coverage_lines({"sets": {"0.9": {"held": 0.912, "size": 1.25, "empty": 0.0}}})
    told = "91.2% hold the class of their row, with 1.25 classes on average; 0.0% are empty"
    assert lines == {"sets for 90%": told}
