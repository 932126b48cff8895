"""What a solver's ValueError is taken for: features whose squares are too large, unless a callback raised it."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.errors import InputError
from dask_odm.events import listen
from dask_odm.learning.solution import StepClock
from dask_odm.learning.training.recipe import report_step, rescaling_advised


def test_numbers_that_are_not_finite_are_told_from_a_callback_s_error():
    with pytest.raises(InputError, match="rescale the rows"), rescaling_advised():
        np.linalg.cholesky(-np.eye(1))

    def refuses(event):
        raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own"), listen(refuses), rescaling_advised():
        report_step(StepClock().record(0, 1.0, 1.0, 0.0))
