"""SciPy's sparse matrices and NumPy's masked arrays, turned into plain arrays block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse


class MatrixRows:
    """Sparse matrix whose rows are taken in order, as arrays. Of formats other than CSR, a copy is held."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix.tocsr()
        self.shape = matrix.shape
        self.dtype = matrix.dtype

    def take(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows ``start:stop`` as an array."""
        return dense(self._matrix[start:stop])


def dense(rows: Any) -> npt.NDArray[Any]:
    """Return rows as a plain array.

    Sparse rows are filled with zeros; masked entries become NaN (and the dtype a float).
    """
    if scipy.sparse.issparse(rows):
        return np.asarray(rows.toarray())
    if np.ma.is_masked(rows) and rows.dtype.kind in "iuf":
        return np.ma.filled(rows.astype(np.result_type(rows.dtype, np.float32)), np.nan)
    return np.asarray(rows)
