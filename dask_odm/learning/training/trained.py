"""Result of a fit, before it becomes attributes of an estimator: what was learned, and from rows of which kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.models.base import Model
from dask_odm.typing import Array

NOT_FINITE = "the solution is not finite: rescale the rows (scale='minmax') or the weights, or choose a smaller lam."


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with what is known about it."""

    model: Model
    attributes: dict[str, Any] = field(default_factory=dict)  # fitted attributes: ``history_``, ``n_iter_``, …
    warning: str | None = None  # given if the solver stopped short of the tolerance
    path: tuple[Trained, ...] = ()  # one result for every value of a path, if a path was asked for
    was_finite: bool = False  # whether the model has predicted finite values for all training rows

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of the steps, empty if there are none."""
        found: list[dict[str, Any]] = self.attributes.get("history_", [])
        return found


@dataclass(frozen=True, eq=False)
class Schema:
    """Description of the rows and targets that a model was fitted on.

    ``feature_dimension`` is the name of the feature dimension of an xarray X. ``classes`` are sorted labels, and None
    for real targets.
    """

    n_features: int
    feature_names: Any = None
    feature_dimension: str | None = None
    classes: Array | None = None


def require_finite_solution(*values: Any) -> None:
    """Raise InputError unless all numbers of a solution are finite."""
    if not all(bool(np.isfinite(value).all()) for value in values):
        raise InputError(NOT_FINITE)
