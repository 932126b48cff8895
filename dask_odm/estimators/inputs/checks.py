"""What `fit` and `predict` refuse: rows, labels and weights in memory, and parameters that need the data to judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    _check_y,
    check_array,
    column_or_1d,
    validate_data,
)

from dask_odm.data.rows.finite import describe_not_finite
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import labels_of, require_labels, rows_of
from dask_odm.linalg.threads import run_threads
from dask_odm.models.base import Model
from dask_odm.models.kernel import KernelModel
from dask_odm.typing import Array

FLOATS = (np.float64, np.float32)
EXTREME_ROWS = 64
LARGE_BYTES = 8 << 20  # of rows that several threads look through
LOOKED_UP = 1 << 16  # distance of the least label from the largest, where distinct ones are looked up in a table
LEAST_WEIGHT = 1e-290  # of all rows of a class: what is divided by less may overflow


class InputTypeError(InputError, TypeError):
    """An `InputError` where scikit-learn raises a TypeError."""


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """Training rows in memory: X (n, d) finite floats, y (n,), weight (n,) ≥ 0, names (d,) or None.

    ``classes`` are the labels, sorted, and ``codes`` (n,) tells which a row has; both None for real targets.
    """

    X: Array
    y: Array
    weight: Array
    names: Array | None
    classes: Array | None = None
    codes: Array | None = None


def as_input_error(validate: Callable[[], Any]) -> Any:
    """Run scikit-learn's validation; its errors become ours, which are ValueErrors (and TypeErrors) too."""
    try:
        return validate()
    except InputError:
        raise
    except TypeError as error:
        raise InputTypeError(str(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error


def check_classification(estimator: Any, X: Any, y: Any, sample_weight: Any, **options: Any) -> CheckedRows:
    """Training rows with labels in memory; ``estimator`` stays as it is, whatever comes.

    ``options`` are further ones of scikit-learn's ``validate_data``.

    Raises
    ------
    InputError
        Rows, labels or weights that cannot be learned from.
    """

    def check() -> CheckedRows:
        X_, y_, weight, names = _validated(estimator, X, y, sample_weight, options)
        classes, codes = distinct(y_) if _are_numbers(y_) else (None, None)
        if classes is None or 2 * len(classes) > len(y_):  # whole numbers that repeat are labels, and soon told
            _require_labels_of_classes(y_)
            classes, codes = np.unique(y_, return_inverse=True)
        return CheckedRows(X_, y_, weight, names, classes, codes)

    checked: CheckedRows = as_input_error(check)
    return checked


def check_regression(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, many: bool = False, **options: Any
) -> CheckedRows:
    """As `check_classification`, with real targets; ``many`` says whether y may have several columns."""

    def check() -> CheckedRows:
        given = {"multi_output": True, **options} if many else options
        X_, y_, weight, names = _validated(estimator, X, y, sample_weight, given)
        if y_.dtype.kind not in "biuf":
            raise ValueError(f"y must be numbers, the targets of a regression. Got labels of type {y_.dtype}.")
        if y_.ndim != 2 or y_.shape[1] == 1:
            y_ = column_or_1d(y_, warn=True)
        # copied, so that they are writable and contiguous: for others loops are compiled once more
        targets = _check_y(y_, multi_output=many, y_numeric=True).astype(np.float64)
        return CheckedRows(X_, targets, weight, names)

    checked: CheckedRows = as_input_error(check)
    return checked


def _validated(estimator: Any, X: Any, y: Any, sample_weight: Any, options: dict[str, Any]) -> Any:
    """Rows, targets, weights and the names of the features as scikit-learn passes them."""
    reader = copy(estimator)  # scikit-learn's validation sets attributes
    given = {"dtype": FLOATS, "order": "C", "ensure_all_finite": False, **options}
    y = labels_of(y)
    require_labels(y)
    X, y = validate_data(reader, rows_of(X), y, **given)
    if issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()  # an entry may be stored in parts, whose squares are not those of the sum
    names = getattr(reader, "feature_names_in_", None)
    require_finite(X, names)
    return X, y, _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True), names


def distinct(labels: Array) -> tuple[Array, Array]:
    """Distinct labels, ascending, and the number of each row's among them, int32 (n,)."""
    if labels.dtype.kind in "iu" and len(labels):
        least = int(labels.min())
        most = int(labels.max())
        if most - least < LOOKED_UP and most < 2**63:  # which takes a tenth of sorting
            places = labels.astype(np.int64) - least
            there = np.zeros(most - least + 1, dtype=bool)
            there[places] = True
            return (np.flatnonzero(there) + least).astype(labels.dtype), (np.cumsum(there, dtype=np.int32) - 1)[places]
    values, codes = np.unique(labels, return_inverse=True)
    return values, codes.astype(np.int32)


def _are_numbers(y: Array) -> bool:
    """Whether ``y`` holds whole numbers, one a row."""
    return y.ndim == 1 and y.dtype.kind in "biu"


def _require_labels_of_classes(y: Array) -> None:
    """Raise ValueError unless ``y`` holds labels, one a row."""
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind == "continuous":
        values = np.unique(y)
        if len(values) <= 2:  # two labels such as 0.5 and 1.5
            return
        broken = values[values % 1 != 0]
        raise ValueError(
            f"Unknown label type: continuous. y holds {len(broken)} different values that are not whole numbers, such "
            f"as {', '.join(f'{value:g}' for value in broken[:3])}: if they name classes, pass them as strings "
            "(y.astype(str)); if they are measured, use a regressor, such as MDDRidge."
        )
    if kind != "binary":
        check_classification_targets(y)


def check_rows(estimator: Any, X: Any, **options: Any) -> Array:
    """Rows in memory to predict on, (n, d) finite floats; ``options`` as for `check_classification`."""
    given = {"dtype": FLOATS, "order": "C", "ensure_all_finite": False, "estimator": estimator, **options}

    def check() -> Array:
        # validate_data's order of checks: names, values, then the number of features
        rows = rows_of(X)
        _check_feature_names(estimator, rows, reset=False)
        checked: Array = check_array(rows, input_name="X", **given)
        names = getattr(estimator, "feature_names_in_", None)
        require_finite(checked, names if names is not None and len(names) == checked.shape[1] else None)
        _check_n_features(estimator, checked, reset=False)
        return checked

    found: Array = as_input_error(check)
    return found


def require_finite(X: Any, names: Any = None, first: int = 0) -> None:
    """Raise InputError naming columns, counts and rows of what is not finite in X (n, d)."""
    if issparse(X):
        if np.isfinite(X.data).all():
            return
        column = int(X.indices[~np.isfinite(X.data)].min())
        X = X[:, [column]].toarray()
        names = [column if names is None else names[column]]
    if X.nbytes >= LARGE_BYTES and _parts_are_finite(X):
        return
    complaint = describe_not_finite(X, names, first)
    if complaint is not None:
        raise InputError(complaint)


def _parts_are_finite(X: Array) -> bool:
    """Whether no number of X (n, d) can be missing or infinite, since its parts' sums, a thread each, are finite."""

    def is_finite(part: Array) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(part.sum(dtype=np.float64)))

    return all(run_threads(is_finite, np.array_split(X, CPU_COUNT), CPU_COUNT))


