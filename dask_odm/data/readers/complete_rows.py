"""The rows of a source that miss no value."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from dask_odm.data.readers.labels import missing_labels
from dask_odm.data.readers.sources import SourceBlock, joined
from dask_odm.data.readers.table_source import TableSource
from dask_odm.errors import InputError

logger = logging.getLogger("dask_odm")

DROP_GAPS = "drop all rows with a gap by drop_missing=True (--drop-missing)"


class CompleteRows:
    """The rows of a source that have no missing values.

    Unless ``drop``, missing values are an error. It comes at the end of the source, since it tells how many there are;
    until then blocks are empty. None is for callers that cannot drop rows: the error does not advise it. ``dropped`` is
    the number of rows left out so far.
    """

    def __init__(self, source: TableSource, *, drop: bool | None = None) -> None:
        self.source = source
        self._drop = drop
        self.dropped = 0
        self._first: str | None = None
        self._counts: npt.NDArray[np.int64] = np.zeros(source.n_features, dtype=np.int64)
        self._labels = 0
        self._weights = 0

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the blocks of the source with complete rows only.

        Raises InputError if values are missing and rows are not to be dropped. It names columns, counts and the
        first place.
        """
        for block in self.source.blocks():
            missing = self._missing(block)
            if missing.any() and self._drop:
                self.dropped += int(missing.sum())
            elif missing.any() and self._first is None:
                self._first = block.place(int(np.argmax(missing)))
            if self._first is not None:
                missing[:] = True
            yield _without(block, missing) if missing.any() else block
        if self._first is not None:
            drop = "leave those rows out" if self._drop is None else DROP_GAPS
            raise InputError(f"{self._complaint(self._first)}; fill them in, or {drop}.")
        if self.dropped:
            logger.info("%s: %d rows with missing values dropped", self.source.description, self.dropped)

    def _missing(self, block: SourceBlock) -> npt.NDArray[np.bool_]:
        """Return a mask (rows,) of the rows that miss a value, and count the values by column."""
        if (self.source.survey or self.source.columns) is not None and not self._drop:  # a recipe fills gaps
            rows = np.zeros(block.X.shape[0], bool)
        elif issparse(block.X):
            absent = np.flatnonzero(np.isnan(block.X.data))
            rows = np.zeros(block.X.shape[0], bool)
            rows[np.searchsorted(block.X.indptr, absent, side="right") - 1] = True
            np.add.at(self._counts, block.X.indices[absent], 1)
        else:
            missing = np.isnan(block.X)
            rows = missing.any(axis=1)
            if rows.any():
                self._counts += missing.sum(axis=0)
        if block.y is not None:
            labels = missing_labels(block.y, text=self.source.labels_are_text)
            self._labels += int(labels.sum())
            rows |= labels
        if block.weight is not None:
            weights = np.isnan(block.weight)
            self._weights += int(weights.sum())
            rows |= weights
        return rows

    def _complaint(self, first: str, most: int = 5) -> str:
        """Say which columns miss values, ``most`` of them by name, and where the ``first`` is."""
        where = self.source.description
        label = self.source.label_name
        columns = [("the weight", self._weights), (f"the label, {label}" if label else "the label", self._labels)]
        order = np.argsort(-self._counts, kind="stable")[: max(1, np.count_nonzero(self._counts))]
        columns += [(self.source.feature(int(i)), int(self._counts[i])) for i in order[:most]]
        shown = [f"{name} ({count} row{'s' if count > 1 else ''})" for name, count in columns if count]
        more = len(order) - most
        if more > 0:
            shown.append(f"{more} more column{'s' if more > 1 else ''}")
        return f"{where}: missing values in {joined(shown)}, first at {first.removeprefix(f'{where}, ')}"


def _without(block: SourceBlock, missing: npt.NDArray[np.bool_]) -> SourceBlock:
    """Return a block without its ``missing`` rows."""
    kept = np.flatnonzero(~missing)
    place, of_label = ((lambda row, each=each: each(int(kept[row]))) for each in (block.place, block.label_place))
    beside = (block.y, block.weight, block.coordinates)
    y, weight, coordinates = (None if each is None else each[kept] for each in beside)
    X = block.X[kept]
    return replace(block, X=X, y=y, weight=weight, coordinates=coordinates, place=place, label_place=of_label)
