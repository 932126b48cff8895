"""Checks of `fit` and `predict`: rows, labels and weights in memory, and parameters that depend on the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from dask.base import is_dask_collection
from dask.system import CPU_COUNT
from scipy.sparse import issparse
from sklearn.utils import validation
from sklearn.utils.extmath import row_norms
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from dask_odm.data.readers.labels import labels_of
from dask_odm.data.rows.memory import describe_not_finite
from dask_odm.data.store.statistics import is_text, listed, not_text, plain_item
from dask_odm.data.store.store import Store
from dask_odm.engine.lazy import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import filled, require_labels, rows_of, weights_of
from dask_odm.linalg.rows import with_way_out
from dask_odm.linalg.threads import run_threads
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.model import Model
from dask_odm.printing import quoted
from dask_odm.typing import Array

FLOATS = (np.float64, np.float32)
NOT_LABELS = (
    "y has several columns, which must be 0 or 1: whether a row has each label. Join the columns into one label a row, "
    "or fit a model for each."
)
LEAST_WEIGHT = 1e-290  # of all rows, or those of a class; dividing by less may overflow
LEAST_SHARE = float(np.finfo(np.float32).eps) ** 4  # of a class in the heaviest one's: float32 ends later


class InputTypeError(InputError, TypeError):
    """An `InputError` in places where scikit-learn raises a TypeError."""


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """Training rows in memory: X (n, d) finite floats, y (n,), weight (n,) ≥ 0, names (d,) or None.

    ``classes`` are the sorted labels, and ``codes`` (n,) index them for each row; both are None for real targets.
    ``factors`` are the class weights. ``all_classes`` are all labels if some of them are not learned, since none of
    their rows has a weight. Rows of several labels have y (n, labels) of −1 and 1, no codes, and in ``of_labels`` the
    class weights of each label.
    """

    X: Array
    y: Array
    weight: Array
    names: Array | None
    classes: Array | None = None
    codes: Array | None = None
    factors: tuple[float, ...] = ()
    all_classes: Array | None = None
    of_labels: tuple[tuple[float, float], ...] = ()

    def with_weight(self, factors: tuple[float, ...]) -> CheckedRows:
        """Return the rows with class weights, without the classes of weight zero."""
        assert self.classes is not None
        assert self.codes is not None
        if all(factors):
            return replace(self, factors=factors)
        learned = np.flatnonzero(factors)
        place = np.zeros(len(factors), self.codes.dtype)
        place[learned] = np.arange(len(learned))
        return replace(
            self, weight=np.where(np.array(factors)[self.codes] > 0, self.weight, 0.0), classes=self.classes[learned],
            codes=place[self.codes], factors=tuple(factor for factor in factors if factor > 0),
            all_classes=self.classes,
        )  # fmt: skip


@contextmanager
def input_errors() -> Iterator[None]:
    """Raise scikit-learn's errors as ours, which are ValueErrors (and TypeErrors) too."""
    try:
        yield
    except InputError:
        raise
    except TypeError as error:
        missing = "; a value is missing (pandas.NA): put a number in its place, or leave its row out."
        raise InputTypeError(f"{error}{missing if 'NAType' in str(error) else ''}") from error
    except ValueError as error:
        raise InputError(with_way_out(str(error))) from error


def as_input_error(validate: Callable[[], Any]) -> Any:
    """Run a validation within `input_errors`."""
    with input_errors():
        return validate()


def has_columns(y: Any) -> bool:
    """Return whether labels are a matrix of several columns, dense or sparse."""
    try:
        shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    except ValueError:  # lists of different lengths
        return False
    return len(shape) == 2 and shape[1] > 1


@input_errors()
def label_matrix(y: Any) -> Array:
    """Return a 0/1 matrix of labels, dense or sparse, as floats −1 and 1, C-contiguous (n, labels)."""
    values = labels_of(y.toarray() if issparse(y) else y)
    require_labels(values)
    assert values is not None
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InputError(NOT_LABELS)
    return np.where(values == 1, 1.0, -1.0)


