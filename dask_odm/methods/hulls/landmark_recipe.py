"""Recipe of the reduced hulls of another kernel than the linear one: Wolfe's method on Nyström features.

The gap is certified for these features, which are the rows' projections on the span of the landmarks. The hulls of the
projections are no farther from each other than those of the rows. So `margin_` is a lower bound of the rows' own
margin, whose quality depends on the landmarks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import block_rows, group_count
from dask_odm.learning.problem.nystrom_features import KernelFeatures, coordinates, landmark_weights, span_bytes
from dask_odm.learning.training.memory_data import MemoryData, MemoryKernelData
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.row_passes import ThreadPasses
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.hulls.hulls_of_data import SLACK, checked, finish
from dask_odm.methods.hulls.nearest_recipe import solved
from dask_odm.methods.hulls.problem.hulls import HullProblem, hull_pass_bytes
from dask_odm.methods.hulls.problem.query import HullQuery
from dask_odm.methods.hulls.settings import SaddleFit
from dask_odm.models.kernel import KernelModel
from dask_odm.typing import Array

PIVOT_ROWS = 20  # candidate rows for each landmark
ADVICE = "Use a smaller n_landmarks, more memory, or a store that is not read into memory."


def train_in_span(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train on Nyström features, which are kept for rows in memory, and computed anew in every pass over a store.

    Raises MemoryLimitError if the features of rows in memory, or a pass over a store, do not fit.
    """
    count = min(data.rows, fit.n_landmarks)
    with single_threaded_blas, rescaling_advised():
        _require(data, count)
        seen = data.seen_by(fit.kernel)
        pool = seen.pivots(count, fit.choice)
        landmarks = choose(seen.kernel, pool, count, method=fit.choice, seed=fit.run.seed, rows=PIVOT_ROWS * count)
        raw, numbers = seen.chosen_pivots(landmarks.index)
        problem = checked(_hulls(seen, landmarks, fit))
        trained = finish(problem, solved(problem, data, fit), data, fit, partial(_model, seen, landmarks, raw))
    return replace(trained, attributes=trained.attributes | {"support_": numbers})


def _require(data: TrainingData, count: int) -> None:
    """Raise MemoryLimitError unless the Nyström features of ``count`` landmarks fit."""
    work = span_bytes(count, data.features)
    if data.in_memory:
        kept = data.rows * count * data.dtype.itemsize
        data.cluster.require(kept + CPU_COUNT * work, 1, f"{data.rows} rows at {count} landmarks", ADVICE)
    else:
        needed = hull_pass_bytes(count)
        data.require_pass(replace(needed, work=needed.work + work), f"A pass over the rows at {count} landmarks")


def _hulls(seen: KernelData, landmarks: Landmarks, fit: SaddleFit) -> HullProblem:
    data = seen.data
    r = len(landmarks)
    negative, positive = data.class_weights
    weights = negative, positive
    if not isinstance(data, MemoryData):
        query = HullQuery(KernelFeatures.of(landmarks, seen.scaling), 1, weights)
        return HullProblem(query, data.passes(r), fit.alpha, slack=SLACK * fit.tol)
    assert isinstance(seen, MemoryKernelData)
    rows = ArrayRows(seen.scaled) if isinstance(seen.scaled, np.ndarray) else seen.scaled
    found = coordinates(landmarks, rows, data.dtype, CPU_COUNT)
    held = data.held
    step = block_rows(r, found)
    passes = ThreadPasses.cut(found, held.codes, held.block_weights, step, group_count(r), CPU_COUNT)
    return HullProblem(HullQuery(FeatureMap(r, 0.0), 1, weights), passes, fit.alpha)


def _model(
    seen: KernelData, landmarks: Landmarks, raw: Array, problem: HullProblem, w: Array, offset: float
) -> KernelModel:
    a = landmark_weights(landmarks, w)
    return KernelModel(seen.kernel, seen.scaling, raw, a[None], np.array([offset]))
