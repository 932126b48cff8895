"""Closed forms that MDD is held against: fixed points of all shards at once, by dense solves of everything together."""

import numpy as np
from scipy.linalg import block_diag


def shards_of(fit, n: int) -> list[np.ndarray]:
    """The rows of every shard of a fitted estimator's settings, in the order that shards have them."""
    from dask_odm.engine.partitioners import EvenDealer

    seed = int(np.random.RandomState(fit.random_state).randint(2**31 - 1))
    of = EvenDealer((n,), fit.n_partitions, seed).partition_of(np.arange(n))
    return [np.flatnonzero(of == i) for i in range(fit.n_partitions)]


def linear_systems(X, y, shards, lam):
    """``A_i`` and ``b_i`` of centred rows."""
    X, y = X - X.mean(axis=0), (y - y.mean(axis=0)).reshape(len(y), -1)
    A = [X[s].T @ X[s] / len(s) + lam * np.eye(X.shape[1]) for s in shards]
    return A, [X[s].T @ y[s] / len(s) for s in shards]


def coupling(m: int, d: int) -> np.ndarray:
    """``(J − I) ⊗ I / (m − 1)``: every shard's mean of the others."""
    return np.kron(np.ones((m, m)) - np.eye(m), np.eye(d)) / (m - 1)


def linear_fixed_point(A, b, half_gamma: float) -> np.ndarray:
    """Weights (m, d, t) with ``A_i w_i + γ/2 · (mean of the others) = b_i``."""
    m, (d, t) = len(A), b[0].shape
    found = np.linalg.solve(block_diag(*A) + half_gamma * coupling(m, d), np.concatenate(b))
    return found.reshape(m, d, t)


def linear_threshold(A) -> float:
    """The largest γ/2 at which the rounds converge."""
    M = np.linalg.solve(block_diag(*A), coupling(len(A), len(A[0])))
    return 1.0 / np.abs(np.linalg.eigvals(M)).max()
