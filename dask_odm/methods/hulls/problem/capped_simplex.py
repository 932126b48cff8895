"""The capped simplex: the minimum of a linear function over it, and the projection onto it in relative entropy.

Its vectors are e ≥ 0 with Σ e_i = 1 and e_i ≤ c_i / mass, c being the weights of rows. They are the coefficients of a
reduced convex hull (Bennett and Bredensteiner 2000; Crisp and Burges 1999); a mass of 0 gives the whole hull. Rows of
equal score share what is left for them in proportion to their weights. So a row that is there twice equals one of
weight 2 to the last bit, and neither the order of the rows nor who holds them matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.linalg.jit import compiled_in_order
from dask_odm.typing import Array

MOST_ROUNDS = 200  # most Newton steps of a projection, which ends after a few, as each caps one more row at least


@dataclass(frozen=True)
class Cut:
    """The e that minimises ``Σ e_i s_i``: ``full · c_i`` if the score is below the threshold, ``tied · c_i`` at it."""

    threshold: float
    full: float
    tied: float

    def entries(self, scores: Array, weight: Array | None) -> Array:
        """Return e of rows with ``scores`` (n,) and weights (n,); None stands for weights of 1."""
        e = np.where(scores < self.threshold, self.full, 0.0)
        e[scores == self.threshold] = self.tied
        return e if weight is None else e * weight


def cut_at(threshold: float, below: float, tied: float, mass: float) -> Cut:
    """Return the cut for rows of total weight ``below`` below the threshold, and of ``tied`` at it."""
    full = 1.0 / mass if mass > 0 else 0.0
    return Cut(threshold, full, max(0.0, 1.0 - full * below) / tied)


def cut_scores(scores: Array, weight: Array | None, mass: float) -> Cut:
    """Minimise ``Σ e_i s_i`` over the capped simplex of ``mass``, which is at most the sum of the weights.

    The weights (n,) of the rows are positive; None stands for weights of 1.
    """
    n = len(scores)
    if weight is None:
        m = min(int(mass), n - 1)
        threshold = float(np.partition(scores, m)[m])
        counts = np.count_nonzero(scores < threshold), np.count_nonzero(scores == threshold)
        return cut_at(threshold, float(counts[0]), float(counts[1]), mass)
    order = np.argsort(scores, kind="stable")
    at = min(int(np.searchsorted(np.cumsum(weight[order]), mass, side="right")), n - 1)
    threshold = float(scores[order[at]])
    below = float(weight[scores < threshold].sum())
    return cut_at(threshold, below, float(weight[scores == threshold].sum()), mass)


@compiled_in_order
def cap_factor(logs: Array, log_caps: Array, start: float) -> float:
    """Return log c with ``Σ min(cap_i, c · p_i) = 1``: the projection of p onto the capped simplex in relative entropy.

    Newton's steps for c stay below the root after the first one, and end there. All is in logarithms, since nearly all
    of p may be too small for a float. ``logs`` (n,) is log p, and finite. The caps, given by ``log_caps`` (n,), sum to
    1 at least. ``start`` is a first log c, such as that of a projection before.
    """
    log_c = start
    before = -1
    for _ in range(MOST_ROUNDS):
        capped = 0.0
        count = 0
        top = -np.inf
        for i in range(logs.size):
            if logs[i] + log_c >= log_caps[i]:
                capped += np.exp(log_caps[i])
                count += 1
            elif logs[i] > top:
                top = logs[i]
        if count == before:
            break
        if count == logs.size or capped >= 1.0:
            if before >= 0:  # only rounding leaves any room
                break
            # the start was far above the root; begin below it instead
            log_c = -_log_sum(logs)
            before = 0
            continue
        free = 0.0
        for i in range(logs.size):
            if logs[i] + log_c < log_caps[i]:
                free += np.exp(logs[i] - top)
        log_c = np.log(1.0 - capped) - top - np.log(free)
        before = count
    return log_c


@compiled_in_order
def _log_sum(logs: Array) -> float:
    top = logs.max()
    total = 0.0
    for i in range(logs.size):
        total += np.exp(logs[i] - top)
    return top + np.log(total)
