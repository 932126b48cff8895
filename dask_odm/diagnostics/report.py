"""A report of a model as one page of HTML: what was learned and how, how good it is, and pictures with their numbers.

The page holds everything it shows, and loads nothing. Whatever comes from data (labels, names of features, paths) is
escaped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from typing import Any

import numpy as np

from dask_odm.data.storage.staging import owned_file
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.evaluation import Evaluation, compare, evaluate
from dask_odm.diagnostics.importance import Importance, permutation_importance
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

MOST_VALUES = 20_000_000  # of features that a report of importance predicts anew, unless it is asked for
MOST_MARGINS = 5_000_000  # rows whose margins are held
MOST_LINES = 60  # of a table
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; background: #fff; }
figure svg { max-width: 100%; height: auto; }
"""


def report(
    model: Any, store: Any, path: str | os.PathLike[str], *, importance: bool | None = None, overwrite: bool = False
) -> None:
    """Write a page that tells what a model learned, and how well it predicts the rows of a store.

    It has the settings, the solver and why it was taken, the certificate, the score of the training rows as they were
    left out beside that of the store, precision and recall, confusion, margins (of up to five million rows), and of two
    classes the ROC; how sure probabilities are, the steps of the fit, and which features matter. Every picture has its
    numbers in a table.
    Pictures need matplotlib.

    Parameters
    ----------
    model : fitted estimator
    store : Store, str or path
        Rows with labels or targets that the model did not learn from.
    path : str or path
        The file to write, which appears whole or not at all.
    importance : bool or None, default=None
        Whether to tell which features matter, which predicts the rows twice for each feature. None: if they are few.
    overwrite : bool, default=False
        Replace a file that exists.

    Raises
    ------
    InputError
        The file exists, or there is no folder for it; rows without labels, or with other features.
    StoreError
        The file cannot be written; a damaged store.
    """
    path = os.path.abspath(path)
    check_file(path, overwrite=overwrite)
    resolved = model._resolve(store)
    if not isinstance(resolved, Store):
        raise InputError(f"report takes a store. Got {type(store).__name__} instead; dask_odm.ingest makes one.")
    keeps = resolved.rows <= MOST_MARGINS
    found = evaluate(model, resolved, keep_margins=keeps) if hasattr(model, "classes_") else compare(model, resolved)
    few = resolved.rows * resolved.features**2 <= MOST_VALUES
    possible = hasattr(model, "classes_") or model._model.outputs == 1
    needed = few and possible if importance is None else importance
    matters = permutation_importance(model, resolved, n_repeats=2) if needed else None
    parts = [
        *_learned(model),
        *_scores(model, found, resolved),
        *(_of_classes(found) if isinstance(found, Evaluation) else ()),
        *_steps(model),
        *(_of_features(matters) if matters is not None else ()),
    ]
    page = _page(f"{type(model).__name__} on {resolved.name}", parts)
    try:
        with owned_file(path) as new:
            with open(new, "w", encoding="utf-8") as file:
                file.write(page)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise StoreError(f"cannot write '{path}': {error.strerror}.") from error


# Sections ----------------------------------------------------------------------------------------------------------


def _learned(model: Any) -> Iterable[str]:
    """Yield what was learned, and how: solver, certificate, time, and parameters that are not the defaults."""
    history = getattr(model, "history_", [])
    first, last = (history[0], history[-1]) if history else ({}, {})
    gap = getattr(model, "dual_gap_", None)
    facts: list[tuple[str, Any]] = [
        ("Learned by", f"{first['solver']}: {first['why']}" if "solver" in first else None),
        ("Classes", ", ".join(map(str, model.classes_.tolist()[:MOST_LINES])) if hasattr(model, "classes_") else None),
        ("Features", model.n_features_in_),
        ("Support rows", len(model.support_) if hasattr(model, "support_") else None),
        ("Certificate", None if gap is None else _certificate(float(gap), first.get("solver"))),
        ("Seconds", last.get("seconds")),
        ("Passes over the rows", last.get("passes")),
    ]
    yield _heading("What was learned")
    yield _table([], [fact for fact in facts if fact[1] is not None])
    defaults = type(model)().get_params(deep=False)
    given = model.get_params(deep=False)
    other = [(name, value) for name, value in given.items() if repr(value) != repr(defaults[name])]
    best = list(getattr(model, "best_params_", {}).items())
    if other or best:
        yield "<p>Parameters that are not the defaults, and settings that were found:</p>"
        yield _table(["parameter", "value"], [*other, *best])


def _certificate(gap: float, solver: str | None) -> str:
    if not math.isfinite(gap):
        return "none: the solver does not know how far the optimum is"
    of_regions = ", each region for its own rows" if solver == "cells" else ""
    return f"the objective is at most {gap:.1e} of itself above the least that any model of this kind has{of_regions}"


