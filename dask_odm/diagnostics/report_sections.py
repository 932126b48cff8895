"""Sections of a report: what was learned, how good it is, and pictures with their numbers in tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.store.store import Store
from dask_odm.diagnostics import plotting
from dask_odm.diagnostics.evaluation import Evaluation, Together
from dask_odm.diagnostics.importance import Importance
from dask_odm.diagnostics.maps import CubeMap, plot_classes, plot_values
from dask_odm.diagnostics.pages import picture
from dask_odm.diagnostics.pipelines import Steps
from dask_odm.diagnostics.score_counts import SHOWN_POINTS, Errors, RocCounts
from dask_odm.estimators.cards import facts_of
from dask_odm.html import MOST_LINES, heading, safe, table
from dask_odm.printing import short
from dask_odm.progress import STEPS
from dask_odm.typing import Array


def without_plots() -> Iterable[str]:
    """Yield what to install if there is nothing to draw with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        yield "<p>Without plots, which need matplotlib: pip install 'dask-odm[plot]'.</p>"


def learned(model: Any, steps: Steps) -> Iterable[str]:
    """Yield what was learned, and how: solver, certificate, time, kernel, scaling, and parameters not the defaults."""
    yield heading("What was learned")
    before = [("Rows prepared by", str(steps))] if steps else []
    yield table([], [*before, *(fact for fact in facts_of(model) if fact[1] is not None)])
    if hasattr(model, "column_recipe_"):
        yield "<p>How the columns of the table are read, by the training rows:</p>"
        yield model.column_recipe_._repr_html_()
    defaults = type(model)().get_params(deep=False)
    given = model.get_params(deep=False)
    taken = {name: getattr(model, f"{name}_", given[name]) for name in ("lam", "scale") if name in given}
    given |= taken  # what "auto" chose
    told = [name for name in ("kernel", "lam", "scale") if name in given]
    other = [name for name in given if name not in told and repr(given[name]) != repr(defaults[name])]
    if told:
        rest = " Other parameters that are not the defaults follow." if other else " All others are the defaults."
        yield f"<p>Parameters as the fit took them.{rest}</p>"
    elif other:
        yield "<p>Parameters that are not the defaults:</p>"
    if told or other:
        yield table(["parameter", "value"], [(name, given[name]) for name in (*told, *other)])


def of_search(model: Any) -> Iterable[str]:
    """Yield the settings that a search found, their scores, and the best that it tried, if the model knows them."""
    if not hasattr(model, "best_params_"):
        return
    yield heading("Search")
    yield table(["setting found", "value"], list(model.best_params_.items()))
    yield table([], [("Best score of the search", model.best_score_), ("Nested score", model.nested_score_)])
    yield "<p>Of many rows, a search learns from a sample only, so these may be lower than scores of the model.</p>"
    tried = getattr(model, "cv_results_", None)
    if tried is None:
        yield "<p>A saved model does not keep the other settings that were tried.</p>"
        return
    score = next(name for name in tried if name.startswith("rank_test_")).removeprefix("rank_test_")
    best = np.argsort(tried[f"rank_test_{score}"])[:10].tolist()
    by = ", then by the logistic loss of left-out rows" if model.scoring is None and hasattr(model, "classes_") else ""
    yield f"<p>The best {len(best)} of {len(tried['params']):,} trials, those of the last stage first{by}:</p>"
    names = [name.removeprefix("param_") for name in tried if name.startswith("param_")]
    shown = [tried[name] for name in ("iter", "n_resources", f"mean_test_{score}")]
    rows = [(*(each[i] for each in shown), *(tried["params"][i].get(name) for name in names)) for i in best]
    yield table(["stage", "rows", "score", *names], rows)