def label_weights(given: Any, totals: Array) -> tuple[tuple[float, float], ...]:
    """Return the class weights of several labels, of which rows without and with each have ``totals`` (labels, 2)."""
    if given not in (None, "balanced"):
        raise InputError("class_weight must be None or 'balanced' for y of several columns.")
    found = (class_weights(given, np.array([0, 1]), each) if given and min(each) > 0 else (1.0, 1.0) for each in totals)
    return tuple((negative, positive) for negative, positive in found)


def validated(estimator: Any, given: Any, y: Any, **more: Any) -> Any:
    """Return rows, targets, weights and feature names as scikit-learn validates them; y is None without targets.

    Rows and weights are those in memory, as `Given` has them. The ``estimator`` stays as it was.
    """
    reader = copy(estimator)  # a copy, since scikit-learn's validation sets attributes
    options = {"dtype": FLOATS, "order": "C", "ensure_all_finite": False, **estimator._reading(), **more}
    if estimator._targets.needs_labels:
        y = labels_of(y)
        require_labels(y)
        rows = rows_of(given.X)
        X, y = validation.validate_data(reader, rows, y, **options)
    else:
        rows = rows_of(given.X)
        X = validation.validate_data(reader, rows, **options)
    names = getattr(reader, "feature_names_in_", None)
    require_finite(X, names if names is not None or not isinstance(rows, pd.DataFrame) else rows.columns.tolist())
    weight = validation._check_sample_weight(weights_of(given.weight), X, dtype=np.float64, ensure_non_negative=True)
    _require_weight(weight.sum(keepdims=True))
    return X, y, weight, names


def distinct(labels: Array) -> tuple[Array, Array]:
    """Return the distinct labels, ascending, and for each row the index of its label, int32 (n,)."""
    if labels.dtype.kind in "iu" and len(labels):
        least = int(labels.min())
        most = int(labels.max())
        if most - least < 1 << 16 and most < 2**63:  # a table takes a tenth of the time of sorting
            places = labels.astype(np.int64) - least
            there = np.zeros(most - least + 1, dtype=bool)
            there[places] = True
            return (np.flatnonzero(there) + least).astype(labels.dtype), (np.cumsum(there, dtype=np.int32) - 1)[places]
    values, codes = np.unique(labels, return_inverse=True)
    return values, codes.astype(np.int32)


def require_labels_of_classes(y: Array) -> None:
    """Raise ValueError unless ``y`` has one class label a row."""
    if y.dtype.kind == "O" and len({isinstance(label, str) for label in y.flat}) > 1:
        raise ValueError("Unknown label type: some are strings, some not; pass the labels as strings (y.astype(str)).")
    kind = type_of_target(y, input_name="y")
    if kind == "unknown":
        raise ValueError(f"Unknown label type: {quoted(y[0])}; pass the labels as strings (y.astype(str)).")
    if kind == "continuous":
        values = np.unique(y)
        if len(values) <= 2:  # two labels such as 0.5 and 1.5
            return
        broken = values[values % 1 != 0]
        raise ValueError(
            f"Unknown label type: continuous. y holds {len(broken)} different values that are not whole numbers, such "
            f"as {', '.join(f'{value:g}' for value in broken[:3])}: if they name classes, pass them as strings "
            "(y.astype(str)); if they are measured, use a regressor, such as ODMRegressorCV."
        )
    if kind != "binary":
        check_classification_targets(y)


@input_errors()
def check_rows(estimator: Any, X: Any, **options: Any) -> Array:
    """Check rows in memory for prediction, with ``options`` of `check_array`, and return finite floats (n, d)."""
    given = {"dtype": FLOATS, "order": "C", "ensure_all_finite": False, "estimator": estimator, **options}
    # `validate_data`'s order of checks: names, values, then the number of features
    recipe = getattr(estimator, "column_recipe_", None)
    if recipe is not None:  # by which X was made
        encoded: Array = validation.check_array(X, input_name="X", **given)
        require_finite(encoded, recipe.feature_names)
        return encoded
    rows = rows_of(X)
    validation._check_feature_names(estimator, rows, reset=False)
    checked: Array = validation.check_array(rows, input_name="X", **given)
    names = getattr(estimator, "feature_names_in_", None)
    if isinstance(rows, pd.DataFrame):
        names, checked = rows.columns.tolist(), checked if issparse(checked) else filled(checked, estimator)
    require_finite(checked, names if names is not None and len(names) == checked.shape[1] else None)
    validation._check_n_features(estimator, checked, reset=False)
    return checked


