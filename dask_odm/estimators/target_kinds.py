"""Kinds of targets that an estimator learns: classes, real values, or none beside the rows themselves.

Each kind checks training rows, makes the training data of a fit, and shapes the fitted attributes of a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import _check_y, column_or_1d

from dask_odm.data.rows.targets import ManyClasses, OneClass, RealValues, TwoClasses
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.inputs import checks
from dask_odm.estimators.inputs.resolved import Given
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.linalg.jit import frozen
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.models.model import Model
from dask_odm.typing import Array

INSIDE = (-1, 1)  # what `predict` says of outliers and of rows that resemble the training rows


@dataclass(frozen=True)
class TargetKind(ABC):
    """Kind of targets of an estimator."""

    name: ClassVar[str]  # of y in a store: "classes" or "real"
    needs_labels: ClassVar[bool] = True  # whether y is learned from
    several: bool = False  # whether y may have several columns

    @abstractmethod
    def checked(self, estimator: Any, given: Given) -> checks.CheckedRows:
        """Check training rows in memory, and return them."""

    def in_memory(self, run: FitRun, rows: checks.CheckedRows) -> MemoryData:
        """Return the training data of checked rows in memory."""
        return MemoryData.of(run, rows.X, rows.y, rows.weight, rows.factors, of_labels=rows.of_labels)

    @abstractmethod
    def stored(self, estimator: Any, run: FitRun, store: Store) -> StoredData:
        """Return the training data of a store; raise InputError if the estimator cannot learn from it."""

    def require_few_targets(self, store: Store) -> None:
        """Raise InputError if a store has several targets of a row, but the estimator learns one."""
        if store.targets and not self.several:
            raise InputError(
                f"{store.name} holds {store.targets} targets of each row, and this estimator learns one: ingest the "
                "data again with one of them as label (--label), or take ODMRegressor, or ODMClassifier for labels."
            )

    def labels(self, store: Store) -> Array | None:
        """Return the labels of the classes that a store tells apart; None for real targets."""
        return None if store.facts.classes is None else np.array(store.facts.classes)

    def attributes(self, model: Model) -> dict[str, Any]:
        """Return the fitted attributes that a model itself has.

        They are copies, so that writing into them changes no prediction. Coefficients of several machines may be large,
        and are read-only instead.
        """
        if isinstance(model, LinearModel):
            return {"coef_": model.weights.copy(), "intercept_": model.intercept.copy()}
        if isinstance(model, KernelModel):
            held = model.coefficients
            return {"dual_coef_": frozen(held) if len(held) > 1 else held.copy(), "intercept_": model.intercept.copy()}
        return {}


class Classes(TargetKind):
    """Labels of any type, of two classes or more, with the weights of classes, or for ``several`` a 0/1 matrix."""

    name = "classes"

    @checks.input_errors()
    def checked(self, estimator: Any, given: Given) -> checks.CheckedRows:
        of_classes = getattr(estimator, "class_weight", None)
        if self.several and checks.has_columns(given.y):
            X, y, weight, names = checks.validated(estimator, given, checks.label_matrix(given.y), multi_output=True)
            totals = np.stack([weight @ (y == sign) for sign in (-1.0, 1.0)], axis=1)
            of_labels = checks.label_weights(of_classes, totals)
            return checks.CheckedRows(X, y, weight, names, np.arange(y.shape[1]), of_labels=of_labels)
        X, y, weight, names = checks.validated(estimator, given, given.y)
        numbers = y.ndim == 1 and y.dtype.kind in "biu"
        classes, codes = checks.distinct(y) if numbers else (None, None)
        if classes is None or 2 * len(classes) > len(y):  # whole numbers that repeat are labels
            checks.require_labels_of_classes(y)
            classes, codes = np.unique(y, return_inverse=True)
        assert codes is not None
        checks.require_text(classes, codes, "y")
        checks.require_classes(classes)
        totals = np.bincount(codes, weight, minlength=len(classes))
        factors = checks.class_weights(of_classes, classes, totals)
        return checks.CheckedRows(X, y, weight, names, classes, codes).with_weight(factors)

    def in_memory(self, run: FitRun, rows: checks.CheckedRows) -> MemoryData:
        if rows.codes is None:
            return super().in_memory(run, rows)
        y = np.where(rows.codes == 1, 1.0, -1.0) if len(rows.factors) == 2 else rows.codes.astype(np.float64)
        return super().in_memory(run, replace(rows, y=y))

    def stored(self, estimator: Any, run: FitRun, store: Store) -> StoredData:
        if getattr(estimator, "kernel", None) == "precomputed":
            KernelChoice.of(estimator).require_named("a store")
        self.require_few_targets(store)
        given = getattr(estimator, "class_weight", None)
        if store.targets:
            if not store.facts.labels:
                raise InputError(checks.NOT_LABELS)
            totals = [store.of_target(i, as_label=True).class_weights_total() for i in range(store.targets)]
            of_labels = checks.label_weights(given, np.array(totals))
            return StoredData(run, store, RealValues(0.5, 0.5), of_labels=of_labels)  # -1 and 1
        store.require_classes()
        classes = np.array(store.facts.classes)
        checks.require_classes(classes)
        factors = checks.class_weights(given, classes, store.class_weights_total())
        weights = tuple(factor for factor in factors if factor > 0)
        targets = TwoClasses(weights) if len(weights) == 2 else ManyClasses(weights)
        return StoredData(run, store.of_classes(np.flatnonzero(factors)), targets)

    def labels(self, store: Store) -> Array | None:
        return np.arange(store.targets) if store.targets else super().labels(store)


class RealTargets(TargetKind):
    """Real values, one for each row, or for ``several`` a number of them."""

    name = "real"

    @checks.input_errors()
    def checked(self, estimator: Any, given: Given) -> checks.CheckedRows:
        X, y, weight, names = checks.validated(estimator, given, given.y, multi_output=self.several)
        if y.dtype.kind not in "biuf":
            raise InputError(f"y must be numbers, the targets of a regression. Got labels of type {y.dtype}.")
        if y.ndim != 2 or y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        # copied to be writable and contiguous, since loops would be compiled again for other arrays
        targets = _check_y(y, multi_output=self.several, y_numeric=True).astype(np.float64)
        return checks.CheckedRows(X, targets, weight, names)

    def stored(self, estimator: Any, run: FitRun, store: Store) -> StoredData:
        self.require_few_targets(store)
        store.require_targets("a regression")
        return StoredData(run, store, RealValues())

    def attributes(self, model: Model) -> dict[str, Any]:
        """Return attributes in scikit-learn's shapes: for one target, a 1-D `coef_` and a float `intercept_`."""
        found = super().attributes(model)
        if model.spread:
            found = {name: value[:1] for name, value in found.items()}
        if "dual_coef_" in found:
            found["dual_coef_"] = np.ascontiguousarray(found["dual_coef_"].T)
        if model.outputs > 1:
            return found
        shaped = {name: value.reshape(-1) for name, value in found.items()}
        if len(shaped.get("intercept_", ())) == 1:  # cells have one each
            shaped["intercept_"] = float(shaped["intercept_"][0])
        return shaped


class NormalRows(TargetKind):
    """Rows without labels, which all are inside."""

    name = "classes"
    needs_labels = False

    @checks.input_errors()
    def checked(self, estimator: Any, given: Given) -> checks.CheckedRows:
        X, _, weight, names = checks.validated(estimator, given, None)
        ones = np.ones(X.shape[0])
        return checks.CheckedRows(X, ones, weight, names, np.array(INSIDE), ones.astype(np.int32), factors=(1.0, 1.0))

    def stored(self, estimator: Any, run: FitRun, store: Store) -> StoredData:
        return StoredData(run, store, OneClass())

    def labels(self, store: Store) -> Array:
        return np.array(INSIDE)