def _scores(model: Any, found: Any, store: Store) -> Iterable[str]:
    """Yield the scores on the store beside that of the training rows, left out."""
    facts = found.facts()
    named = {
        "accuracy": "Accuracy",
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
    yield _heading("How good it is")
    yield f"<p>On the rows of <code>{escape(str(store.path))}</code>.</p>"
    left = getattr(model, "loo_score_", None)
    rows = [] if left is None else [("Score of the training rows, left out", left)]
    rows += [(name, facts[key]) for key, name in named.items() if name and facts.get(key) is not None]
    yield _table([], rows)


def _of_classes(found: Evaluation) -> Iterable[str]:
    """Yield pictures and tables of what a classifier gets right."""
    facts = found.facts()
    names = list(map(str, found.classes))
    yield _heading("By class")
    each = [(name, facts["precision"][name], facts["recall"][name]) for name in names[:MOST_LINES]]
    yield _table(["class", "precision", "recall"], each)
    if len(names) <= MOST_LINES:
        yield _picture(lambda: plot_confusion(found))
        shown = [*names, *(f"{label} (unknown)" for label in found.strangers[:MOST_LINES])]
        counts = found.confusion[: len(shown)].tolist()
        yield _table(["true \\ predicted", *names], [(name, *row) for name, row in zip(shown, counts, strict=True)])
    if found.margins:
        margins = np.concatenate(found.margins)
        yield _heading("Margins")
        theta = found.theta
        if theta is not None:
            yield _picture(lambda: plot_margin_distribution(margins, theta))
        quantiles = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
        at_most = zip(quantiles, np.quantile(margins, quantiles), strict=True)
        yield _table(["share of the rows", "margin at most"], list(at_most))
    if found.roc is not None and found.roc.area is not None:
        yield _heading("ROC")
        yield _picture(lambda: plot_roc(found))
        yield _table([], [("Area under the curve", found.roc.area)])
    if found.probabilities is not None and found.probabilities.weight:
        yield _heading("Probabilities")
        yield _picture(lambda: plot_reliability(found))
        yield _table([], list(found.probabilities.facts().items()))


def _steps(model: Any) -> Iterable[str]:
    """Yield the steps of the fit."""
    steps = [each for each in getattr(model, "history_", []) if math.isfinite(each.get("gap", math.nan))]
    if not steps:
        return
    yield _heading("Steps of the fit")

    def draw() -> Any:
        ax = new_axes()
        ax.semilogy([each["seconds"] for each in steps], [max(each["gap"], 1e-17) for each in steps], "o-")
        ax.set(xlabel="seconds", ylabel="gap")
        return ax

    machines = {each.get("machine", 0) for each in steps}
    if len(machines) == 1:
        yield _picture(draw)
    columns = [name for name in ("machine", "iteration", "gap", "objective", "passes", "seconds") if name in steps[0]]
    yield _table(columns, [tuple(each.get(name) for name in columns) for each in steps])


def _of_features(found: Importance) -> Iterable[str]:
    """Yield which features matter."""
    yield _heading("Which features matter")
    yield f"<p>What a score of {found.score:.4f} loses if a feature is taken from other rows.</p>"
    yield _picture(lambda: plot_importance(found))
    order = np.argsort(-found.importances_mean, kind="stable")
    columns = found.importances_mean, found.importances_std
    lines = [(found.feature_names[j], *(float(each[j]) for each in columns)) for j in order]
    yield _table(["feature", "lost", "deviation"], lines)


# HTML --------------------------------------------------------------------------------------------------------------


def _page(title: str, parts: Iterable[str]) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of up to `MOST_LINES` rows; it says how many more there are."""
    lines = ["<table>"]
    if head:
        lines.append(f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>")
    lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_LINES]]
    if len(rows) > MOST_LINES:
        lines.append(f"<tr><td>… and {len(rows) - MOST_LINES} more</td></tr>")
    return "\n".join([*lines, "</table>"])


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f'<td class="number">{value:.4g}</td>'
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('–' if value is None else str(value))}</td>"


def _picture(plot: Callable[[], Any]) -> str:
    """Return a picture as SVG; none if there is nothing to draw, or nothing to draw with."""
    try:
        from matplotlib import rc_context
    except ImportError:
        return ""
    out = StringIO()
    # labels with a dollar are no formulas, and the same picture has the same bytes
    with rc_context({"text.parse_math": False, "svg.hashsalt": "dask_odm"}):
        try:
            figure = plot().figure
        except InputError:  # there is nothing to draw
            return ""
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return f"<figure>{text[text.index('<svg') :]}</figure>"
