"""Statistics of a store that are known without reading its rows: of every feature, and of classes or real targets.

Minimum, maximum, mean and variance are computed block by block. Blocks are merged by the pairwise update of Chan, Golub
and LeVeque (1983), "Algorithms for computing the sample variance", The American Statistician 37, so nothing cancels
however far the data are from zero. Figures that overflow are infinite or NaN, without a warning; code that divides by
them checks them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.layout import REAL_TYPE, Layout
from dask_odm.errors import InputError, StoreError
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.printing import quoted
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Statistics:
    """Per-feature statistics of the rows of a store, each float64 of shape ``(d,)``.

    The variance is the population's (``ddof=0``), as `numpy.var` gives it. With ``ranks``, they are those of the levels
    that these map the features to.
    """

    minimum: npt.NDArray[np.float64]
    maximum: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]
    ranks: Any = None

    @property
    @np.errstate(over="ignore", invalid="ignore")
    def total_variance(self) -> float:
        """Variance of all entries of X together, by which ``gamma="scale"`` divides."""
        return float(self.variance.mean() + self.mean.var())


class StatisticsAccumulator:
    """Accumulator of `Statistics` over blocks. Sums of accumulators are those of all their rows.

    The result depends on block bounds only by rounding.
    """

    def __init__(self, features: int) -> None:
        self.count = 0.0
        self._minimum = np.full(features, np.inf)
        self._maximum = np.full(features, -np.inf)
        self._mean = np.zeros(features)
        self._squares = np.zeros(features)

    @np.errstate(over="ignore", invalid="ignore")
    def update(self, block: npt.NDArray[Any], weight: npt.NDArray[np.float64] | None = None) -> None:
        """Add the rows of ``block``, shape (rows, d), of any float dtype. A row of ``weight`` 2 counts as two rows.

        Rows of weight zero should have been left out, since the minimum and the maximum would include them.
        """
        if len(block) == 0:
            return
        np.minimum(self._minimum, _over_rows(np.minimum, block), out=self._minimum)
        np.maximum(self._maximum, _over_rows(np.maximum, block), out=self._maximum)
        step = max(16, (1 << 20) // (8 * block.shape[1]))  # a float64 tile stays in a core's cache for all passes
        for start in range(0, len(block), step):
            rows = slice(start, start + step)
            self._add_moments(*_moments(block[rows], None if weight is None else weight[rows]))

    @np.errstate(over="ignore", invalid="ignore")
    def __add__(self, other: StatisticsAccumulator) -> StatisticsAccumulator:
        total = deepcopy(self)
        np.minimum(total._minimum, other._minimum, out=total._minimum)
        np.maximum(total._maximum, other._maximum, out=total._maximum)
        if other.count:
            total._add_moments(other.count, other._mean, other._squares)
        return total

    def result(self) -> Statistics:
        """Return the statistics of all rows so far; raise ValueError if there were none."""
        if self.count == 0:
            raise ValueError("no rows")
        mean = np.clip(self._mean, self._minimum, self._maximum)
        return Statistics(self._minimum.copy(), self._maximum.copy(), mean, self._squares / self.count)

    def _add_moments(self, count: float, mean: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> None:
        total = self.count + count
        delta = mean - self._mean
        self._mean += delta * (count / total)
        self._squares += squares + delta * (self.count * count / total) * delta  # in this order: 0 · ∞ is NaN
        self.count = total


def _over_rows(extreme: np.ufunc, block: npt.NDArray[Any], side_by_side: int = 64) -> npt.NDArray[Any]:
    """Return the minimum or maximum of every feature. NumPy takes five times as long for a row at a time."""
    whole = len(block) // side_by_side * side_by_side
    if whole:
        rows = extreme.reduce(block[:whole].reshape(-1, side_by_side * block.shape[1]), axis=0)
        block = np.concatenate([rows.reshape(side_by_side, -1), block[whole:]])
    return np.asarray(extreme.reduce(block, axis=0))


def _moments(
    tile: npt.NDArray[Any], weight: npt.NDArray[np.float64] | None
) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return count, mean and sum of squared deviations. They are exact if a feature is constant."""
    origin = tile[0].astype(np.float64)
    deviation = tile - origin
    if weight is None:
        shift = deviation.mean(axis=0)
        deviation -= shift
        return len(tile), origin + shift, np.einsum("ij,ij->j", deviation, deviation)
    shift = weight @ deviation / weight.sum()
    deviation -= shift
    return float(weight.sum()), origin + shift, np.einsum("i,ij,ij->j", weight, deviation, deviation)


