"""Labels to integer codes while they stream by, and back to the values they were."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_odm.data.store.layout import Label
from dask_odm.errors import InputError

MAX_LABELS = 32767
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # more digits are no class, and may be too many for Python
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")


class LabelEncoder:
    """Gives each distinct label a code, in order of appearance.

    Parameters
    ----------
    text : the labels were read from text, so that their type follows from all of them: integers if all
        are, else floats if all are numbers, else strings. Otherwise each keeps its type.
    """

    def __init__(self, *, text: bool) -> None:
        self._text = text
        self._codes: dict[Any, int] = {}

    def encode(self, labels: npt.NDArray[Any], place: Callable[[int], str]) -> npt.NDArray[np.int32]:
        """Return the codes of labels, shape (rows,).

        Raises
        ------
        InputError
            A label is missing or of a type that is no label, or there are more than 32767 different ones;
            ``place`` tells where.
        """
        local, distinct = pd.factorize(labels, use_na_sentinel=False)
        table = np.empty(len(distinct), dtype=np.int32)
        for i, value in enumerate(distinct):
            label = _plain(value)
            if label is None:
                raise InputError(f"{place(int(np.argmax(local == i)))}: {_complaint(value)}")
            table[i] = self._codes.setdefault(label, len(self._codes))
            if len(self._codes) > MAX_LABELS:
                row = int(np.argmax(local == i))
                raise InputError(
                    f"{place(row)}: more than {MAX_LABELS} different labels; is the label column a measurement or a "
                    "row number? Choose another with label= (--label)."
                )
        return table[local]

    def classes(self) -> tuple[Label, ...]:
        """Return the labels in the order of their codes; equal ones may occur twice, spelled differently."""
        labels = list(self._codes)
        return tuple(text_values(labels) if self._text else labels)


def missing_labels(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which labels, shape (rows,), are None, NaN, NA or blank."""
    if labels.dtype.kind in "biu":
        return np.zeros(len(labels), dtype=bool)
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    local, distinct = pd.factorize(labels, use_na_sentinel=False)
    return np.array([_is_missing(value) for value in distinct], dtype=bool)[local]


def text_values(labels: list[Any]) -> list[Label]:
    """Give labels read from text (strings, or floats where the format has numbers only) their type."""
    if all(isinstance(label, float) for label in labels):
        return [int(label) for label in labels] if all(label.is_integer() for label in labels) else labels
    words = [str(label).strip() for label in labels]
    if all(_WHOLE.fullmatch(word) for word in words):
        return [int(word) for word in words]
    numbers = [float(word) for word in words] if all(_NUMBER.fullmatch(word) for word in words) else [math.inf]
    if all(map(math.isfinite, numbers)):
        return list(numbers)
    return list(words)


def _plain(value: Any) -> Label | None:
    """Return a label as a Python value; None where it is missing or no label."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, bytes):
        item = item.decode("utf-8", errors="replace")
    if isinstance(item, str):
        return item if item.strip() else None
    if isinstance(item, bool | int):
        return item
    return item if isinstance(item, float) and math.isfinite(item) else None


def _complaint(value: Any) -> str:
    if _is_missing(value):
        return "the label is missing."
    return f"{value!r} is not a label; use a number, a string or a boolean."


def _is_missing(value: Any) -> bool:
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    if isinstance(value, str | bytes):
        return not value.strip()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
