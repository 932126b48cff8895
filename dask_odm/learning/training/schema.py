"""What rows and targets a fitted estimator is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Schema:
    """What rows and targets a model is of.

    Attributes
    ----------
    n_features : int
    feature_names : ndarray of shape (n_features,) or None
    feature_dimension : str or None
        The name that the dimension of the features had in an xarray X of `fit`.
    classes : ndarray of shape (n_classes,) or None
        Labels, sorted; None for real targets.
    """

    n_features: int
    feature_names: Any = None
    feature_dimension: str | None = None
    classes: Array | None = None
