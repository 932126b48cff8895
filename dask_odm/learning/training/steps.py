"""Shared by solvers that work in steps: reporting steps to listeners, and explaining overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from traceback import walk_tb
from typing import Any

import numpy as np

from dask_odm.errors import DaskODMError, InputError
from dask_odm.events import IterationFinished, report
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.step_log import Record, record_after
from dask_odm.learning.training.trained import NOT_FINITE

_FIGURES = {field.name for field in fields(IterationFinished)}


def report_step(record: Record) -> None:
    """Report a step to listeners: those of its figures that `IterationFinished` has."""
    report(IterationFinished(**{name: value for name, value in record.items() if name in _FIGURES}))


def reported_after(ahead: PrimalSolution[Any] | None) -> Callable[[Record], None]:
    """Return a function that reports steps, numbered after those of the solution ``ahead`` if there is one."""
    records = [] if ahead is None else ahead.history
    return lambda record: report_step(record_after(records, record))


@contextmanager
def rescaling_advised() -> Iterator[None]:
    """Turn a ValueError of the numerics into an InputError that advises rescaling; overflow gives no NumPy warnings."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except ValueError as error:
        by_listener = any(frame.f_code is report.__code__ for frame, _ in walk_tb(error.__traceback__))
        if isinstance(error, DaskODMError) or by_listener:
            raise
        raise InputError(NOT_FINITE) from error
