"""Learning curves from rows left out in closed form: a fit for each number of rows, and none for folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing, check_consistent_length
from sklearn.utils.validation import _num_samples

from dask_odm.data.readers.frames import as_pandas
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.inputs.frames import labels_by_name
from dask_odm.estimators.inputs.resolving import stored
from dask_odm.estimators.registry import ESTIMATORS
from dask_odm.estimators.scoring import LeftOutScores
from dask_odm.learning.training.run import drawn
from dask_odm.linalg.rows import uniforms_of
from dask_odm.typing import Array

SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Scores (m,) of left-out rows by the numbers of rows (m,), ascending, that models learned from."""

    rows: Array
    scores: Array

    @property
    def twice(self) -> float:
        """The score that twice as many rows would bring, if doublings go on to bring less in the same proportion.

        nan of fewer than three points.
        """
        if len(self.scores) < 3:
            return float("nan")
        before, last = np.diff(self.scores[-3:]) / np.diff(np.log2(self.rows[-3:]))  # of a doubling
        shrinking = np.clip(last / before, 0.0, 1.0) if before != 0 else 0.0
        return float(self.scores[-1] + last * shrinking)


def learning_curve(
    model: Any, X: Any, y: Any = None, *, groups: Any = None, scoring: Any = None, shares: Sequence[float] = SHARES,
    max_rows: int = 50_000, random_state: Any = 0,
) -> LearningCurve:  # fmt: skip
    """Compute leave-one-out scores of models that learn from growing shares of the rows, with λ in proportion.

    Parameters
    ----------
    model : ODMClassifier or ODMRegressor, or a fitted ODMClassifierCV or ODMRegressorCV
        The model whose settings are used, or those that it found. It does not change, and one that searches for nothing
        need not be fitted.
    X, y : array-like of shape (n, d) and (n,), or a store or its path
        Rows in memory, where y may name a column of a frame, or have several columns of labels or targets; or a store,
        of which up to ``max_rows`` rows are drawn, whatever their weights.
    groups : array-like of shape (n,) or None
        Groups to leave out together, as `ODMClassifier.fit` takes them, for rows in memory only.
    scoring : str, callable or None
        One score, as ``scoring`` of `ODMClassifierCV`. None: accuracy, or R² of numbers.
    shares : sequence of float
        Shares of the rows in (0, 1], ascending.
    max_rows : int
        Maximum number of rows that are drawn from a store.
    random_state : int or RandomState
        Seed for drawing the rows. A smaller share is a subset of a larger one.

    Returns
    -------
    LearningCurve

    Raises
    ------
    InputError
        Another estimator; a search that is not fitted, or whose regions have their own settings; invalid shares; groups
        for a store; several scores; X, y and groups of different lengths; or as `ODMClassifier.fit` and `loo_score`.
    """
    if not isinstance(model, LeftOutScores):
        name = type(model).__name__
        raise InputError(f"learning curves are of an ODMClassifier or ODMRegressor. Got {name} instead.")
    model = _with_settings(model)
    if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
        raise InputError(f"a learning curve is of one score. Got {scoring!r} instead.")
    shares = as_input_error(lambda: list(map(float, shares)))
    if not len(shares) or not all(0.0 < a < b <= 1.0 for a, b in zip([1e-9, *shares], shares, strict=False)):
        raise InputError(f"shares must ascend in (0, 1]. Got {shares!r} instead.")
    seed = as_input_error(lambda: drawn(random_state))
    source = stored(X)
    if y is None:
        if groups is not None:
            raise InputError("groups are for rows in memory: draw them with Store.sample.")
        if source is None:
            raise InputError("y is needed of rows in memory.")
        X, y = source.sample(max_rows, seed)
    elif source is not None:
        raise InputError("a store has its own labels; leave y out.")
    X, y = labels_by_name(as_pandas(X), y)
    count = as_input_error(lambda: _num_samples(X))
    whole = count if source is None else source.known_rows
    as_input_error(lambda: check_consistent_length(X, y, groups))
    order = np.argsort(uniforms_of(np.arange(count), seed), kind="stable")
    rows, scores = [], []
    for share in shares:
        taken = np.sort(order[: max(2, round(share * count))])
        some = None if groups is None else _safe_indexing(groups, taken)
        lam = model.lam if model.lam == "auto" else model.lam * len(taken) / whole
        part = clone(model).set_params(loo=True, lam=lam, checkpoint=None)
        part.fit(_safe_indexing(X, taken), _safe_indexing(y, taken), groups=some)
        rows.append(len(taken))
        scores.append(part.loo_score(scoring))
    return LearningCurve(np.array(rows), np.array(scores))


def _with_settings(model: Any) -> Any:
    """Return a model to fit: itself, or of a search the estimator with the settings that it found."""
    if "lam" in model.get_params(deep=False):
        return model
    if not hasattr(model, "best_params_"):
        raise InputError(
            f"a learning curve is of one setting: fit the {type(model).__name__} before, and not with "
            "Cells(settings='each')."
        )
    plain = ESTIMATORS[type(model).__name__.removesuffix("CV")].load()()
    own = plain.get_params(deep=False)
    shared = {name: value for name, value in model.get_params(deep=False).items() if name in own}
    return plain.set_params(**shared | {"scale": model.scale_, "metric": None} | model.best_params_)