def scores(model: Any, found: Any, store: Store) -> Iterable[str]:
    """Yield the scores on the store, beside the leave-one-out score of the training rows."""
    facts = found.facts()
    if isinstance(found, Evaluation):
        facts["largest_class"] = float(found.counts.sum(axis=1).max()) / found.rows
    named = {
        "accuracy": "Accuracy",
        "largest_class": "Share of the largest class",
        "weighted_accuracy": "Accuracy by row weights" if store.has_weight else None,
        "balanced_accuracy": "Balanced accuracy",
        "auc": "Area under the ROC curve",
        "log_loss": "Log loss",
        "brier": "Brier score",
        "calibration_error": "Calibration error",
        "r2": "R²",
        "rmse": "Root mean squared error",
        "mean_absolute_error": "Mean absolute error",
        "rows": "Rows with a label",
        "unlabelled_rows": "Rows without",
    }
    yield heading("How good it is")
    yield f"<p>Scored on <code>{safe(store.name)}</code>.</p>"
    left = getattr(model, "loo_score_", None)
    by_group = " by groups" if hasattr(model, "loo_group_scores_") else ""
    rows = [] if left is None else [(f"Score of the training rows, left out{by_group}", left)]
    rows += [(name, facts[key]) for key, name in named.items() if name and facts.get(key) is not None]
    yield table([], rows)


def of_groups(model: Any) -> Iterable[str]:
    """Yield how well the rows of groups were predicted without their group."""
    scores = getattr(model, "loo_group_scores_", None)
    if scores is None:
        return
    scores = scores[~np.isnan(scores)]
    yield heading("Groups")
    yield "<p>Accuracy of the rows of each group by the model without the group.</p>"

    def draw() -> Any:
        ax = plotting.new_axes()
        ax.hist(scores, bins=np.linspace(0.0, 1.0, 21))
        ax.set(xlabel="accuracy of a group left out", ylabel="groups")
        return ax

    yield picture(draw)
    told = zip(("worst", "a tenth below", "a quarter below", "median", "best"), (0.0, 0.1, 0.25, 0.5, 1.0), strict=True)
    yield table([], [("Groups", len(scores)), *((name, float(np.quantile(scores, q))) for name, q in told)])


@dataclass(frozen=True, eq=False)
class Unseen:
    """Decision values of rows of two classes that a model did not learn from, at evenly spaced shares of each class.

    They are as before a boundary was moved. ``margins`` are at such shares of both classes together.
    """

    what: str
    values: tuple[Array, Array]
    margins: Array

    @classmethod
    def of(cls, model: Any) -> Unseen | None:
        """Return the held-out decision values behind a binary model's prediction sets, or None."""
        conformity = getattr(model, "conformity_", None)
        if conformity is None or len(model.classes_) != 2:
            return None
        what = "held out" if hasattr(model, "calibration_rows_") else "left out"
        first, second, both = (row[np.isfinite(row)] for row in conformity)
        return cls(what, (-first, second), both) if len(first) and len(second) else None

    def roc(self) -> RocCounts:
        """Return the counts of a ROC."""
        found = RocCounts()
        scores = np.concatenate(self.values)
        found.add(np.arange(len(scores)) >= len(self.values[0]), scores, np.ones(len(scores)))
        return found

    def recalls(self, threshold: float) -> tuple[float, float]:
        """Return the share of the rows of each class that are on its side of a threshold."""
        first, second = self.values
        return float((first <= threshold).mean()), float((second > threshold).mean())


def of_classes(model: Any, found: Evaluation) -> Iterable[str]:
    """Yield pictures and tables of what a classifier gets right."""
    facts = found.facts()
    names = list(map(short, found.classes))
    unseen = Unseen.of(model)
    yield heading("By class")
    recalls = list(facts["recall"].values())
    yield table(["class", "precision", "recall"], list(zip(names, facts["precision"].values(), recalls, strict=True)))
    if len(names) <= MOST_LINES:
        yield picture(lambda: plotting.plot_confusion(found))
        shown = [*names, *(f"{short(label)} (unknown)" for label in found.strangers[:MOST_LINES])]
        counts = found.confusion[: len(shown)].tolist()
        yield table(["true \\ predicted", *names], [(name, *row) for name, row in zip(shown, counts, strict=True)])
    if hasattr(model, "threshold_"):
        yield from _of_threshold(float(model.threshold_), names, recalls, unseen)
    if found.margins:
        yield from _of_margins(np.concatenate(found.margins), found, None if found.threshold else unseen)
    if found.roc is not None and found.roc.area is not None:
        yield heading("ROC")
        yield picture(lambda: _plot_rocs(found, unseen))
        areas = [("Area under the curve", found.roc.area)]
        yield table([], areas if unseen is None else [*areas, (f"That of the rows {unseen.what}", unseen.roc().area)])
    if found.set_facts():
        yield from _of_sets(model, found)
    if found.probabilities is not None and found.probabilities.weight:
        yield heading("Probabilities")
        yield picture(lambda: plotting.plot_reliability(found))
        yield table([], list(found.probabilities.facts().items()))


