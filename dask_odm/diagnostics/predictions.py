"""Writing a model's predictions for the rows of a store, chunk by chunk, as CSV or zarr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TextIO

import dask.array as da
import numpy as np
import pandas as pd

from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.staging import owned_file
from dask_odm.data.store.records import check_target, write_record
from dask_odm.data.store.statistics import listed
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.evaluation import blocks
from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array

KIND = "prediction"
STDOUT = "-"
_NAMES = {"scores": "score", "probabilities": "probability", "sets": "set"}  # names of arrays and columns


def check_predictions(out: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise InputError if `write_predictions` could not write, before anything is computed."""
    if out == STDOUT:
        return
    path = location_of(out)
    if path.endswith(".zarr"):
        check_target(path, KIND, overwrite=overwrite)
    elif not path.endswith(".csv"):
        raise InputError(f"'{path}' must end in .csv or .zarr, which tells the format, or be - for stdout.")
    elif is_address(path):
        raise InputError(f"'{path}' must end in .zarr: predictions go to an object store in that format only.")
    else:
        check_file(path, overwrite=overwrite)


def check_file(path: str, *, overwrite: bool) -> None:
    """Raise InputError if a file may not be written or replaced."""
    if not os.path.isdir(os.path.dirname(path)):
        raise InputError(f"cannot write '{path}': there is no folder '{os.path.dirname(path)}'.")
    if os.path.isdir(path):
        raise InputError(f"'{path}' is a folder; choose another name for the file.")
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"'{path}' exists; pass overwrite=True (--overwrite) to replace it.")


@contextmanager
def written_file(path: str) -> Iterator[TextIO]:
    """Open a text file that appears whole once the context ends, or not at all; raise StoreError if it cannot."""
    try:
        with owned_file(path) as new:
            with open(new, "w", encoding="utf-8", newline="") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise StoreError(f"cannot write '{path}': {error.strerror}.") from error


def write_predictions(
    model: Any, store: Store, out: str | os.PathLike[str], *, what: str = "labels", coverage: float = 0.9,
    overwrite: bool = False,
) -> int:  # fmt: skip
    """Write a prediction for every row of a store, in their order, and return their number.

    ``what`` are a classifier's labels, scores or probabilities, or sets of a ``coverage``: of classes, or the ends of
    an interval of numbers. CSV has one column ``label``, ``score`` or ``prediction`` (of a regressor), or one for each
    of several, such as ``score LABEL``. Sets have a column ``label`` or ``prediction``, too.
    zarr has an array ``score``, ``probability``, ``set``, ``interval`` or ``y``, which for a classifier has codes,
    indices into ``classes`` of the group's attribute ``content``. A file appears whole or not at all.

    Raises InputError if the output exists or has another suffix, rows have another number of features, or the model has
    no ``what``, and StoreError if the disk is full or the store is damaged.
    """
    check_predictions(out, overwrite=overwrite)
    path = STDOUT if out == STDOUT else location_of(out)
    lazy = require_method(model, what, coverage)(store.path)
    named = hasattr(model, "classes_")
    if path == STDOUT or path.endswith(".csv"):
        titles = _titles(model, lazy, what)
        if what == "sets":
            labels = model.predict(store.path)[:, None]  # of the same decision values
            titles = ["label" if named else "prediction", *titles]
            lazy = da.hstack([labels.astype(object) if named else labels, lazy]).rechunk({1: -1})
        with nullcontext(sys.stdout) if path == STDOUT else written_file(path) as file:
            for i, values in enumerate(blocks(store, lazy, "predict")):
                pd.DataFrame(values, columns=titles).to_csv(file, header=i == 0, index=False, lineterminator="\n")
    else:
        name = _NAMES.get(what, "y") if named or what != "sets" else "interval"
        found = blocks(store, lazy, "predict")
        dtype = lazy.dtype
        if what == "labels" and named and not hasattr(model, "multilabel_"):  # which are written as codes
            found = (np.searchsorted(model.classes_, labels) for labels in found)
            dtype = np.dtype(np.int8 if len(model.classes_) < 128 else np.int32)
        content = {"classes": listed(model.classes_)} if named else {"targets": model._model.outputs}
        stream = _Stream(found, (store.rows, *lazy.shape[1:]), dtype)
        write_record(path, KIND, {name: stream}, content, overwrite=overwrite)
    return store.rows


def require_method(model: Any, what: str, coverage: float = 0.9) -> Callable[[str], Any]:
    """Return the method of a model that predicts ``what``; raise InputError, with the way out, if it has none."""
    if what == "sets" and hasattr(model, "predict_interval"):
        return partial(model.predict_interval, coverage=coverage)
    if not hasattr(model, "classes_") and what in _NAMES:
        none = {"scores": "decision function (--decision-function)", "sets": "sets of classes (--sets)"}
        raise InputError(
            f"a regressor has no {none.get(what, 'probabilities (--proba)')}: its predictions are numbers."
        )
    if what == "sets":
        if not hasattr(model, "predict_set"):
            raise InputError(f"{type(model).__name__} has no sets of classes; ODMClassifier and ODMClassifierCV have.")
        return lambda X: model.predict_set(X, coverage).astype(np.int8)  # 1 for every class in the set of a row
    if what == "probabilities" and not hasattr(type(model), "predict_proba"):
        raise InputError(
            f"{type(model).__name__} has no probabilities; ODMClassifier and ODMClassifierCV (--estimator odm, or "
            "'dask-odm search') have, fitted with loo=True (--loo)."
        )
    method = {"labels": "predict", "scores": "decision_function", "probabilities": "predict_proba"}[what]
    return getattr(model, method)


def _titles(model: Any, lazy: Any, what: str) -> list[str]:
    """Return the header row of the CSV output."""
    classes = getattr(model, "classes_", None)
    name = _NAMES.get(what, "prediction" if classes is None else "label")
    if lazy.ndim == 1:
        return [name]
    if what == "sets" and classes is None:
        return ["low", "high"]
    return [f"{name} {each}" for each in (range(lazy.shape[1]) if classes is None else listed(classes))]


class _Stream:
    """Values that arrive block by block, as a `RowSource` that is read once, from start to end."""

    def __init__(self, found: Iterator[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._found = found
        self._left = np.empty((0, *shape[1:]), dtype=dtype)

    def __getitem__(self, rows: slice) -> Array:
        count = min(rows.stop, self.shape[0]) - rows.start
        parts = [self._left]
        while sum(map(len, parts)) < count:
            parts.append(next(self._found).astype(self.dtype, copy=False))
        values = np.concatenate(parts)
        self._left = values[count:]
        return values[:count]
