"""Checks of the arguments of functions, by the constraints and in the words that scikit-learn has for estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from numbers import Integral
from typing import Any, TypeVar, cast

from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from dask_odm.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
FROM_1 = Interval(Integral, 1, None, closed="left")
FROM_0 = Interval(Integral, 0, None, closed="left")


def check(function: str, constraints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise InputError, in scikit-learn's words, if a parameter of a function is out of its range."""
    try:
        validate_parameter_constraints(constraints, values, caller_name=function)
    except ValueError as error:
        raise InputError(str(error)) from None


def checked(**constraints: list[Any]) -> Callable[[F], F]:
    """Return a decorator that has a function `check` the arguments that it is given."""

    def decorate(function: F) -> F:
        own = signature(function)

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            check(function.__name__, constraints, own.bind_partial(*args, **given).arguments)
            return function(*args, **given)

        return cast(F, call)

    return decorate
