"""Turn decision values into probabilities by log-odds that are piecewise linear, rising, and zero at zero.

Platt's sigmoid (*Probabilistic outputs for support vector machines*, 1999) has linear log-odds ``A f + B``. If ``B`` is
not 0, the more probable class may differ from the predicted one, which is the side of zero that a row is on. Here the
line passes through zero. It bends there and at quantiles of the decision values on either side, with positive slopes.
So a larger decision value means more probable, and above one half means predicted. The slopes minimise the
cross-entropy of Platt's smoothed targets by Newton's method within bounds, as Lin, Lin and Weng (*A note on Platt's
probabilistic outputs*, 2007) do for his two numbers.

A link is an array (2, p) of points: ascending decision values, and the log-odds there. Beyond its ends the first and
the last line go on.

One-vs-one, the probabilities p of the classes minimise ``Σ_{i<j} (r_ji p_i − r_ij p_j)²``. Here r_ij is the
probability of class i among rows of i and j alone, by their machine (Wu, Lin and Weng, *Probability estimates for
multi-class classification by pairwise coupling*, 2004, second method).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_odm.typing import Array


def fit_link(scores: Array, positive: Array, weight: Array) -> Array:
    """Fit a link (2, p) to decision values ``scores`` (n,) of rows that the model did not learn from, or left out.

    ``positive`` (n,) tells whether each row is of the positive class. The ``weight`` (n,) is positive, and 2 equals a
    repeated row; weights of a mean below 1 are scaled up to mean 1. Of more than 262,144 rows, so many at most are
    taken, at even distances.
    """
    stride = -(-len(scores) // (1 << 18))
    scores = scores[::stride]
    positive = positive[::stride]
    weight = weight[::stride]
    weight = weight * max(1.0, 1.0 / float(weight.mean()))
    unit = float(np.sqrt(np.average(scores**2, weights=weight))) or 1.0
    scores = scores / unit
    knots = np.concatenate([-_knots(-scores, weight)[::-1], [0.0], _knots(scores, weight)])
    slopes = _fitted_slopes(_lengths(scores, knots), _smoothed(positive, weight), weight)
    ends = np.concatenate([[knots[0] - 1.0], knots, [knots[-1] + 1.0]])
    rises = slopes * np.diff(ends)
    logits = np.concatenate([[0.0], np.cumsum(rises)])
    return np.stack([ends * unit, logits - logits[np.searchsorted(ends, 0.0)]])


def log_odds(link: Array, scores: Array) -> Array:
    """Return the link's log-odds at ``scores``, of their shape, float64."""
    x, z = link
    piece = np.clip(np.searchsorted(x, scores) - 1, 0, len(x) - 2)
    slopes = np.diff(z) / np.diff(x)
    found: Array = z[piece] + slopes[piece] * (scores.astype(np.float64) - x[piece])
    return np.where(scores > 0, np.maximum(found, 0.0), np.minimum(found, 0.0))


def probabilities(scores: Array, link: Array, threshold: float = 0.0, *, log: bool = False) -> Array:
    """Return the probabilities of two classes, float64 (n, 2), for ``scores`` (n,), or of more for (n, classes).

    Or with ``log`` their logarithms, which for two classes are accurate near probability 0.
    Of two classes, that of the sign of the score has more than ½. Of more, the link gives the probability of each
    against the rest, and the sum is normalised to 1. The class of the largest score is the most probable. The scores of
    two classes are what is left of others after a ``threshold`` was taken off, for which the link is.
    """
    if scores.ndim == 2:
        found = _normalised(scores, link)
        return np.log(np.maximum(found, np.finfo(np.float64).tiny)) if log else found
    scores = scores + threshold
    far = -np.abs(log_odds(link, scores))
    odds = np.exp(far)
    winning = -np.log1p(odds) if log else np.maximum(1.0 / (1.0 + odds), np.nextafter(0.5, 1.0))
    losing = far + winning if log else odds / (1.0 + odds)
    upper = scores > 0
    return np.stack([np.where(upper, losing, winning), np.where(upper, winning, losing)], axis=1)


def of_labels(scores: Array, link: Array, threshold: Any = 0.0, *, log: bool = False) -> Array:
    """Return the probability of each label by its own link, float64 (n, labels), or with ``log`` its logarithm.

    The scores are what is left of others after a ``threshold`` of each label was taken off, for which the ``link`` is,
    of all labels, see `joined_links`.
    """
    odds = map(log_odds, link.reshape(-1, 2, link.shape[1]), (scores + threshold).T)
    return np.stack([-np.logaddexp(0.0, -z) if log else _sigmoid(z) for z in odds], axis=1)


def joined_links(links: Sequence[Array]) -> Array:
    """Return links one below the other, (2 links, p); shorter ones get more points on their last line."""
    most = max(link.shape[1] for link in links)

    def padded(link: Array) -> Array:
        steps = np.arange(1, most - link.shape[1] + 1)
        return np.hstack([link, link[:, -1:] + steps * (link[:, -1:] - link[:, -2:-1])])

    return np.vstack([padded(link) for link in links])


def _sigmoid(z: Array) -> Array:
    far = np.exp(-np.abs(z))
    return np.asarray(np.where(z > 0, 1.0, far) / (1.0 + far))