@input_errors()
def check_features(estimator: Any, source: Any) -> None:
    """Raise InputError if a store or lazy arrays have other features than the rows of the fit, by name or number.

    If only the fit's have names, warn as scikit-learn does of arrays: features are taken by their places.
    """
    recipe = getattr(estimator, "column_recipe_", None)
    if recipe is not None:
        if not hasattr(source, "column_recipe"):
            raise InputError(
                "X is a cube, but the model learned from a table with words, dates or gaps: predict a frame of its "
                "columns, or fit rows of numbers without gaps."
            )
        if source.column_recipe != recipe:
            other = source.column_recipe is not None
            what = "another recipe of columns than the rows of the fit" if other else "no recipe of columns"
            raise InputError(
                f"{source.name} has {what}: predict the table itself, or ingest it with columns=model.column_recipe_ "
                "(--like)."
            )
        return
    names = source.feature_names
    if hasattr(estimator, "feature_names_in_"):
        rows = np.empty((0, 0)) if names is None else pd.DataFrame(columns=list(map(str, names)))
        validation._check_feature_names(estimator, rows, reset=False)
    if source.features != estimator.n_features_in_:
        hint = " Ingest LIBSVM text with n_features (--n-features)." if isinstance(source, Store) else ""
        raise InputError(
            f"X has {source.features} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            f"features as input.{hint}"
        )
    known = getattr(estimator, "text_recipe_", None)
    own = source.text_recipe if isinstance(source, Store) else None
    if known is not None and own is not None and not np.array_equal(known.idf, own.idf):
        raise InputError(
            f"{source.name} has other weights of words than the texts of the fit: predict the texts themselves, or "
            "ingest them by the model's text_recipe_."
        )


def checked_groups(groups: Any) -> Array:
    """Return the group of every row, (n,), which may be named by anything; raise InputError if one is missing."""
    found = _held(groups, "groups")
    if found.ndim != 1:
        raise InputError(f"groups must be one for each row, or name a column of a frame. Got shape {found.shape}.")
    return found


def check_senders(shard: Any) -> tuple[Array, Array] | None:
    """Return what `distinct` finds in the senders of rows, or None; raise InputError unless each row has one."""
    if shard is None:
        return None
    labels = _held(shard, "shard")
    if labels.ndim != 1 or labels.dtype.kind not in "biufUOmM":
        raise InputError(
            f"shard must hold a label for every row: numbers, words, dates. Got shape {labels.shape} of {labels.dtype}."
        )
    values, codes = as_input_error(lambda: distinct(labels))
    require_text(values, codes, "shard")
    return values, codes


def _held(labels: Any, what: str) -> Array:
    """Return labels, which may be lazy, and are called ``what``, as an array in memory."""
    held = computed(labels)[0] if is_dask_collection(labels) else labels
    found: Array = as_input_error(lambda: labels_of(held, what))
    missing = np.flatnonzero(pd.isna(found))
    if found.ndim == 1 and len(missing):
        raise InputError(f"{what}: missing for {len(missing)} rows, first for row {missing[0]}; give one for each row.")
    return found


def require_finite(X: Any, names: Any = None, first: int = 0) -> None:
    """Raise InputError if X (n, d) is not finite, naming columns, counts and rows."""
    is_large = not issparse(X) and X.nbytes >= 8 << 20  # threads pay for themselves then
    if is_large and _parts_are_finite(X):
        return
    complaint = describe_not_finite(X, names, first)
    if complaint is not None:
        raise InputError(complaint)


