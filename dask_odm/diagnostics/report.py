"""A report of a model as one page of HTML: what was learned and how, how good it is, and pictures with their numbers.

The page holds everything it shows, and loads nothing. Whatever comes from data (labels, names of features, paths) is
escaped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.cubes.beside import variable_beside
from dask_odm.data.ingest import ingest
from dask_odm.data.storage.objects import is_generation
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.storage.staging import owned_file
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.evaluation import Evaluation, RocCounts, compare, evaluate
from dask_odm.diagnostics.importance import Importance, importance_in_memory, permutation_importance
from dask_odm.diagnostics.maps import CubeMap, map_of, plot_classes, plot_values
from dask_odm.diagnostics.pages import page, picture
from dask_odm.diagnostics.pipelines import Steps, last_step
from dask_odm.diagnostics.plotting import (
    new_axes,
    plot_confusion,
    plot_importance,
    plot_margin_distribution,
    plot_reliability,
    plot_roc,
)
from dask_odm.diagnostics.predictions import check_file
from dask_odm.errors import InputError, StoreError
from dask_odm.estimators.cards import facts_of
from dask_odm.estimators.inputs.cubes import with_features_of
from dask_odm.estimators.inputs.frames import labels_of
from dask_odm.estimators.inputs.resolved import Given
from dask_odm.html import MOST_LINES, heading, safe, table
from dask_odm.printing import short
from dask_odm.typing import Array

MOST_VALUES = 20_000_000  # of features that a report of importance predicts anew, unless it is asked for
FEWEST_ROWS = 1000  # drawn rows by which importance is judged: their accuracy is within some 3 % of that of all rows
MOST_TRIES = 10  # trials of a search that are shown
MOST_MARGINS = 5_000_000  # rows whose margins are held


def report(
    model: Any,
    store: Any,
    path: str | os.PathLike[str],
    *,
    y: Any = None,
    importance: bool | None = None,
    overwrite: bool = False,
) -> None:
    """Write a page about a fitted model, and about how well it predicts the rows of a store or a cube.

    It has the settings, the solver and why it was chosen, the certified gap, the leave-one-out score beside the score
    on the store, precision and recall, the confusion matrix, margins (of up to five million rows), and for two classes
    the ROC. It also has the chosen boundary, left-out groups, how often sets of classes contain the true class, the
    calibration of probabilities, the steps of the fit, and the importance of features. After a search, it has what was
    found and, unless the model was loaded, the best trials. For two classes, leave-one-out margins and ROC are drawn
    beside those of the store. For a cube, there is a map. Every plot has its numbers in a table. Plots need matplotlib.

    Parameters
    ----------
    model : fitted estimator
        An estimator of this package, or a scikit-learn Pipeline that ends with one. What the page says of a pipeline is
        of its last step, and the importance that of the columns before its first.
    store : Store, str or path, rows in memory, or a cube
        Rows with labels or targets that the model did not learn from; in memory, (X, y) is X with y. Or a cube as
        `predict` takes it, of which up to a million cells are predicted for the map: of a larger cube, every n-th cell
        along each dimension.
    path : str or path
        The file to write. It is written completely or not at all.
    y : array-like, DataArray, str or DataFrame, optional
        Labels or targets of rows in memory, or of cells of the cube, as `fit` takes them. Without those of a cube, the
        page does not say how good the map is.
    importance : bool or None, default=None
        Whether to compute the importance of features, which predicts the rows twice for each feature. None: by so many
        rows, drawn at random, that rows × features² are at most 20 million; not at all if they were fewer than 1000.
    overwrite : bool, default=False
        Replace a file that exists.

    Raises
    ------
    InputError
        The file exists, or its folder does not; the rows have no labels, or other features.
    StoreError
        The file cannot be written; a damaged store.
    """
    path = os.path.abspath(path)
    check_file(path, overwrite=overwrite)
    steps, model = last_step(model, "report")
    if isinstance(store, tuple) and y is None:
        store, y = _pair(store)
    if steps or model._cube_to_predict(store) is None:
        with ExitStack() as scratch:
            rows = _Rows.of(steps, model, model._resolve(store, y), scratch)
            source = rows.name
            beside = list(_of_rows(model, rows, importance))
    else:
        source = "a cube"
        beside = list(_of_map(map_of(model, store)))
        if y is not None:
            X, y = variable_beside(store, y, "y")
            X = with_features_of(X, model)
            with scratch_folder() as folder:
                found = replace(_ingested(model, X, y, folder), title="the labelled cells of a cube")
                beside += _of_rows(model, _Rows.of_store(model, found), importance)
    parts = [*_without_plots(), *_learned(model, steps), *_of_search(model), *beside, *_steps(model)]
    text = page(f"{_called(model)} on {source}", parts)
    try:
        with owned_file(path) as new:
            with open(new, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise StoreError(f"cannot write '{path}': {error.strerror}.") from error


def _without_plots() -> Iterable[str]:
    """Yield what to install if there is nothing to draw with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        yield "<p>Without plots, which need matplotlib: pip install 'dask-odm[plot]'.</p>"


