"""The linear problem over rows in memory, dense or sparse (CSR): threads of this process, no graph."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, TypeVar

from dask_odm.kernels.threads import run_threads, single_threaded_blas
from dask_odm.problems.primal import FeatureMap, LinearLoss, PrimalSums, Query, RowBlock, block_rows, hessian_share
from dask_odm.typing import Array

T = TypeVar("T")
MOST_GROUPS = 16
EXACT_FEATURES = 2048  # up to so many weights a Hessian is formed
PARTIAL_BYTES = 256 << 20  # of all groups' Hessians together


def group_count(k: int) -> int:
    """Groups of rows whose sums are added in order; depends on the number of weights alone."""
    return MOST_GROUPS if k > EXACT_FEATURES else max(2, min(MOST_GROUPS, PARTIAL_BYTES // (8 * k * k)))


class ArrayProblem:
    """A `LinearProblem` over arrays.

    Parameters
    ----------
    features : FeatureMap
    loss : LinearLoss
    X : ndarray or CSR matrix of shape (n, d)
    codes : integer ndarray of shape (n,)
    weight : ndarray of shape (n,), or empty: all 1
    threads : int
    """

    def __init__(
        self, features: FeatureMap, loss: LinearLoss, X: Any, codes: Array, weight: Array, threads: int = 1
    ) -> None:
        self._features, self._loss, self._threads = features, loss, threads
        step, n = block_rows(features.d, X), X.shape[0]
        blocks = [RowBlock(X[i : i + step], codes[i : i + step], weight[i : i + step]) for i in range(0, n, step)]
        groups = min(len(blocks), group_count(features.k))
        bounds = [len(blocks) * g // groups for g in range(groups + 1)]
        self._curved_at: Array | None = None
        self._curved_precisely = False
        self._curvatures: list[list[Array]] = []
        self._groups = [blocks[a:b] for a, b in pairwise(bounds)]

    @property
    def nbytes(self) -> int:
        """About what Newton holds besides the rows: every group's sums, the Hessian and its factor; vectors of n."""
        k, n = self.k, sum(len(block.codes) for group in self._groups for block in group)
        return 8 * ((len(self._groups) + 4) * (k * k if k <= EXACT_FEATURES else 4 * k) + n)

    def with_lam(self, lam: float) -> ArrayProblem:
        """The problem over the same rows for another λ."""
        other = copy(self)
        other._loss, other._curved_at, other._curvatures = self._loss.with_lam(lam), None, []
        return other

    @property
    def k(self) -> int:
        return self._features.k

    def _each(self, function: Callable[..., T], *more: list[Any]) -> list[T]:
        with single_threaded_blas:
            groups = zip(self._groups, *more, strict=True)
            return run_threads(lambda parts: function(*parts), groups, self._threads)

    @property
    def every(self) -> int:
        return hessian_share(sum(len(block.codes) for group in self._groups for block in group), self.k)

    def sums(self, w: Array, curvature: str, *, precise: bool = False, every: int = 1) -> PrimalSums:
        query = Query(self._features, self._loss, w, precise)
        return reduce(add, self._each(lambda blocks: query.sums(blocks, curvature, every)))

    def product(self, w: Array, v: Array, *, precise: bool = False) -> Array:
        query = Query(self._features, self._loss, w, precise)
        if self._curved_at is not w or self._curved_precisely is not precise:
            # conjugate gradients ask for many products at one w
            self._curvatures = self._each(query.curvatures)
            self._curved_at, self._curved_precisely = w, precise
        return reduce(add, self._each(lambda blocks, c: query.product(blocks, v, c), self._curvatures))

    def slopes(self, w: Array, direction: Array, steps: Array, *, precise: bool = False) -> Array:
        query = Query(self._features, self._loss, w, precise)
        return reduce(add, self._each(lambda blocks: query.slopes(blocks, direction, steps)))