class EntryStatistics:
    """Accumulator of `Statistics` over sparse rows, in time that grows with their entries.

    Zeros that are not stored count as values. Sums of accumulators are those of all their rows. The entries of a
    feature have their count, weight, mean, sum of squared deviations, minimum and maximum side by side.
    """

    def __init__(self, features: int) -> None:
        self._rows = 0
        self.count = 0.0
        self._entries = np.zeros((features, 6))

    def update(self, X: Any, weight: Array | None = None) -> None:
        """Add CSR rows (n, d). The ``weight`` (n,) must be positive; a row of weight 2 counts as two."""
        n = X.shape[0]
        self._rows += n
        self.count += float(n if weight is None else weight.sum())
        of_rows = np.ones(n) if weight is None else weight
        _gather_entries(frozen(X.data), frozen(X.indices), frozen(X.indptr), frozen(of_rows), self._entries)

    @np.errstate(over="ignore", invalid="ignore")
    def __add__(self, other: EntryStatistics) -> EntryStatistics:
        total = EntryStatistics(0)
        total._rows = self._rows + other._rows
        total.count = self.count + other.count
        number, weight, mean, squares, low, high = self._entries.T
        more, added, centre, spread, least, most = other._entries.T
        both = np.maximum(weight + added, np.finfo(float).tiny)
        delta = centre - mean
        table = total._entries = np.empty_like(self._entries)
        table[:, 0] = number + more
        table[:, 1] = weight + added
        table[:, 2] = mean + delta * (added / both)
        table[:, 3] = squares + spread + delta * (weight * (added / both)) * delta
        table[:, 4] = np.where(number == 0, least, np.where(more == 0, low, np.minimum(low, least)))
        table[:, 5] = np.where(number == 0, most, np.where(more == 0, high, np.maximum(high, most)))
        return total

    @np.errstate(over="ignore", invalid="ignore")
    def result(self) -> Statistics:
        """Return the statistics of all rows so far; raise ValueError if there were none."""
        if self._rows == 0:
            raise ValueError("no rows")
        count, weight, centre, spread, low, high = self._entries.T
        full = count == self._rows
        low = np.where(full, low, np.minimum(low, 0.0))  # of a feature without entries both are 0
        high = np.where(full, high, np.maximum(high, 0.0))
        share = np.where(full, 1.0, np.minimum(weight / self.count, 1.0))
        squares = spread + (1.0 - share) * weight * centre**2  # the zeros' own deviations from the mean included
        return Statistics(
            low, high, np.clip(centre * share, low, high), np.where(low == high, 0.0, squares / self.count)
        )


@compiled
def _gather_entries(data: Array, indices: Array, indptr: Array, weight: Array, table: Array) -> None:
    """Add the entries of CSR rows to the ``table`` (d, 6) of `EntryStatistics`, by Welford's update."""
    for i in range(weight.size):
        w = weight[i]
        for t in range(indptr[i], indptr[i + 1]):
            row = table[indices[t]]
            value = np.float64(data[t])
            row[4] = value if row[0] == 0.0 else min(row[4], value)
            row[5] = value if row[0] == 0.0 else max(row[5], value)
            row[0] += 1.0
            row[1] += w
            delta = value - row[2]
            row[2] += delta * (w / row[1])
            row[3] += w * delta * (value - row[2])


TIMES = (np.datetime64, np.timedelta64)
_LABEL_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class TargetFacts:
    """Facts about y from its attributes, which `class_attributes` and `real_attributes` make."""

    classes: tuple[Any, ...] | None = None  # labels in sorted order, dates as NumPy's; None without y and if it is real
    class_counts: tuple[int, ...] | None = None  # rows of each
    class_weights: tuple[float, ...] | None = None  # sums of row weights; None without weights, or if not stored
    known_rows: int = 0  # rows whose y is known
    known_weight: float | None = None  # sum of the weights of those rows, for real targets only
    labels: tuple[TargetFacts, ...] = ()  # of each of several targets as classes 0 and 1, if all are such

    @classmethod
    def read(cls, root: str, layout: Layout, documents: dict[str, Any]) -> TargetFacts:
        """Read the attributes of y among the zarr documents of a store; raise StoreError if they are impossible."""
        if layout.y_dtype is None:
            return cls()
        real = layout.y_dtype == REAL_TYPE
        try:
            attributes = documents["y/zarr.json"]["attributes"]
            return _real_facts(layout, attributes) if real else _class_facts(layout, attributes)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = "no known targets" if real else "no class labels"
            raise StoreError(f"store '{root}', file 'y/zarr.json': {what} ({error}); re-ingest.") from error


