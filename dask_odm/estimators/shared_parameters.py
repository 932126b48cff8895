"""Parameters of estimators: how they are checked, and those that several share, of runs and of named kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import cache
from numbers import Integral
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.rows.scaling import SCALINGS
from dask_odm.data.store.schemas import MAX_DEGREE
from dask_odm.errors import InputError
from dask_odm.learning.parameters import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Registered,
    SolverClasses,
    SolverObject,
    moved_parameters,
    parameter,
    with_object,
    with_parameters,
)
from dask_odm.methods.metric_settings import Metric


@with_parameters
class RunParameters(BaseEstimator):
    """Parameters that say how a fit runs.

    Parameters
    ----------
    scale : {…} or None, default=None
        Scaling of the features. The model also applies it to new rows. {…}
    dtype : {"float32", "float64"} or None, default=None
        Number type of rows and kernel values. None: the type of the rows; of tables with words or gaps float32, unless
        that loses digits. Sums, factors and gaps are in float64.
    random_state : int, RandomState instance or None, default=None
        Seed of all random choices: landmarks, partitions, shards, samples, folds and the order of stochastic steps.
    memory_limit : int, str or None, default=None
        Bytes, or a text such as "2GB", that a worker may use. None: the limit of the worker, or half of the free memory
        of this machine.
    checkpoint : str or None, default=None
        Folder for the state of an unfinished fit, from which ``resume`` continues. It holds the last step, epoch,
        round, level or trials.
    resume : bool, default=False
        Continue from ``checkpoint`` if it exists, to the same model. Rows are dealt to partitions and shards again.
    callbacks : list of callables or None, default=None
        Functions that are called with the events of `dask_odm.events` during a fit. None: show progress of fits that
        take longer than five seconds.
    """

    _solvers: ClassVar[SolverClasses] = ()  # classes of solver objects that `solver` accepts
    _instead: ClassVar[dict[str, str]] = {
        "scratch": "Dask's configuration names the folder, dask.config.set({'temporary-directory': …}) (--scratch).",
        "seed": "random_state (--random-state) is the seed.",
    }

    _: KW_ONLY
    scale: str | None = parameter(None, Registered(SCALINGS), None)
    dtype: str | None = parameter(None, StrOptions({"float32", "float64"}), None)
    random_state: Any = parameter(None, "random_state")
    memory_limit: int | str | None = parameter(None, COUNT, str, None)
    checkpoint: str | None = parameter(None, str, os.PathLike, None)
    resume: bool = False
    callbacks: list[Callable[[Any], object]] | None = parameter(None, list, tuple, None)

    def __new__(cls, *_: Any, **parameters: Any) -> Self:
        """Refuse a parameter that only other packages have, with a hint, before Python calls it unknown."""
        cls._refuse_strangers(parameters)
        return super().__new__(cls)

    @classmethod
    def _refuse_strangers(cls, names: Iterable[str]) -> None:
        """Raise InputError if one of ``names`` is no parameter, but a hint tells what to use instead."""
        strangers = set(names) - set(cls._get_param_names())
        hints = cls.hints() if strangers else {}
        for name in sorted(strangers & set(hints)):
            raise InputError(f"{cls.__name__} has no parameter {name!r}: {hints[name]}")

    @classmethod
    def hints(cls) -> dict[str, str]:
        """Return advice by name for parameters of other packages or versions that this estimator lacks."""
        found = moved_parameters(cls._solvers)
        for base in reversed(cls.__mro__):
            found |= vars(base).get("_instead", {})
        return found

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters. They are cached, since scikit-learn builds a signature each time."""
        return super()._get_param_names()

    def _validate_params(self) -> None:
        super()._validate_params()
        for each in (getattr(self, "solver", None), getattr(self, "metric", None)):
            if isinstance(each, SolverObject):
                each._validate_params()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        kernel = getattr(self, "kernel", None)
        tags.input_tags.pairwise = isinstance(kernel, str) and kernel == "precomputed"
        tags.input_tags.sparse = not tags.input_tags.pairwise and not callable(kernel)
        return tags

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of the solver object, such as ``solver__n_landmarks=300``.

        Parameters
        ----------
        **params
            Names and values.

        Returns
        -------
        self
        """
        self._refuse_strangers(params)
        super().set_params(**with_object(params, getattr(self, "solver", None), self._solvers))
        return self


@with_parameters
class KernelParameters:
    """Parameters of named kernels, but gamma, of which searches have several.

    Parameters
    ----------
    degree : int, default=3
        Degree of the "poly" kernel.
    coef0 : float, default=1.0
        Constant of the "poly" kernel.
    """

    _: KW_ONLY
    degree: int = parameter(3, Interval(Integral, 1, MAX_DEGREE, closed="both"))
    coef0: float = parameter(1.0, NOT_NEGATIVE)


@with_parameters
class NewtonParameters:
    """Parameters of Newton's method.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative duality gap to reach. For "landmark", it is the gap of the problem over the landmarks.
    max_iter : int, default=200
        Maximum number of Newton steps.
    """

    _: KW_ONLY
    tol: float = parameter(1e-3, POSITIVE)
    max_iter: int = parameter(200, COUNT)


@with_parameters
class GammaParameters(KernelParameters):
    """Parameters of named kernels, one gamma among them.

    Parameters
    ----------
    gamma : {"scale", "auto"} or float, default="scale"
        Coefficient of the kernel; "linear" has none. ``"scale"`` is 1 / (n_features · variance of scaled rows), and
        ``"auto"`` is 1 / n_features.
    """

    _: KW_ONLY
    gamma: float | str = parameter("scale", StrOptions({"scale", "auto"}), POSITIVE)


@with_parameters
class MachineParameters(GammaParameters):
    """Parameters of a machine by one setting: λ, and a kernel that may see rows by a learned metric.

    Parameters
    ----------
    lam : float or "auto", default="auto"
        λ > 0, weight of the loss. A larger value fits the training rows more closely. "auto" is twice the number of
        rows, or the sum of their weights, which is like C = 1 in scikit-learn's `SVC`.
    warm_start : bool, default=False
        Start from the solution of the last fit, if rows were appended or parameters changed. The start is its weights,
        or the coefficients and landmarks of its rows. This is for "exact", "landmark", "cells" and the linear solvers.
        Exact pairs of many classes start from zero.
    metric : {"diagonal", "full"}, `dask_odm.Metric` or None, default=None
        Metric that is learned from a sample before the fit, for "rbf" and "laplacian". "diagonal": a factor for each
        feature. "full": a matrix, for dense rows of at most 1,000 features. γ is then chosen with it, unless it is a
        number. The gap is that of the problem with the metric as learned. So are left-out values: leave-one-out does
        not see that the metric knows the labels of its sample. Judge by rows that were held out.

    Attributes
    ----------
    gamma_, feature_importances_ : float, and ndarray of shape (n_features_in_,)
        With ``metric``: γ, and the mean squared slope of the model's values along each column, per deviation of its
        values. They sum to 1, and columns with the same information share theirs.
    """

    _saved: ClassVar[tuple[str, ...]] = ("gamma_", "feature_importances_")

    _: KW_ONLY
    lam: float | str = parameter("auto", POSITIVE, StrOptions({"auto"}))
    warm_start: bool = False
    metric: str | Metric | None = parameter(None, StrOptions({"diagonal", "full"}), Metric, None)
