"""Description of the rows and targets that an estimator was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_odm.typing import Array


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
