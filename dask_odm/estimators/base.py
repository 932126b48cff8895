"""What all classifiers share: prediction on anything, scores, saving and loading."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from dask.base import compute
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from pandas import isna
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from dask_odm.data.store.records import read_record, write_record
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import active_client
from dask_odm.errors import InputError, StoreError
from dask_odm.estimators.inputs.checks import as_input_error, check_rows
from dask_odm.estimators.inputs.frames import labels_of
from dask_odm.estimators.inputs.kinds import Features, Given, LazyArrays, Resolved, is_xarray
from dask_odm.estimators.inputs.resolving import resolve
from dask_odm.kernels.threads import run_threads, single_threaded_blas
from dask_odm.strategies.predict import (
    ModelFile,
    Predictor,
    count_chunk,
    decide_chunk,
    decide_rows,
    finite_decisions,
    label_block,
    predictor_from,
)
from dask_odm.typing import Array

EMBEDDED_BYTES = 8 << 20  # larger models go to workers by path
_CLASSES: dict[str, type[PredictingClassifier]] = {}
_HOMES = {
    "ODMClassifier": "dask_odm.estimators.odm.odm_classifier"
}  # where `load_model` finds what was not imported yet


@dataclass(frozen=True, eq=False)
class Schema:
    """What rows and labels a model is of: ``classes`` (2,), names of the features or None, and of their dimension."""

    classes: Array
    n_features: int
    feature_names: Sequence[str] | Array | None = None
    feature_dimension: str | None = None


class PredictingClassifier(ClassifierMixin, BaseEstimator):
    """A fitted binary classifier around a `Predictor`; children add `fit`.

    Children call `_take` and `_adopt` once nothing can fail any more, and list what else is saved in ``_saved``.
    """

    _saved: ClassVar[tuple[str, ...]] = ()
    _predictor: Predictor
    _file: ModelFile | None
    _token: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _CLASSES[cls.__name__] = cls

    def decision_function(self, X: Any) -> Any:
        """Signed distance-like score of every row; positive means ``classes_[1]``.

        Parameters
        ----------
        X : rows of shape (n, d)
            Raw, in any form that `fit` takes. The dimension of an xarray X that runs along the features is the one
            with the coordinates ``feature_names_in_``, else the one of the name it had in `fit`, else the one beside
            "sample", else "feature", else the only one of ``n_features_in_`` entries.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,)
            A DataArray named "decision_function" with the coordinates of the rows for an xarray object, else an
            ndarray for rows in memory and a dask array for all else. Lazy, block by block, for all but rows in
            memory; nothing is computed before it is asked for.

        Raises
        ------
        InputError
            Rows with another number of features, with NaN or infinity, or too large for the kernel in their dtype;
            an xarray X of which nothing tells which dimension is that of the features.
        """
        check_is_fitted(self)
        return self._like(X, self._scores(self._resolve(X)), "decision_function")

    def predict(self, X: Any) -> Any:
        """Class label of every row; takes and returns what `decision_function` does. A DataArray is named "y"."""
        check_is_fitted(self)
        return self._like(X, self._labels(self._resolve(X)), "y")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean accuracy on rows and labels, or on a Dataset or store that holds both; rows without label do not count.

        Raises
        ------
        InputError
            As `decision_function` does; no labels, or labels or weights of other lengths.
        """
        check_is_fitted(self)
        source = resolve(X, y, sample_weight, features=self._features())
        right, total = self._count_right(source)
        if not math.isfinite(right + total):
            raise InputError("sample_weight must be finite and not negative.")
        if not total:
            raise InputError("score needs labels, but no row has a label and a positive weight.")
        return right / total

    def _resolve(self, X: Any) -> Resolved:
        return resolve(X, features=self._features(), lengths=False)

    def _features(self) -> Features:
        names, dimension = getattr(self, "feature_names_in_", None), getattr(self, "_feature_dimension", None)
        return Features(self.n_features_in_, names, dimension)

    def _like(self, X: Any, values: Any, name: str) -> Any:
        if not is_xarray(X):
            return values
        from dask_odm.estimators.inputs.labelled import like

        return like(X, values, name, self._features())

    def _scores(self, source: Resolved) -> Any:
        """Decision values, (n,): an ndarray of rows in memory, else a dask array."""
        if isinstance(source, Given):
            return finite_decisions(self._predictor.decision(check_rows(self, source.X, **self._reading()), CPU_COUNT))
        self._check_features(source)
        return self._lazy_store(source) if isinstance(source, Store) else self._lazy_arrays(source)

    def _labels(self, source: Resolved) -> Any:
        scores = self._scores(source)
        if isinstance(scores, np.ndarray):
            return label_block(scores, self.classes_)
        return _map(label_block, scores, self.classes_.dtype, self.classes_)

    def _count_right(self, source: Resolved) -> tuple[float, float]:
        """Weight of the rows that are predicted right, and of all with a label."""
        if isinstance(source, Store) and source.has_y and active_client() is None:
            self._check_features(source)
            model, each = self._predictor, max(1, CPU_COUNT // source.n_chunks)
            with single_threaded_blas:
                counts = run_threads(
                    lambda i: count_chunk(model, source, i, self.classes_, each), range(source.n_chunks), CPU_COUNT
                )
            return math.fsum(right for right, _ in counts), math.fsum(total for _, total in counts)
        if isinstance(source, Store):
            from dask_odm.data.store.interchange import to_dataset

            dataset = to_dataset(source)
            y, weight = (dataset[name].data if name in dataset else None for name in ("y", "weight"))
        else:
            y, weight = source.y, source.weight
        if y is None:
            raise InputError("score needs labels, but there are none; pass y.")
        if isinstance(source, Given):
            predicted = self._labels(source)
            right, total = as_input_error(lambda: _count_in_memory(predicted, y, weight))
            return right, total
        known = (y == y) if y.dtype.kind == "f" else y != np.array(None)  # rows without a label do not count
        import dask.array as da

        counted = known if weight is None else da.where(known, weight, 0.0)
        right, total = compute(da.where(self._labels(source) == y, counted, 0.0).sum(), counted.sum())
        return float(right), float(total)

    def _check_features(self, source: Store | LazyArrays) -> None:
        features = source.features if isinstance(source, Store) else source.X.shape[1]
        if features != self.n_features_in_:
            hint = " Ingest LIBSVM text with n_features (--n-features)." if isinstance(source, Store) else ""
            raise InputError(
                f"X has {features} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                f"as input.{hint}"
            )
        names, fitted = source.feature_names, getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and list(map(str, names)) != list(map(str, fitted)):
            raise InputError(
                "The feature names should match those that were passed during fit, in the same order. "
                f"Expected {list(fitted[:5])} …, got {list(names[:5])} …."
            )

    def _lazy_store(self, store: Store) -> Any:
        import dask.array as da

        model = self._for_tasks()
        name = f"decision_function-{store.token}-{self._token}"
        tasks: dict[Any, Any] = {(name, i): (decide_chunk, f"{name}-model", store, i) for i in range(store.n_chunks)}
        tasks[f"{name}-model"] = model
        sizes = tuple((s := store.chunk_slice(i)).stop - s.start for i in range(store.n_chunks))
        return da.Array(tasks, name, (sizes,), meta=np.empty(0, store.dtype))

    def _lazy_arrays(self, arrays: LazyArrays) -> Any:
        import dask.array as da

        model = self._for_tasks()
        if arrays.X.dtype.kind not in "biuf":
            raise InputError(f"X must be numbers. Got dtype {arrays.X.dtype} instead.")
        dtype = arrays.X.dtype if arrays.X.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        rows = arrays.X.astype(dtype)
        name = f"decision_function-{rows.name}-{self._token}"
        tasks: dict[Any, Any] = {
            (name, i): (decide_rows, f"{name}-model", (rows.name, i, 0)) for i in range(rows.numblocks[0])
        }
        tasks[f"{name}-model"] = model
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=[rows])
        return da.Array(graph, name, (rows.chunks[0],), meta=np.empty(0, dtype))

    def _for_tasks(self) -> Predictor | ModelFile:
        """The model as tasks carry it: itself if small or in this process, else the path of its file."""
        predictor = self._predictor
        n, d = predictor.support.shape
        if n * d * predictor.support.dtype.itemsize <= EMBEDDED_BYTES or active_client() is None:
            return predictor
        if self._file is None or not self._file.is_current():
            folder = tempfile.mkdtemp(prefix="dask-odm-model-", dir=getattr(self, "scratch", None))
            path = os.path.join(folder, "model.zarr")
            self.save(path)
            self._file = ModelFile.of(read_record(path, "model"))
            # tasks that were submitted may outlive this estimator and every lazy array
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return self._file

    def _take(self, schema: Schema) -> None:
        """Set the attributes that scikit-learn knows of every classifier."""
        self.classes_, self.n_features_in_ = schema.classes, schema.n_features
        self._feature_dimension = schema.feature_dimension
        if schema.feature_names is not None:
            self.feature_names_in_ = np.array(schema.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _adopt(self, predictor: Predictor, file: ModelFile | None = None) -> None:
        """Take on a newly fitted or loaded model."""
        self._predictor, self._file, self._token = predictor, file, uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        return {name: None if name == "_file" else value for name, value in super().__getstate__().items()}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as zarr and JSON, aside and renamed into place; `dask_odm.load_model` reads it.

        Raises
        ------
        InputError
            The output exists and ``overwrite`` is False.
        StoreError
            The disk is full or the folder cannot be written; nothing is left of the attempt.
        """
        check_is_fitted(self)
        attributes = {
            "estimator": type(self).__name__,
            "kernel": self._predictor.kernel.parameters(),
            "parameters": {k: _encode(v) for k, v in self.get_params(deep=False).items() if _is_plain(v)},
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
            "fitted": {name: _encode(getattr(self, name)) for name in self._saved if hasattr(self, name)},
        }
        if hasattr(self, "feature_names_in_"):
            attributes["feature_names"] = list(self.feature_names_in_)
        dimension = self._features().dimension
        if dimension is not None:
            attributes["feature_dimension"] = dimension
        arrays = {**self._predictor.arrays(), **self._saved_arrays()}
        write_record(path, "model", arrays, attributes, overwrite=overwrite)

    def _saved_arrays(self) -> dict[str, Array]:
        return {}

    def _reading(self) -> dict[str, Any]:
        """Options of scikit-learn's validation of rows in memory."""
        return {}

    def _restore(self, arrays: Callable[[str], Array]) -> None:
        """Set the fitted attributes that follow from the predictor, and from ``arrays`` of a saved model."""
        raise NotImplementedError


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read a model that an estimator of this package saved.

    Raises
    ------
    StoreError
        Not a model, unfinished, damaged, of another format version or of an estimator not known here.
    """
    record = read_record(path, "model")
    attributes = record.attributes
    name = str(attributes.get("estimator"))
    if name in _HOMES:
        import_module(_HOMES[name])
    cls = _CLASSES.get(name)
    if cls is None:
        raise StoreError(f"model '{record.path}' is of an estimator that this dask_odm does not know; upgrade it.")
    try:
        model: Any = cls(**_decode(attributes["parameters"]))
        classes = np.array(attributes["classes"], dtype=np.dtype(attributes["classes_dtype"]))
        named = attributes.get("feature_names"), attributes.get("feature_dimension")
        model._take(Schema(classes, record.arrays["shift"].shape[0], *named))
        for name, value in attributes["fitted"].items():
            setattr(model, name, _decode(value))
        model._adopt(predictor_from(record), ModelFile.of(record))
        model._restore(record.array)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"model '{record.path}' is incomplete ({error}); restore this file or fit again.") from error
    return model


def _count_in_memory(predicted: Array, y: Any, weight: Any) -> tuple[float, float]:
    y = column_or_1d(labels_of(y), warn=True)
    weight = np.ones(len(predicted)) if weight is None else np.asarray(weight, dtype=np.float64)
    if y.shape != predicted.shape or weight.shape != predicted.shape:
        raise InputError(f"y and sample_weight must have shape {predicted.shape}, as X has rows.")
    counted = np.where(isna(y), 0.0, weight)
    return float(counted[predicted == y].sum()), float(counted.sum())


def _map(function: Callable[..., Array], array: Any, dtype: Any, *arguments: Any) -> Any:
    """``function`` on every block of a 1-d dask array by plain tasks, which import nothing on workers."""
    import dask.array as da

    name = f"{function.__name__}-{array.name}"
    tasks: dict[Any, Any] = {(name, i): (function, (array.name, i), *arguments) for i in range(array.numblocks[0])}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[array])
    return da.Array(graph, name, array.chunks, meta=np.empty(0, dtype))


def _is_plain(value: Any) -> bool:
    """Whether a parameter is part of what is saved: not callbacks, and not a generator of random numbers."""
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return value is None or isinstance(value, bool | int | float | str | np.generic | os.PathLike)


def _encode(value: Any) -> Any:
    """JSON, in which a dict is a list of pairs (its keys may be numbers) and NaN and infinity are strings."""
    if isinstance(value, dict):
        return {"pairs": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        return float(value["float"])
    if set(value) == {"pairs"}:
        return {_decode(k): _decode(v) for k, v in value["pairs"]}
    return {k: _decode(v) for k, v in value.items()}
