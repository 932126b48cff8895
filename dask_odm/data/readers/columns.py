"""Roles of the columns of a table: the label, the weight, and the features that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask_odm.data.readers.sources import MAX_FEATURES, column_name
from dask_odm.errors import InputError

LABEL_NAMES = ("label", "y", "target", "class")


@dataclass(frozen=True)
class Columns:
    """Positions of label, weight and dropped columns among ``count`` columns, with all names if there are any."""

    names: tuple[str, ...] | None
    count: int
    label: int | None
    weight: int | None
    guessed: bool = False  # the label is the last column, since no name tells it
    dropped: tuple[int, ...] = ()

    @property
    def features(self) -> Sequence[int]:
        """Positions of the features; of all columns without a list, since there may be millions."""
        others = {self.label, self.weight, *self.dropped} - {None}
        if not others:
            return range(self.count)
        return [i for i in range(self.count) if i not in others]

    @cached_property
    def texts(self) -> frozenset[int]:
        """Positions of columns that need not have numbers: the label and the dropped ones."""
        return frozenset(self.dropped if self.label is None else (self.label, *self.dropped))

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features."""
        return None if self.names is None else tuple(self.names[i] for i in self.features)

    @property
    def label_name(self) -> str | None:
        """Name of the label column in messages."""
        return None if self.label is None else self.name(self.label)

    def name(self, i: int) -> str:
        """Return a column's name in messages."""
        return column_name(i, self.names)


def choose_columns(
    where: str,
    names: Sequence[Any] | None,
    count: int,
    label: str | int | bool | None,
    weight: str | int | None,
    *,
    guess: bool = True,
    drop: Sequence[str | int] = (),
) -> Columns:
    """Find the columns of labels and weights among ``count`` columns, and those that ``drop`` leaves out.

    Columns are given by name or number (from 0; negative from the end). A ``label`` of False means none, and None means
    none unless ``guess``: then it is the column named label, y, target or class (in any case), else the last. ``where``
    is the file or object in messages. Raises InputError if there is no such column or no feature beside label and
    weight, or if two columns have one name.
    """
    texts = _texts(where, names)
    at_weight = None if weight is None else _position(where, "weight", weight, texts, names, count)
    at = {name: i for i, name in enumerate(texts or ())} if drop else {}  # searching for many names is slow
    dropped = tuple(at[x] if x in at else _position(where, "dropped", x, texts, names, count) for x in drop)
    if label is False or (label is None and not guess):
        at_label = None
    elif label is None:
        at_label = _guessed(texts, Columns(texts, count, None, at_weight, dropped=dropped).features)
    else:
        at_label = _position(where, "label", label, texts, names, count)
    named = at_label is not None and texts is not None and texts[at_label].lower() in LABEL_NAMES
    guessed = at_label is not None and label is None and not named
    columns = Columns(texts, count, at_label, at_weight, guessed, dropped)
    _check(where, columns)
    return columns


def _check(where: str, columns: Columns) -> None:
    """Raise InputError if there are no features or too many, or if a column has two roles or no name."""
    if columns.names is not None and "" in columns.names and columns.names.index("") not in columns.dropped:
        at = columns.names.index("")
        raise InputError(
            f"{where}: column {at + 1} has no name; if it is a row number, leave it out with drop={at} (--drop {at})."
        )
    if {columns.label, columns.weight} & set(columns.dropped):
        raise InputError(f"{where}: a column that is dropped cannot be that of the labels or weights.")
    same = columns.label is not None and columns.label == columns.weight
    if not 1 <= len(columns.features) <= MAX_FEATURES or same:
        raise InputError(f"{where}: no feature columns beside label and weight, or too many.")


def _texts(where: str, names: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return names as strings; None if columns are only numbered."""
    if names is None or all(not isinstance(name, str) and hasattr(name, "__index__") for name in names):
        return None
    texts = tuple(map(str, names))
    if len(set(texts)) < len(texts):
        twice = next(name for name, times in Counter(texts).items() if times > 1)
        raise InputError(f"{where}: two columns are named {twice[:60]!r}.")
    return texts


def _guessed(names: tuple[str, ...] | None, among: Sequence[int]) -> int | None:
    for wanted in LABEL_NAMES:
        for i in among:
            if names is not None and names[i].lower() == wanted:
                return i
    return among[-1] if among else None


def _position(
    where: str, what: str, column: str | int, texts: tuple[str, ...] | None, names: Sequence[Any] | None, count: int
) -> int:
    """Return the position of a column given by name or number."""
    if names is not None and column in list(names):
        return list(names).index(column)
    if texts is not None and column in texts:
        return texts.index(str(column))
    try:
        position = int(column)
    except ValueError:
        some = ", ".join((texts or ())[:20])
        known = "the columns have no names" if texts is None else f"the columns are {some}"
        raise InputError(f"{where}: no {what} column '{column}'; {known}.") from None
    if not -count <= position < count:
        raise InputError(f"{where}: no {what} column {position}; there are {count} columns.")
    return position % count
