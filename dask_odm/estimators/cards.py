"""Notebook display of an estimator: its diagram, its page, and a card of what was learned."""

from __future__ import annotations

import math
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from sklearn.base import BaseEstimator

from dask_odm.html import MOST_LINES, card, folded, table
from dask_odm.models.kernel_model import KernelModel
from dask_odm.printing import short

FIRST = {"Classes", "Rows", "Features", "Certificate", "Score of the training rows, left out"}  # seen without a click


@cache
def documentation() -> str:
    """Return the address of the documentation by the package's metadata, with a slash at its end; "" if unknown."""
    try:
        urls = metadata("dask-odm").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = dict(each.split(", ", 1) for each in urls).get("Documentation", "")
    return f"{found.rstrip('/')}/" if found else ""


def facts_of(model: Any) -> list[tuple[str, Any]]:
    """Return solver, sizes, certificate and time of a fitted estimator; None for what it does not have."""
    history = getattr(model, "history_", [])
    first, last = (history[0], history[-1]) if history else ({}, {})
    gap = getattr(model, "dual_gap_", None)
    solver = first.get("solver")
    support = model._model.support.shape[0] if isinstance(model._model, KernelModel) else None
    one_machine = "machine" not in last
    searched = hasattr(model, "best_params_")
    return [
        ("Learned by", ": ".join(filter(None, (solver, first.get("why")))) or None),
        (
            "Classes",
            ", ".join(map(short, model.classes_.tolist()[:MOST_LINES])) if hasattr(model, "classes_") else None,
        ),
        ("Rows", model._schema.rows),
        ("Features", model._model.features),
        ("Landmarks" if solver == "landmark" else "Support rows", support),
        ("Certificate", None if gap is None else _certificate(float(gap), solver)),
        ("Objective", last.get("objective") if one_machine else None),
        ("Score of the training rows, left out", getattr(model, "loo_score_", None)),
        (
            "Seconds of the last fit, without the search" if searched else "Seconds",
            last.get("seconds") if one_machine else None,  # each machine counts its own
        ),
        ("Passes over the rows", last.get("passes") if one_machine else None),
    ]


def _certificate(gap: float, solver: str | None) -> str:
    if not math.isfinite(gap):
        asked = "; a fit with solver=dask_odm.solvers.Landmark(certify=True) does" if solver == "landmark" else ""
        return f"none: the solver does not know how far the optimum is{asked}"
    of_regions = ", each region for its own rows" if solver == "cells" else ""
    return f"the objective is at most {gap:.1e} of itself above the least that any model of this kind has{of_regions}"


class NotebookCard(BaseEstimator):
    """Mixin of estimators: scikit-learn's diagram, and below it a card of what was learned."""

    _doc_link_module = "dask_odm"

    @property
    def _doc_link_template(self) -> str:
        """Address of this estimator's page in the reference, to which scikit-learn's diagram links."""
        pages = documentation()
        return f"{pages}reference/generated/dask_odm.{type(self).__name__}.html" if pages else ""

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram; below it, of a fitted estimator, a card of what was learned."""
        return str(super()._repr_html_inner()) + self._card()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in found:
            found["text/html"] += self._card()
        return found

    def _card(self) -> str:
        if not hasattr(self, "_model"):
            return ""
        known = [fact for fact in facts_of(self) if fact[1] is not None]
        rest = [fact for fact in known if fact[0] not in FIRST]
        tables = [self.column_recipe_._repr_html_()] if hasattr(self, "column_recipe_") else []
        shown = [fact for fact in known if fact[0] in FIRST]
        return card("What was learned", shown, folded("How", "".join([table([], rest), *tables])))
