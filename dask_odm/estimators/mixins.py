"""Mixins of estimators: classifiers with labels and scores, and regressors with real targets."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_consistent_length, column_or_1d

from dask_odm.data.cubes.blocks import AnswerFormat
from dask_odm.data.readers.labels import labels_of
from dask_odm.data.store.statistics import listed
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed
from dask_odm.engine.passes import StorePasses
from dask_odm.errors import InputError
from dask_odm.estimators.base import StoreEstimator
from dask_odm.estimators.inputs.checks import as_input_error, check_features, input_errors, label_matrix
from dask_odm.estimators.inputs.frames import real_targets, weights_of
from dask_odm.estimators.inputs.resolved import Given, Resolved, StoredRows
from dask_odm.estimators.inputs.resolving import kind_of
from dask_odm.estimators.prediction import map_blocks
from dask_odm.estimators.target_kinds import Classes, RealTargets, TargetKind
from dask_odm.methods.left_out import is_right
from dask_odm.models.classes import RightCount, codes_of, count_block, count_right, require_common
from dask_odm.models.predict import ScoreQuery, label_block, labels_block
from dask_odm.printing import quoted
from dask_odm.typing import Array


class StoreClassifier(ClassifierMixin, StoreEstimator):
    """Mixin of classifiers: labels of any type, scores, accuracy.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    """

    _targets: ClassVar[TargetKind] = Classes()

    @property
    def _has_labels(self) -> bool:
        """Whether a row may have several labels, as the columns of a 0/1 matrix."""
        return getattr(self, "multilabel_", False)

    def _refuse_labels(self, what: str) -> None:
        """Raise InputError if rows may have several labels: ``what`` is for one."""
        if self._has_labels:
            raise InputError(f"{what} is for one label a row, and y had several columns: fit a model for each.")

    def decision_function(self, X: Any) -> Any:
        """Return a score of every row, like a signed distance; for two classes, positive means ``classes_[1]``.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            Rows before scaling, in any form that `fit` takes.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,), or (n, n_classes) of more than two
            For an xarray object, a DataArray with the coordinates of the rows, and a dimension "class" for more than
            two classes. For rows in memory, an ndarray. For anything else, a lazy dask array. For a cube, a DataArray
            over its row dimensions, lazy if the cube is lazy, and NaN for rows that miss a feature.

        Raises
        ------
        InputError
            Rows with another number of features, with NaN or infinity, or with values too large for the kernel in their
            dtype; an xarray X whose feature dimension is not clear.
        """
        return self._answered(X, "decision_function")

    def predict(self, X: Any, *, decode: bool | None = None) -> Any:
        """Return the class label of every row, in the form of `decision_function`.

        A DataArray is named "y", and a map of a cube "prediction".

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            As `decision_function` takes them.
        decode : bool or None, default=None
            For a cube, return labels instead of codes, and NaN or None for rows that miss a feature. None: of a cube
            whose rows have one dimension, as a table's, unless labels are their own codes.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,)
            For a cube, a DataArray over its row dimensions. It has codes, which are small whole numbers, and the
            attributes ``flag_values`` and ``flag_meanings`` of the CF conventions. Rows that miss a feature have its
            ``_FillValue``. Labels that are small whole numbers are their own codes, with the ``flag_meanings`` that
            they had in `fit`. Other labels are numbered in the order of ``classes_``.
        """
        cube = self._cube_to_predict(X)
        if cube is not None:
            return self._map_of_classes(cube, decode)
        labels = self._labels(self._resolve(X))
        return kind_of(X, None, self).like(X, labels, "y", self, self.classes_ if self._has_labels else None)

    def _map_of_classes(self, cube: Any, decode: bool | None) -> Any:
        """Return the predicted classes of a cube, as codes or as they are."""
        from dask_odm.data.cubes.codes import decoded

        if self._has_labels:
            format_ = AnswerFormat(np.dtype(np.int8), -1, len(self.classes_))
            then = partial(labels_block, dtype=np.int8)
            return self._mapped(cube, format_, "prediction", then, self._class_coordinate)
        codes = self._codes
        if decode or (decode is None and len(cube.dimensions) == 1 and not np.array_equal(codes.values, self.classes_)):
            codes = None
        values, fill = decoded(self.classes_) if codes is None else (codes.values, codes.fill)
        then = partial(label_block, classes=values)
        found = self._mapped(cube, AnswerFormat(values.dtype, fill), "prediction", then)
        return found if codes is None else found.assign_attrs(codes.attributes)

    @property
    def _codes(self) -> Any:
        """Codes of the classes in a map, with the meanings that labels had in `fit`."""
        from dask_odm.data.cubes.codes import ClassCodes

        words = {} if self._schema.cube is None else self._schema.cube.words
        return ClassCodes.of(np.array(listed(self.classes_)), words)

    @property
    def _class_coordinate(self) -> tuple[str, Array, dict[str, Any]]:
        """Coordinate "class" of a map, with the meanings of classes that are their own codes."""
        classes = self.classes_
        codes = self._codes
        if classes.dtype.kind not in "iuf" or (classes != codes.values).any():
            return "class", classes, {}
        return "class", classes, {"flag_values": classes, "flag_meanings": " ".join(codes.meanings)}

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean accuracy on rows and labels, or on a Dataset or store with both.

        Rows without label do not count.

        Parameters
        ----------
        X : rows of shape (n, d), or a Dataset, store or cube
            As `fit` takes them.
        y : labels, or None
            None if X has its own.
        sample_weight : weights of rows, or None
            As `fit` takes them. None: those of a store, or 1.

        Raises
        ------
        InputError
            As `decision_function` does; no labels, or labels or weights of other lengths.
        """
        if self._has_labels:
            values, codes, weight = self._values_of_labelled(X, y, sample_weight)
            return float(np.average(is_right(values, codes), weights=weight))
        resolved = self._resolve(X, y, sample_weight)
        if isinstance(resolved, StoredRows) and resolved.source.y_kind is not None:
            right, total = self._count_store(resolved.source)
        else:
            found = sum(map(self._count_part, resolved.parts()), RightCount(0.0, 0.0, False, ()))
            if not found.matched:
                require_common(found.others, listed(self.classes_), "y")
            right, total = found.right, found.total
        if not math.isfinite(right + total):
            raise InputError("sample_weight must be finite and not negative.")
        if not total:
            raise InputError("score needs labels, but no row has a label and a positive weight.")
        return right / total

    def _values_of_labelled(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
        """Return decision values, codes of classes (n,) and weights (n,) of the rows whose label the model has.

        Of several labels of a row, codes (n, labels) say whether it has each.
        """
        classes = listed(self.classes_)
        resolved = self._resolve(X, y, sample_weight)
        values, labels, weight = self._beside_targets(resolved)
        if labels is None:
            raise InputError("labels are needed, but there are none; pass y.")
        if self._has_labels:
            of_store = isinstance(resolved, StoredRows) and labels.ndim == 2  # where some may be unknown
            codes = np.nan_to_num(labels, nan=-1) if of_store else label_matrix(labels) > 0
            codes = codes.astype(np.int64)
        else:
            resolved.require("classes", "calibrate")
            codes = resolved.codes(labels, classes)
        shape = values.shape if self._has_labels else (len(values),)
        if codes.shape != shape:
            raise InputError(f"y must have shape {shape}, as X has rows.")
        given = np.ones(len(codes)) if weight is None else weight
        counted: Array = as_input_error(lambda: np.asarray(weights_of(given), dtype=np.float64))
        if counted.shape != codes.shape[:1] or not np.isfinite(counted).all() or (counted < 0).any():
            raise InputError(f"sample_weight must be {len(codes)} finite numbers, none of them negative.")
        rows = np.flatnonzero((codes.reshape(len(codes), -1) >= 0).all(axis=1) & (counted > 0))
        if not len(rows):
            raise InputError(f"no row with a weight has a label of the model's, {quoted(classes)}.")
        return values[rows], codes[rows], counted[rows]

    def _labels(self, resolved: Resolved, classes: Array | None = None) -> Any:
        """Return the predicted class of every row; ``classes`` may give the classes other names."""
        names = self.classes_ if classes is None else classes
        scores = self._values(resolved, for_labels=True)
        if self._has_labels:
            return map_blocks("label", labels_block, scores, np.int64, len(names))
        return map_blocks("label", partial(label_block, classes=names), scores, names.dtype)

    def _count_part(self, resolved: Resolved) -> RightCount:
        """Return what `count_right` does of one part of the rows, whose predictions can be had at once."""
        y, weight = resolved.y, resolved.weight
        if y is None:
            raise InputError("score needs labels, but there are none; pass y.")
        predicted = self._labels(resolved, np.arange(len(self.classes_)))
        classes = listed(self.classes_)
        if isinstance(resolved, Given):
            with input_errors():
                y = column_or_1d(labels_of(y), warn=True)
                weight = None if weight is None else np.asarray(weights_of(weight), dtype=np.float64)
                if y.shape != predicted.shape or (weight is not None and weight.shape != predicted.shape):
                    raise InputError(f"y and sample_weight must have shape {predicted.shape}, as X has rows.")
                return count_right(classes, predicted, y, weight)
        counts = predicted.map_blocks(
            count_block, *[each for each in (y, weight) if each is not None], classes=classes, chunks=(1,),
            dtype=object, meta=np.empty(0, object), token="score",
        )  # fmt: skip
        return reduce(add, computed(counts)[0])

    def _count_store(self, store: Store) -> tuple[float, float]:
        """Return the weight of the rows of a store that are predicted right, and of all with a label."""
        check_features(self, store)
        store.require_classes("score")
        classes = listed(self.classes_)
        require_common(store.classes or (), classes, store.name)
        query = ScoreQuery(self._for_tasks(), store, np.array([*codes_of(store.classes or (), classes), -1]))
        cluster = Cluster.present()
        _, threads = cluster.share(store.n_chunks)
        right, total = StorePasses(store, cluster).run(query, ScoreQuery.score, threads).tolist()
        return right, total


class StoreRegressor(RegressorMixin, StoreEstimator):
    """Mixin of regressors: real targets, R²."""

    _targets: ClassVar[RealTargets] = RealTargets()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._targets.several
        return tags

    def predict(self, X: Any) -> Any:
        """Return the predicted value of every row, (n,), or (n, targets) for several targets.

        The result has the form of the rows: a NumPy array for rows in memory, a DataArray named "y" for xarray, a lazy
        dask array for a store or dask rows, and a map named "prediction" for a cube. Its dtype is that of the rows, or
        float64 if `ODMRegressor` learned targets a thousand deviations from zero.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            In memory or lazy, or a store by path or open.
        """
        return self._answered(X, "y", of_map="prediction")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of the targets that the model explains.

        For several targets, return the mean of their R².

        Parameters
        ----------
        X : rows of shape (n, d), or a Dataset, store or cube
            As `fit` takes them.
        y : targets, or None
            None if X has its own.
        sample_weight : weights of rows, or None
            As `fit` takes them. None: those of a store, or 1.

        Raises
        ------
        InputError
            As `predict` does; no targets, or targets or weights of other lengths.
        """
        from sklearn.metrics import r2_score  # imported here, since it takes long to load

        predicted, targets, weight = self._values_of_labelled(X, y, sample_weight)
        return float(as_input_error(lambda: r2_score(targets, predicted, sample_weight=weight)))

    def _values_of_labelled(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array | None]:
        """Return predictions, targets and weights, if there are any, of the rows that have a target."""
        resolved = self._resolve(X, y, sample_weight)
        resolved.require("real", "score")
        predicted, y, weight = self._beside_targets(resolved)
        if y is None:
            raise InputError("score needs targets, but there are none; pass y.")
        values: Array = as_input_error(lambda: real_targets(y))
        if predicted.ndim == 1:
            values = as_input_error(lambda: column_or_1d(values, warn=True))
        with input_errors():
            weights = None if weight is None else np.asarray(weights_of(weight), dtype=np.float64)
        as_input_error(lambda: check_consistent_length(predicted, values, weights))
        known = ~np.isnan(values.reshape(len(values), -1)).any(axis=1)  # rows without a target do not count
        return predicted[known], values[known], None if weights is None else weights[known]
