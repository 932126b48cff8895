"""The chunk of a store that is being filled with blocks of rows, and its bytes on disk."""

from __future__ import annotations

import numpy as np

from dask_odm.data.store.layout import CHECKSUM_BYTES, crc32c, seal
from dask_odm.data.store.statistics import StatisticsAccumulator
from dask_odm.errors import InputError
from dask_odm.typing import Array


class OpenChunk:
    """Chunk that is being filled: X with room for its checksum, targets, weights and statistics."""

    def __init__(self, size: int, features: int, dtype: str, y_type: str | None, has_weight: bool) -> None:
        self.size = size
        self.features = features
        self.used = 0
        self._bytes = np.empty(size * features * np.dtype(dtype).itemsize + CHECKSUM_BYTES, dtype=np.uint8)
        self.X = self._bytes[:-CHECKSUM_BYTES].view(dtype).reshape(size, features)
        self.y: Array | None = None if y_type is None else np.empty(size, dtype=y_type)
        self.weight = np.empty(size) if has_weight else None
        self.statistics = StatisticsAccumulator(features)

    def fill(self, X: Array, y: Array | None, weight: Array | None) -> int:
        """Take as many rows as there is room for, and return their number."""
        start = self.used
        stop = min(self.used + len(X), self.size)
        rows = stop - start
        with np.errstate(over="ignore"):
            np.copyto(self.X[start:stop], X[:rows], casting="same_kind" if X.dtype.kind == "f" else "unsafe")
        if self.y is not None and y is not None:
            self.y[start:stop] = y[:rows]
        if self.weight is not None and weight is not None:
            self.weight[start:stop] = weight[:rows]
        self.used = stop
        return rows

    def padded_bytes(self, rows: int) -> memoryview:
        """Return the sealed bytes of the first ``rows`` rows, with NaN in rows that were not filled."""
        if not np.isfinite(self.X[: self.used]).all():
            raise InputError(f"X contains NaN, infinity or a value too large for {self.X.dtype}.")
        self.statistics.update(self.X[: self.used])
        self.X[self.used :] = np.nan
        nbytes = rows * self.X.strides[0]
        checksum = crc32c(self._bytes[:nbytes])
        self._bytes[nbytes : nbytes + CHECKSUM_BYTES] = np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)
        return self._bytes[: nbytes + CHECKSUM_BYTES].data

    def restart(self) -> None:
        """Begin the next chunk."""
        self.used = 0


def sealed_bytes(numbers: Array) -> bytes:
    """Return the little-endian bytes of an array, followed by their checksum."""
    return seal(np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).tobytes())
