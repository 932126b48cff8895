"""The first screen of a report: what the model is, how good it is beside chance, and whether to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dask_odm.diagnostics.evaluation import Evaluation
from dask_odm.estimators.cards import facts_of
from dask_odm.html import safe


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
    lines += [f"<li><b>{name}:</b> {safe(text)}.</li>" for name, text in _trust(model, found, facts["Certificate"])]
    return "\n".join(['<section class="first"><div>', *lines, "</ul></div>", picture or "", "</section>"])


def _figures(found: Any) -> Iterable[tuple[str, str, str | None]]:
    """Yield up to three scores: name, value, and what guessing would have."""
    facts = {} if found is None else found.facts()
    if isinstance(found, Evaluation):
        guess = 1.0 / len(found.classes)
        worst = min((share for share in facts["recall"].values() if share is not None), default=None)
        told = [
            ("accuracy", facts["accuracy"], float(found.counts.sum(axis=1).max()) / found.rows),
            ("balanced accuracy", facts["balanced_accuracy"], guess),
            ("area under the ROC curve", facts.get("auc"), 0.5),
            ("of the hardest class found", worst, guess),
        ]
        known = [each for each in told if each[1] is not None]
        yield from ((name, f"{value:.1%}", f"{chance:.1%}") for name, value, chance in known[:3])
    elif facts.get("r2") is not None:
        yield "R²", f"{facts['r2']:.3f}", "0"
        spread = f"{facts['rmse'] / math.sqrt(1.0 - facts['r2']):.4g}" if facts["r2"] < 1.0 else None
        yield "root mean squared error", f"{facts['rmse']:.4g}", spread
        yield "mean absolute error", f"{facts['mean_absolute_error']:.4g}", None


def _trust(model: Any, found: Any, certificate: str | None) -> Iterable[tuple[str, str]]:
    """Yield certificate, scores of left-out rows beside those of others, and calibration."""
    yield "Certificate", certificate or "this solver has none"
    facts = {} if found is None else found.facts()
    left, here = getattr(model, "loo_score_", None), facts.get("accuracy", facts.get("r2"))
    if left is None:
        yield "Left out", "not known; a fit with loo=True scores its own rows by models without them"
    elif here is not None:
        yield "Left out", f"training rows score {left:.4g} if left out, and these rows {here:.4g}"
    else:
        yield "Left out", f"training rows score {left:.4g} if left out"
    error = facts.get("calibration_error")
    if error is not None:
        yield "Calibration", f"probabilities are off by {error:.1%} on average"
