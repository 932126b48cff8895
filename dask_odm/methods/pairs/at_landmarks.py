"""Machines of landmarks for all pairs of classes, over rows in memory.

Over the span of landmarks, the kernel value of two rows is the product of their Nyström features ``L⁻¹ k(x)``. With
these values a small pair is learned as an exact one: they are computed once for all pairs of a class, and no pair
factors a matrix of landmarks, of which there may be more than rows. The weights of the features, ``Fᵀ a`` for dual
variables a of the rows, become coefficients of landmarks in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from dask.system import CPU_COUNT
from scipy.linalg import solve_triangular

from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.named import Linear
from dask_odm.learning.training.memory_data import MemoryData, MemoryKernelData
from dask_odm.learning.training.recipe import Machines, Trained, require_finite_solution, rescaling_advised
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.exact.solver import ExactSolution
from dask_odm.methods.landmark.recipe import shared_landmarks, train_machines_at_landmarks
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.pairs.recipe import PairRows, Pairs, class_sizes, pair_bytes, suits_pairs, trained_pairs
from dask_odm.models.models import KernelModel
from dask_odm.typing import Array

ROWS_A_LANDMARK = 2  # of a pair, from which on Newton over the landmarks takes less time


def train_pairs_at_landmarks(data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
    """Train all machines of many classes over the same landmarks, small pairs by the kernel values of their rows.

    Returns None if each is certified or left-out rows are wanted.
    """
    if not pairs or fit.own.certify or not _are_small(data, fit):
        return train_machines_at_landmarks(data, fit, machines, pairs)
    assert isinstance(data, MemoryData)
    needed = _needed(data, fit)
    data.cluster.require(needed, 1, "Pairs over landmarks", "Use a smaller n_landmarks, or more memory.")
    data = data.merged()
    with rescaling_advised():
        seen, fit, landmarks, _ = shared_landmarks(data, fit, needed)
        assert isinstance(seen, MemoryKernelData)
        raw, numbers = seen.chosen_pivots(landmarks.index)
        landmarks.prepare()
        features = _features(seen, landmarks)
        rows = [np.flatnonzero(data.y == code) for code in range(pairs)]
        of_rows = PairRows(features, lambda index: landmarks.features(seen.scaled[index]), data.total_weights, rows)
        found, _ = Pairs(Linear(), 0.0, of_rows, data.dtype, fit, predicts=False).solve()
        coefficients = _coefficients(landmarks, features, rows, found)
    intercept = landmarks.kernel.bias * coefficients.sum(axis=1)
    model = KernelModel(replace(landmarks.kernel, bias=0.0), seen.scaling, raw, coefficients, intercept, pairs)
    unknown = [float("nan")] * len(found)  # the gap over the span says nothing of other functions
    return trained_pairs(model, numbers, found, unknown, " over the span of the landmarks", fit)


def _are_small(data: TrainingData, fit: ODMFit) -> bool:
    """Return whether the kernel values of a pair's rows take less time than its Newton steps, and fit in memory."""
    if not suits_pairs(data, fit):
        return False
    assert isinstance(data, MemoryData)
    count = min(data.rows, fit.own.n_landmarks)
    return class_sizes(data)[1] <= ROWS_A_LANDMARK * count and _needed(data, fit) <= data.cluster.memory


def _needed(data: MemoryData, fit: ODMFit) -> int:
    """Return the bytes of the features, which are packed for either side, and of what pairs take."""
    count = min(data.rows, fit.own.n_landmarks)
    features = data.rows * count * 3 * data.dtype.itemsize + CPU_COUNT * 2 * 8 * BLOCK * count
    return pair_bytes(data, fit) + features


def _features(seen: MemoryKernelData, landmarks: Landmarks) -> Array:
    """Return the Nyström features of all rows (n, r), in the rows' dtype; they are computed in float64."""
    n = seen.data.rows
    found = np.empty((n, len(landmarks)), seen.data.dtype)

    def fill(start: int) -> None:
        span = slice(start, min(start + BLOCK, n))
        found[span] = landmarks.features(seen.scaled[span])

    run_threads(fill, range(0, n, BLOCK), CPU_COUNT, "features")
    return found


def _coefficients(
    landmarks: Landmarks, features: Array, rows: Sequence[Array], found: Sequence[ExactSolution]
) -> Array:
    """Return the coefficients of landmarks of all pairs (pairs, r), from those of the pairs' rows."""
    weights = np.zeros((len(landmarks), len(found)))
    members = list(combinations(range(len(rows)), 2))
    for code, index in enumerate(rows):
        of_class = [k for k, pair in enumerate(members) if code in pair]
        own = np.empty((len(index), len(of_class)))
        for column, k in enumerate(of_class):
            a = found[k].coefficients
            require_finite_solution(a)
            own[:, column] = a[: len(index)] if members[k][0] == code else a[-len(index) :]
        weights[:, of_class] += features[index].T.astype(np.float64) @ own
    return np.ascontiguousarray(solve_triangular(landmarks.factor, weights, lower=True, trans=1).T)
