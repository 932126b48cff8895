"""What `tables.py` compares, and a cell of it: a rival that learns a table and predicts rows that it has not seen."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types
from scipy.stats import loguniform, randint, uniform
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, ParameterSampler, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dask_odm import ODMClassifier
from dask_odm.engine.workers import peak_bytes

CORES = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)  # LightGBM takes all, whatever is set
GRID_ROWS = 2000  # of a grid, whose best settings then learn all rows
WARM_ROWS = 300
HELD_OUT = 0.2  # of the rows, by which a random search judges
TRIES = 500
Row = dict[str, Any]


@dataclass(frozen=True)
class Rival:
    """A way to learn.

    ``make`` takes whether numbers are learned, a seed and the rows, and returns an estimator. ``library`` is what it
    needs, ``rows`` the form in which it gets them: as they are, coded (words are categories) or numbers. ``space`` has
    the settings of a random search.
    """

    make: Callable[[bool, int, Any], Any]
    library: str
    rows: str = "numbers"
    space: dict[str, Any] | None = None
    kinds: tuple[bool, ...] = (False, True)


def named(module: str, stem: str, end: str = "", **own: Any) -> Callable[[bool, int, Any], Any]:
    """Return what makes the classifier or the regressor of a module, ``{stem}Classifier{end}``."""

    def make(numbers: bool, seed: int, X: Any) -> Any:
        kind = getattr(import_module(module), f"{stem}{'Regressor' if numbers else 'Classifier'}{end}")
        return kind(random_state=seed, **own)

    return make


def catboost(numbers: bool, seed: int, X: Any) -> Any:
    words = [i for i, kind in enumerate(X.dtypes) if not types.is_numeric_dtype(kind)] if hasattr(X, "dtypes") else []
    kind = getattr(import_module("catboost"), f"CatBoost{'Regressor' if numbers else 'Classifier'}")
    return kind(
        random_seed=seed,
        verbose=False,
        allow_writing_files=False,
        thread_count=CORES,
        cat_features=tuple(words) or None,
    )


def machine(module: str) -> Callable[[bool, int, Any], Any]:
    """Return what makes a grid of SVC or SVR, γ in multiples of that of "scale"."""

    def make(numbers: bool, seed: int, X: Any) -> Any:
        kind = getattr(import_module(module), "SVR" if numbers else "SVC")(cache_size=1000)
        return grid(kind, {"C": [1, 10, 100], "gamma": gammas(X)})

    return make


def linear(numbers: bool, seed: int, X: Any) -> Any:
    if numbers:
        return grid(Ridge(), {"alpha": [0.1, 10, 1000]})
    return grid(LogisticRegression(max_iter=500), {"C": [1e-2, 1, 100]})


def nystroem(numbers: bool, seed: int, X: Any) -> Any:
    last = Ridge() if numbers else LogisticRegression(max_iter=500)
    axes = {"last__alpha": [1e-3, 0.1, 10]} if numbers else {"last__C": [1, 32, 1000]}
    landmarks = Nystroem(n_components=min(300, len(X) // 2), random_state=seed)
    return grid(Pipeline([("landmarks", landmarks), ("last", last)]), axes | {"landmarks__gamma": gammas(X)})


def gammas(X: Any) -> list[float]:
    return [each / (X.shape[1] * X.var()) for each in (1 / 16, 1 / 4, 1.0, 4.0)]


def grid(model: Any, axes: Row) -> Any:
    return GridSearchCV(model, axes, cv=3)


class XRFM:
    """xRFM as it comes, with a fifth of the rows for validation."""

    def __init__(self, seed: int):
        self.seed = seed
        self.model = import_module("xrfm").xRFM(device="cpu", random_state=seed, verbose=False)

    def fit(self, X: Any, y: Any) -> XRFM:
        parts = train_test_split(X.astype(np.float32), y, test_size=HELD_OUT, random_state=self.seed)
        self.model.fit(parts[0], parts[2], parts[1], parts[3])
        return self

    def predict(self, X: Any) -> Any:
        return self.model.predict(X.astype(np.float32))

    def predict_proba(self, X: Any) -> Any:
        return self.model.predict_proba(X.astype(np.float32))


RATE = loguniform(0.02, 0.3)
HISTOGRAMS = {
    "learning_rate": RATE, "max_iter": randint(50, 600), "max_leaf_nodes": randint(8, 128),
    "min_samples_leaf": randint(2, 60), "l2_regularization": loguniform(1e-4, 10),
}  # fmt: skip
XGBOOST = {
    "learning_rate": RATE, "n_estimators": randint(50, 600), "max_depth": randint(2, 12),
    "min_child_weight": loguniform(0.5, 30), "reg_lambda": loguniform(1e-3, 10), "subsample": uniform(0.5, 0.5),
    "colsample_bytree": uniform(0.5, 0.5),
}  # fmt: skip
LIGHTGBM = {
    "learning_rate": RATE, "n_estimators": randint(50, 600), "num_leaves": randint(8, 128),
    "min_child_samples": randint(2, 60), "reg_lambda": loguniform(1e-3, 10), "subsample": uniform(0.5, 0.5),
    "subsample_freq": [1], "colsample_bytree": uniform(0.5, 0.5),
}  # fmt: skip
CATBOOST = {
    "learning_rate": RATE, "iterations": randint(100, 1000), "depth": randint(3, 10),
    "l2_leaf_reg": loguniform(0.5, 20),
}  # fmt: skip
SEARCH = "ODM search"
HISTOGRAM = named("sklearn.ensemble", "HistGradientBoosting", categorical_features="from_dtype")
BOOSTED = {
    "HistGradientBoosting": Rival(HISTOGRAM, "sklearn", "coded", HISTOGRAMS),
    "XGBoost": Rival(named("xgboost", "XGB", enable_categorical=True, n_jobs=CORES), "xgboost", "coded", XGBOOST),
    "LightGBM": Rival(named("lightgbm", "LGBM", verbose=-1, n_jobs=CORES), "lightgbm", "coded", LIGHTGBM),
    "CatBoost": Rival(catboost, "catboost", "words", CATBOOST),
}
RIVALS = {
    SEARCH: Rival(named("dask_odm", "ODM", "CV"), "dask_odm", "as they are"),
    "ODM": Rival(named("dask_odm", "ODM"), "dask_odm", "as they are"),
    **{name: replace(each, space=None) for name, each in BOOSTED.items()},
    **{f"{name}, tuned": each for name, each in BOOSTED.items()},
    "forest": Rival(named("sklearn.ensemble", "RandomForest", n_jobs=CORES), "sklearn"),
    "extra trees": Rival(named("sklearn.ensemble", "ExtraTrees", n_jobs=CORES), "sklearn"),
    "SVM, grid": Rival(machine("sklearn.svm"), "sklearn"),
    "intelex SVM, grid": Rival(machine("sklearnex.svm"), "sklearnex"),
    "KernelRidge, grid": Rival(
        lambda numbers, seed, X: grid(KernelRidge(kernel="rbf"), {"alpha": [1e-3, 1e-2, 0.1, 1], "gamma": gammas(X)}),
        "sklearn",
        kinds=(True,),
    ),
    "Nyström, grid": Rival(nystroem, "sklearn"),
    "linear, grid": Rival(linear, "sklearn"),
    "xRFM": Rival(lambda numbers, seed, X: XRFM(seed), "xrfm"),
}


def coded(train: Any, test: Any) -> tuple[Any, Any]:
    """Return both frames with categories, of at most 255 levels, in place of words, and numbers for dates and booleans.

    Dates are days, with hour, weekday and month beside them.
    """
    if not isinstance(train, pd.DataFrame):
        return train, test
    frames = train.copy(), test.copy()
    for name in train:
        words = train[name].dropna()
        if types.is_datetime64_any_dtype(words) or (not types.is_numeric_dtype(words) and is_dates(words)):
            for frame in frames:
                moment = pd.to_datetime(frame[name])
                frame[name] = (moment - pd.Timestamp("2000")) / pd.Timedelta(days=1)
                for part in ("hour", "day_of_week", "month"):
                    frame[f"{name} {part}"] = getattr(moment.dt, part).astype(float)
        elif types.is_numeric_dtype(words):
            for frame in frames:
                frame[name] = frame[name].astype(float)
        else:
            levels = words.astype(str).value_counts().index[:255]
            for frame in frames:
                frame[name] = pd.Categorical(frame[name].astype(str), categories=levels)
    for frame in frames:
        frame.columns = [f"c{i}" for i in range(frame.shape[1])]  # LightGBM takes no brackets
    return frames


def is_dates(words: pd.Series) -> bool:
    return bool(words.astype(str).str.fullmatch(r"\d{4}-\d\d-\d\d.*").all())


def as_numbers(train: Any, test: Any) -> tuple[Any, Any]:
    """Return standardised numbers, with a column for every level, and the median in gaps, which have a column, too."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    train, test = coded(train, test)
    if isinstance(train, pd.DataFrame):
        levels = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        numbers = make_column_transformer(
            (numbers, make_column_selector(dtype_exclude="category")),
            (levels, make_column_selector(dtype_include="category")),
        )
    return numbers.fit_transform(train), numbers.transform(test)


