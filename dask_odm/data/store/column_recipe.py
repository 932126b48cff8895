"""The recipe by which the columns of a table became the features of a store. Store and models keep it.

It is applied to *values*: a float64 matrix with a column for each column of the table. It holds numbers as they are,
booleans as 0 and 1, moments as seconds since 1970, and words as indices into the levels of the recipe, −1 if they are
none of these. NaN is a gap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.html import table
from dask_odm.printing import quoted, short
from dask_odm.typing import Array

DAY = 86400.0  # seconds
TILE_BYTES = 1 << 21  # features that are made at a time, one column after another: they stay in a core's cache
# What is left out, and why.
LEFT_OUT = {"empty": "no value in any row", "id": "another value in nearly every row", "texts": "texts of many words"}
HEAD = ("column", "read as", "levels or range", "gaps")  # of the table for people
KINDS = ("number", "boolean", "words", "date", "span", *LEFT_OUT)


def _month(seconds: Array) -> Array:
    months = np.floor(seconds).astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    return months % 12 / 12


# Turns of a date, each by the share of it that has passed. Distances see them as points of a circle.
CYCLES: Mapping[str, Callable[[Array], Array]] = {
    "hour": lambda seconds: seconds % DAY / DAY,
    "weekday": lambda seconds: (seconds // DAY + 3) % 7 / 7,  # 1970 began with a Thursday
    "month": _month,
}


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes features. Figures are those of the training rows.

    A number, a boolean, a date or a span of time is a feature by itself, the last two in days, a date since the
    earliest and with two features for each of its cycles. Words are one feature a level, which is 1 in its rows and 0
    in others.
    """

    name: str
    kind: str  # one of `KINDS`
    gaps: int = 0  # rows without a value
    tells_gaps: bool = False  # whether a feature says which rows have none
    fill: float = 0.0  # what a gap counts as: the median
    least: float = 0.0
    most: float = 0.0
    gap_words: tuple[str, ...] = ()  # words among numbers, which count as gaps
    levels: tuple[str, ...] = ()  # the most frequent first
    more_levels: int = 0  # rarer ones, which share a feature
    cycles: tuple[str, ...] = ()  # those of `CYCLES` that vary
    zoned: bool = False  # whether moments have a time zone: they are of UTC

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError unless these can be the facts of a column."""
        for each in fields(self):
            value: Any = getattr(self, each.name)
            default = "" if each.default is MISSING else each.default
            kind: Any = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, kind):
                raise TypeError(f"{each.name} of a column is {value!r:.60}")
            if kind in (int, (int, float)) and not abs(value) <= sys.float_info.max:
                raise ValueError(f"{each.name} of a column is {value!r:.60}")
            if kind is tuple and (not all(isinstance(word, str) for word in value) or len(set(value)) < len(value)):
                raise ValueError(f"{each.name} of a column holds other than words, or one twice")
        if self.kind not in KINDS or not set(self.cycles) <= set(CYCLES):
            raise ValueError(f"a column of kind {self.kind!r:.60}, with cycles {self.cycles!r:.60}")
        if min(self.gaps, self.more_levels) < 0:
            raise ValueError(f"a column with {self.gaps} gaps and {self.more_levels} levels more")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features; none if the column is left out."""
        if self.kind in LEFT_OUT:
            return ()
        if self.kind == "words":
            names = [f"{self.name}={level}" for level in self.levels]
            names += [f"{self.name} (other)"] if self.more_levels else []
        else:
            names = [f"{self.name} (days)" if self.kind == "date" else self.name]
            names += [f"{self.name} ({cycle}, {way})" for cycle in self.cycles for way in ("sine", "cosine")]
        return (*names, *([f"{self.name} (missing)"] if self.tells_gaps else []))

    @property
    def marks(self) -> range:
        """Places, among the features, of those that are 0 and 1: levels of words, and where gaps are."""
        width = len(self.features)
        if self.kind == "words":
            return range(width)
        return range(width - self.tells_gaps, width)

    def encode(self, values: Array, out: Array) -> None:
        """Write the features of ``values`` (n,) into ``out`` (n, features), which is 0."""
        gaps = np.isnan(values)
        fill = -2.0 if self.kind == "words" else self.fill
        filled = np.where(gaps, fill, values) if gaps.any() else values
        if self.kind == "words":
            of_gaps = out.shape[1] - 1 if self.tells_gaps else -1
            of_others = len(self.levels) if self.more_levels else -1
            places = np.append(np.arange(len(self.levels)), [of_gaps, of_others])
            place = places[filled.astype(np.intp)]
            known = np.flatnonzero(place >= 0)
            out[known, place[known]] = 1.0
            return
        with np.errstate(over="ignore"):  # readers look for infinity
            out[:, 0] = (filled - self.least) / DAY if self.kind == "date" else filled
        for k, cycle in enumerate(self.cycles):
            turn = 2.0 * np.pi * CYCLES[cycle](filled)
            out[:, 2 * k + 1] = np.where(gaps, 0.0, np.sin(turn))
            out[:, 2 * k + 2] = np.where(gaps, 0.0, np.cos(turn))
        if self.tells_gaps:
            out[gaps, -1] = 1.0


