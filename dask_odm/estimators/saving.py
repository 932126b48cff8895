"""Saving and loading of fitted estimators: model, parameters and fitted attributes, as zarr and JSON, never pickle."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.layout import IDF
from dask_odm.data.store.records import Record, read_record, write_record
from dask_odm.data.store.schemas import Check, anything, each, mapping, real, scalar, whole
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import StoreError
from dask_odm.estimators.inputs.checks import as_input_error, require_classes
from dask_odm.estimators.registry import ESTIMATORS, solver_class
from dask_odm.learning.parameters import SolverObject
from dask_odm.learning.training.recipe import CubeSchema, Schema
from dask_odm.methods.metric_settings import Metric
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.model import Model
from dask_odm.models.predict import HELD_BYTES, ModelFile, model_from
from dask_odm.models.probabilities import is_link
from dask_odm.models.sets import is_table
from dask_odm.typing import Array


def save_estimator(estimator: Any, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write a fitted estimator as a ``model`` record; raise InputError if parameters were made invalid since."""
    as_input_error(estimator._validate_params)
    model = estimator._model
    fitted = {name: getattr(estimator, name) for name in estimator._saved if name in vars(estimator)}
    arrays = {name: value for name, value in fitted.items() if isinstance(value, np.ndarray)}
    text = getattr(estimator, "text_recipe_", None)
    parameters = {}
    for name, value in estimator.get_params(deep=False).items():
        with suppress(TypeError):  # of what no file holds, such as callbacks
            parameters[name] = encode(value)
    attributes = {
        "estimator": type(estimator).__name__,
        "model": model.description(),
        "parameters": parameters,
        "schema": _schema(estimator),
        "fitted": {name: encode(value) for name, value in fitted.items() if name not in arrays},
    }
    if estimator._checkpointed is not None:
        attributes |= {"fit": estimator._checkpointed.fit, "seed": estimator._checkpointed.seed}
    words = {} if text is None else {IDF: text.idf}
    write_record(path, "model", {**model.arrays(), **arrays, **words}, attributes, overwrite=overwrite)


def _schema(estimator: Any) -> dict[str, Any]:
    known = estimator._schema
    names = known.feature_names if known.columns is None else None
    found = {
        "n_features": int(known.n_features),
        "rows": known.rows,
        "classes": None if known.classes is None else _counted(known.classes).tolist(),
        "classes_dtype": None if known.classes is None else known.classes.dtype.str,
        "columns": None if known.columns is None else known.columns.json(),
        "feature_names": None if names is None else list(map(str, names)),
        "medians": None if known.medians is None else known.medians.tolist(),
        "feature_dimension": known.feature_dimension,
        "text": None if known.text is None else known.text.column,
        "cube": None if known.cube is None else vars(known.cube) | {"dimensions": list(known.cube.dimensions)},
    }
    return {name: each for name, each in found.items() if each is not None}


def _counted(classes: Array) -> Array:
    """Return labels as JSON takes them: dates and spans as whole numbers of their unit."""
    return classes.view(np.int64) if classes.dtype.kind in "mM" else classes


def load_model(path: str | os.PathLike[str]) -> Any:
    """Load a model that was saved with `save`.

    Parameters
    ----------
    path : str or path
        Folder, or address of an object store, that `save` wrote to.

    Returns
    -------
    estimator
        The fitted estimator, of the class that was saved.

    Raises
    ------
    StoreError
        The folder is not a model; or the model is unfinished, damaged, of another format version or of an unknown
        estimator, or has content that is impossible for this estimator.
    """
    record = read_record(path, "model")
    record.check()
    entry = ESTIMATORS.get(str(record.attributes.get("estimator")))
    if entry is None:
        raise StoreError(f"model '{record.path}' is of an estimator that this dask_odm does not know; upgrade it.")
    model = model_from(record)
    try:
        return _restored(entry.load(), record, model)
    except StoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise record.lies(error) from error


def _restored(cls: Any, record: Record, model: Any) -> Any:
    attributes = record.attributes
    schema = attributes["schema"]
    estimator: Any = cls(**decode(attributes["parameters"]))
    estimator._validate_params()
    columns = None if "columns" not in schema else ColumnRecipe.from_json(schema["columns"])
    names = schema.get("feature_names") if columns is None else columns.feature_names
    text = None if "text" not in schema else TextRecipe(schema["text"], record.array(IDF))
    medians = None if "medians" not in schema else np.array(schema["medians"], np.float64)
    counts = {
        "features": schema["n_features"],
        "names": None if names is None else len(names),
        "weights of words": None if text is None else text.n_features,
        "medians": None if medians is None else len(medians),
    }
    for what, count in counts.items():
        if count not in (None, model.features):
            raise ValueError(f"{count} {what}, but a model of {model.features} features")
    several = bool(attributes["fitted"].get("multilabel_", False))
    classes = _classes(estimator, schema, model.outputs, several=several)
    fitted = _fitted(estimator, record, model)
    held = schema.get("cube")
    cube = None if held is None else CubeSchema(**{**held, "dimensions": tuple(held["dimensions"])})
    dimension = schema.get("feature_dimension")
    learned = Schema(model.features, names, dimension, classes, cube, text, columns, schema.get("rows"), medians)
    estimator._take(learned, model, fitted, ModelFile.of(record))
    return estimator


