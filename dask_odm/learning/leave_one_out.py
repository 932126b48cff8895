"""Leave-one-out in closed form: the decision value that every row would have if the model had not learned from it.

The model minimises ``½ aᵀG a + Σ_i loss_i(f_i)``, f = K a, with a piecewise quadratic loss. Let u be minus the losses'
derivatives at f, c their second derivatives, and ``h_i = k_iᵀ (G + Kᵀ diag(c) K)⁻¹ k_i`` the leverages. One Newton step
from the solution gives the decision value of row i without it::

    f_i − h_i u_i / (1 − h_i c_i)

This is exact if no other row changes its side of the band and the landmarks stay. ``Σ h_i c_i`` is the effective number
of parameters. If equal rows were merged, u and c are those of one of them and h is that of all. Rows with u = 0 keep
their value. (Cook and Weisberg, *Residuals and influence in regression*, 1982, for squares; Opper and Winther,
*Gaussian processes and SVM: mean field and leave-one-out*, 2000, for kernels.)
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import Loss, RowLosses
from dask_odm.learning.problem.products import Products
from dask_odm.linalg.systems import mended
from dask_odm.typing import Array


def left_out(loss: Loss, scores: Array, leverages: Array, y: Array, weight: Array) -> tuple[Array, float]:
    """Return the decision value of each row by the model without it, (n,), and the effective number of parameters.

    ``scores`` and ``leverages`` are (n,), and so are ``y`` and ``weight``, which are empty if the loss needs none. A
    weight above 1 stands for several equal rows, and one of them is left out.
    """
    _, dual, curvature = loss.evaluate(scores, y, weight)
    one = 1.0 / np.maximum(weight, 1.0) if weight.size else 1.0
    taken = leverages * curvature
    # rounding may push 1 − h c below 0
    moved = leverages * one * dual / np.maximum(1.0 - one * taken, 1e-9)
    return scores - moved, float(taken.sum())


def linear_leverages(problem: PrimalProblem, w: Array) -> Array:
    """Return scores and leverages (2, n) of all rows at the solution ``w`` (k,) of a linear model. Takes two passes."""
    hessian = problem.sums(w, "full", double_precision=True).curvature
    return problem.leverages(w, inverse_factor(hessian + np.eye(len(w))))


def kernel_leverages(losses: RowLosses, products: Products, scores: Array) -> Array:
    """Return scores and leverages (2, n) of all rows of an exact kernel model from its ``scores`` (n,).

    Let A be the rows with a curvature and ``b`` the diagonal of ``(I + √c K_AA √c)⁻¹``; then ``h = (1 − b)/c``. Takes
    O(|A|³) time and memory for 2 |A|² numbers.
    """
    curvature = losses.curvature(losses.y * scores)
    active = np.flatnonzero(curvature)
    found = np.stack([scores, np.zeros(len(scores))])
    if len(active):
        root = np.sqrt(curvature[active])
        rows = products.rows(active).astype(np.float64)
        system = products.kernel.tile(rows, rows) * root
        system *= root[:, None]
        system.flat[:: len(active) + 1] += 1.0
        inverse = inverse_factor(system)
        found[1, active] = (1.0 - np.einsum("ij,ij->j", inverse, inverse)) / curvature[active]
    return found


def inverse_factor(matrix: Array) -> Array:
    """Return the lower triangular ``L⁻¹`` with ``L Lᵀ`` = ``matrix`` (r, r), which is symmetric.

    A ridge of 1e-12 times the trace is added first, below which eigenvalues are rounding errors, and more if the matrix
    is still not positive definite.
    """
    ridge = 1e-12 * float(np.trace(matrix))

    def attempt(more: float) -> Array | None:
        factor, info = lapack.dpotrf(matrix + (ridge + more) * np.eye(len(matrix)), lower=1, clean=1)
        return None if info else np.asarray(lapack.dtrtri(factor, lower=1)[0])

    return np.ascontiguousarray(mended(attempt, lambda: ridge))
