"""Small real data sets of scikit-learn, with two classes, in memory or as a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError

# name: its loader, and the two classes to keep if there are more
_BUNDLED: dict[str, tuple[Callable[..., Any], tuple[int, int] | None]] = {
    "breast_cancer": (datasets.load_breast_cancer, None),
    "digits": (datasets.load_digits, (4, 9)),
    "iris": (datasets.load_iris, (1, 2)),
    "wine": (datasets.load_wine, (0, 1)),
}
BUNDLED = tuple(_BUNDLED)


def load_bundled(
    name: str,
    classes: tuple[Any, Any] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]] | Store:
    """Load one of scikit-learn's bundled data sets, with two classes.

    Parameters
    ----------
    name : ``breast_cancer`` (569 rows, 30 features), ``digits`` (64), ``iris`` (4) or ``wine`` (13)
    classes : the two classes to keep, by the names y has, such as ``("setosa", "virginica")`` or ``(3, 8)``. By
        default the digits 4 and 9, of iris versicolor and virginica, of wine class_0 and class_1
    store : folder to write the rows to, with the names of features; None for arrays
    dtype : ``float64``, as scikit-learn has them, or ``float32``
    overwrite : replace an existing store

    Returns
    -------
    (X, y) of shapes (rows, d) and (rows,), or with ``store`` the open Store. y holds the names of the classes, for
    digits the digits

    Raises
    ------
    InputError
        No such data set, no such classes, or the output exists.
    StoreError
        The output cannot be written.
    """
    if name not in _BUNDLED:
        raise InputError(f"no bundled data set {name!r}; there are {', '.join(BUNDLED)}.")
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be 'float32' or 'float64'. Got {dtype!r} instead.")
    loader, pair = _BUNDLED[name]
    data = loader()
    names = [each.item() for each in np.asarray(data.target_names)]
    kept = _two_classes(name, names, classes or tuple(names[i] for i in pair or (0, 1)))
    rows = np.isin(data.target, kept)
    X = np.ascontiguousarray(data.data[rows], dtype=dtype)
    codes = data.target[rows].astype(np.int64)
    if store is None:
        return X, np.array(names)[codes]
    with StoreWriter(store, dtype=dtype, overwrite=overwrite) as writer:
        writer.append(X, codes)
        features = [str(feature) for feature in data.feature_names]
        return writer.finish(names, feature_names=features, source=f"scikit-learn: {name}")


def _two_classes(name: str, names: list[Any], classes: Any) -> list[int]:
    """Return the codes of the two classes to keep."""
    chosen = list(classes) if isinstance(classes, tuple | list) else [classes]
    if len(chosen) != 2 or chosen[0] == chosen[1] or any(each not in names for each in chosen):
        known = ", ".join(map(repr, names))
        raise InputError(f"classes must be two of those of {name}: {known}. Got {classes!r} instead.")
    return [names.index(each) for each in chosen]
