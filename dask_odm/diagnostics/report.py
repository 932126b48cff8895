"""A report of a model as one page of HTML: what was learned and how, how good it is, and pictures with their numbers.

The page holds everything it shows, and loads nothing. Whatever comes from data (labels, names of features, paths) is
escaped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scipy.sparse import issparse

from dask_odm.data.cubes.beside import variable_beside
from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.objects import is_generation
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.store import Store
from dask_odm.diagnostics import report_sections as sections
from dask_odm.diagnostics.evaluation import Evaluation, Together, evaluate
from dask_odm.diagnostics.importance import Importance, permutation_importance
from dask_odm.diagnostics.maps import maps_of
from dask_odm.diagnostics.pages import page
from dask_odm.diagnostics.pipelines import Steps, ingested, labelled_rows, last_step
from dask_odm.diagnostics.predictions import check_file, written_file
from dask_odm.diagnostics.score_counts import Errors
from dask_odm.errors import InputError
from dask_odm.estimators.cards import class_names, facts_of, scored
from dask_odm.estimators.inputs.cubes import with_features_of
from dask_odm.estimators.inputs.resolved import Given, StoredRows
from dask_odm.estimators.inputs.resolving import resolve
from dask_odm.html import heading, safe
from dask_odm.printing import short

MOST_VALUES = 20_000_000  # of features that a report of importance predicts anew, unless it is asked for
FEWEST_ROWS = 1000  # drawn rows by which importance is judged: their accuracy is within some 3 % of that of all rows


def report(
    model: Any, store: Any, path: str | os.PathLike[str], *, y: Any = None, importance: bool | None = None,
    overwrite: bool = False,
) -> None:  # fmt: skip
    """Write a page about a fitted model, and about how well it predicts the rows of a store or a cube.

    The first screen says how good the model is beside chance, and whether to trust it, with one picture. Folds below
    have the settings, the solver and why it was chosen, the certified gap, the leave-one-out score beside the score on
    the store, precision and recall, the confusion matrix, margins (of up to five million rows), and for two classes the
    ROC. They also have the chosen boundary, left-out groups, how often sets of classes contain the true class, the
    calibration of probabilities, the steps of the fit, and the importance of features. After a search, they have what
    was found and, unless the model was loaded, the best trials. For two classes, leave-one-out margins and ROC are
    drawn beside those of the store. For numbers, they have predictions and residuals, and how often intervals hold the
    target. Of several labels or targets of a row, a table has a line for each, and pictures are of the worst. For a
    cube, there is a map. Every plot has its numbers in a table. Plots need matplotlib.

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
    path = os.path.abspath(location_of(path))
    check_file(path, overwrite=overwrite)
    steps, model = last_step(model, "report")
    if isinstance(store, tuple) and y is None:
        if len(store) != 2:
            raise InputError(f"report takes rows and labels as (X, y). Got a tuple of {len(store)}.")
        store, y = store
    rows = found = None
    beside: list[str] = []
    with scratch_folder() as folder:
        if steps or model._cube_to_predict(store) is None:
            resolved = resolve(store, y, needs_labels=False) if steps else model._resolve(store, y)
            rows = _Rows.of(steps, model, resolved, folder)
            source = rows.name
        else:
            source = "a cube"
            beside += [part for named_map in maps_of(model, store).items() for part in sections.of_map(*named_map)]
            if y is not None:
                X, y = variable_beside(store, y, "y")
                labelled = ingested(model, with_features_of(X, model), y, folder)
                rows = _Rows.of_store(model, replace(labelled, title="the labelled cells of a cube"))
        if rows is not None:
            found = evaluate(model, rows.store, keep_margins=rows.store.rows <= 5_000_000)  # margins that are held
            if isinstance(found, Evaluation):
                found.classes = class_names(model)
            if rows.names is not None and isinstance(found, Together):
                found.each = dict(zip(map(str, rows.names), found.each.values(), strict=True))
            beside += _of_rows(model, rows, found, importance)
    parts = [
        *sections.learned(model, steps),
        *sections.of_search(model),
        *beside,
        *sections.of_metric(model),
        *sections.steps_of_fit(model),
    ]
    picture = next((part for part in parts if part.startswith("<figure")), None)
    parts = [part for part in parts if part is not picture]
    first = [*sections.without_plots(), _first_screen(model, found, source, picture)]
    called = type(model).__name__
    if hasattr(model, "classes_"):
        called += f", {len(model.classes_)} {'labels' if hasattr(model, 'multilabel_') else 'classes'},"
    text = page(f"{called} on {source}", first, parts)
    with written_file(path) as file:
        file.write(text)


