"""Description of the rows and targets that an estimator was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Schema:
    """Description of the rows and targets that a model was fitted on.

    Attributes
    ----------
    n_features : int
    feature_names : ndarray of shape (n_features,) or None
    feature_dimension : str or None
        Name of the feature dimension of an xarray X in `fit`.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels; None for real targets.
    """

    n_features: int
    feature_names: Any = None
    feature_dimension: str | None = None
    classes: Array | None = None