def with_words(train: Any, test: Any) -> tuple[Any, Any]:
    """Return coded frames whose categories are words, without gaps."""
    train, test = coded(train, test)
    if isinstance(train, pd.DataFrame):
        words = train.select_dtypes("category").columns
        train, test = (
            frame.astype(dict.fromkeys(words, object)).fillna(dict.fromkeys(words, "")) for frame in (train, test)
        )
    return train, test


def tuned(model: Any, space: Row, X: Any, y: Any, seed: int, seconds: float) -> tuple[Any, int]:
    """Return the model of the best settings that a random search finds in so many seconds of processors, and its tries.

    The first are those it comes with. A try is begun only if it and the last fit still have time.
    """
    began, longest, best = time.process_time(), 0.0, (-np.inf, {})
    parts = train_test_split(X, y, test_size=HELD_OUT, random_state=seed)
    tries = 0
    for settings in [{}, *ParameterSampler(space, TRIES, random_state=seed)]:
        start = time.process_time()
        if tries and start - began + 2.25 * longest > seconds:
            break
        tried = clone(model).set_params(**settings).fit(parts[0], parts[2])
        best = max(best, (tried.score(parts[1], parts[3]), settings), key=lambda pair: pair[0])
        longest = max(longest, time.process_time() - start)
        tries += 1
    return clone(model).set_params(**best[1]).fit(X, y), tries


