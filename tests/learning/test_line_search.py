"""The least step of rows in memory: where a fine search finds the least P, and 1 if P still falls there."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dask_odm.learning.newton import least_row_step
from dask_odm.learning.problem.losses import ODMSettings, RowLosses

LOSSES = RowLosses(ODMSettings(1e3, 0.3, 0.2), np.repeat([-1.0, 1.0], 100), np.linspace(0.5, 2.0, 200))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("norm", [0.0, 200.0])
def test_it_is_where_p_is_least(size, norm):
    scores, change = np.random.default_rng(0).normal(size=(2, 200)) * [[1.0], [size]]
    change -= change @ LOSSES.y / 200 * LOSSES.y
    dual = LOSSES.y * LOSSES.dual_candidate(LOSSES.y * scores)
    inner = float(dual @ change) - 50.0 * size  # a slope of −50 sizes

    def primal(step: float) -> float:
        return step * inner + 0.5 * step**2 * norm * size**2 + LOSSES.primal(np.zeros(200), scores + step * change)

    found = least_row_step(LOSSES, scores, change, inner, norm * size**2)
    best = minimize_scalar(primal, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9})
    assert primal(found) <= best.fun * (1 + 1e-12)
    assert found == pytest.approx(1.0 if size < 1e-3 else best.x, rel=1e-5)


def test_there_is_no_step_against_the_slope():
    change = LOSSES.y.copy()
    assert least_row_step(LOSSES, 1.1 * LOSSES.y, change, 1.0, 1.0) == 0.0
