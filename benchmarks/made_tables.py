"""Twelve made-up tables as people have them: words, gaps, dates and booleans, each with a rule that its labels follow.

``TABLES[name](n, seed)`` returns a frame of n rows with the column ``label``. The rule gives each row the odds of its
class, of which the label is drawn, so that no classifier is always right. Tests read these tables by every door, and
`tables.py` measures accuracy on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

Random = np.random.Generator
Rule = Callable[[Random, int], tuple[dict[str, Any], Any]]
TABLES: dict[str, Callable[..., pd.DataFrame]] = {}


def table(rule: Rule) -> Rule:
    """Register a rule, which returns the columns of a table and the log-odds of "yes", or of several classes (n, k)."""

    def make(n: int, seed: int = 0) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        columns, odds = rule(rng, n)
        if odds.ndim == 1:
            label = np.where(odds + rng.logistic(size=n) > 0, "yes", "no")
        else:
            label = np.array(["low", "middle", "high"])[(odds + rng.gumbel(size=odds.shape)).argmax(axis=1)]
        return pd.DataFrame(columns).assign(label=label)

    TABLES[rule.__name__] = make
    return rule


def with_gaps(values: Any, gaps: Any) -> pd.Series:
    """Return values with gaps where ``gaps`` is true."""
    return pd.Series(values).mask(gaps)


def days(rng: Random, n: int, step: str, count: int) -> Any:
    """Return random moments, of ``count`` steps from 2021 on."""
    return np.datetime64("2021-01-01", "s") + rng.integers(0, count, n).astype(f"timedelta64[{step}]")


@table
def words(rng: Random, n: int) -> Any:
    """Words that act together, and a number."""
    colour, form = rng.choice(["red", "green", "blue", "grey"], n), rng.choice(["round", "square", "flat"], n)
    weight = rng.gamma(3, 2, n).round(2)
    odds = np.where((colour == "red") == (form == "flat"), 2.0, -2.0) + (weight > 6) * np.where(form == "round", 2, -1)
    return {"colour": colour, "form": form, "weight": weight, "maker": rng.choice(list("ABCDEFG"), n)}, odds


@table
def telling_gaps(rng: Random, n: int) -> Any:
    """Gaps, in a number and in words, that say as much as the values."""
    income, age = rng.lognormal(10, 0.7, n).round(), rng.integers(18, 80, n)
    unsaid = rng.random(n) < 0.3
    job = rng.choice(["clerk", "nurse", "driver", "teacher"], n)
    jobless = rng.random(n) < 0.2
    odds = np.where(unsaid, -2.5, 1.5 * np.log(income / 22_000)) + jobless * -1.5 + (age > 60) * 1.0 + 0.5
    return {"income": with_gaps(income, unsaid), "age": age, "job": with_gaps(job, jobless)}, odds


@table
def random_gaps(rng: Random, n: int) -> Any:
    """Gaps that say nothing, in a fifth of all values."""
    X = rng.normal(size=(n, 4)).round(3)
    place = rng.choice(["north", "south", "east", "west"], n)
    odds = 2 * X[:, 0] + 1.5 * X[:, 1] * X[:, 2] + np.where(place == "north", 1.5, -0.5)
    columns = {f"x{j}": with_gaps(X[:, j], rng.random(n) < 0.2) for j in range(4)}
    return columns | {"place": with_gaps(place, rng.random(n) < 0.2)}, odds


@table
def booleans(rng: Random, n: int) -> Any:
    """Booleans, of which three act together, some with gaps."""
    flags = rng.random((n, 6)) < 0.5
    odds = np.where(flags[:, 0] ^ flags[:, 1], 2.0, -2.0) + np.where(flags[:, 2] & flags[:, 0], 1.5, -0.5)
    columns: dict[str, Any] = {f"flag{j}": flags[:, j] for j in range(5)}
    return columns | {"last": pd.Series(flags[:, 5], dtype="boolean").mask(rng.random(n) < 0.1)}, odds


@table
def weekly(rng: Random, n: int) -> Any:
    """A rule of weekends, which differs from shop to shop."""
    day = days(rng, n, "D", 3 * 365)
    weekend = (day.astype("datetime64[D]").astype(int) + 3) % 7 >= 5
    shop, sales = rng.choice(["centre", "station", "mall"], n), rng.gamma(4, 100, n).round(1)
    odds = np.where(weekend, np.where(shop == "station", -2.5, 2.5), -0.5) + (sales - 400) / 150
    return {"day": day, "shop": shop, "sales": sales}, odds


@table
def yearly(rng: Random, n: int) -> Any:
    """A rule of seasons and one of years, with gaps among the dates."""
    day = days(rng, n, "D", 6 * 365)
    month = day.astype("datetime64[M]").astype(int) % 12
    size, late = rng.choice(["small", "large"], n), day > np.datetime64("2024-07-01")
    odds = 2.5 * np.cos(2 * np.pi * (month - 6) / 12) * np.where(size == "small", 1, 0.3) + np.where(late, 1.5, -1)
    return {"sold": with_gaps(day, rng.random(n) < 0.05), "size": size, "price": rng.normal(50, 9, n).round(2)}, odds


@table
def hourly(rng: Random, n: int) -> Any:
    """A rule of hours, which begins and ends at once, and one of rain."""
    began = days(rng, n, "m", 400 * 24 * 60)
    hour = began.astype("datetime64[h]").astype(int) % 24
    rain, line = rng.gamma(0.7, 3, n).round(1), rng.choice(["U1", "U2", "U3", "U4", "U5"], n)
    rush = ((hour >= 7) & (hour < 9)) | ((hour >= 16) & (hour < 19))
    odds = np.where(rush, 2.5, -1.5) + 0.4 * rain * (line != "U1") - 0.5
    return {"began": began, "rain": rain, "line": line}, odds


@table
def ordinal(rng: Random, n: int) -> Any:
    """Words with an order, and three classes."""
    school, health = rng.integers(0, 5, n), rng.integers(0, 4, n)
    years = rng.integers(0, 40, n)
    score = 0.9 * (school - 2) + 0.7 * (health - 1.5) + years / 20 - 1
    schools = np.array(["none", "primary", "secondary", "college", "university"])[school]
    healths = np.array(["poor", "fair", "good", "excellent"])[health]
    odds = np.column_stack([-2.5 * score, 1.0 - 0.0 * score, 2.5 * score])
    return {"school": pd.Categorical(schools), "health": healths, "years": years}, odds


@table
def many_levels(rng: Random, n: int) -> Any:
    """Three hundred towns, the larger the more rows, each with its own odds."""
    town = (300 * rng.random(n) ** 2).astype(int)
    effect = np.random.default_rng(1).normal(0, 2, 300)
    area, kind = rng.gamma(3, 30, n).round(1), rng.choice(["flat", "house"], n)
    odds = effect[town] + (area - 90) / 40 + np.where(kind == "house", 1, -0.5)
    return {"town": np.char.add("town ", town.astype(str)), "area": area, "kind": kind}, odds


@table
def with_an_id(rng: Random, n: int) -> Any:
    """A number of each row that says nothing, written as words, and columns that all do a little."""
    X = rng.normal(size=(n, 3)).round(3)
    plan, pays = rng.choice(["basic", "plus", "pro"], n, p=[0.6, 0.3, 0.1]), rng.choice(["card", "bill"], n)
    odds = X @ [1.0, -1.0, 0.5] + np.select([plan == "plus", plan == "pro"], [1, 2], -1) + (pays == "bill") * X[:, 0]
    number = np.char.add("C-", rng.permutation(10 * n)[:n].astype(str))
    return {"customer": number, "plan": plan, "pays": pays, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}, odds


@table
def magnitudes(rng: Random, n: int) -> Any:
    """Numbers of very different size and tails, a share, a count, and words of which one is rare."""
    turnover, share, staff = rng.lognormal(14, 1.5, n).round(), rng.beta(1, 400, n).round(7), rng.poisson(3, n)
    branch = rng.choice(["trade", "farm", "bank", "mine"], n, p=[0.6, 0.3, 0.08, 0.02])
    odds = (np.log(turnover) - 14) + np.where(share > 0.002, 2, -1) + 0.5 * (staff - 3) + (branch == "bank") * 2.0
    return {"turnover": turnover, "share": share, "staff": staff, "branch": branch}, odds


@table
def of_everything(rng: Random, n: int) -> Any:
    """Words, gaps, a date, a boolean and numbers at once, as of claims to an insurer."""
    reported, amount = days(rng, n, "h", 2 * 365 * 24), rng.lognormal(7, 1, n).round(2)
    cause, known = rng.choice(["storm", "theft", "fire", "water", "other"], n), rng.random(n) < 0.7
    age = with_gaps(rng.integers(18, 90, n), rng.random(n) < 0.15)
    night = reported.astype("datetime64[h]").astype(int) % 24 < 6
    odds = np.where(cause == "theft", 1.5, -0.5) + 1.5 * night - 2.0 * known + (np.log(amount) - 7) + age.isna() * 1.0
    return {"reported": reported, "amount": amount, "cause": cause, "known": known, "age": age}, odds + 0.5
