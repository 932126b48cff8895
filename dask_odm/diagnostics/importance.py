"""Permutation importance: how much worse a model predicts the rows of a store if one feature is another row's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from sklearn.inspection import permutation_importance as of_scikit_learn
from sklearn.metrics import check_scoring

from dask_odm.data.arguments import FROM_1, checked
from dask_odm.data.readers.frames import as_pandas
from dask_odm.data.store.statistics import listed
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.pipelines import Steps, last_step
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import check_features, input_errors
from dask_odm.estimators.inputs.frames import labels_by_name
from dask_odm.estimators.inputs.resolving import stored
from dask_odm.learning.training.run import drawn
from dask_odm.models.classes import codes_of, require_common
from dask_odm.models.model import Model
from dask_odm.models.predict import ModelFile, code_block, store_seen_from_here, values_of_block
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Importance:
    """The loss of a score by each of d features or columns, named as scikit-learn's `permutation_importance` has it.

    ``importances`` are those of every repeat, (d, n_repeats); ``score`` is that of the rows as they are.
    """

    feature_names: list[str]
    score: float
    importances: Array

    @property
    def importances_mean(self) -> Array:
        """Mean loss by each feature, (d,)."""
        return self.importances.mean(axis=1)

    @property
    def importances_std(self) -> Array:
        """Standard deviation of the loss over the repeats, (d,)."""
        return self.importances.std(axis=1)


@checked(n_repeats=[FROM_1], max_samples=[FROM_1, None], random_state=["random_state"])
def permutation_importance(
    estimator: Any, X: Any, y: Any = None, *, scoring: Any = None, n_repeats: int = 5, random_state: Any = 0,
    max_samples: int | None = None,
) -> Importance:  # fmt: skip
    """Compute how much the score of a model falls if one feature is taken from random other rows.

    The score is the accuracy, or R² for a regressor. Rows of a store are read and predicted a chunk at a time, on the
    workers of the current client if there is one. The result does not depend on their number. Rows in memory are
    scikit-learn's `permutation_importance`. Of a table with words or gaps, whole columns are taken from other rows. A
    feature may have a low importance because other features hold the same information. Use rows that the model did not
    learn from.

    Parameters
    ----------
    estimator : fitted estimator
        A classifier, or a regressor of one target; or a scikit-learn Pipeline that ends with one, whose features are
        those before its first step.
    X : Store, str or path, or array-like of shape (n, d)
        A store with labels or targets, of which rows without them are left out and row weights count; or rows.
    y : array-like of shape (n,), str or None, default=None
        Labels or targets of rows in memory, or the name of a frame's column of them.
    scoring : str, callable or None, default=None
        Another score, as scikit-learn takes it, for rows in memory.
    n_repeats : int, default=5
        How often each feature is taken from other rows.
    random_state : int, RandomState instance or None, default=0
        Seed for drawing the other rows, of a store at most 10,000. None draws others in every call.
    max_samples : int or None, default=None
        How many rows to judge by, drawn at random; about as many of a store, which is read whole. None: all.

    Returns
    -------
    Importance

    Raises
    ------
    InputError
        No labels or targets; other features; several targets; no repeats or samples; another score of a store.
    StoreError
        A damaged store.
    """
    steps, model = last_step(estimator, "permutation_importance")
    resolved = stored(X)
    if resolved is None:
        return _in_memory(estimator, X, y, scoring, n_repeats, random_state, max_samples)
    if scoring is not None or y is not None:
        raise InputError(
            "a store has labels of its own, and is judged by accuracy or R²: leave y and scoring out; for another "
            "score, X, y = store.sample(20_000) reads some rows."
        )
    if not isinstance(random_state, Integral):
        random_state = drawn(random_state)
    classes = getattr(model, "classes_", None)
    resolved = _checked(resolved, model, steps)
    others, targets = resolved.sample(10_000, random_state)  # whose values take the place of others'
    if not len(others):
        raise InputError(f"{resolved.name} has no row with a label or target.")
    near = 0.0 if classes is not None or targets is None else float(targets.mean())
    share = 1.0 if max_samples is None else max_samples / resolved.rows
    codes: Array | None = None
    if classes is not None:
        labels = resolved.classes or ()
        require_common(labels, listed(classes), resolved.name)
        codes = np.array(codes_of(labels, listed(classes)))
    names, spans = _moved(resolved, steps)
    prepared = model._for_tasks(), steps.of_store(resolved)
    shared = *prepared, resolved, codes, near, others, spans, n_repeats, random_state, share
    chunks = [(i,) for i in range(resolved.n_chunks)]
    found = Cluster.current(model.memory_limit).map_chunks(chunk_losses, chunks, "importance", *shared)
    lost, moments = (np.array(each) for each in zip(*found, strict=True))
    losses = np.array([math.fsum(column) for column in lost.reshape(len(found), -1).T])
    total, first, second = (math.fsum(column) for column in moments.T)
    of_mean = total if classes is not None or not total else second - first**2 / total  # loss of the mean, for R²
    if not of_mean > 0:
        raise InputError(f"no row of {resolved.name} has a weight, or all targets are the same.")
    scores = 1.0 - losses / of_mean
    return Importance(names, float(scores[0]), scores[0] - scores[1:].reshape(-1, n_repeats))


def _checked(store: Store, model: Any, steps: Steps) -> Store:
    """Return a store with the features in the model's order; raise InputError if it cannot judge the model."""
    of_numbers = not hasattr(model, "classes_")
    if model._model.outputs > 1 and (of_numbers or hasattr(model, "multilabel_")):
        what = "target" if of_numbers else "label"
        raise InputError(f"permutation_importance is of one {what}. The model predicts {model._model.outputs}.")
    if of_numbers:
        store.require_targets("permutation_importance")
    else:
        store.require_classes("permutation_importance")
    if not steps:
        store = store.of_features(map(str, getattr(model, "feature_names_in_", ())))
        check_features(model, store)
    if store.is_sparse:
        raise InputError(
            f"permutation_importance changes one feature of dense rows at a time, and {store.name} holds sparse ones; "
            "ingest its rows, or some of them, with sparse=False (--no-sparse)."
        )
    return store