def _classes(estimator: Any, schema: dict[str, Any], outputs: int, *, several: bool) -> Array | None:
    """Return the labels of a model, of which a row may have ``several``; raise ValueError unless they can be such."""
    if estimator._targets.name != "classes":
        if "classes" in schema:
            raise ValueError("it has classes, and is no classifier")
        return None
    labels = schema["classes"]
    dtype = np.dtype(schema["classes_dtype"])
    require_classes(np.arange(len(labels)))
    if outputs != (1 if len(labels) == 2 and not several else len(labels)):
        raise ValueError(f"{len(labels)} classes, but {outputs} values a row")
    if dtype.kind not in "biufUOmM" or dtype.itemsize * len(labels) > HELD_BYTES:  # a dtype may claim any width
        raise ValueError(f"labels of type {dtype!s:.20}")
    classes = np.array(labels, dtype=dtype)
    if _counted(classes).tolist() != labels or any(not a < b for a, b in pairwise(labels)):
        raise ValueError(f"labels that are not different, sorted and of type {dtype}")
    return classes


def _fitted(estimator: Any, record: Record, model: Model) -> dict[str, Any]:
    """Return the fitted attributes of a record; raise ValueError if one is not the estimator's, or has a wrong type."""
    plain = record.attributes["fitted"]
    arrays = set(record.arrays) - set(model.arrays()) - ({IDF} if "text" in record.attributes["schema"] else set())
    unknown = (set(plain) | arrays) - set(estimator._saved) | set(plain) & (arrays | set(_ARRAYS))
    if unknown:
        raise ValueError(f"{type(estimator).__name__} has no fitted attribute {min(unknown)!r:.60} of this type")
    for name in arrays & set(_ARRAYS):
        layout, (kind, dimensions) = record.arrays[name], _ARRAYS[name]
        if np.dtype(layout.dtype).kind != kind or len(layout.shape) != dimensions:
            raise ValueError(f"{name} of type {layout.dtype} and shape {layout.shape}")
    fitted = {name: decode(value) for name, value in plain.items()}
    for name, value in fitted.items():
        _FITTED.get(name, anything)(value, name)
    fitted |= {name: record.array(name) for name in arrays}
    if np.shape(fitted.get("threshold_", 0.0)) not in ((), (model.outputs,)):
        raise ValueError("a threshold that is not one of each label")
    links = [fitted["probability_link_"]] if "probability_link_" in fitted else []
    if links and fitted.get("multilabel_"):
        links = np.split(links[0], model.outputs)
    if not all(map(is_link, links)):
        raise ValueError("a link whose points do not rise through zero")
    table, labels = fitted.get("conformity_"), record.attributes["schema"].get("classes")
    tables = max(2, model.outputs) if labels is None else len(labels) - len(model.lacking)
    if table is not None and not (is_table(table) and len(table) == 1 + tables):
        raise ValueError("thresholds of sets that do not fall, or are of other classes")
    if table is not None and labels is None and table.max() > 0.0:
        raise ValueError("intervals whose ends are crossed")
    support, coefficients = (fitted.get(name) for name in ("support_", "dual_coef_"))
    kept = model.support.shape[0] if isinstance(model, KernelModel) else None
    widths = {kept, None if support is None else len(support), None if coefficients is None else coefficients.shape[1]}
    if len(widths - {None}) > 1 or (support is not None and support.size and support.min() < 0):
        raise ValueError("support and coefficients that do not fit each other")
    return fitted


_FIGURE = real(finite=False)
_HISTORY = mapping({"seconds": _FIGURE}, {"gap": _FIGURE, "objective": _FIGURE}, rest=scalar)
_ARRAYS = {  # fitted attributes that are arrays: kind and dimensions
    "support_": ("i", 1),
    **dict.fromkeys(("shard_errors_", "loo_group_scores_", "feature_importances_"), ("f", 1)),
    **dict.fromkeys(("dual_coef_", "shard_weights_", "probability_link_", "conformity_", "moments_"), ("f", 2)),
}
_FITTED: dict[str, Check] = {
    **dict.fromkeys(("lam_", "gamma_"), real(above=0.0)),
    **dict.fromkeys(("threshold_", "offset_"), real()),
    **dict.fromkeys(("dual_gap_", "loo_score_", "loo_parameters_"), _FIGURE),
    **dict.fromkeys(("n_iter_", "calibration_rows_"), whole()),
    **dict.fromkeys(("scale_", "multilabel_"), scalar),
    **dict.fromkeys(("shards_", "suspects_"), each(scalar)),
    "history_": each(_HISTORY),
}


def encode(value: Any) -> Any:
    """Return a value as JSON, NaN and dicts with any keys included; raise TypeError for one that is not saved."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {"pairs": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, SolverObject):
        return {"solver": type(value).__name__, "parameters": encode(value.get_params(deep=False))}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not saved")


def decode(value: Any) -> Any:
    """Return the value that `encode` turned into JSON."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        return float(value["float"])
    if set(value) == {"solver", "parameters"}:
        kind = Metric if value["solver"] == Metric.__name__ else solver_class(value["solver"])
        return kind(**decode(value["parameters"]))
    if set(value) == {"pairs"}:
        return {decode(k): decode(v) for k, v in value["pairs"]}
    return {k: decode(v) for k, v in value.items()}
