"""Rows and columns that are kept in a scratch file until all were read, and what becomes of them is known."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from dask_odm.typing import Array


class KeptBlocks:
    """Blocks of arrays by name in an open file, of which ``y`` may turn out to be real targets."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._blocks = 0
        self._targets: Array | None = None

    def keep(self, block: dict[str, Any]) -> None:
        """Write a further block to the file."""
        pickle.dump(block, self.file, protocol=pickle.HIGHEST_PROTOCOL)
        self._blocks += 1

    def make_real(self, values: Sequence[float]) -> None:
        """Turn the codes kept so far into real targets, ``values[code]``, as later rows have them."""
        self._targets = np.array([*values, np.nan])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the blocks as they were kept."""
        self.file.seek(0)
        for _ in range(self._blocks):
            block = pickle.load(self.file)
            if self._targets is not None and block["y"].dtype.kind != "f":
                block["y"] = self._targets[block["y"]]
            yield block


class KeptRows(KeptBlocks):
    """Rows in an open file, with what is known of each of them."""

    rows = 0

    def append(self, X: Any, y: Array | None, weight: Array | None, coordinates: Array | None) -> None:
        """Keep further rows X (n, d), an array or CSR, and what is known of each of them."""
        self.keep({"X": X, "y": y, "weight": weight, "coordinates": coordinates})
        self.rows += X.shape[0]

    def rows_alone(self) -> Iterator[Any]:
        """Yield the rows without what is known of each."""
        return (block["X"] for block in self)
