"""One against one: turn the scores of one machine per pair of classes into a score or a probability per class.

Machines come in the order (0, 1), (0, 2), …, (k − 2, k − 1); the second class of a pair is the positive one. A class's
score is the number of machines that vote for it. Ties are broken by confidence: the sum f of its machines' scores is
added as ``f/(3(|f| + 1))``, less than a vote, as in scikit-learn's `OneVsOneClassifier`.

The probabilities p of the classes minimise ``Σ_{i<j} (r_ji p_i − r_ij p_j)²``. Here r_ij is the probability of class i
among rows of i and j alone, by their machine (Wu, Lin and Weng, *Probability estimates for multi-class classification
by pairwise coupling*, 2004, second method).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dask_odm.models.log_odds import log_odds
from dask_odm.typing import Array


def pair_count(classes: int) -> int:
    """Return the number of machines, one for every pair of classes."""
    return classes * (classes - 1) // 2


def class_scores(scores: Array, classes: int) -> Array:
    """Return the scores of the classes (classes, n), float64, from machines' ``scores`` (machines, n)."""
    votes = np.zeros((classes, scores.shape[1]))
    total = np.zeros((classes, scores.shape[1]))
    for score, (negative, positive) in zip(scores, combinations(range(classes), 2), strict=True):
        won = score > 0
        votes[positive] += won
        votes[negative] += ~won
        total[positive] += score
        total[negative] -= score
    return votes + total / (3.0 * (np.abs(total) + 1.0))


def coupled(scores: Array, link: Array, classes: int) -> Array:
    """Return the probabilities of the classes (n, classes), float64, from machines' ``scores`` (n, machines).

    ``link`` turns any machine's score into the log-odds of its positive class, see `dask_odm.models.log_odds`.
    """
    step = max(1, (8 << 20) // (8 * (classes + 1) ** 2))  # rows whose linear systems take 8 MB
    blocks = [scores[start : start + step] for start in range(0, max(1, len(scores)), step)]
    return np.concatenate([_coupled(log_odds(link, block), classes) for block in blocks])


def log_coupled(scores: Array, link: Array, classes: int) -> Array:
    """Return the logarithms of `coupled`."""
    return np.log(coupled(scores, link, classes))


def _coupled(z: Array, classes: int) -> Array:
    """Return probabilities (n, classes) from log-odds ``z`` (n, machines), by solving a linear system for each row.

    It is ``Q p + b = 0`` and ``Σ p = 1``, with Q_ii = Σ_j r_ji² and Q_ij = −r_ji r_ij.
    """
    n = len(z)
    tiny = np.finfo(np.float64).tiny
    shares = np.zeros((n, classes, classes))  # r_ij at i, j
    low, high = np.triu_indices(classes, 1)  # in the machines' order
    shares[:, high, low] = 1.0 / (1.0 + np.exp(-np.clip(z, -700.0, 700.0)))
    shares[:, low, high] = 1.0 / (1.0 + np.exp(np.clip(z, -700.0, 700.0)))
    system = np.ones((n, classes + 1, classes + 1))
    system[:, :-1, :-1] = -shares * shares.swapaxes(1, 2)
    own = np.arange(classes)
    system[:, own, own] = (shares**2).sum(axis=1)
    system[:, -1, -1] = 0.0
    right = np.zeros((n, classes + 1, 1))
    right[:, -1] = 1.0
    found = np.maximum(np.linalg.solve(system, right)[:, :-1, 0], tiny)  # rounding may make small ones negative
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def require_pairs(machines: int, classes: object) -> int:
    """Return ``classes`` of a model's description; raise ValueError unless the machines are as many as their pairs."""
    if not isinstance(classes, int) or isinstance(classes, bool) or (classes and pair_count(classes) != machines):
        raise ValueError(f"{machines} machines for the pairs of {classes!r:.20} classes")
    return classes
