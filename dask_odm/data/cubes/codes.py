"""Class labels as small whole numbers with their meanings, as the CF conventions and GIS programs have maps of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.cubes.cube import NODATA
from dask_odm.typing import Array

_TYPES = (("uint8", 255), ("int16", -(2**15)), ("int32", -(2**31)))  # types of codes, and what is no code of them
_NO_WORD = re.compile(r"[^\w.+@-]+")  # what CF does not allow in a word of flag_meanings


@dataclass(frozen=True, eq=False)
class ClassCodes:
    """``values`` (k,) are the codes of the classes in their order, and ``fill`` is no code of any."""

    values: Array
    fill: int
    meanings: tuple[str, ...]

    @classmethod
    def of(cls, classes: Array, words: Mapping[str, str]) -> ClassCodes:
        """Return codes for classes (k,): the classes themselves if they are small whole numbers, else 0, 1, …

        ``words`` has meanings that labels came with, see `words_of`; other classes mean themselves.
        """
        numbers = _whole_numbers(classes)
        values = list(range(len(classes))) if numbers is None else numbers
        dtype, fill = next(each for each in _TYPES if _fits(values, *each))
        labels = values if numbers is not None and classes.dtype.kind == "f" else classes.tolist()
        return cls(np.array(values, dtype), fill, _meanings([words.get(str(label), str(label)) for label in labels]))

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a map of codes, as CF and GDAL read them."""
        return {
            "flag_values": self.values,
            "flag_meanings": " ".join(self.meanings),
            NODATA: self.values.dtype.type(self.fill),
        }


def words_of(attributes: Mapping[Any, Any]) -> dict[str, str]:
    """Return the meaning of each code of labels, by the code as text, as their CF attributes have them."""
    values = np.atleast_1d(attributes.get("flag_values", ()))
    words = str(attributes.get("flag_meanings", "")).split()
    is_sound = values.ndim == 1 and values.dtype.kind in "iu" and len(values) == len(words)
    return dict(zip(map(str, values.tolist()), words, strict=True)) if is_sound else {}


def _whole_numbers(classes: Array) -> list[int] | None:
    """Return classes as whole numbers that a type of codes can hold; None if one is not."""
    if classes.dtype.kind not in "biuf":
        return None
    values = [int(label) for label in classes.tolist() if float(label).is_integer()]
    return values if len(values) == len(classes) and _fits(values, *_TYPES[-1]) else None


def _fits(values: list[int], dtype: str, fill: int) -> bool:
    limits = np.iinfo(dtype)
    return all(limits.min <= value <= limits.max and value != fill for value in values)


def _meanings(labels: list[str]) -> tuple[str, ...]:
    """Return a word for each label; of those that would be the same, the second and later ones are numbered."""
    found: list[str] = []
    for label in labels:
        word = _NO_WORD.sub("_", label) or "_"
        count = 1
        while (word if count == 1 else f"{word}_{count}") in found:
            count += 1
        found.append(word if count == 1 else f"{word}_{count}")
    return tuple(found)


def decoded(classes: Array) -> tuple[Array, Any]:
    """Return classes in a type that has a missing value, and that value: NaN, NaT or None."""
    if classes.dtype.kind in "fmM":
        return classes, np.array(None).astype(classes.dtype)[()]
    if classes.dtype.kind in "iu":
        return classes.astype(np.float64), np.nan
    return np.array(classes.tolist(), dtype=object), None