def of_numbers(found: Errors) -> Iterable[str]:
    """Yield pictures and tables of what a regressor predicts."""
    yield heading("Predictions")
    if found.rows > SHOWN_POINTS:
        yield f"<p>Of {SHOWN_POINTS:,} rows, drawn at random.</p>"
    yield picture(lambda: plotting.plot_predictions(found))
    yield picture(lambda: plotting.plot_predictions(found, residuals=True))
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    if found.rows:
        at_most = np.quantile(found.points[0] - found.points[1], shares).tolist()
        yield table(["share of the rows", "residual at most"], list(zip(shares, at_most, strict=True)))
    intervals = found.facts().get("intervals")
    if intervals:
        yield heading("Intervals")
        yield "<p>Made by the training rows, left out.</p>"
        head = ["coverage asked for", "rows whose interval holds their target", "mean width"]
        yield table(head, [(name, *each.values()) for name, each in intervals.items()])


def of_each(found: Together) -> Iterable[str]:
    """Yield a table of what is right of each label or target of a row, and pictures of the worst."""
    name, worst = found.worst()
    of_labels = isinstance(worst, Evaluation)
    yield heading("By label" if of_labels else "By target")
    lines = found.lines()
    yield table(list(lines[0]), [list(line.values()) for line in lines])
    yield f"<p>The worst is {safe(short(name))}.</p>"
    yield from (picture(lambda: plotting.plot_roc(worst)),) if of_labels else of_numbers(worst)


def _of_threshold(threshold: float, names: list[str], recall: list[Any], unseen: Unseen | None) -> Iterable[str]:
    """Yield where the boundary was moved, and which share of each class is right before and after."""
    yield heading("Boundary")
    text = f"The boundary was moved by {threshold:.4g}: decision values above it are of {names[1]}."
    yield f"<p>{safe(text)}</p>"
    head = ["recall of", "these rows"]
    rows: list[list[Any]] = [list(each) for each in zip(names, recall, strict=True)]
    if unseen is not None:
        head += [f"rows {unseen.what}", f"rows {unseen.what}, boundary not moved"]
        moved = unseen.recalls(threshold), unseen.recalls(0.0)
        rows = [[*row, *(each[code] for each in moved)] for code, row in enumerate(rows)]
    known = [row for row in rows if None not in row]
    if len(known) == len(names):
        rows.append(["both, on average", *(float(np.mean(column)) for column in list(zip(*rows, strict=True))[1:])])
    yield table(head, rows)


def _of_margins(margins: Array, found: Evaluation, unseen: Unseen | None) -> Iterable[str]:
    """Yield the distribution of margins, beside that of rows that were not learned from."""
    yield heading("Margins")

    def draw() -> Any:
        ax = plotting.plot_margin_distribution(margins, found.theta)
        if unseen is not None:
            bars = np.linspace(margins.min(), margins.max(), 61).tolist()
            as_many = np.full(len(unseen.margins), len(margins) / len(unseen.margins))
            ax.hist(unseen.margins, bars, weights=as_many, histtype="step", color=plotting.ORANGE, label=unseen.what)
            ax.legend()
        return ax

    yield picture(draw)
    shares = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
    columns = [shares, np.quantile(margins, shares)]
    head = ["share of the rows", "margin at most"]
    if unseen is not None:
        columns.append(np.quantile(unseen.margins, shares))
        head.append(f"that of the rows {unseen.what}")
    yield table(head, list(zip(*columns, strict=True)))


