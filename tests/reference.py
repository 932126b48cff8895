"""Slow, obvious implementations that share nothing with dask_odm; the tests compare with them.

Everything is float64 and written from the formulas of *Scalable Optimal Margin Distribution Machine*
(IJCAI-23). ``K`` is the M×M kernel matrix, ``y`` holds -1 and +1, ``Q_ij = y_i y_j K_ij``. Row weights
``c`` divide both ``rho`` of their row, ``M`` is then ``sum(c)``, and rows of weight zero do not exist.
"""

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from scipy.optimize import nnls
from scipy.spatial.distance import cdist


def rbf(X, Z, gamma):
    """``exp(-gamma ‖x - z‖²)`` from explicit differences."""
    return np.exp(-gamma * cdist(np.asarray(X, np.float64), np.asarray(Z, np.float64), "sqeuclidean"))


def penalties(M, lam, upsilon, theta, weight=None):
    """``rho_zeta`` and ``rho_beta`` of every row; the latter infinite for ``upsilon = 0``."""
    c = np.ones(M) if weight is None else np.asarray(weight, np.float64)
    rho_zeta = c.sum() * (1.0 - theta) ** 2 / lam / c
    return rho_zeta, rho_zeta / upsilon if upsilon > 0 else np.full(M, np.inf)


def _kept(K, y, s, weight):
    """The same problem without its rows of weight zero."""
    K, y, s = (np.asarray(a, np.float64) for a in (K, y, s))
    if weight is None:
        return K, y, s, None
    weight = np.asarray(weight, np.float64)
    keep = weight > 0
    return K[np.ix_(keep, keep)], y[keep], s[keep], weight[keep]


def primal_value(K, y, s, lam, upsilon, theta, weight=None):
    """``P(w)`` at ``w = sum_i y_i s_i phi(x_i)``."""
    K, y, s, weight = _kept(K, y, s, weight)
    rho_zeta, rho_beta = penalties(len(y), lam, upsilon, theta, weight)
    margins = y * (K @ (y * s))
    value = 0.5 * s @ margins
    for m, low, high in zip(margins, rho_zeta, rho_beta, strict=True):
        if m < 1.0 - theta:
            value += (1.0 - theta - m) ** 2 / (2.0 * low)
        elif m > 1.0 + theta:
            value += (m - 1.0 - theta) ** 2 / (2.0 * high)  # high = inf: nothing
    return float(value)


def dual_value(K, y, s, lam, upsilon, theta, weight=None):
    """``D(s)``, to be maximised; minus infinity where ``upsilon = 0`` and some ``s < 0``."""
    K, y, s, weight = _kept(K, y, s, weight)
    rho_zeta, rho_beta = penalties(len(y), lam, upsilon, theta, weight)
    value = -0.5 * s @ (y * (K @ (y * s)))
    for s_i, low, high in zip(s, rho_zeta, rho_beta, strict=True):
        if s_i > 0:
            value += (1.0 - theta) * s_i - 0.5 * low * s_i**2
        elif s_i < 0:
            value += (1.0 + theta) * s_i - 0.5 * high * s_i**2
    return float(value)


def relative_gap(K, y, s, lam, upsilon, theta, weight=None):
    """``(P - D) / P`` of the same ``s``."""
    primal = primal_value(K, y, s, lam, upsilon, theta, weight)
    return (primal - dual_value(K, y, s, lam, upsilon, theta, weight)) / primal


def solve_two_variable_dual(K, y, lam, upsilon, theta, weight=None):
    """Solve the papers' dual in ``z = (zeta, beta) >= 0`` exactly, by its active set.

    minimise ``½ (zeta-beta)' Q (zeta-beta) + ½ sum rho_zeta zeta² + ½ sum rho_beta beta²
    - (1-theta) sum zeta + (1+theta) sum beta``, which is ``½ z'Hz + q'z``. With ``H = R'R`` that is the
    nonnegative least squares problem ``min ‖Rz + R⁻'q‖``; its support is then solved for once more and the
    optimality conditions of ``z`` are checked.

    Returns
    -------
    s : ndarray of shape (M,)
        ``zeta - beta``; zero in rows of weight zero.
    objective : float
        The value of the dual as a maximum, to be compared with `dual_value` of ``s``.
    """
    size = len(y)
    keep = np.ones(size, bool) if weight is None else np.asarray(weight) > 0
    K, y, _, weight = _kept(K, y, np.zeros(size), weight)
    M = len(y)
    Q = np.outer(y, y) * K
    rho_zeta, rho_beta = penalties(M, lam, upsilon, theta, weight)
    if upsilon > 0:
        H = np.block([[Q + np.diag(rho_zeta), -Q], [-Q, Q + np.diag(rho_beta)]])
        q = np.repeat([-(1.0 - theta), 1.0 + theta], M)
    else:
        H, q = Q + np.diag(rho_zeta), np.full(M, -(1.0 - theta))
    z = _nonnegative_minimum(H, q)
    s = np.zeros(size)
    s[keep] = z[:M] - z[M:] if upsilon > 0 else z
    return s, float(-(0.5 * z @ H @ z + q @ z))