def class_attributes(classes: Sequence[Any], counts: Array, weights: Array | None) -> dict[str, Any]:
    """Return the attributes of label codes, from rows and sum of weights of each class."""
    if classes and isinstance(classes[0], TIMES):  # whole numbers of the unit that the type names
        times = np.array(classes)
        return class_attributes(times.view(np.int64).tolist(), counts, weights) | {"class_dtype": times.dtype.str}
    kind = type(classes[0]).__name__ if classes else "int"
    attributes = {"classes": list(classes), "class_type": kind, "class_counts": counts.tolist()}
    if weights is not None:
        attributes["class_weights"] = [_finite(each) for each in weights.tolist()]
    return attributes


def real_attributes(known_rows: int, known_weight: float, of_values: Array) -> dict[str, Any]:
    """Return the attributes of real targets.

    ``of_values`` (targets, 2, 2) are the numbers and the sums of weights of the rows with 0 and with 1 in each of
    several; the sums are NaN without weights. If all values are such, targets are labels.
    """
    found = {"known_rows": known_rows, "known_weight": _finite(known_weight)}
    if not len(of_values) or (of_values[:, 0].sum(axis=1) < known_rows).any():
        return found
    return found | {
        "labels": [
            class_attributes((0, 1), counts.astype(np.int64), None if np.isnan(weights).any() else weights)
            for counts, weights in of_values
        ]
    }


def known_targets(y: Array) -> npt.NDArray[np.bool_]:
    """Return which rows of real targets, (n,) or (n, targets), miss none."""
    missing = np.isnan(y)
    return ~np.asarray(missing.any(axis=1) if y.ndim > 1 else missing)


def _class_facts(layout: Layout, attributes: dict[str, Any]) -> TargetFacts:
    kind = _LABEL_TYPES[attributes["class_type"]]
    labels = tuple(attributes["classes"])
    counts = tuple(attributes["class_counts"])
    if any(type(label) is not kind or label != label for label in labels) or list(labels) != sorted(set(labels)):
        raise ValueError("labels of another type or order")
    if "class_dtype" in attributes:
        times = np.array(labels, np.int64).view(attributes["class_dtype"])
        labels = tuple(times[~np.isnat(times)])
    if len(labels) != len(counts) or len(labels) > np.iinfo(str(layout.y_dtype)).max + 1:
        raise ValueError("labels and counts differ")
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) > layout.rows:
        raise ValueError("counts are impossible")
    weights = None
    if layout.has_weight and "class_weights" in attributes:  # written from 2026 on
        weights = tuple(_weight(each) for each in attributes["class_weights"])
        if len(weights) != len(labels):
            raise ValueError("labels and weights differ")
    return TargetFacts(labels, counts, weights, sum(counts))


def _real_facts(layout: Layout, attributes: dict[str, Any]) -> TargetFacts:
    rows = attributes["known_rows"]
    if type(rows) is not int or not 0 <= rows <= layout.rows:
        raise ValueError("counts are impossible")
    of_codes = replace(layout, y_dtype="int8", targets=0)
    labels = tuple(_class_facts(of_codes, each) for each in attributes.get("labels", ()))
    if labels and len(labels) != layout.targets:
        raise ValueError("labels and targets differ")
    return TargetFacts(known_rows=rows, known_weight=_weight(attributes["known_weight"]), labels=labels)


def _finite(total: float) -> float | None:
    """Return a sum of weights for JSON, where None stands for infinity: a sum may be too large for a float."""
    return total if math.isfinite(total) else None


def _weight(value: Any) -> float:
    """Undo `_finite`."""
    if value is None:
        return math.inf
    if type(value) is not float or not 0 <= value < math.inf:
        raise ValueError("weights are impossible")
    return value


