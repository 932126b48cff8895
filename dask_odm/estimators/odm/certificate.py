"""How far a landmark model is from the optimum of its kernel: by one exact pass, or by a bound that costs little.

Both are rigorous, from kernel values in float64. Those of float32 certify another kernel: they move P by 1e-5 of it
and the gap by up to 8e-2.
"""

from __future__ import annotations

import math

import numpy as np

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.bounds import certified_gap, span_gap
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.products import Products
from dask_odm.typing import Array

CHEAP = 4e9  # multiplications: a fraction of a second
WHOLE = 2e10  # where half of the rows are landmarks: then it is a good bound
MEANINGFUL = 0.1  # a bound above is not shown


def is_cheap(n: int, r: int) -> bool:
    """Whether the bound from the landmarks' residual costs next to nothing for ``n`` rows."""
    return n * float(r) ** 2 <= (WHOLE if 2 * r >= n else CHEAP)


def relative_gap(
    losses: RowLosses, products: Products, landmarks: Landmarks, places: Array, a: Array, *, exact: bool, threads: int
) -> float:
    """A bound of (P − P*)/P of the model with coefficients ``a`` (r,) of the landmarks; nan if it says nothing.

    Parameters
    ----------
    losses : RowLosses
    products : Products
        Of the n rows that were learned from.
    landmarks : Landmarks
        Rows of these, at ``places`` (r,).
    exact : bool
        By a pass over the kernel of all active rows; else by what the landmarks leave of it.
    threads : int
    """
    everyone = np.arange(products.n)
    square_norm = float(a @ (landmarks.gram @ a))
    with single_threaded_blas:
        margins = losses.y * products.cross(everyone, places, a, double_precision=True)
        if exact:
            return certified_gap(losses, margins, square_norm, products).gap
        coefficients = losses.y * losses.dual_candidate(margins)
        active = np.flatnonzero(coefficients)
        dual_image = products.cross(places, active, coefficients[active], double_precision=True)
        residual = landmarks.residual(products.rows(everyone), threads)
        gap = span_gap(losses, margins, square_norm, dual_image, landmarks, residual).gap
    return gap if gap <= MEANINGFUL else math.nan
