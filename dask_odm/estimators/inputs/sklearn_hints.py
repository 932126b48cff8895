"""Errors for habits from scikit-learn that cannot work here, each with the way that does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import is_dask_frame
from dask_odm.estimators.inputs.input_types import is_dataset

CALLERS = 12  # stack frames searched for a function of scikit-learn; it is three or four frames up


def refuse_strangers(
    estimator: type[Any], names: Iterable[str], known: Iterable[str], hints: Mapping[str, str]
) -> None:
    """Raise InputError if one of ``names`` is not a parameter of the estimator, but a hint tells its replacement."""
    for name in sorted(set(names) & set(hints) - set(known)):
        raise InputError(f"{estimator.__name__} has no parameter {name!r}: {hints[name]}")


def refuse_rows_picked_by_number() -> None:
    """Raise InputError if scikit-learn's search or cross-validation was given rows that it cannot pick by number.

    This is called when an estimator is cloned, which such a function does first. The rows come later, already picked,
    and fail within scikit-learn. So they are looked up in the function's own ``X``.
    """
    frame = sys._getframe(1)
    for _ in range(CALLERS):
        if frame.f_back is None:
            return
        frame = frame.f_back
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection."):
            _refuse(frame.f_locals.get("X"), frame.f_locals.get("y"))


def _refuse(X: Any, y: Any) -> None:
    if is_dataset(X):
        raise InputError(
            "scikit-learn picks rows by number, which a Dataset has none of: give it the arrays, as fit(ds.X, ds.y)."
        )
    if is_dask_frame(X) or is_dask_frame(y):
        raise InputError(
            "scikit-learn picks rows by number, which a dask frame cannot: give it arrays, as "
            "X.to_dask_array(lengths=True), y.to_dask_array(lengths=True), or rows in memory, X.compute(), y.compute()."
        )
    if isinstance(X, str):
        raise InputError(
            "scikit-learn picks rows by number, which the path of a store has none of: open it, ds = "
            "dask_odm.open_store(path), and give the arrays, fit(ds.X, ds.y)."
        )
