"""What a solver's ValueError is taken for, and what is advised where solves end above the tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.errors import InputError
from dask_odm.events import listen
from dask_odm.learning.problem.losses import Point
from dask_odm.learning.solution import Solution, StepClock
from dask_odm.learning.training.recipe import report_step, rescaling_advised, unfinished


def test_numbers_that_are_not_finite_are_told_from_a_callback_s_error():
    with pytest.raises(InputError, match="rescale the rows"), rescaling_advised():
        np.linalg.cholesky(-np.eye(1))

    def refuses(event):
        raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own"), listen(refuses), rescaling_advised():
        report_step(StepClock().record(0, 1.0, 1.0, 0.0))


def test_the_warning_speaks_of_what_was_done():
    point = Point(1.0, 0.5, 0.5)
    newton = Solution(np.zeros((1, 2)), 2.0, 2, point, point, 0, 7, converged=False)
    descent = Solution(np.zeros((1, 2)), 2.0, 2, point, point, 9, 1, converged=False)
    done = Solution(np.zeros((1, 2)), 2.0, 2, point, Point(1.0, 1.0, 0.0))
    assert unfinished([done, done], 1e-3, 200) is None
    assert "max_iter" not in (unfinished([done, newton], 1e-3, 200) or "max_iter")
    assert "Increase max_iter (200 steps)" in (unfinished([newton, descent], 1e-3, 200) or "")
