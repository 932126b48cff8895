"""What a solver's ValueError is taken for, and what is advised where solves end above the tolerance."""

import numpy as np
import pytest
import scipy.linalg

from dask_odm.errors import InputError
from dask_odm.learning.problem.losses import Point
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.recipe import rescaling_advised, unfinished


def test_failures_of_linear_algebra_are_told_from_other_errors():
    with pytest.raises(InputError, match="rescale the rows"), rescaling_advised():
        np.linalg.cholesky(-np.eye(1))
    with pytest.raises(InputError, match="rescale the rows"), rescaling_advised():
        scipy.linalg.eigvalsh(np.full((1, 1), np.nan))
    with pytest.raises(ValueError, match="of my own"), rescaling_advised():
        raise ValueError("of my own")


def test_the_warning_speaks_of_what_was_done():
    point = Point(1.0, 0.5, 0.5)
    newton = Solution(np.zeros((1, 2)), 2.0, 2, point, point, 0, 7, converged=False)
    descent = Solution(np.zeros((1, 2)), 2.0, 2, point, point, 9, 1, converged=False)
    done = Solution(np.zeros((1, 2)), 2.0, 2, point, Point(1.0, 1.0, 0.0))
    assert unfinished([done, done], 1e-3, 200) is None
    assert "max_iter" not in (unfinished([done, newton], 1e-3, 200) or "max_iter")
    assert "Increase max_iter (200 steps)" in (unfinished([newton, descent], 1e-3, 200) or "")
