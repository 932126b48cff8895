"""Match labels of rows with a model's classes, also if a file changed their type, and count those predicted right.

Workers load this module, so it imports neither pandas nor scikit-learn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.store.statistics import is_text, listed, not_text, plain_item
from dask_odm.errors import InputError
from dask_odm.linalg.rows import is_missing, unmasked
from dask_odm.printing import quoted
from dask_odm.typing import Array

UNKNOWN = -1  # place of a label that is no class
MISSING = -2  # place of None, NaN or NA
MOST_SHOWN = 10  # labels of no class that a count keeps, for an error
_SPELLED = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?")  # a number as Python and most writers spell it


def codes_of(labels: Sequence[Any], classes: Sequence[Any]) -> list[int]:
    """Return the index in ``classes`` of each of some distinct labels, or UNKNOWN or MISSING.

    Labels are matched by value, else by the number or boolean that they spell, since a file may change their type:
    "1.0" is 1, and "true" is "True". Nothing is matched so if two classes spell the same.
    """
    place = {label: i for i, label in enumerate(classes)}
    spelled = {_spelled(label): i for label, i in place.items()}
    if len(spelled) < len(place):
        spelled = {}

    def code(label: Any) -> int:
        return MISSING if is_missing(label) else place.get(label, spelled.get(_spelled(label), UNKNOWN))

    return [code(label) for label in labels]


def require_common(labels: Sequence[Any], classes: Sequence[Any], where: str) -> None:
    """Raise InputError if none of some distinct labels is one of ``classes``.

    A single label may be that of a class without a row in the fit, unless it is of another type than all classes.
    """
    known = [label for label in labels if not is_missing(label)]
    if not known or max(codes_of(known, classes)) >= 0:
        return
    if len(known) > 1 or not set(map(_kind, known)) & set(map(_kind, classes)):
        raise InputError(
            f"none of the labels of {where}, {quoted(known)}, is the model's: {quoted(list(classes))}; name the labels "
            "as for the fit, or fit with labels such as these."
        )


@dataclass(frozen=True)
class RightCount:
    """Weight of the rows that are predicted right, and of all with a label.

    ``others`` are some of the labels that are no class, and ``matched`` tells whether any row's is one.
    """

    right: float
    total: float
    matched: bool
    others: tuple[Any, ...]

    def __add__(self, other: RightCount) -> RightCount:
        others = tuple(dict.fromkeys(self.others + other.others))[:MOST_SHOWN]
        return RightCount(self.right + other.right, self.total + other.total, self.matched or other.matched, others)


def count_right(classes: Sequence[Any], codes: Array, y: Array, weight: Array | None = None) -> RightCount:
    """Count the rows (n,) whose predicted ``codes`` are the places of their labels ``y``."""
    true, labels, places = codes_of_rows(y, classes)
    weight = np.ones(len(codes)) if weight is None else np.asarray(unmasked(weight), dtype=np.float64)
    counted = np.where(true == MISSING, 0.0, weight)
    others = tuple(label for label, place in zip(labels, places, strict=True) if place == UNKNOWN)[:MOST_SHOWN]
    return RightCount(float(counted[codes == true].sum()), float(counted.sum()), bool((true >= 0).any()), others)


def count_block(codes: Array, y: Array, weight: Array | None = None, *, classes: Sequence[Any]) -> Array:
    """Return the result of `count_right` as an array of one item: a task of lazy scores."""
    try:
        return np.array([count_right(classes, codes, y, weight)], dtype=object)
    except InputError as error:
        raise InputError(f"in a block of rows, {error}") from error


def codes_of_rows(y: Array, classes: Sequence[Any]) -> tuple[Array, list[Any], list[int]]:
    """Return the code of each row's label as of `codes_of`, int64 (n,), and the distinct labels with their codes.

    Raises InputError, with the first row, for a label that is no text: no model has such a class.
    """
    y = unmasked(y, labels=True)
    if y.dtype.kind in "biufUSmM":
        distinct, of = np.unique(y, return_inverse=True)
        labels = listed(distinct)
    else:
        place: dict[Any, int] = {}
        of = np.array([place.setdefault(label, len(place)) for label in y.tolist()], dtype=np.int64)
        labels = list(map(plain_item, place))
    codes = codes_of(labels, classes)
    for i, label in enumerate(labels):
        if not is_text(label):
            raise InputError(f"y, row {int(np.argmax(of == i))}: {not_text(label)}")
    return np.array(codes, dtype=np.int64)[of], labels, codes


def _kind(label: Any) -> type:
    """Return str, bytes, or float for a number, a boolean or anything else."""
    return next((kind for kind in (str, bytes) if isinstance(label, kind)), float)


def _spelled(label: Any) -> Any:
    """Return the number or boolean that a word spells; any other label as it is."""
    if not isinstance(label, str | bytes):
        return label
    word = label.decode("utf-8", errors="replace") if isinstance(label, bytes) else label
    plain = word.strip().lower()
    if plain in ("true", "false"):
        return plain == "true"
    if _SPELLED.fullmatch(plain):
        return int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    return word
