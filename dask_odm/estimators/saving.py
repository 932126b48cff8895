"""Fitted estimators to files and back: the model, parameters and fitted attributes, as zarr and JSON, never pickle."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from dask_odm.data.store.records import Record, read_record, write_record
from dask_odm.errors import StoreError
from dask_odm.estimators.fitting.schema import Schema
from dask_odm.estimators.registry import ESTIMATORS
from dask_odm.models.saved import ModelFile, model_from


def save_estimator(estimator: Any, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write a fitted estimator as a record of kind ``model``.

    Raises
    ------
    InputError, StoreError
        As `dask_odm.data.store.records.write_record`.
    """
    model = estimator._model
    fitted = {name: getattr(estimator, name) for name in estimator._saved if name in vars(estimator)}
    arrays = {name: value for name, value in fitted.items() if isinstance(value, np.ndarray)}
    attributes = {
        "estimator": type(estimator).__name__,
        "model": model.description(),
        "parameters": {k: encode(v) for k, v in estimator.get_params(deep=False).items() if _is_plain(v)},
        "schema": _schema(estimator),
        "fitted": {name: encode(value) for name, value in fitted.items() if name not in arrays},
    }
    write_record(path, "model", {**model.arrays(), **arrays}, attributes, overwrite=overwrite)


def _schema(estimator: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"n_features": int(estimator.n_features_in_)}
    if hasattr(estimator, "classes_"):
        schema |= {"classes": estimator.classes_.tolist(), "classes_dtype": estimator.classes_.dtype.str}
    if hasattr(estimator, "feature_names_in_"):
        schema["feature_names"] = list(estimator.feature_names_in_)
    if estimator._feature_dimension is not None:
        schema["feature_dimension"] = estimator._feature_dimension
    return schema


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read a model that an estimator of this package saved.

    Raises
    ------
    StoreError
        Not a model, unfinished, damaged, of another format version or of an estimator not known here.
    """
    record = read_record(path, "model")
    entry = ESTIMATORS.get(str(record.attributes.get("estimator")))
    if entry is None:
        raise StoreError(f"model '{record.path}' is of an estimator that this dask_odm does not know; upgrade it.")
    model = model_from(record)
    try:
        return _restored(entry.load(), record, model)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"model '{record.path}' is incomplete ({error}); restore this file or fit again.") from error


def _restored(cls: Any, record: Record, model: Any) -> Any:
    """The estimator of a record, fitted."""
    attributes, schema = record.attributes, record.attributes["schema"]
    estimator: Any = cls(**decode(attributes["parameters"]))
    if schema["n_features"] != model.features:
        raise ValueError(f"{schema['n_features']} features, but a model of {model.features}")
    classes = None
    if "classes" in schema:
        classes = np.array(schema["classes"], dtype=np.dtype(schema["classes_dtype"]))
    names = schema.get("feature_names"), schema.get("feature_dimension")
    estimator._take(Schema(schema["n_features"], *names, classes=classes))
    fitted = {name: decode(attributes["fitted"][name]) for name in cls._saved if name in attributes["fitted"]}
    arrays = {name: record.array(name) for name in cls._saved if name in record.arrays}
    estimator._show(model, fitted | arrays)
    estimator._adopt(model, ModelFile.of(record))
    return estimator


def _is_plain(value: Any) -> bool:
    """Whether a parameter is part of what is saved: not callbacks, and not a generator of random numbers."""
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return value is None or isinstance(value, bool | int | float | str | np.generic | os.PathLike)


def encode(value: Any) -> Any:
    """JSON, in which a dict is a list of pairs (its keys may be numbers) and NaN and infinity are strings."""
    if isinstance(value, dict):
        return {"pairs": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        return float(value["float"])
    if set(value) == {"pairs"}:
        return {decode(k): decode(v) for k, v in value["pairs"]}
    return {k: decode(v) for k, v in value.items()}
