"""Dense systems that are positive definite but for rounding: by Cholesky, mended by a ridge where that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dask_odm.typing import Array

T = TypeVar("T")
GROWTH = 100.0  # each ridge is so many times the one before


def mended(attempt: Callable[[float], T | None], first_ridge: Callable[[], float]) -> T:
    """What ``attempt(ridge)`` returns for the first ridge that it does not return None for.

    Parameters
    ----------
    attempt : callable
        Factors a matrix with ``ridge`` added to its diagonal; None where it is not positive definite.
    first_ridge : callable
        The ridge that follows 0, asked for where 0 is not enough.

    Raises
    ------
    LinAlgError
        No finite ridge is enough.
    """
    ridge = 0.0
    while True:
        found = attempt(ridge)
        if found is not None:
            return found
        ridge = GROWTH * ridge if ridge else first_ridge()
        if not 0 < ridge < np.inf:
            raise LinAlgError("the matrix is not positive definite")


def solve_positive(A: Array, b: Array, first_ridge: float) -> Array:
    """``A⁻¹ b`` (n,); rounding may cost ``A`` (n, n) its definiteness, which a little on the diagonal mends."""

    def attempt(ridge: float) -> Array | None:
        try:
            return np.asarray(cho_solve(cho_factor(A + ridge * np.eye(len(A)) if ridge else A), b))
        except LinAlgError:
            return None

    return mended(attempt, lambda: first_ridge)
