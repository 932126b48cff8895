"""What solvers by steps share: their steps are told to listeners, and overflow is told from other mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np

from dask_odm.errors import DaskODMError, InputError
from dask_odm.events import IterationFinished, report
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.step_log import Record, record_after
from dask_odm.learning.training.trained import NOT_FINITE


def report_step(record: dict[str, Any]) -> None:
    """Tell listeners of a step."""
    report(IterationFinished(**record))


def reported_after(ahead: PrimalSolution[Any] | None) -> Callable[[Record], None]:
    """As `report_step`, of a run that goes on from the solution ``ahead``, if there is one."""
    records = [] if ahead is None else ahead.history
    return lambda record: report_step(record_after(records, record))


@contextmanager
def rescaling_advised() -> Iterator[None]:
    """Tell features whose squares are too large from other mistakes."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except ValueError as error:
        if isinstance(error, DaskODMError) or _is_of_listener(error):
            raise
        raise InputError(NOT_FINITE) from error


def _is_of_listener(error: ValueError) -> bool:
    """Whether a callback of the user's raised it."""
    return any(frame.f_code is report.__code__ for frame, _ in walk_tb(error.__traceback__))
