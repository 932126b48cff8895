"""Scores and probabilities gathered by blocks, against scikit-learn's metrics on all of them."""

import matplotlib
import numpy as np
import pytest
from sklearn import metrics

from cli.running import run
from dask_odm import InputError, ODMClassifier, plot_confusion, plot_importance, plot_reliability, plot_roc
from dask_odm.diagnostics.evaluation import Evaluation, evaluate
from dask_odm.diagnostics.importance import Importance
from dask_odm.diagnostics.plotting import draw
from dask_odm.diagnostics.score_counts import Errors, ProbabilityCounts, RocCounts, bins_of
from small_problems import blobs
from small_stores import store_of

X, Y = blobs(900, 3, seed=4)
WEIGHT = np.random.default_rng(0).uniform(0.5, 2.0, 300)


def by_blocks(add, *columns):
    for start in range(0, len(columns[0]), 77):
        add(*(column[start : start + 77] for column in columns))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A model, its evaluation over a store of rows that it has not seen, and scores and labels of these."""
    model = ODMClassifier(gamma=0.5, lam=100.0, loo=True).fit(X[:600], Y[:600])
    path = tmp_path_factory.mktemp("curves") / "rows.zarr"
    store = store_of(path, X[600:], Y[600:], weight=WEIGHT, chunk_rows=77)
    return model, evaluate(model, store), path


def test_facts_are_those_of_scikit_learn(found):
    model, evaluation, _ = found
    facts, scores, y = evaluation.facts(), model.decision_function(X[600:]), Y[600:]
    predicted, said = model.predict(X[600:]), model.predict_proba(X[600:])[:, 1]
    precision, recall, _, _ = metrics.precision_recall_fscore_support(y, predicted)
    assert facts["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, predicted))
    assert list(facts["precision"].values()) == pytest.approx(precision)
    assert list(facts["recall"].values()) == pytest.approx(recall)
    assert facts["auc"] == pytest.approx(metrics.roc_auc_score(y, scores, sample_weight=WEIGHT), abs=1e-4)
    assert facts["log_loss"] == pytest.approx(metrics.log_loss(y, said, sample_weight=WEIGHT))
    assert facts["brier"] == pytest.approx(metrics.brier_score_loss(y, said, sample_weight=WEIGHT))
    assert 0 < facts["calibration_error"] < 0.1


def test_roc_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    scores, weight = rng.integers(-20, 20, 500) / 8.0, rng.uniform(size=500)
    positive, counts = rng.random(500) < 1.0 / (1.0 + np.exp(-scores)), RocCounts()
    by_blocks(counts.add, positive, scores, weight)
    false, true, _ = metrics.roc_curve(positive, scores, sample_weight=weight, drop_intermediate=False)
    np.testing.assert_allclose(counts.curve(), (false, true), atol=1e-12)


def test_bins_are_in_the_order_of_scores():
    scores = np.concatenate([[-np.float32(3e38), -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 1.001, 3e38]]).astype(np.float64)
    found = bins_of(scores)
    assert (np.diff(found) >= 0).all()
    assert found[3] == found[4]
    assert len(set(found.tolist())) == 8


def test_many_classes():
    rng = np.random.default_rng(2)
    said = rng.dirichlet([1.0, 2.0, 3.0], 400)
    true = np.array([rng.choice(3, p=row) for row in said])
    counts = ProbabilityCounts()
    by_blocks(counts.add, true, said, np.ones(400))
    facts = counts.facts()
    assert facts["log_loss"] == pytest.approx(metrics.log_loss(true, said))
    assert facts["brier"] == pytest.approx(((said - np.eye(3)[true]) ** 2).sum(axis=1).mean())
    mean, share, weight = counts.reliability()
    assert weight.sum() == 400
    assert np.average(np.abs(mean - share), weights=weight) < 0.1


def test_a_class_without_rows_has_no_figure():
    evaluation = Evaluation(["no", "yes"], None)
    evaluation.add(np.array([0, 0]), np.array([-1.0, -2.0]), None)
    facts = evaluation.facts()
    assert facts["auc"] is None
    assert facts["recall"] == {"no": 1.0, "yes": None}
    assert facts["precision"]["yes"] is None
    assert "log_loss" not in facts
    with pytest.raises(InputError, match="two classes"):
        plot_roc(evaluation)
    with pytest.raises(InputError, match="loo=True"):
        plot_reliability(evaluation)


def test_pictures(found, tmp_path):
    matplotlib.use("agg")
    model, evaluation, path = found
    assert plot_roc(evaluation).get_lines()[0].get_xdata()[-1] == 1.0
    shown = plot_confusion(evaluation)
    counts = evaluation.confusion
    cells = zip((counts / counts.sum(axis=1, keepdims=True)).ravel(), counts.ravel(), strict=True)
    assert [text.get_text() for text in shown.texts] == [f"{share:.0%}\n({count})" for share, count in cells]
    assert [label.get_text() for label in shown.get_xticklabels()] == ["-1.0", "1.0"]
    said, share = plot_reliability(evaluation).get_lines()[-1].get_data()
    assert len(said) == len(share) > 3
    model.save(tmp_path / "model.zarr")
    run("evaluate", tmp_path / "model.zarr", path, "--pictures", tmp_path / "p")
    assert draw(Errors(), str(tmp_path / "none")) == [], "there are no rows"
    assert sorted(each.name for each in (tmp_path / "p").iterdir()) == ["confusion.png", "reliability.png", "roc.png"]


def test_long_labels_and_names_leave_room(tmp_path):
    label, other = "L" * 100_000, "s\x1b[31m"
    found = Evaluation([label, other], 0.2)
    found.add(np.array([0, 1]), np.array([-1.0, 1.0]), None)
    of_classes = plot_confusion(found)
    shown = [text.get_text() for text in of_classes.get_xticklabels()]
    assert shown[1] == r"s\x1b[31m"
    assert len(shown[0]) == 24
    assert len(plot_roc(found).get_xlabel()) < 100
    names = [f"{'n' * 100}{i}" for i in (1, 10)] + ["n" * 100 + "x" + "n" * 100] * 2
    importance = plot_importance(Importance(names, 1.0, np.arange(8.0).reshape(4, 2)))
    assert len(importance.patches) == 4, "names that look alike have a bar each"
    for ax in (of_classes, importance):
        ax.figure.savefig(tmp_path / "a.png")