@dataclass(frozen=True)
class ColumnRecipe:
    """Recipe by which the columns of a table become features.

    Parameters
    ----------
    columns : tuple of Column
        The columns of the table that are neither label nor weight nor dropped, in its order.
    dtype : str
        Type of the features: "float32" or "float64".
    """

    columns: tuple[Column, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Raise ValueError unless there are features, of columns with different names."""
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"features of type {self.dtype!r:.60}")
        if len(set(self.names)) < len(self.names) or not self.n_features:
            raise ValueError("columns of equal names, or no features")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    def places(self, names: Sequence[str], where: str) -> list[int]:
        """Return the place of each column among ``names``, −1 of one that is left out and not there.

        Raises InputError, with ``where``, if another one is missing or there twice.
        """
        needed = [column.name for column in self.columns if column.kind not in LEFT_OUT]
        require_columns(needed, names, where)
        twice = next((name for name in needed if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{where}: two columns are named {quoted(twice)}; give each a name of its own.")
        at = {name: i for i, name in enumerate(names)}
        return [at.get(name, -1) for name in self.names]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, which are all different."""
        found: dict[str, None] = {}
        for name in (name for column in self.columns for name in column.features):
            unique, times = name, 2
            while unique in found:
                unique, times = f"{name} #{times}", times + 1
            found[unique] = None
        return tuple(found)

    @property
    def is_plain(self) -> bool:
        """Whether features are the columns themselves, so that nobody needs the recipe."""
        return all(column.kind == "number" and not column.gaps for column in self.columns)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.feature_names)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """Places of the features of each column."""
        ends = np.cumsum([0, *(len(column.features) for column in self.columns)]).tolist()
        return tuple(range(ends[j], ends[j + 1]) for j in range(len(self.columns)))

    @property
    def marks(self) -> tuple[int, ...]:
        """Places of the features that are 0 and 1, which scaling only shortens, see `Scaling`."""
        return tuple(span[k] for column, span in zip(self.columns, self.spans, strict=True) for k in column.marks)

    def encode(self, values: Array) -> Array:
        """Return the features (n, d) of ``values`` (n, columns)."""
        out = np.zeros((len(values), self.n_features), self.dtype)
        step = max(1, TILE_BYTES // (out.itemsize * self.n_features))
        for rows in (slice(start, start + step) for start in range(0, len(values), step)):
            for j, (column, span) in enumerate(zip(self.columns, self.spans, strict=True)):
                if span:
                    column.encode(values[rows, j], out[rows, span.start : span.stop])
        return out

    def json(self) -> dict[str, Any]:
        """Return the recipe as JSON has it."""
        columns = [
            {each.name: value for each in fields(column) if (value := getattr(column, each.name)) != each.default}
            for column in self.columns
        ]
        return {"dtype": self.dtype, "columns": columns}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ColumnRecipe:
        """Return the recipe that `json` gave; raise ValueError, TypeError or KeyError if it is none."""
        columns = []
        for each in found["columns"]:
            facts: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in each.items()}
            columns.append(Column(**facts))
        return cls(tuple(columns), found["dtype"])

    def facts(self) -> list[dict[str, Any]]:
        """Return for people of each column its name, how it is read, its range or levels, and how many gaps it has."""
        told = zip(self.columns, map(_told, self.columns), strict=True)
        return [{"name": each.name, "read_as": kind, "values": held, "gaps": each.gaps} for each, (kind, held) in told]

    def _repr_html_(self) -> str:
        return table(HEAD, [list({**each, "gaps": each["gaps"] or ""}.values()) for each in self.facts()])


def require_columns(needed: Iterable[str], names: Container[str], where: str) -> None:
    """Raise InputError, with ``where``, if columns that are needed are not among the ``names``."""
    missing = [name for name in needed if name not in names]
    if missing:
        many = "s" * (len(missing) > 1)
        raise InputError(f"{where} has no column{many} {quoted(missing)[1:-1]}, of which the model learned.")


def _told(column: Column, most: int = 4) -> tuple[str, str]:
    """Return how a column is read, and its range or its most frequent levels."""
    if column.kind in LEFT_OUT:
        return "left out", LEFT_OUT[column.kind]
    if column.kind == "words":
        count = len(column.levels) + column.more_levels
        more = f" and {count - most} more" if count > most else ""
        return "words", f"{', '.join(short(level, 20) for level in column.levels[:most])}{more}"
    if column.kind == "date":
        ends = (str(np.datetime64(int(each // 1), "s")) for each in (column.least, column.most))
        named = "date, UTC" if column.zoned else "date"
        return named, " to ".join(end.removesuffix("T00:00:00") for end in ends)
    if column.kind == "boolean":
        return "yes or no", ""
    return "days" if column.kind == "span" else "number", f"{column.least:.6g} to {column.most:.6g}"