def solve_by_active_sets(K, y, lam, upsilon, theta, weight=None, most=100):
    """The optimal ``s``: a ridge system over the rows outside the band, until a step leaves the band as it was."""
    rho_zeta, rho_beta = penalties(len(y), lam, upsilon, theta, weight)
    s = np.zeros(len(y))
    for _ in range(most):
        margins = y * (K @ (y * s))
        stiffness = np.where(
            margins < 1.0 - theta, 1.0 / rho_zeta, np.where(margins > 1.0 + theta, 1.0 / rho_beta, 0.0)
        )
        goal = np.where(margins < 1.0, 1.0 - theta, 1.0 + theta)
        root = np.sqrt(stiffness)
        system = np.eye(len(y)) + np.outer(root * y, root * y) * K
        step = root * np.linalg.solve(system, root * goal) - s
        moved = y * (K @ (y * (s + step)))
        sides = [np.where(m < 1.0 - theta, -1, np.where(m > 1.0 + theta, 1, 0)) for m in (margins, moved)]
        if upsilon == 0:
            sides = [np.minimum(side, 0) for side in sides]
        if np.array_equal(*sides):
            return s + step
        low, high = 0.0, 1.0
        for _ in range(60):  # the slope of P along the step rises with its length
            at = 0.5 * (low + high)
            m = margins + at * (moved - margins)
            wanted = np.where(
                m < 1.0 - theta,
                (1.0 - theta - m) / rho_zeta,
                np.where(m > 1.0 + theta, (1.0 + theta - m) / rho_beta, 0.0),
            )
            falls = (s + at * step - wanted) @ (moved - margins) < 0
            low, high = (at, high) if falls else (low, at)
        s = s + (1.0 if low > 0.999999 else low) * step
    return s


def _nonnegative_minimum(H, q, tol=1e-9):
    """``argmin ½ z'Hz + q'z`` over ``z >= 0`` for positive definite ``H``; raises unless optimal to ``tol``."""
    R = np.linalg.cholesky(H).T
    z, _ = nnls(R, solve_triangular(R, -q, trans="T"), maxiter=50 * len(q))
    free = z > 0
    z[free] = np.linalg.solve(H[np.ix_(free, free)], -q[free])
    slope = H @ z + q
    scale = 1.0 + np.abs(q).max()
    if z.min() < -tol or np.abs(slope[free]).max(initial=0) > tol * scale or slope.min() < -tol * scale:
        raise ArithmeticError("the active set is not optimal: the reference problem is too ill-conditioned")
    return np.maximum(z, 0.0)


def solve_primal_linear(X, y, *problem):
    """The optimal ``w`` of features as they are, and ``P(w)``."""
    K = np.asarray(X, np.float64) @ np.transpose(X).astype(np.float64)
    s = solve_by_active_sets(K, y, *problem)
    return np.transpose(X) @ (y * s), primal_value(K, y, s, *problem)


def greedy_pivots(K, r):
    """Up to ``r`` pivots of largest residual diagonal, by LAPACK's Cholesky; fewer where only rounding is left."""
    _, pivots, rank, _ = dpstrf(K, tol=1e-12 * K.diagonal().max())
    return pivots[: min(r, rank)] - 1


def cascade(K, y, leaves, fan_in, lam, upsilon, theta):
    """A cascade: every ``fan_in`` nodes hand up their rows with ``s != 0``, which are solved anew, up to one node.

    ``leaves`` is a list of arrays of row numbers. A node's M counts the rows that were left behind below it, so that
    the loss of a row is what it is without a cascade. Returns ``s`` of shape (M,), zero in rows left behind, and the
    rows of all nodes, level by level.
    """
    nodes, levels = [np.asarray(rows) for rows in leaves], []
    sizes = [len(rows) for rows in nodes]
    while True:
        levels.append(nodes)
        duals = [
            solve_two_variable_dual(K[np.ix_(r, r)], y[r], lam * len(r) / m, upsilon, theta)[0]
            for r, m in zip(nodes, sizes, strict=True)
        ]
        if len(nodes) == 1:
            s = np.zeros(len(y))
            s[nodes[0]] = duals[0]
            return s, levels
        kept = [rows[dual != 0] for rows, dual in zip(nodes, duals, strict=True)]
        nodes = [np.concatenate(kept[i : i + fan_in]) for i in range(0, len(kept), fan_in)]
        sizes = [sum(sizes[i : i + fan_in]) for i in range(0, len(sizes), fan_in)]