def fitted(model: Any, rival: Rival, X: Any, y: Any, seed: int, seconds: float | None) -> tuple[Any, int | None]:
    """Return what learned all rows, with the best settings of a grid on at most `GRID_ROWS`, or of a random search."""
    if rival.space is not None:
        return tuned(model, rival.space, X, y, seed, seconds or 0.0)
    if not isinstance(model, GridSearchCV):
        return model.fit(X, y), None
    some = np.random.default_rng(seed).permutation(len(y))[:GRID_ROWS]
    best = model.fit(X[some], y[some]).best_estimator_
    return best if len(some) == len(y) else clone(best).fit(X, y), None


def clocked(work: Callable[[], Any], name: str) -> tuple[Any, Row]:
    """Return what ``work`` returns, with its seconds on the clock and of processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, {name: time.perf_counter() - wall, f"{name} cpu": time.process_time() - cpu}


def measure(path: str, name: str, seed: int, seconds: float | None = None, budget: str | None = None) -> Row:
    """Return the figures of a cell. Ours has learned a few rows before, which loads its loops."""
    rival, kept = RIVALS[name], pd.read_pickle(path)
    form = {"as they are": lambda *both: both, "coded": coded, "words": with_words, "numbers": as_numbers}[rival.rows]
    X, test = form(kept["X"], kept["test"])
    numbers, y, y_test = kept["numbers"], kept["y"], kept["y_test"]
    shift, factor = (y.mean(), y.std()) if numbers else (0, 1)
    y = (y - shift) / factor if numbers else y
    model = rival.make(numbers, seed, X)
    if rival.library == "dask_odm":
        if budget is not None:
            model.set_params(budget=budget)
        few = np.random.default_rng(seed).permutation(len(y))[:WARM_ROWS]
        some = X.iloc[few] if isinstance(X, pd.DataFrame) else X[few]
        clone(model).fit(some, y[few]).predict(some)
    (model, tries), found = clocked(lambda: fitted(model, rival, X, y, seed, seconds), "fit")
    answers, predicted = clocked(lambda: np.ravel(model.predict(test)), "predict")
    found |= predicted | {"memory": peak_bytes() / 1e6, "rows": len(y), "columns": X.shape[1]}
    if tries is not None:
        found["tries"] = tries
    for key in ("best_score_", "nested_score_", "loo_score_"):
        if isinstance(getattr(model, key, None), float):
            found[key] = float(getattr(model, key))
    if hasattr(model, "best_params_"):
        found["best_params_"] = repr(model.best_params_)
    if numbers:
        answers = answers * factor + shift
        return found | {"RMSE": float(root_mean_squared_error(y_test, answers)), "R²": float(r2_score(y_test, answers))}
    found |= _of_classes(model, test, answers, y_test)
    if rival.library == "dask_odm":  # probabilities are of rows left out, by a second fit
        settings = {"scale": model.scale_} | getattr(model, "best_params_", {})
        model = ODMClassifier(loo=True, random_state=seed, **settings).fit(X, y)
        found |= {"log loss": _of_classes(model, test, answers, y_test)["log loss"]}
    return found


def _of_classes(model: Any, test: Any, answers: Any, y_test: Any) -> Row:
    """Return accuracy, and of two classes AUC, and log loss where there are probabilities."""
    found = {"accuracy": float(np.mean(answers == y_test))}
    classes = getattr(model, "classes_", np.arange(y_test.max() + 1))
    if hasattr(model, "predict_proba"):
        shares = np.asarray(model.predict_proba(test), dtype=float)
        shares /= shares.sum(axis=1, keepdims=True)
        found["log loss"] = float(log_loss(y_test, shares, labels=classes))
    if len(classes) == 2 and len(np.unique(y_test)) == 2:
        scores = model.decision_function(test) if hasattr(model, "decision_function") else shares[:, 1]
        found["AUC"] = float(roc_auc_score(y_test, scores))
    return found


def tell(pipe: Any, given: Row) -> None:
    """Send what a cell finds, or why it did not."""
    warnings.simplefilter("ignore")
    try:
        found = measure(**given)
    except Exception as error:  # of any library; the others go on
        found = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    pipe.send(found)