def _moved(store: Any, steps: Steps) -> tuple[list[str], list[range]]:
    """Return the names of what is taken from other rows, columns of a table or features, and the places of each."""
    recipe = store.column_recipe
    if recipe is not None:
        found = [(name, span) for name, span in zip(recipe.names, recipe.spans, strict=True) if span]
        return [name for name, _ in found], [span for _, span in found]
    names = store.feature_names or steps.names or range(store.features)
    return list(map(str, names)), [range(j, j + 1) for j in range(store.features)]


@input_errors()
def _in_memory(
    estimator: Any, X: Any, y: Any, scoring: Any, n_repeats: int, random_state: Any, max_samples: int | None
) -> Importance:
    """Compute scikit-learn's `permutation_importance` of the columns of rows X in memory."""
    if y is None:
        raise InputError("permutation_importance of rows in memory needs y, their labels or targets.")
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise InputError(f"scoring must be one score. Got {scoring!r} instead; call permutation_importance for each.")
    X, y = labels_by_name(*computed(as_pandas(X), y))
    X = X if hasattr(X, "shape") else np.asarray(X)
    score = check_scoring(estimator, scoring=scoring)
    count = 1.0 if max_samples is None else min(max_samples, len(y))
    options = {"n_repeats": n_repeats, "random_state": random_state, "max_samples": count}
    found = of_scikit_learn(estimator, X, y, scoring=score, **options)
    names = X.columns if isinstance(X, pd.DataFrame) else range(X.shape[1])
    return Importance(list(map(str, names)), float(score(estimator, X, y)), found.importances)


def chunk_losses(
    model: Model | ModelFile, steps: Steps, store: Store, codes: Array | None, near: float, drawn: Array,
    spans: list[range], n_repeats: int, seed: int, share: float, chunk: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return losses (1 + spans · n_repeats,) of a share of a chunk's rows, and sums of weights, weighted y, y². A task.

    ``codes`` are the places of the store's labels among the model's classes, or None of real targets. ``spans`` are the
    places of the features that are taken from other rows together.

    The loss is the weight of rows with a wrong label, or the weighted squares of errors. The first loss is of the rows
    as they are. Sums of real targets are of what these have above ``near``, so that no digits are lost.
    """
    with store_seen_from_here(store):
        block = store.read(chunk)
    assert block.y is not None
    known = np.flatnonzero(block.y >= 0 if codes is not None else block.y == block.y)
    if share < 1.0:
        known = known[np.random.default_rng([seed, n_repeats, chunk]).random(len(known)) < share]
    X = block.X[known]
    y = block.y[known] if codes is None else codes[block.y[known]]
    weight = np.ones(len(known)) if block.weight is None else block.weight[known]

    def loss(rows: Array) -> float:
        values = values_of_block(model, steps(rows))
        wrong = code_block(values) != y if codes is not None else np.square(values - y)
        return float((weight * wrong).sum())

    found = [loss(X)]
    others = [np.random.default_rng([seed, r, chunk]).integers(len(drawn), size=len(X)) for r in range(n_repeats)]
    for span in spans:
        moved = slice(span.start, span.stop)
        own = X[:, moved].copy()
        for rows in others:
            X[:, moved] = drawn[rows, moved]
            found.append(loss(X))
        X[:, moved] = own
    real = np.zeros(len(y)) if codes is not None else y.astype(np.float64) - near
    return np.array(found), np.array([weight.sum(), (weight * real).sum(), (weight * real**2).sum()])
