"""Notebook display of an estimator: its diagram, its page, and a card of what was learned."""

from __future__ import annotations

import math
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from sklearn.base import BaseEstimator

from dask_odm.data.store.statistics import listed
from dask_odm.html import MOST_LINES, card, folded, table
from dask_odm.models.kernel_model import KernelModel
from dask_odm.printing import short

FIRST = {"Classes", "Rows", "Features", "Certificate", "Left out"}  # seen without a click


@cache
def documentation() -> str:
    """Return the address of the documentation by the package's metadata, with a slash at its end; "" if unknown."""
    try:
        urls = metadata("dask-odm").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = dict(each.split(", ", 1) for each in urls).get("Documentation", "")
    return f"{found.rstrip('/')}/" if found else ""


def class_names(model: Any) -> list[Any]:
    """Return the classes of a fitted classifier, by the meanings that its labels came with if these were codes."""
    cube = model._schema.cube
    return list(model._codes.meanings) if cube is not None and cube.words else listed(model.classes_)


def scored(model: Any, score: float) -> str:
    """Return a score of a model with its name."""
    return f"accuracy {score:.1%}" if hasattr(model, "classes_") else f"R² {score:.3f}"


def facts_of(model: Any) -> list[tuple[str, Any]]:
    """Return solver, sizes, certificate and time of a fitted estimator; None for what it does not have."""
    history = getattr(model, "history_", [])
    first, last = (history[0], history[-1]) if history else ({}, {})
    gap, left = (getattr(model, name, None) for name in ("dual_gap_", "loo_score_"))
    solver = first.get("solver")
    support = model._model.support.shape[0] if isinstance(model._model, KernelModel) else None
    one_machine = "machine" not in last
    classes = ", ".join(map(short, class_names(model)[:MOST_LINES])) if hasattr(model, "classes_") else None
    seconds = "Seconds of the last fit, without the search" if hasattr(model, "best_params_") else "Seconds"
    return [
        ("Learned by", ": ".join(filter(None, (solver, first.get("why")))) or None),
        ("Classes", classes),
        ("Rows", model._schema.rows),
        ("Features", model._model.features),
        ("Landmarks" if solver == "landmark" else "Support rows", support),
        ("Certificate", None if gap is None else _certificate(float(gap), solver)),
        ("Objective", last.get("objective") if one_machine else None),
        ("Left out", None if left is None else f"{scored(model, left)} on training rows left out"),
        (seconds, last.get("seconds") if one_machine else None),  # each machine counts its own
        ("Passes over the rows", last.get("passes") if one_machine else None),
    ]


def _certificate(gap: float, solver: str | None) -> str:
    if not math.isfinite(gap):
        asked = "; a fit with solver=dask_odm.solvers.Landmark(certify=True) does" if solver == "landmark" else ""
        return f"none: the solver does not know how far the optimum is{asked}"
    of_regions = ", each region for its own rows" if solver == "cells" else ""
    ended = f"training ended within {100.0 * gap:.2g}% of the optimum of its objective (proven){of_regions}"
    return f"{ended}; this says nothing about how well it predicts"


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
        return card("What was learned", shown, folded("How it was fitted", "".join([table([], rest), *tables])))
