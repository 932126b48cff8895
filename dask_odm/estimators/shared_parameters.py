"""Parameters that estimators share: how a fit runs, and those of named kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.rows.scaling import METHODS
from dask_odm.data.store.schemas import MAX_DEGREE
from dask_odm.learning.parameters import with_parameters


@with_parameters
class RunParameters(BaseEstimator):
    """How a fit runs.

    Parameters
    ----------
    scale : {"minmax", "standard"} or None, default=None
        Scaling of features, kept in the model.
    dtype : {"float32", "float64"} or None, default=None
        What rows are kept in. None: their own type. Sums are in float64.
    random_state : int, RandomState instance or None, default=None
        Seed of all that is drawn.
    memory_limit : int, str or None, default=None
        Bytes (or "2GB") a worker may use. None: its own limit, or half of this machine's free memory.
    checkpoint : str or None, default=None
        Folder written after every step, for ``resume``.
    resume : bool, default=False
        Go on from ``checkpoint`` if it exists, to the same model.
    callbacks : list of callables or None, default=None
        Called with the events of `dask_odm.events` while fitting. None shows progress of fits of over five seconds.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "scale": [StrOptions(set(METHODS)), None],
        "dtype": [StrOptions({"float32", "float64"}), None],
        "random_state": ["random_state"],
        "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
        "checkpoint": [str, os.PathLike, None],
        "resume": ["boolean"],
        "callbacks": [list, tuple, None],
    }

    _: KW_ONLY
    scale: str | None = None
    dtype: str | None = None
    random_state: Any = None
    memory_limit: int | str | None = None
    checkpoint: str | None = None
    resume: bool = False
    callbacks: list[Callable[[Any], object]] | None = None


@with_parameters
class PolynomialParameters:
    """Parameters of the polynomial kernel.

    Parameters
    ----------
    degree : int, default=3
        Degree of the "poly" kernel.
    coef0 : float, default=1.0
        Constant of the "poly" kernel.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "degree": [Interval(Integral, 1, MAX_DEGREE, closed="both")],
        "coef0": [Interval(Real, 0.0, None, closed="left")],
    }

    _: KW_ONLY
    degree: int = 3
    coef0: float = 1.0


@with_parameters
class KernelParameters(PolynomialParameters):
    """Parameters of named kernels.

    Parameters
    ----------
    gamma : {"scale", "auto"} or float, default="scale"
        Coefficient of the kernels "rbf", "laplacian" and "poly". ``"scale"`` is 1 / (n_features · variance of scaled
        rows), ``"auto"`` 1 / n_features.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0.0, None, closed="neither")],
    }

    _: KW_ONLY
    gamma: float | str = "scale"
