"""Missing values of any source, which are counted by column and refused, or whose rows are dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from dask_odm.data.readers.labels import missing_labels
from dask_odm.data.readers.sources import Source, SourceBlock, joined
from dask_odm.errors import InputError

_SHOWN_COLUMNS = 5
_log = logging.getLogger("dask_odm")


class MissingValuesError(InputError):
    """Values are missing. ``found`` says which and where, without the advice of `ingest`."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return f"{self.found}; fill them in, or drop those rows with drop_missing=True (--drop-missing)."


@dataclass(frozen=True)
class _Missing:
    """Masks of missing values in a block, each of shape (rows,) or (rows, d)."""

    X: npt.NDArray[np.bool_]
    y: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.bool_]

    @property
    def rows(self) -> npt.NDArray[np.bool_]:
        return self.X.any(axis=1) | self.y | self.weight


class CompleteRows:
    """The rows of a source that have no missing values.

    Unless ``drop``, missing values are an error. It comes at the end of the source, since it tells how many there are;
    until then blocks are empty. ``dropped`` is the number of rows left out so far.
    """

    def __init__(self, source: Source, *, drop: bool = False) -> None:
        self._source = source
        self._drop = drop
        self.dropped = 0
        self._first: str | None = None
        self._counts = np.zeros(source.n_features, dtype=np.int64)
        self._labels = self._weights = 0

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the blocks of the source with complete rows only.

        Raises MissingValuesError if values are missing and rows are not to be dropped. It names columns, counts and the
        first place.
        """
        for block in self._source.blocks():
            missing = _missing(block)
            if missing is not None and not self._drop:
                self._count(block, missing)
            if self._first is not None:
                yield _rows(block, np.zeros(len(block.X), dtype=bool))
            elif missing is not None:
                rows = missing.rows
                self.dropped += int(rows.sum())
                yield _rows(block, ~rows)
            else:
                yield block
        if self._first is not None:
            raise MissingValuesError(self._complaint())
        if self.dropped:
            _log.info("%s: %d rows with missing values dropped", self._source.description, self.dropped)

    def _count(self, block: SourceBlock, missing: _Missing) -> None:
        if self._first is None:
            self._first = block.place(int(np.argmax(missing.rows)))
        self._counts += missing.X.sum(axis=0)
        self._labels += int(missing.y.sum())
        self._weights += int(missing.weight.sum())

    def _complaint(self) -> str:
        where = self._source.description
        first = self._first or ""
        label = self._source.label_name
        columns = [("the weight", self._weights), (f"the label, {label}" if label else "the label", self._labels)]
        order = np.argsort(-self._counts, kind="stable")[: max(1, np.count_nonzero(self._counts))]
        columns += [(self._source.feature(int(i)), int(self._counts[i])) for i in order[:_SHOWN_COLUMNS]]
        shown = [f"{name} ({count} row{'s' if count > 1 else ''})" for name, count in columns if count]
        more = len(order) - _SHOWN_COLUMNS
        if more > 0:
            shown.append(f"{more} more column{'s' if more > 1 else ''}")
        return f"{where}: missing values in {joined(shown)}, first at {first.removeprefix(f'{where}, ')}"


def _missing(block: SourceBlock) -> _Missing | None:
    """Return the masks of a block's missing values; None if there are none."""
    none = np.zeros(len(block.X), dtype=bool)
    missing = _Missing(
        np.isnan(block.X),
        none if block.y is None else missing_labels(block.y),
        none if block.weight is None else np.isnan(block.weight),
    )
    return missing if missing.X.any() or missing.y.any() or missing.weight.any() else None


def _rows(block: SourceBlock, keep: npt.NDArray[np.bool_]) -> SourceBlock:
    """Return the rows of a block that ``keep`` selects."""
    y, weight = (None if each is None else each[keep] for each in (block.y, block.weight))
    place = partial(_place, block.place, np.flatnonzero(keep))
    return replace(block, X=block.X[keep], y=y, weight=weight, place=place)


def _place(place: Callable[[int], str], kept: npt.NDArray[np.intp], row: int) -> str:
    return place(int(kept[row]))