def require_classes(classes: Array) -> None:
    """Raise InputError unless there are two classes or more."""
    if len(classes) < 2:
        raise InputError(f"the data hold one class only, {classes.tolist()}; a classifier needs two.")


def check_callbacks(callbacks: Any) -> None:
    """Raise InputError unless every callback can be called."""
    for i, callback in enumerate(callbacks or ()):
        if not callable(callback):
            raise InputError(f"callbacks must be callables that take an event. Got {callback!r} at index {i} instead.")


def class_weights(given: Any, classes: Array, totals: Array) -> tuple[float, ...]:
    """What rows of each class are multiplied by; of two, the negative one comes first.

    Parameters
    ----------
    given : dict, "balanced" or None
    classes : ndarray of shape (k,)
    totals : ndarray of shape (k,)
        Sums of row weights per class.

    Raises
    ------
    InputError
        A weight that is no finite number ≥ 0, a class that is not there, no weight left in a class, or weights that
        are all too small.
    """
    if not totals.any():
        raise InputError("all row weights are zero; nothing is left to learn from.")
    if given == "balanced":
        weights = (totals.sum() / (len(classes) * np.maximum(totals, np.finfo(float).tiny))).tolist()
    else:
        weights = _given_weights(given or {}, classes.tolist())
    left = totals * weights
    if not left.any():
        raise InputError("all row weights are zero, given class_weight; nothing is left to learn from.")
    if not left.all():
        raise InputError(f"all rows of class {classes[left == 0].tolist()[0]!r} have weight zero.")
    if left.max() < LEAST_WEIGHT:
        raise InputError(
            f"the row weights are too small, with a sum of {left.sum():.1e}: multiply them all by a power of ten."
        )
    return tuple(weights)


def _given_weights(given: dict[Any, Any], classes: list[Any]) -> list[float]:
    for label, weight in given.items():
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise InputError(f"class_weight must be finite and not negative numbers. Got {weight!r} for {label!r}.")
    unknown = [label for label in given if label not in classes]
    if unknown and not all(label in given for label in classes):  # as scikit-learn has it
        raise InputError(f"class_weight names {unknown[0]!r}, which is not among the classes {classes}.")
    return [float(given.get(label, 1.0)) for label in classes]


def require_finite_values(model: Model) -> None:
    """Raise InputError if rows as large as those trained on overflow the kernel in their own dtype."""
    if not isinstance(model, KernelModel):
        return
    support: Any = model.support
    support = support.X if isinstance(support, SparseRows) else support[: support.shape[0]]
    size = np.maximum(_dense(support.max(axis=1)), -_dense(support.min(axis=1)))
    rows = support[np.argsort(-size, kind="stable")[:EXTREME_ROWS]]
    with np.errstate(over="ignore", invalid="ignore"):
        finite = rows.shape[0] == 0 or model.are_finite(rows)
    if not finite:
        raise InputError(
            f"the kernel of rows as large as {size.max():.1e} overflows {support.dtype}: rescale the rows "
            "(scale='minmax'), or choose a smaller gamma."
        )


def _dense(column: Any) -> Array:
    values: Array = column.toarray().ravel() if issparse(column) else column
    return values
