"""What a fit gives: the steps that it reports to listeners, and its result before it becomes attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from traceback import walk_tb
from typing import Any

import numpy as np

from dask_odm.errors import DaskODMError, InputError
from dask_odm.events import IterationFinished, report
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.step_log import Record, record_after
from dask_odm.models.base import Model
from dask_odm.typing import Array

NOT_FINITE = "the solution is not finite: rescale the rows (scale='minmax') or the weights, or choose a smaller lam."


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with what is known about it."""

    model: Model
    attributes: dict[str, Any] = field(default_factory=dict)  # fitted attributes: ``history_``, ``n_iter_``, …
    warning: str | None = None  # given if the solver stopped short of the tolerance
    path: tuple[Trained, ...] = ()  # one result for every value of a path, if a path was asked for
    was_finite: bool = False  # whether the model has predicted finite values for all training rows

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of the steps, empty if there are none."""
        found: list[dict[str, Any]] = self.attributes.get("history_", [])
        return found


@dataclass(frozen=True, eq=False)
class Schema:
    """Description of the rows and targets that a model was fitted on.

    ``feature_dimension`` is the name of the feature dimension of an xarray X. ``classes`` are sorted labels, and None
    for real targets.
    """

    n_features: int
    feature_names: Any = None
    feature_dimension: str | None = None
    classes: Array | None = None


def require_finite_solution(*values: Any) -> None:
    """Raise InputError unless all numbers of a solution are finite."""
    if not all(bool(np.isfinite(value).all()) for value in values):
        raise InputError(NOT_FINITE)


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
