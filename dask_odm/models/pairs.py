"""One against one: from the scores of machines, one for every two of k classes, to a score a class.

Machine by machine in the order (0, 1), (0, 2), …, (k − 2, k − 1); the second class of a pair is the positive one. A
class's score is the number of machines that vote for it, and at ties their confidence decides: the sum f of its scores
is added as ``f/(3(|f| + 1))``, less than a vote, as in scikit-learn's `OneVsOneClassifier`.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dask_odm.typing import Array


def pair_count(classes: int) -> int:
    """Machines that so many classes make, one for every two."""
    return classes * (classes - 1) // 2


def class_scores(scores: Array, classes: int) -> Array:
    """Scores of the classes (classes, n), float64, of machines' ``scores`` (machines, n)."""
    votes, total = np.zeros((classes, scores.shape[1])), np.zeros((classes, scores.shape[1]))
    for score, (negative, positive) in zip(scores, combinations(range(classes), 2), strict=True):
        won = score > 0
        votes[positive] += won
        votes[negative] += ~won
        total[positive] += score
        total[negative] -= score
    return votes + total / (3.0 * (np.abs(total) + 1.0))


def require_pairs(machines: int, classes: object) -> int:
    """``classes`` of a model's description, which so many machines must be the pairs of; ValueError else."""
    if not isinstance(classes, int) or isinstance(classes, bool) or (classes and pair_count(classes) != machines):
        raise ValueError(f"{machines} machines for the pairs of {classes!r:.20} classes")
    return classes