def _plot_rocs(found: Evaluation, unseen: Unseen | None) -> Any:
    """Draw the ROC, and that of rows that were not learned from."""
    ax = plotting.plot_roc(found)
    if unseen is not None:
        counts = unseen.roc()
        ax.plot(*counts.curve(), color=plotting.ORANGE, label=f"{unseen.what} (AUC = {counts.area:.2f})")
        ax.legend(loc="lower right")  # the best place is searched for along thousands of points
    return ax


def _of_sets(model: Any, found: Evaluation) -> Iterable[str]:
    """Yield how often sets of classes hold a row's own."""
    yield heading("Sets of classes")
    count = getattr(model, "calibration_rows_", None)
    made = "the training rows, left out, which holds about as often" if count is None else f"{count:,} rows held out"
    yield f"<p>Sets were made by {made}.</p>"
    head = ["coverage asked for", "rows whose set holds their class", "classes in a set", "empty sets"]
    rows = [(name, *facts.values()) for name, facts in found.set_facts().items()]
    yield table(head, rows)


def of_map(name: str, found: CubeMap) -> Iterable[str]:
    """Yield the map of a cube, with its numbers, by its name."""
    yield heading(name)
    if found.step > 1:
        yield f"<p>Of every {found.step}. cell along each dimension.</p>"
    others = [str(d) for d in found.values.dims[:-2]]
    if others:
        yield f"<p>{safe('Drawn for the first place along ' + ', '.join(others) + '.')}</p>"
    missing = ("(a feature is missing)", int(found.values.size - len(found.known)))
    if found.codes is not None:
        yield picture(lambda: plot_classes(found))
        yield table(["class", "cells", "share"], [*found.counts(), (*missing, None)])
    words = "Predicted values" if found.codes is None else "Decision values"
    if len(found.classes) > 2:
        words += ", the largest less the next"
    yield f"<p>{words}:</p>"
    yield picture(lambda: plot_values(found))
    if len(found.known):
        shares = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
        at_most = np.quantile(found.known, shares).tolist()
        yield table(["share of the cells", "value at most"], list(zip(shares, at_most, strict=True)))


def steps_of_fit(model: Any) -> Iterable[str]:
    """Yield the steps of the fit."""
    steps = [each for each in getattr(model, "history_", []) if math.isfinite(each.get("gap", math.nan))]
    if not steps:
        return
    yield heading("Steps of the fit")

    def draw() -> Any:
        ax = plotting.new_axes()
        ax.semilogy([each["seconds"] for each in steps], [max(each["gap"], 1e-17) for each in steps], "o-")
        ax.set(xlabel="seconds", ylabel="gap")
        return ax

    machines = {each.get("machine", 0) for each in steps}
    if len(machines) == 1:
        yield picture(draw)
    columns = [name for name in ("machine", *STEPS) if name in steps[0]]
    yield table(columns, [tuple(each.get(name) for name in columns) for each in steps])


def of_features(found: Importance, of: str) -> Iterable[str]:
    """Yield which features matter; ``of`` says of which rows, if not of all."""
    yield heading("Which features matter")
    yield (
        f"<p>How far a score of {found.score:.4f}{of} falls if the values of a feature, or of a column of the table, "
        "are those of other rows.</p>"
    )
    yield picture(lambda: plotting.plot_importance(found))
    order = np.argsort(-found.importances_mean, kind="stable")
    columns = found.importances_mean, found.importances_std
    lines = [(short(found.feature_names[j]), *(float(each[j]) for each in columns)) for j in order]
    yield table(["feature", "lost", "deviation"], lines)


def of_metric(model: Any) -> Iterable[str]:
    """Yield which features the learned metric of a model follows, if it has one."""
    shares = getattr(model, "feature_importances_", None)
    if shares is None:
        return
    yield heading("What the metric follows")
    yield "<p>Shares of the mean squared slope of the decision function, along each feature or column.</p>"
    names = getattr(model, "feature_names_in_", np.arange(len(shares)))
    order = np.argsort(-shares, kind="stable")[:20].tolist()
    yield table(["feature", "share"], [(short(str(names[j])), float(shares[j])) for j in order])