def _called(model: Any) -> str:
    """Return the estimator of a model, and how many classes it tells apart."""
    name = type(model).__name__
    return f"{name}, {len(model.classes_)} classes," if hasattr(model, "classes_") else name


def _name(store: Store) -> str:
    """Return the last part of the path of a store, or of the files that were read."""
    path = (store.title or store.path).strip("'")
    return os.path.basename(os.path.dirname(path) if is_generation(os.path.basename(path)) else path)


def _pair(rows: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return rows and labels of a tuple of both; raise InputError for any other."""
    if len(rows) != 2:
        raise InputError(f"report takes rows and labels as (X, y). Got a tuple of {len(rows)}.")
    return rows


def _ingested(model: Any, X: Any, y: Any, folder: str, weight: Any = None) -> Store:
    """Return rows with their labels or targets as a store in a scratch folder."""
    target = "classes" if hasattr(model, "classes_") else "real"
    path = os.path.join(folder, "rows.zarr")
    found = ingest((X, y), path, weight=weight, target=target, dtype="float64", allow_large=True)
    assert isinstance(found, Store)
    return found


@dataclass(frozen=True, eq=False)
class _Rows:
    """Labelled rows that a page tells of, as a ``store`` of what the estimator sees.

    ``features`` are the columns as they were given, before the steps of a pipeline. ``importance(n_repeats=…,
    max_samples=…)`` computes theirs; None if the rows are sparse, or texts.
    """

    store: Store
    name: str
    features: int
    importance: Callable[..., Importance] | None

    @classmethod
    def of_store(cls, model: Any, store: Store) -> _Rows:
        """Return rows that are a store."""
        judge = None if store.is_sparse else partial(permutation_importance, model, store)
        return cls(store, _name(store), store.features, judge)

    @classmethod
    def of(cls, steps: Steps, model: Any, resolved: Any, scratch: ExitStack) -> _Rows:
        """Return rows of any kind. What has to be written for them lasts as long as ``scratch``."""
        if isinstance(resolved, Store) and not steps:
            return cls.of_store(model, resolved)
        folder = scratch.enter_context(scratch_folder())
        if isinstance(resolved, Store):
            judge = None if resolved.is_sparse else partial(permutation_importance, steps.pipeline(model), resolved)
            return cls(steps.prepared(resolved, folder), _name(resolved), resolved.features, judge)
        if not isinstance(resolved, Given):
            raise InputError("report takes a store, or rows in memory; dask_odm.ingest makes a store of lazy ones.")
        if resolved.y is None:
            raise InputError("report needs the labels or targets of rows in memory; pass y.")
        X = steps.named(resolved.X)
        store = _ingested(model, steps(X), labels_of(resolved.y), folder, resolved.weight)
        store = replace(store, title="rows in memory")
        if not steps:
            return cls.of_store(model, store)
        is_text = X.ndim == 1
        judge = None if issparse(X) or is_text else partial(importance_in_memory, steps, model, X, resolved.y)
        return cls(store, store.name, 1 if is_text else X.shape[1], judge)


def _of_rows(model: Any, rows: _Rows, importance: bool | None) -> Iterable[str]:
    """Yield how well a model predicts labelled rows."""
    store = rows.store
    keeps = store.rows <= MOST_MARGINS
    found = evaluate(model, store, keep_margins=keeps) if hasattr(model, "classes_") else compare(model, store)
    most = None if importance else MOST_VALUES // rows.features**2
    most = None if most is None or most >= store.rows else most
    possible = rows.importance is not None and (hasattr(model, "classes_") or model._model.outputs == 1)
    needed = possible and (most is None or most >= FEWEST_ROWS) if importance is None else importance
    yield from _scores(model, found, store)
    yield from _of_groups(model)
    if isinstance(found, Evaluation):
        yield from _of_classes(model, found)
    if needed:
        of = "" if most is None else f", of some {most:,} drawn rows (importance=True, --importance: of all)"
        judge = rows.importance or partial(permutation_importance, model, store)  # which says why it cannot
        yield from _of_features(judge(n_repeats=2, max_samples=most), of)
    elif importance is None and possible:
        yield heading("Which features matter")
        yield (
            f"<p>Not computed, as it takes a while with {rows.features:,} features; importance=True (--importance) "
            "computes it.</p>"
        )
    elif importance is None and rows.importance is None:
        yield heading("Which features matter")
        yield (
            "<p>Not computed, as the rows are sparse or texts. The weights coef_ of a linear model say what it goes "
            "by.</p>"
        )


# Sections ----------------------------------------------------------------------------------------------------------


def _learned(model: Any, steps: Steps) -> Iterable[str]:
    """Yield what was learned, and how: solver, certificate, time, kernel, scaling, and parameters not the defaults."""
    yield heading("What was learned")
    before = [("Rows prepared by", str(steps))] if steps else []
    yield table([], [*before, *(fact for fact in facts_of(model) if fact[1] is not None)])
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


def _of_search(model: Any) -> Iterable[str]:
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
    best = np.argsort(tried[f"rank_test_{score}"])[:MOST_TRIES].tolist()
    yield f"<p>The best {len(best)} of {len(tried['params']):,} trials, those of the last stage first:</p>"
    names = [name.removeprefix("param_") for name in tried if name.startswith("param_")]
    rows = [
        (tried[f"mean_test_{score}"][i], tried["n_resources"][i], *(tried["params"][i].get(name) for name in names))
        for i in best
    ]
    yield table(["score", "rows", *names], rows)


def _scores(model: Any, found: Any, store: Store) -> Iterable[str]:
    """Yield the scores on the store beside that of the training rows, left out."""
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
    yield f"<p>On the rows of <code>{safe(store.name)}</code>.</p>"
    left = getattr(model, "loo_score_", None)
    by_group = " by groups" if hasattr(model, "loo_group_scores_") else ""
    rows = [] if left is None else [(f"Score of the training rows, left out{by_group}", left)]
    rows += [(name, facts[key]) for key, name in named.items() if name and facts.get(key) is not None]
    yield table([], rows)


def _of_groups(model: Any) -> Iterable[str]:
    """Yield how well the rows of groups were predicted without their group."""
    scores = getattr(model, "loo_group_scores_", None)
    if scores is None:
        return
    scores = scores[~np.isnan(scores)]
    yield heading("Groups")
    yield "<p>Accuracy of the rows of each group by the model without the group.</p>"

    def draw() -> Any:
        ax = new_axes()
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
        """Return those from which the sets of a model were made; None of other than two classes, or without."""
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


def _of_classes(model: Any, found: Evaluation) -> Iterable[str]:
    """Yield pictures and tables of what a classifier gets right."""
    facts = found.facts()
    names = list(map(short, found.classes))
    unseen = Unseen.of(model)
    yield heading("By class")
    recalls = list(facts["recall"].values())
    yield table(["class", "precision", "recall"], list(zip(names, facts["precision"].values(), recalls, strict=True)))
    if len(names) <= MOST_LINES:
        yield picture(lambda: plot_confusion(found))
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
        yield picture(lambda: plot_reliability(found))
        yield table([], list(found.probabilities.facts().items()))


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

    def draw(theta: float) -> Any:
        ax = plot_margin_distribution(margins, theta)
        if unseen is not None:
            bars = np.linspace(margins.min(), margins.max(), 61).tolist()
            as_many = np.full(len(unseen.margins), len(margins) / len(unseen.margins))
            ax.hist(unseen.margins, bars, weights=as_many, histtype="step", color="tab:orange", label=unseen.what)
            ax.legend()
        return ax

    theta = found.theta
    if theta is not None:
        yield picture(lambda: draw(theta))
    shares = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
    columns = [shares, np.quantile(margins, shares)]
    head = ["share of the rows", "margin at most"]
    if unseen is not None:
        columns.append(np.quantile(unseen.margins, shares))
        head.append(f"that of the rows {unseen.what}")
    yield table(head, list(zip(*columns, strict=True)))


def _plot_rocs(found: Evaluation, unseen: Unseen | None) -> Any:
    """Draw the ROC, and that of rows that were not learned from."""
    ax = plot_roc(found)
    if unseen is not None:
        counts = unseen.roc()
        ax.plot(*counts.curve(), color="tab:orange", label=f"{unseen.what} (AUC = {counts.area:.2f})")
        ax.legend()
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


def _of_map(found: CubeMap) -> Iterable[str]:
    """Yield the map of a cube, with its numbers."""
    yield heading("Map")
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


def _steps(model: Any) -> Iterable[str]:
    """Yield the steps of the fit."""
    steps = [each for each in getattr(model, "history_", []) if math.isfinite(each.get("gap", math.nan))]
    if not steps:
        return
    yield heading("Steps of the fit")

    def draw() -> Any:
        ax = new_axes()
        ax.semilogy([each["seconds"] for each in steps], [max(each["gap"], 1e-17) for each in steps], "o-")
        ax.set(xlabel="seconds", ylabel="gap")
        return ax

    machines = {each.get("machine", 0) for each in steps}
    if len(machines) == 1:
        yield picture(draw)
    columns = [name for name in ("machine", "iteration", "gap", "objective", "passes", "seconds") if name in steps[0]]
    yield table(columns, [tuple(each.get(name) for name in columns) for each in steps])


def _of_features(found: Importance, of: str) -> Iterable[str]:
    """Yield which features matter; ``of`` says of which rows, if not of all."""
    yield heading("Which features matter")
    yield (
        f"<p>How far a score of {found.score:.4f}{of} falls if the values of a feature are those of other rows. "
        "Columns of 0 and 1 that encode one category are moved one by one, which says little of the category.</p>"
    )
    yield picture(lambda: plot_importance(found))
    order = np.argsort(-found.importances_mean, kind="stable")
    columns = found.importances_mean, found.importances_std
    lines = [(short(found.feature_names[j]), *(float(each[j]) for each in columns)) for j in order]
    yield table(["feature", "lost", "deviation"], lines)