def _name(store: Store) -> str:
    """Return the last part of the path of a store, or of the files that were read."""
    path = (store.title or store.path).strip("'")
    return os.path.basename(os.path.dirname(path) if is_generation(os.path.basename(path)) else path)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Labelled rows that a page tells of, as a ``store`` of what the estimator sees.

    ``features`` are the columns as they were given, before the steps of a pipeline. ``importance(n_repeats=…,
    max_samples=…)`` computes theirs; None if the rows are sparse, or texts. ``names`` are those of several labels or
    targets of rows in memory.
    """

    store: Store
    name: str
    features: int
    importance: Callable[..., Importance] | None
    names: Any = None

    @classmethod
    def of_store(cls, model: Any, store: Store) -> _Rows:
        """Build the labelled rows of a store."""
        judge = None if store.is_sparse or store.targets else partial(permutation_importance, model, store)
        recipe = store.column_recipe
        return cls(store, _name(store), store.features if recipe is None else len(recipe.names), judge)

    @classmethod
    def of(cls, steps: Steps, model: Any, resolved: Any, folder: str) -> _Rows:
        """Build labelled rows from any input, with the files that this needs in a scratch folder."""
        if isinstance(resolved, StoredRows):
            store = resolved.source
            if not steps:
                return cls.of_store(model, store)
            judge = None if store.is_sparse else partial(permutation_importance, steps.pipeline(model), store)
            return cls(steps.prepared(store, folder), _name(store), store.features, judge)
        if not isinstance(resolved, Given):
            raise InputError("report takes a store, or rows in memory; dask_odm.ingest makes a store of lazy ones.")
        if resolved.y is None:
            raise InputError("report needs the labels or targets of rows in memory; pass y.")
        store = labelled_rows(steps, model, resolved, folder)
        if store.targets or not steps:
            return replace(cls.of_store(model, store), names=getattr(resolved.y, "columns", None))
        X = steps.named(resolved.X)
        is_text = X.ndim == 1
        judge = (
            None if issparse(X) or is_text else partial(permutation_importance, steps.pipeline(model), X, resolved.y)
        )
        return cls(store, store.name, 1 if is_text else X.shape[1], judge)


def _of_rows(model: Any, rows: _Rows, found: Any, importance: bool | None) -> Iterable[str]:
    """Yield how well a model predicts labelled rows."""
    store = rows.store
    most = None if importance else MOST_VALUES // rows.features**2
    most = None if most is None or most >= store.rows else most
    same = isinstance(found, Errors) and not found.variance  # of which R² tells nothing
    possible = rows.importance is not None and not same
    needed = possible and (most is None or most >= FEWEST_ROWS) if importance is None else importance
    yield from sections.scores(model, found, store)
    yield from sections.of_groups(model)
    if isinstance(found, Together):
        yield from sections.of_each(found)
    elif isinstance(found, Evaluation):
        yield from sections.of_classes(model, found)
    else:
        yield from sections.of_numbers(found)
    if needed:
        of = "" if most is None else f", of some {most:,} drawn rows (importance=True, --importance: of all)"
        judge = rows.importance or partial(permutation_importance, model, store)  # which says why it cannot
        yield from sections.of_features(judge(n_repeats=2, max_samples=most), of)
        return
    why = f"it takes a while with {rows.features:,} features; importance=True (--importance) computes it."
    if rows.importance is None:
        why = "the rows are sparse or texts. The weights coef_ of a linear model say what it goes by."
    if importance is None and (possible or (rows.importance is None and not store.targets)):
        yield heading("Which features matter")
        yield f"<p>Not computed, as {why}</p>"


def _first_screen(model: Any, found: Any, source: str, picture: str | None) -> str:
    """Return what a reader sees without opening a fold; ``found`` is None if the model was not judged."""
    facts = dict(facts_of(model))
    learned = f"Learned from {facts['Rows']:,} rows of {facts['Features']:,} features"
    rows = "" if found is None else f"; judged by {found.facts()['rows']:,} rows ({source})"
    lines = [f"<p>{safe(learned + rows)}.</p>", '<div class="figures">']
    for name, value, chance in _figures(found):
        beside = "" if chance is None else f"by chance {chance}"
        lines.append(f"<div><strong>{value}</strong><span>{safe(name)}</span><small>{safe(beside)}</small></div>")
    lines += ["</div>", "<h3>Whether to trust it</h3>", "<ul>"]
    lines += [f"<li><b>{name}:</b> {safe(text)}.</li>" for name, text in _trust(model, found, facts)]
    return "\n".join(['<section class="first"><div>', *lines, "</ul></div>", picture or "", "</section>"])


def _figures(found: Any) -> Iterable[tuple[str, str, str | None]]:
    """Yield up to three scores: name, value, and what guessing would have."""
    facts = {} if found is None else found.facts()
    if isinstance(found, Evaluation):
        guess = 1.0 / len(found.classes)
        shares = [(share, short(name)) for name, share in facts["recall"].items() if share is not None]
        worst, hardest = min(shares, default=(None, ""))
        told = [
            ("accuracy", facts["accuracy"], float(found.counts.sum(axis=1).max()) / found.rows, ".1%"),
            ("balanced accuracy", facts["balanced_accuracy"], guess, ".1%"),
            ("area under the ROC curve", facts.get("auc"), 0.5, ".3f"),
            (f"recall of the worst class, {hardest}", worst, guess, ".1%"),
        ]
        known = [each for each in told if each[1] is not None]
        yield from ((name, format(value, form), format(chance, form)) for name, value, chance, form in known[:3])
    elif isinstance(found, Together):
        name, worst = found.worst()
        own = worst.facts()
        if "accuracy" in facts:
            yield "rows of which all labels are right", f"{facts['accuracy']:.1%}", None
            yield f"area under the ROC curve of the worst label, {short(name)}", _told(own["auc"]), "0.500"
        else:
            yield "R², mean of the targets", _told(facts["r2"]), "0"
            yield f"R² of the worst target, {short(name)}", _told(own["r2"]), "0"
    elif facts.get("r2") is not None:
        yield "R²", f"{facts['r2']:.3f}", "0"
        spread = f"{facts['rmse'] / math.sqrt(1.0 - facts['r2']):.4g}" if facts["r2"] < 1.0 else None
        yield "root mean squared error", f"{facts['rmse']:.4g}", spread
        yield "mean absolute error", f"{facts['mean_absolute_error']:.4g}", None


def _told(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


def _trust(model: Any, found: Any, known: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield certificate, scores of left-out rows beside those of others, calibration, and coverage of intervals."""
    yield "Certificate", known["Certificate"] or "this solver has none"
    facts = {} if found is None else found.facts()
    left, here = known["Left out"], facts.get("accuracy", facts.get("r2"))
    if left is None:
        yield "Left out", "not known; a fit with loo=True scores its own rows by models without them"
    else:
        yield "Left out", left if here is None else f"{left}, {scored(model, here)} on the rows here"
    error = facts.get("calibration_error")
    if error is not None:
        yield "Calibration", f"probabilities are off by {error:.1%} on average"
    told = facts.get("intervals", {}).get("0.9")
    if told is not None:
        yield "Intervals", f"those for 90% hold {told['held']:.1%} of the rows here, and are {told['width']:.4g} wide"