def sort_classes(labels: Sequence[Any], counts: npt.ArrayLike) -> tuple[tuple[Any, ...], npt.NDArray[np.int64]]:
    """Sort the labels that occur, merging equal ones, and return them with the new code of each old one.

    Raises InputError if labels have types that do not compare, such as strings and numbers, are NaN, or are whole
    numbers that are too long to be told apart.
    """
    plain = [label.item() if isinstance(label, np.generic) and type(label) not in TIMES else label for label in labels]
    present = [label for label, count in zip(plain, np.asarray(counts).tolist(), strict=False) if count]
    kinds = {type(label) for label in present}
    if kinds and kinds <= {int, float}:
        numbers = as_numbers(present)
        if numbers is None:
            long = max(map(str, present), key=len)
            raise InputError(f"label {long[:60]} is too long to be kept as a number; give all labels as strings.")
        present = numbers
        kinds = {type(numbers[0])}
        plain = [float(label) if kinds == {float} and type(label) is int else label for label in plain]
    if len(kinds) > 1 or not kinds <= {int, float, str, bool, *TIMES} or any(label != label for label in present):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must all be numbers, all strings or all booleans, and not NaN. Got {names}.")
    kept: tuple[Any, ...] = tuple(sorted(set(present)))
    code = {label: i for i, label in enumerate(kept)}
    return kept, np.array([code.get(label, -1) for label in plain], dtype=np.int64)


def as_numbers(labels: Sequence[Any]) -> list[Any] | None:
    """Return numbers of one type: int if all are, else float; None if one is not kept exactly by NumPy's 64 bits."""
    if all(type(label) is int for label in labels):
        return list(labels) if all(-(2**63) <= label < 2**63 for label in labels) else None
    if any(type(label) is int and abs(label) > 2**1023 for label in labels):
        return None
    numbers = [float(label) for label in labels]
    return None if any(type(label) is int and label != float(label) for label in labels) else numbers


def class_sums(codes: Array, weight: Array, classes: int) -> npt.NDArray[np.float64]:
    """Sum the weights of each class over rows, (classes,). Rows of code -1 belong to no class."""
    known = codes >= 0
    return np.bincount(codes[known], weights=weight[known], minlength=classes).astype(np.float64, copy=False)


def listed(labels: Array) -> list[Any]:
    """Return labels (n,) as Python's values; dates and spans, which `tolist` may make numbers, as words of one unit."""
    if labels.dtype.kind not in "mM":
        return list(labels.tolist())
    if labels.dtype.kind == "M":
        words = np.datetime_as_string(labels, unit="auto").tolist()
    else:
        words = [f"{span} ns" for span in labels.astype("m8[ns]").astype(np.int64).tolist()]
    return [None if missing else word for word, missing in zip(words, np.isnat(labels), strict=True)]


def as_time(value: Any) -> Any:
    """Return a date or span of Python or pandas that has no time zone as NumPy's; anything else as it is."""
    if not isinstance(value, date | timedelta) or getattr(value, "tzinfo", None) is not None:
        return value
    kind = np.datetime64 if isinstance(value, date) else np.timedelta64
    return value.asm8 if hasattr(value, "asm8") else kind(value)  # which drops nanoseconds


def plain_item(value: Any) -> Any:
    """Return NumPy's scalar as Python's, and a date or span without a time zone as a word; all else as it is."""
    value = as_time(value)
    if isinstance(value, TIMES):
        return listed(np.array([value]))[0]
    return value.item() if isinstance(value, np.generic) else value


def is_text(label: Any) -> bool:
    """Return whether a label is a number or text that UTF-8 and NumPy can hold.

    UTF-8 cannot write half of a surrogate pair, and NumPy drops NUL characters at the end.
    """
    if _ends_in_nul(label):
        return False
    if not isinstance(label, str) or label.isascii():
        return True
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_text(label: Any) -> str:
    """Return the message for a label that is no text, after the place where it is."""
    if _ends_in_nul(label):
        return (
            f"the label {quoted(label)} ends in a NUL character, which NumPy drops; strip it, as by "
            f"label.rstrip({label[-1:]!r})."
        )
    if isinstance(label, bytes):
        return f"the label {quoted(label)} is bytes that are no UTF-8 text; make text of the labels, as by label.hex()."
    return (
        f"the label {quoted(label)} has half of a surrogate pair, which is no text and cannot be stored; replace it, "
        "as by label.encode(errors='replace').decode()."
    )


def _ends_in_nul(label: Any) -> bool:
    return isinstance(label, str | bytes) and label[-1:] in ("\0", b"\0")