def _parts_are_finite(X: Array) -> bool:
    """Return whether parts of X (n, d), summed by a thread each, have finite sums; then all its entries are finite."""

    def is_finite(part: Array) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(part.sum(dtype=np.float64)))

    return all(run_threads(is_finite, np.array_split(X, CPU_COUNT), CPU_COUNT))


def require_text(labels: Array, codes: Array, what: str) -> None:
    """Raise InputError, with the first row, if one of the different ``labels`` that ``codes`` (n,) index is no text."""
    for code, label in enumerate(labels.tolist()):
        if not is_text(label):
            raise InputError(f"{what}, row {int(np.argmax(codes == code))}: {not_text(label)}")


def require_classes(classes: Array) -> None:
    """Raise InputError unless there are two classes or more."""
    if len(classes) < 2:
        raise InputError(f"the data hold one class only, {quoted(listed(classes))}; a classifier needs two.")


def check_callbacks(callbacks: Any) -> None:
    """Raise InputError unless every callback can be called."""
    for i, callback in enumerate(callbacks or ()):
        if not callable(callback):
            raise InputError(f"callbacks must be callables that take an event. Got {callback!r} at index {i} instead.")


def class_weights(given: Any, classes: Array, totals: Array) -> tuple[float, ...]:
    """Return the factor for the weights of each class's rows, 0 if these have no weight.

    Of two classes, the negative one is first. ``given`` is a dict, "balanced" or None; ``totals`` (k,) are the sums of
    row weights per class. Raises InputError for a weight that is not a finite number ≥ 0, an unknown class, fewer than
    two classes with weight, or weights that are all too small.
    """
    if not totals.any():
        raise InputError("all row weights are zero; nothing is left to learn from.")
    if given == "balanced":
        present = np.count_nonzero(totals)
        weights = np.where(totals > 0, totals.sum() / (present * np.maximum(totals, LEAST_WEIGHT)), 0.0).tolist()
    else:
        weights = _given_weights({plain_item(each): w for each, w in (given or {}).items()}, listed(classes))
    left = totals * weights
    if not left.any():
        raise InputError("all row weights are zero, given class_weight; nothing is left to learn from.")
    if np.count_nonzero(left) < 2:
        raise InputError(
            f"all rows with a positive weight are of one class, {quoted(listed(classes[left > 0])[0])}; a classifier "
            "needs two."
        )
    _require_weight(left[left > 0])
    return tuple(weight if share else 0.0 for weight, share in zip(weights, left.tolist(), strict=True))


def _require_weight(totals: Array) -> None:
    if totals.min() < max(LEAST_WEIGHT, LEAST_SHARE * totals.max()):
        raise InputError(
            f"the row weights are too small, or those of classes too uneven, with sums from {totals.min():.1e} to "
            f"{totals.max():.1e}: multiply them all by a power of ten, or leave a class out by weights of 0."
        )


def _given_weights(given: dict[Any, Any], classes: list[Any]) -> list[float]:
    for label, weight in given.items():
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise InputError(
                f"class_weight must be finite and not negative numbers. Got {weight!r} for {quoted(label)}."
            )
    unknown = [label for label in given if label not in classes]
    if unknown and not all(label in given for label in classes):  # as scikit-learn has it
        raise InputError(f"class_weight names {quoted(unknown[0])}, which is not among the classes {quoted(classes)}.")
    return [float(given.get(label, 1.0)) for label in classes]


def require_finite_values(model: Model) -> None:
    """Raise InputError if rows as large as the training rows overflow the kernel in their dtype."""
    if not isinstance(model, KernelModel):
        return
    support = model.raw_support
    size = row_norms(support, squared=True)
    rows = support[np.sort(np.argsort(size)[-64:])]  # the largest
    with np.errstate(over="ignore", invalid="ignore"):
        finite = rows.shape[0] == 0 or model.are_finite(rows)
    if not finite:
        raise InputError(
            f"the kernel of rows as large as {abs(rows).max():.1e} overflows {support.dtype}: rescale the rows "
            "(scale='minmax'), or choose a smaller gamma."
        )
