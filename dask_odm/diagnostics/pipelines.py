"""Pipelines of scikit-learn's that end with an estimator of this package: their steps, and the rows that it sees."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_array, check_is_fitted

from dask_odm.data.ingest import write_rows
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.frames import rows_by
from dask_odm.data.readers.labels import labels_of
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError
from dask_odm.estimators.base import StoreEstimator
from dask_odm.estimators.inputs.checks import FLOATS, as_input_error, check_rows, input_errors
from dask_odm.estimators.inputs.resolved import Given, named


@dataclass(frozen=True, eq=False)
class Steps:
    """Fitted transformers that prepare rows for the last step of a pipeline; none of a bare estimator. Tasks carry it.

    ``names`` are those of the columns of the rows to prepare, if the first step was fitted on a frame, and ``features``
    those of the model's features. By the ``recipe`` the last step makes these of the columns of a prepared frame.
    """

    transformers: tuple[Any, ...] = ()
    names: tuple[str, ...] | None = None
    recipe: ColumnRecipe | None = None
    features: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.transformers)

    def __str__(self) -> str:
        return ", ".join(type(each).__name__ for each in self.transformers)

    @input_errors()
    def __call__(self, X: Any) -> Any:
        """Return prepared rows, finite floats (n, features of the last step), dense or CSR."""
        if not self:
            return X
        rows = self.transformed(X)
        if self.recipe is not None and isinstance(rows, pd.DataFrame):
            return rows_by(rows, self.recipe)
        return check_array(rows, dtype=FLOATS, accept_sparse="csr")

    def transformed(self, X: Any) -> Any:
        """Return rows as the transformers give them to the last step."""
        return reduce(lambda rows, each: each.transform(rows), self.transformers, self.named(X))

    def named(self, X: Any) -> Any:
        """Return rows to prepare as an array, or as a frame if the first step was fitted on one."""
        rows = np.asarray(X) if isinstance(X, list) else X
        if self.names is None or not isinstance(rows, np.ndarray):
            return rows
        return pd.DataFrame(rows, columns=self.names)

    def pipeline(self, model: Any) -> Pipeline:
        """Return a pipeline of these steps that ends with a model, both fitted."""
        return Pipeline([(str(i), each) for i, each in enumerate((*self.transformers, model))])

    def of_store(self, store: Store) -> Steps:
        """Return the steps for rows of a store, which may have more columns than they use."""
        known = self.names is not None and not store.is_sparse and store.feature_names is not None
        return replace(self, names=store.feature_names) if known else self

    def prepared(self, store: Store, folder: str) -> Store:
        """Return the rows of a store as the last step sees them: as a store in ``folder``, by the same name."""
        if not self:
            return store
        prepare = self.of_store(store)
        with StoreWriter(os.path.join(folder, "prepared.zarr"), dtype="float64") as writer:
            for block in store.blocks():
                writer.append(prepare(block.X), block.y, block.weight)
            writer.prepare(store.facts.classes, feature_names=self.features, source=store.source, columns=self.recipe)
            found = writer.publish()
        return replace(found, title=store.name)


def ingested(model: Any, X: Any, y: Any, folder: str, weight: Any = None) -> Store:
    """Return rows, as a model sees them, with their labels or targets as a store in a scratch folder."""
    target = "classes" if hasattr(model, "classes_") else "real"
    rows = open_source((X, y), weight=weight, dtype="float64", allow_large=True)
    rows.columns = getattr(model, "column_recipe_", None)
    return write_rows(rows, os.path.join(folder, "rows.zarr"), target=target, dtype="float64")


def labelled_rows(steps: Steps, model: Any, given: Given, folder: str) -> Store:
    """Return labelled rows in memory, as a model sees them after some steps, as a store in a scratch folder."""
    if steps:
        given = as_input_error(lambda: model._resolve(steps.transformed(given.X), given.y, given.weight))
    X = named(check_rows(model, given.X, **model._reading()), model._schema.feature_names)
    y = given.y.toarray() if issparse(given.y) else labels_of(given.y)
    return replace(ingested(model, X, y, folder, given.weight), title="rows in memory")


def last_step(given: Any, what: str) -> tuple[Steps, Any]:
    """Return the steps before a fitted estimator of this package, and the estimator.

    ``given`` is the estimator, a pipeline that ends with it, or a search of scikit-learn's that found one of them.
    Raises InputError, naming the function ``what``, for any other, and NotFittedError for one that is not fitted.
    """
    model = given
    transformers: list[Any] = []
    while not isinstance(model, StoreEstimator):
        if isinstance(model, Pipeline):
            transformers += [each for _, each in model.steps[:-1] if each not in (None, "passthrough")]
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            raise InputError(
                f"{what} takes an estimator of dask_odm, or a Pipeline that ends with one. Got {_named(given, model)}."
            )
    check_is_fitted(model)
    known = model._schema
    told = (getattr(given, "feature_names_in_", None), known.feature_names)
    names, features = (None if each is None else tuple(each) for each in told)
    return Steps(tuple(transformers), names, known.columns, features), model


def _named(given: Any, last: Any) -> str:
    name = type(given).__name__
    return name if given is last else f"a {name} that ends with {type(last).__name__}"
