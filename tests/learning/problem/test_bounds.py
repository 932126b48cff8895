"""Lower bounds of P: what the plain dual says, and never more than the least P, which Cholesky finds."""

import numpy as np
import pytest

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.losses import Point, certified_gap, scaled_dual, span_gap
from dask_odm.learning.problem.products import RowProducts
from small_problems import SETTINGS, SmallProblem, any_dual, matrix, small_problem

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def assert_bounds(p: SmallProblem, point: Point, a: np.ndarray) -> None:
    """The point is of the model ``a``, and says no less than how far it is from the optimum."""
    least = p.primal(p.y * p.coefficients)
    assert point.primal == pytest.approx(p.primal(p.y * a), rel=1e-9)
    assert point.dual <= least * (1 + 1e-9)
    assert (point.primal - least) / point.primal <= point.gap + 1e-9


@EVERY_SETTING
def test_scaled_dual_is_the_largest_of_its_ray(setting):
    p = small_problem(40, setting)
    for seed in range(3):
        s = any_dual(p, seed)
        square = float((p.y * s) @ p.K @ (p.y * s))
        steps = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 100)])
        best = int(np.argmax([p.dual(c * s) for c in steps]))  # of a concave function: the largest is beside it
        near = np.linspace(steps[max(best - 1, 0)], steps[min(best + 1, 100)], 50)
        values = [p.dual(c * s) for c in near]
        bound = scaled_dual(p.losses, s, square)
        assert bound >= max(values) - 1e-9 * abs(bound)
        assert bound <= max(values) + 1e-3 * abs(bound) + 1e-12


@EVERY_SETTING
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_certified_gap_is_no_less_than_the_distance(setting, dtype):
    p = small_problem(200, setting, dtype=dtype, weighted=True)
    products, best = RowProducts(p.kernel, p.X, 0), p.coefficients
    for a in (best, best * 0.9, np.where(np.arange(200) % 3, best, 0.0), np.zeros(200)):
        scores = p.K @ a
        assert_bounds(p, certified_gap(p.losses, p.y * scores, float(a @ scores), products), a)
    assert certified_gap(p.losses, p.y * (p.K @ best), float(best @ p.K @ best), products).gap < 1e-7


@EVERY_SETTING
@pytest.mark.parametrize("count", [5, 50, 200])
def test_span_gap_is_no_less_than_that_of_the_kernel_itself(setting, count):
    """The same model, bounded by ``sᵀQs`` and by what landmarks say it is at most: equal where they leave nothing."""
    p = small_problem(200, setting, weighted=True)
    landmarks = Landmarks.of(p.kernel, p.X[:count], np.arange(count))
    a = np.zeros(200)
    a[landmarks.index] = p.coefficients[landmarks.index]
    margins, square_norm = p.y * (p.K @ a), float(a @ p.K @ a)
    pull = matrix(p.kernel, landmarks.rows, p.X) @ (p.y * p.losses.dual_candidate(margins))
    point = span_gap(p.losses, margins, square_norm, pull, landmarks, landmarks.residual(p.X))
    assert_bounds(p, point, a)
    exact = certified_gap(p.losses, margins, square_norm, RowProducts(p.kernel, p.X, 0))
    assert point.dual <= exact.dual * (1 + 1e-9)
    if count == 200:
        assert point.dual == pytest.approx(exact.dual, rel=1e-3)
