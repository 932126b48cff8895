"""Encoding of labels as integer codes or real targets while rows are read, and back to their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from dask_odm.data.store.layout import Label
from dask_odm.data.store.statistics import TIMES, as_numbers, as_time, is_text, listed, not_text, plain_item
from dask_odm.errors import InputError
from dask_odm.linalg.rows import unmasked, with_way_out
from dask_odm.printing import quoted

MAX_LABELS = np.iinfo(np.int16).max
TARGETS = ("auto", "classes", "real")
# numbers without leading zeros, which codes have; longer ones may be too long for Python
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,39})")
_NUMBER = re.compile(r"([+-]?)((?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_PLAIN = frozenset({"integer", "floating", "boolean", "decimal"})  # types of labels that need no object dtype


class LabelEncoder:
    """Encoder that gives each distinct label a code, in order of appearance, or finds that labels are real targets.

    Equal numbers are one class, and so are strings of the same letters. If labels were read from ``text``, their type
    follows from all of them, see `text_values`; otherwise each keeps its type. ``target`` is ``classes``, ``real``
    (numbers, kept as they are) or ``auto``: classes, until there are more than 100 different labels, all of them
    numbers and some not whole; then they are real, from the first row on. ``is_real`` says what is known so far. Labels
    of several columns, which are refused unless they may be ``several``, are numbers whatever the target.
    """

    most_real_classes: ClassVar[int] = 100  # more different numbers, some not whole, are real targets

    def __init__(self, *, text: bool, target: str = "classes", several: bool = True) -> None:
        if target not in TARGETS:
            raise InputError(f"target must be one of {', '.join(map(repr, TARGETS))}. Got {target!r} instead.")
        self._text = text
        self._auto = target == "auto"
        self._several = several
        self.is_real = target == "real"
        self._codes: dict[Any, int] = {}
        self._times: list[Any] = []  # the date or span behind each code, as long as all labels are such
        self.values: list[float] = []  # the number behind each code that was returned before labels became real
        self._all_whole = True

    def encode(self, labels: npt.NDArray[Any], place: Callable[[int], str]) -> npt.NDArray[Any]:
        """Return codes of labels, int32 of shape (rows,), or the values of real targets, float64, (rows, targets) too.

        Raises InputError, with ``place``, if a label is missing or of a wrong type, there are more than 32767 different
        ones, or a real target is not finite.
        """
        if labels.ndim > 1:
            if not self._several:
                raise InputError(with_way_out(f"y should be a 1d array, got an array of shape {labels.shape} instead."))
            self.is_real = True
        if not self.is_real:
            codes = self._encode(labels, place)
            if not self.is_real:
                return codes
        return self._real(labels, place)

    def _encode(self, labels: npt.NDArray[Any], place: Callable[[int], str]) -> npt.NDArray[np.int32]:
        local, distinct = _distinct(labels)
        table = np.empty(len(distinct), dtype=np.int32)
        for i, value in enumerate(distinct):
            label = plain_label(value)
            if label is None:
                raise InputError(
                    f"{place(int(np.argmax(local == i)))}: {_shown(value)} is not a label; use numbers, strings or "
                    "booleans, or another column by label= (--label)."
                )
            if not is_text(label):
                raise InputError(f"{place(int(np.argmax(local == i)))}: {not_text(plain_item(value))}")
            if label not in self._codes and len(self._times) == len(self._codes):
                self._times += [time for time in [as_time(value)] if isinstance(time, TIMES)]
            table[i] = self._codes.setdefault(label, len(self._codes))
            if self._auto and self._found_real(label):
                break
            if len(self._codes) > MAX_LABELS:
                row = int(np.argmax(local == i))
                raise InputError(
                    f"{place(row)}: more than {MAX_LABELS} different labels; is the label column a measurement or a "
                    "row number? Choose another with label= (--label), or ingest them as numbers, with target='real' "
                    "(--target real)."
                )
        return table[local]

    def _found_real(self, label: Label) -> bool:
        """Look at the next label, in order of appearance, and return whether labels have turned out to be real."""
        if len(self.values) < len(self._codes):  # a label not seen before
            number = _number(label, self._text)
            if number is None:  # labels are classes, whatever follows
                self._auto = False
                return False
            self.values.append(number)
            self._all_whole = self._all_whole and number.is_integer()
        self.is_real = len(self._codes) > self.most_real_classes and not self._all_whole
        return self.is_real

    def _real(self, labels: npt.NDArray[Any], place: Callable[[int], str]) -> npt.NDArray[np.float64]:
        if labels.dtype.kind in ("biuf" if labels.ndim > 1 else "iuf"):
            values = labels.astype(np.float64)
        else:
            numbers = (_number(plain_label(label), self._text) for label in labels.flat)
            values = np.array([np.nan if number is None else number for number in numbers], np.float64)
            values = values.reshape(labels.shape)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            at = tuple(bad[0].tolist())
            why = "labels so far are real targets, and " if self.values else ""
            raise InputError(
                f"{place(at[0])}: {why}{_shown(labels[at])} is no finite number; choose another column with label= "
                "(--label), or ingest the labels as classes, with target='classes' (--target classes)."
            )
        return values

    def classes(self) -> tuple[Any, ...]:
        """Return the labels in the order of their codes. Equal ones may occur twice, spelled differently."""
        if self.is_real:
            return ()
        labels = list(self._codes)
        times = np.array(self._times)  # of one unit
        if listed(times) == labels:
            return tuple(times)
        return tuple(text_values(labels) if self._text else labels)


def plain_labels(y: Any, what: str = "y") -> npt.NDArray[Any]:
    """Return labels of any array-like as an array of its shape. Missing ones are None, NaN or NA.

    Raises InputError, which calls them ``what``, for lists of strings that NumPy would change.
    """
    if isinstance(y, pd.Series) and isinstance(y.dtype, pd.api.extensions.ExtensionDtype):
        y = y.to_numpy(dtype=object)
    values = np.asarray(unmasked(y, labels=True))
    if values.dtype.kind in "US" and not isinstance(y, np.ndarray):
        for row, label in enumerate(np.asarray(y, dtype=object).flat):
            if not is_text(label):
                raise InputError(f"{what}, row {row}: {not_text(label)}")
    return values.astype(object) if values.dtype.kind == "T" else values  # NumPy's strings of any length


def labels_of(y: Any, what: str = "y") -> npt.NDArray[Any] | None:
    """Return labels in memory as an ndarray, of dtype object only if they need it; None stays None.

    Messages call them ``what``.
    """
    if y is None:
        return None
    values = plain_labels(y, what)
    if values.dtype.kind != "O":
        return values
    held = types.infer_dtype(values.reshape(-1), skipna=False)
    if held == "decimal":
        values = np.frompyfunc(plain_label, 1, 1)(values)
    if held in ("date", "datetime", "timedelta"):
        local, distinct = _distinct(values.reshape(-1))
        times = np.array([as_time(value) for value in distinct])
        if listed(times) == [plain_item(value) for value in distinct]:  # else one is beyond the unit of the others
            return times[local].reshape(values.shape)
    return np.array(values.tolist()) if held in _PLAIN else values


def are_same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Return whether labels (n,) are equal row by row, missing ones included."""
    missing = pd.isna(a)
    return np.array_equal(missing, pd.isna(b)) and np.array_equal(a[~missing], b[~missing])


