"""A store as a source, which is read to write it again with another type, chunking or split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dask_odm.data.readers.sources import Source, SourceBlock, block_rows, check_count, check_finite, narrow
from dask_odm.data.readers.tables import numbered
from dask_odm.data.store.store import Store


class StoreSource(Source):
    """Rows of an open store; labels are left out if ``label`` is False.

    ``block_bytes`` are the bytes of rows handed on at a time. One chunk of the store is held besides.
    """

    def __init__(
        self, store: Store, *, label: bool = True, n_features: int | None = None, dtype: str, block_bytes: int
    ) -> None:
        self._store = store
        self._dtype = dtype
        self._block_bytes = block_bytes
        self._label = label and store.has_y
        self.description = f"store '{store.path}'"
        self.n_features = store.features
        self.feature_names = store.feature_names
        self.label_name = "y" if self._label else None
        self.y_kind = store.y_kind if self._label else None
        self.size = store.rows * store.features * store.dtype.itemsize
        check_count(self.description, self.n_features, n_features)

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows."""
        row_bytes = self._store.features * self._store.dtype.itemsize
        step = block_rows(self._store.features, "float64", self._block_bytes)
        for chunk in self._store.blocks():
            labels = self._store.labels(chunk.y) if self._label and chunk.y is not None else None
            for start in range(0, len(chunk.X), step):
                rows = slice(start, start + step)
                first = chunk.first + start
                place = partial(_row, self.description, first)
                X = narrow(chunk.X[rows], self._dtype)
                check_finite(X, chunk.X[rows], place, self.feature_names)
                y, weight = (None if each is None else each[rows] for each in (labels, chunk.weight))
                yield SourceBlock(X, y, weight, place, (first + len(X)) * row_bytes)


def _row(where: str, first: int, row: int) -> str:
    return numbered(where, first + row)
