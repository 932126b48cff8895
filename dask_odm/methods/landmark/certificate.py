"""Certificates of a landmark model: its gap to the optimum of the kernel, by one exact pass or by a cheap bound.

Both are rigorous and use kernel values in float64. Values in float32 would certify another kernel: they change P by
1e-5 of it, and the gap by up to 8e-2.
"""

from __future__ import annotations

import numpy as np

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.bounds import certified_gap, span_gap
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.learning.problem.products import Products
from dask_odm.methods.as_predicted import Claim
from dask_odm.typing import Array


def is_cheap(n: int, r: int) -> bool:
    """Return whether the bound by the landmarks' residual costs next to nothing for ``n`` rows and ``r`` landmarks."""
    # so many multiplications take a fraction of a second; if half of the rows are landmarks, the bound is worth more
    return n * float(r) ** 2 <= (2e10 if 2 * r >= n else 4e9)


def certified(
    losses: RowLosses, products: Products, landmarks: Landmarks, places: Array, a: Array, *, exact: bool, threads: int
) -> Claim | None:
    """Return P of landmark coefficients ``a`` (r,) and a lower bound of P*, or None if the bound says nothing.

    The landmarks are the training rows at ``places`` (r,). ``exact`` takes a pass over the kernel of all active rows;
    otherwise the landmarks' Nyström residual gives the bound.
    """
    everyone = np.arange(products.n)
    square_norm = float(a @ (landmarks.gram @ a))
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
    # a larger bound says nothing
    return Claim(point.primal, point.dual, 0.5 * square_norm, s) if point.gap <= 0.1 else None
