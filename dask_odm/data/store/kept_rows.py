"""Rows that are kept in a scratch file until all of them were read, and the recipe of their features is known."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from dask_odm.typing import Array


class KeptRows:
    """Rows in an open file, in blocks as they were appended."""

    def __init__(self, file: IO[bytes]) -> None:
        self.rows = 0
        self._file = file
        self._blocks = 0
        self._targets: Array | None = None

    def append(self, X: Any, y: Array | None, weight: Array | None, coordinates: Array | None) -> None:
        """Keep further rows X (n, d), an array or CSR, and what is known of each of them."""
        pickle.dump((X, y, weight, coordinates), self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self.rows += X.shape[0]
        self._blocks += 1

    def make_real(self, values: Sequence[float]) -> None:
        """Turn the codes appended so far into real targets, ``values[code]``, as later rows have them."""
        self._targets = np.array([*values, np.nan])

    def blocks(self) -> Iterator[tuple[Any, Array | None, Array | None, Array | None]]:
        """Yield the rows as they were appended."""
        self._file.seek(0)
        for _ in range(self._blocks):
            X, y, weight, coordinates = pickle.load(self._file)
            if self._targets is not None and y.dtype.kind != "f":
                y = self._targets[y]
            yield X, y, weight, coordinates

    def rows_alone(self) -> Iterator[Any]:
        """Yield the rows without what is known of each."""
        return (X for X, *_ in self.blocks())
