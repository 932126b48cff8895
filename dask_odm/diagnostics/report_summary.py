"""The first screen of a report: what the model is, how good it is beside chance, and whether to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dask_odm.diagnostics.evaluation import Evaluation, Together
from dask_odm.estimators.cards import facts_of, scored
from dask_odm.html import safe
from dask_odm.printing import short


def first_screen(model: Any, found: Any, source: str, picture: str | None) -> str:
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
