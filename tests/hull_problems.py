"""Small problems of two hulls, over rows in memory or as if they were streamed."""

from typing import Any

import numpy as np
from scipy.optimize import minimize

from dask_odm.learning.problem.features import Affine, FeatureMap
from dask_odm.linalg.row_passes import RowBlock, ThreadPasses
from dask_odm.papers.saddle.client_hulls import ClientHulls, GroupHere
from dask_odm.papers.saddle.client_rows import Preparation
from dask_odm.papers.saddle.problem import HullProblem, HullQuery
from dask_odm.papers.saddle.workers import row_ranges


class StreamedPasses(ThreadPasses):
    """Passes whose rows nobody keeps, as those over a store."""

    streamed = True


def hulls(
    X: Any,
    y: np.ndarray,
    alpha: float | None,
    weight: np.ndarray | None = None,
    *,
    streamed: bool = False,
    step: int = 7,
    groups: int = 4,
    scaling: Affine | None = None,
    class_weights: tuple[float, float] = (1.0, 1.0),
) -> HullProblem:
    """Two hulls of rows ``X`` (n, d) with ``y`` above zero for the positive class."""
    kind = StreamedPasses if streamed else ThreadPasses
    weights = np.empty(0) if weight is None else weight
    passes = kind.cut(X, (y > 0).astype(np.int8), weights, step, groups)
    return HullProblem(HullQuery(FeatureMap(X.shape[1], 0.0, scaling), class_weights), passes, alpha)


def distance_by_slsqp(X: np.ndarray, y: np.ndarray, caps: np.ndarray) -> float:
    """Half the squared distance of two reduced hulls by a general solver."""
    sign = np.where(y > 0, 1.0, -1.0)
    S = sign[:, None] * X
    gram = S @ S.T
    start = np.where(y > 0, caps / caps[y > 0].sum(), caps / caps[y <= 0].sum())
    found = minimize(
        lambda e: 0.5 * e @ gram @ e,
        start,
        jac=lambda e: gram @ e,
        bounds=[(0.0, cap) for cap in caps],
        constraints=[
            {"type": "eq", "fun": lambda e, of=of: e[of].sum() - 1.0, "jac": lambda e, of=of: of.astype(float)}
            for of in (y > 0, y <= 0)
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return float(found.fun)


def by_clients(
    X: Any,
    y: np.ndarray,
    alpha: float | None,
    weight: np.ndarray | None = None,
    *,
    count: int = 3,
    block_size: int | None = None,
    seed: int = 0,
    states: Any = None,
) -> ClientHulls:
    """Two hulls whose rows are with clients of this process, each with some consecutive ones."""
    problem = hulls(X, y, alpha, weight)
    preparation = Preparation.of(problem, block_size, seed)
    given = np.ones(len(y)) if weight is None else weight
    codes = (y > 0).astype(np.int8)
    held = [preparation([RowBlock(X[a:b], codes[a:b], given[a:b])]) for a, b in row_ranges(len(y), count)]
    return ClientHulls(GroupHere(held, states), count, problem, preparation)