def missing_labels(labels: npt.NDArray[Any], *, text: bool) -> npt.NDArray[np.bool_]:
    """Return a mask (rows,) of the labels that are None, NaN or NA, or blank fields of a ``text``, in any column."""
    if labels.ndim > 1:
        return np.asarray(pd.isna(labels).any(axis=1))
    if labels.dtype.kind in "biu":
        return np.zeros(len(labels), dtype=bool)
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    local, distinct = _distinct(labels)
    blank = [text and isinstance(value, str) and not value.strip() for value in distinct]
    return (pd.isna(distinct) | np.array(blank, dtype=bool))[local]


def _distinct(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Any]:
    """Return each label's index among the distinct labels, and these.

    Labels that cannot be hashed count as distinct.
    """
    try:
        return pd.factorize(labels, use_na_sentinel=False)
    except TypeError:
        return np.arange(len(labels)), labels


def text_values(labels: list[Any]) -> list[Label]:
    """Return labels read from text with their type: integers if all are, else floats if all are numbers, else strings.

    Strings are as they are spelled. So are numbers if one has leading zeros, as ``007`` has, if two of them are
    one number that is spelled in two ways, as ``1E5`` and ``100000``, or if one has too many digits to be kept.
    ``1``, ``+1`` and ``1.0`` count as one spelling. LIBSVM text has numbers only, which are given as such.
    """
    if any(isinstance(label, str) for label in labels):
        words = [label.strip() for label in labels]
        spellings = [_spelling(word) for word in words]
        numbers = [] if None in spellings else [int(word) if _WHOLE.fullmatch(word) else float(word) for word in words]
    else:
        labels = [int(label) if abs(label) < 2**63 and label == int(label) else label for label in labels]
        spellings = numbers = labels
    kept = as_numbers(numbers)
    return kept if kept and len(set(kept)) == len(set(spellings)) else list(map(str, labels))


def _spelling(word: str) -> str | None:
    """Return how a number is spelled without what is often left out: a plus, a zero in front, zeros behind a point."""
    found = _NUMBER.fullmatch(word)
    if found is None or not math.isfinite(float(word)):
        return None
    sign, digits, exponent = found.groups()
    whole, _, fraction = digits.partition(".")
    plain = f"{whole or '0'}.{fraction.rstrip('0')}{(exponent or '').lower()}"
    return plain if float(word) == 0 else f"{sign.removeprefix('+')}{plain}"


def plain_label(value: Any) -> Label | None:
    """Return a label as a Python value, a date or span as a word; None if it is missing or no label."""
    item = plain_item(value)
    if isinstance(item, bytes):
        item = item.decode("utf-8", errors="surrogateescape")  # bytes that are no text stay apart, and are no label
    if isinstance(item, Decimal) and item.is_finite():
        item = int(item) if item == int(item) else float(item)
    if isinstance(item, str | bool | int):
        return item
    return item if isinstance(item, float) and math.isfinite(item) else None


def _number(label: Label | None, text: bool) -> float | None:
    """Return the finite number that a label is, or that text spells; else None."""
    if label is None or isinstance(label, bool) or (isinstance(label, str) and not (text and "_" not in label)):
        return None
    try:
        number = float(label)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    return " ".join(quoted(plain_item(value)).split())