def _normalised(scores: Array, link: Array) -> Array:
    found = _sigmoid(log_odds(link, scores))
    found /= np.maximum(found.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    rows = np.arange(len(found))
    winner = scores.argmax(axis=1)
    lost = found.argmax(axis=1) != winner  # rows in which rounding made another class as probable
    found[rows[lost], winner[lost]] = np.nextafter(found[lost].max(axis=1), 1.0)
    return found


def learned_values(values: Array, lacking: tuple[int, ...]) -> Array:
    """Return the values of the learned classes, (n,) of two, from those of all (n, classes)."""
    own = np.delete(values, lacking, axis=1)
    return own[:, 1] if own.shape[1] == 2 else own


def answers_of_all(
    values: Array, function: Callable[[Array], Array], lacking: tuple[int, ...], nothing: Any, of_all: bool
) -> Array:
    """Return (n, classes) answers: ``function(values)`` of the learned classes, ``nothing`` of the others.

    ``values`` are ``of_all`` classes, or of machines.
    """
    found = function(learned_values(values, lacking) if of_all else values)
    out = np.full((len(found), found.shape[1] + len(lacking)), nothing, found.dtype)
    out[:, np.delete(np.arange(out.shape[1]), lacking)] = found
    return out


def is_link(points: Array) -> bool:
    """Return whether an array is a link: finite, rising, and zero at zero."""
    if points.ndim != 2 or points.shape[0] != 2 or points.shape[1] < 3 or not np.isfinite(points).all():
        return False
    at = np.flatnonzero(points[0] == 0)
    return bool((np.diff(points) > 0).all() and len(at) == 1 and points[1, at[0]] == 0)


def _knots(scores: Array, weight: Array, most_pieces: int = 4, piece_weight: int = 100) -> Array:
    """Return the bends of the line on the positive side: ascending quantiles of the positive ``scores``.

    There are at most ``most_pieces`` lines, each with rows of ``piece_weight``, and none is shorter than 1e-6.
    """
    order = np.argsort(scores, kind="stable")[np.count_nonzero(scores <= 0) :]
    above = scores[order]
    sums = np.cumsum(weight[order])
    pieces = min(most_pieces, round(sums[-1]) // piece_weight) if len(sums) else 0
    if pieces < 2:
        return np.empty(0)
    found = above[np.searchsorted(sums, sums[-1] * np.arange(1, pieces) / pieces)]
    return np.asarray(found[np.diff(found, prepend=0.0) > 1e-6])


def _lengths(scores: Array, knots: Array) -> Array:
    """Return the stretch of each line between zero and each score, (n, pieces), with the sign of the score."""
    low = np.concatenate([[-np.inf], knots])
    high = np.concatenate([knots, [np.inf]])
    up = np.clip(scores[:, None], np.maximum(low, 0.0), np.maximum(high, 0.0)) - np.maximum(low, 0.0)
    down = np.clip(scores[:, None], np.minimum(low, 0.0), np.minimum(high, 0.0)) - np.minimum(high, 0.0)
    return up + down


def _smoothed(positive: Array, weight: Array) -> Array:
    """Return Platt's smoothed targets: to n rows of a class, one is added that is wrong by half."""
    above = float(weight[positive].sum())
    below = float(weight[~positive].sum())
    return np.where(positive, (above + 1.0) / (above + 2.0), 1.0 / (below + 2.0))


def _fitted_slopes(
    lengths: Array, target: Array, weight: Array, *, least: float = 0.01, tol: float = 1e-10, max_iter: int = 100
) -> Array:
    """Return the slopes (p,) of least cross-entropy by projected Newton (Bertsekas, 1982), at least ``least`` each.

    Decision values are of mean square 1. The free entries of the gradient are then smaller than ``tol``.
    """
    shares = weight / weight.sum()
    slopes = np.ones(lengths.shape[1])

    def value(at: Array) -> float:
        z = lengths @ at
        return float(shares @ (np.logaddexp(0.0, z) - target * z))

    now = value(slopes)
    for _ in range(max_iter):
        p = 1.0 / (1.0 + np.exp(-np.clip(lengths @ slopes, -700.0, 700.0)))
        gradient = lengths.T @ (shares * (p - target))
        free = (slopes > least) | (gradient < 0)
        if np.abs(gradient[free]).max(initial=0.0) < tol:
            break
        inner = lengths[:, free]
        hessian = (inner * (shares * p * (1.0 - p))[:, None]).T @ inner
        hessian.flat[:: len(hessian) + 1] += tol
        step = np.zeros(len(slopes))
        length = 1.0
        step[free] = -np.linalg.solve(hessian, gradient[free])
        while length > tol:
            after = np.maximum(slopes + length * step, least)
            then = value(after)
            if then <= now + 1e-4 * float(gradient @ (after - slopes)):  # Armijo's rule
                break
            length *= 0.5
        else:
            break
        slopes = after
        now = then
    return slopes


def coupled(scores: Array, link: Array, classes: int, *, log: bool = False) -> Array:
    """Return the probabilities of the classes (n, classes), float64, from machines' ``scores`` (n, machines).

    Or with ``log`` their logarithms. ``link`` turns any machine's score into the log-odds of its positive class.
    """
    step = max(1, (8 << 20) // (8 * (classes + 1) ** 2))  # rows whose linear systems take 8 MB
    blocks = [scores[start : start + step] for start in range(0, max(1, len(scores)), step)]
    found = np.concatenate([_coupled(log_odds(link, block), classes) for block in blocks])
    return np.log(found) if log else found


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
