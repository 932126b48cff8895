"""Lower bounds of P that hold for every model, and the duality gaps that follow, whoever found the model."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.odm import Point, RowLosses
from dask_odm.learning.problem.products import Products, quadratic
from dask_odm.typing import Array


def scaled_dual(losses: RowLosses, s: Array, square: float) -> float:
    """Return the largest D(c s) over c ≥ 0, a lower bound of P everywhere.

    ``s`` (n,) are dual variables, not negative if υ = 0. ``square`` is ``sᵀQs``; a larger one gives a looser bound.
    """
    linear = float(losses.settings.low * np.maximum(s, 0.0).sum() - losses.settings.high * np.maximum(-s, 0.0).sum())
    curved = square + 2.0 * float(losses.dual_squares(s).sum())
    return 0.5 * linear**2 / curved if linear > 0 and curved > 0 else 0.0


def certified_gap(losses: RowLosses, margins: Array, square_norm: float, products: Products) -> Point:
    """Return P of a model, a lower bound of every model's P, and their relative gap, for the kernel itself in float64.

    ``margins`` (n,) are ``y f(x)`` on all rows, from kernel values in float64; ``square_norm`` is ``‖w‖²``. The dual
    variables are those that the optimality conditions give at the margins. Takes one product in double precision, over
    the rows outside the band.
    """
    s = losses.dual_candidate(margins)
    support = np.flatnonzero(s)
    square = quadratic(products, support, (losses.y * s)[support])
    return _point(losses, margins, square_norm, s, square)


def own_gap(losses: RowLosses, coefficients: Array, scores: Array) -> Point:
    """Return P, D and gap of a model whose dual variables are its own coefficients.

    ``coefficients`` (n,) are ``y s``; ``scores`` (n,) are ``K (y s)``, from kernel values in float64.
    """
    margins = losses.y * scores
    primal = losses.primal(coefficients, scores)
    left = float(losses.row_gaps(losses.y * coefficients, margins).sum())
    return Point(primal, primal - left, left / max(primal, np.finfo(float).tiny))


def span_gap(
    losses: RowLosses, margins: Array, square_norm: float, dual_image: Array, landmarks: Landmarks, residual: Array
) -> Point:
    """Return what `certified_gap` does for a Nyström model, with ``sᵀQs`` bounded by the landmarks' residual of κ.

    With ``K̂ = K_nr G⁻¹ K_rn`` the matrix ``K − K̂`` is positive semi-definite, so its entries are at most ``√(r_i
    r_j)`` of its diagonal r: ``sᵀQs ≤ ‖L⁻¹v‖² + (Σ |s_i| √r_i)²``. The bound is rigorous, and loose unless the residual
    is tiny.

    ``dual_image`` (r,) is ``v = K_rn (y s)`` with s the dual variables at the margins; ``residual`` (n,) is the
    landmarks' `Landmarks.residual`.
    """
    s = losses.dual_candidate(margins)
    white = solve_triangular(landmarks.factor, dual_image, lower=True)
    square = float(white @ white) + float(np.abs(s) @ np.sqrt(residual)) ** 2
    return _point(losses, margins, square_norm, s, square)


def _point(losses: RowLosses, margins: Array, square_norm: float, s: Array, square: float) -> Point:
    primal = 0.5 * square_norm + float(losses.losses(margins).sum())
    bound = scaled_dual(losses, s, square)
    return Point(primal, bound, max(0.0, primal - bound) / max(primal, np.finfo(float).tiny))
