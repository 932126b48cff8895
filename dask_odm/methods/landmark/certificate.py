"""How far a landmark model is from the optimum of its kernel: by one exact pass, or by a bound that costs little.

Both are rigorous, from kernel values in float64. Those of float32 certify another kernel: they move P by 1e-5 of it
and the gap by up to 8e-2.
"""

from __future__ import annotations

import numpy as np

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.bounds import certified_gap, span_gap
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.learning.problem.products import Products
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.as_predicted import Claim
from dask_odm.typing import Array

CHEAP = 4e9  # multiplications: a fraction of a second
WHOLE = 2e10  # where half of the rows are landmarks: then it is a good bound
MEANINGFUL = 0.1  # a bound above is not shown


def is_cheap(n: int, r: int) -> bool:
    """Whether the bound from the landmarks' residual costs next to nothing for ``n`` rows."""
    return n * float(r) ** 2 <= (WHOLE if 2 * r >= n else CHEAP)


def certified(
    losses: RowLosses, products: Products, landmarks: Landmarks, places: Array, a: Array, *, exact: bool, threads: int
) -> Claim | None:
    """P of the model with coefficients ``a`` (r,) of the landmarks, and a lower bound of P*; None if it says nothing.

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
        s = losses.dual_candidate(margins)
        if exact:
            point = certified_gap(losses, margins, square_norm, products)
            return Claim(point.primal, point.dual, 0.5 * square_norm, s)
        coefficients = losses.y * s
        active = np.flatnonzero(coefficients)
        dual_image = products.cross(places, active, coefficients[active], double_precision=True)
        residual = landmarks.residual(products.rows(everyone), threads)
        point = span_gap(losses, margins, square_norm, dual_image, landmarks, residual)
    return Claim(point.primal, point.dual, 0.5 * square_norm, s) if point.gap <= MEANINGFUL else None
