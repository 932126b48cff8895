"""Generators of data sets, the functions of `dask_odm.datasets`: of any size, in memory or into a store.

All share the parameters of `Where`. ``n_samples`` rows are taken, from row ``start`` on, of an endless sequence that
``random_state`` and the distribution fix. So a test set of the same distribution has the same ``random_state`` and a
``start`` behind the training rows. With ``store`` the rows are written there directly, in bounded memory, and are the
same as in memory. Labels are -1 and 1 (``make_shells``: inner and outer).
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.datasets.made_up import Duplicated, Gaussians, RowGenerator, Separable, Shells, Susy
from dask_odm.data.store.layout import FLOAT_TYPES
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError

Path = str | os.PathLike[str]
Made = tuple[NDArray[Any], NDArray[Any]] | Store
F = TypeVar("F", bound=Callable[..., Made])
_SHARED = """start : number of the first row in the endless sequence
random_state : int from 0, or None for another sequence each time
store : folder to write the rows to; None for arrays
dtype : ``float32`` or ``float64``
overwrite : replace an existing store

Returns
-------
(X, y) of shapes (n_samples, n_features) and (n_samples,), or with ``store`` the open Store

Raises
------
InputError
    A parameter is out of its range, or the output exists.
StoreError
    The output cannot be written.
"""


class Where(TypedDict, total=False):
    """Parameters that all generators share: which rows of the sequence are made, and where they go."""

    start: int
    random_state: int | None
    store: Path | None
    dtype: str
    overwrite: bool


def _documented(function: F) -> F:
    """Add what all generators share to the signature of one, and to its docstring, which ends with its parameters."""
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n{_SHARED}"
    own = inspect.signature(function)
    parameters = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
    parameters += [each for each in inspect.signature(_made).parameters.values() if each.name in Where.__annotations__]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _made(
    kind: type[RowGenerator],
    function: str,
    n_samples: int,
    n_features: int,
    settings: dict[str, Any],
    *,
    start: int = 0,
    random_state: int | None = 0,
    store: Path | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
) -> Made:
    """Check the parameters that all generators share, and return rows of the ``kind`` with its own ``settings``."""
    _whole(function, "n_samples", n_samples, 1)
    _whole(function, "n_features", n_features, 1)
    _whole(function, "start", start, 0)
    if random_state is not None:
        _whole(function, "random_state", random_state, 0)
    if dtype not in FLOAT_TYPES:
        raise InputError(f"dtype must be 'float32' or 'float64'. Got {dtype!r} instead.")
    seed = np.random.SeedSequence().generate_state(1, np.uint64)[0] if random_state is None else random_state
    generator = kind(n_features, int(seed), **settings)
    if store is None:
        return generator.arrays(n_samples, start, dtype)
    return generator.write(store, n_samples, start, dtype=dtype, overwrite=overwrite)


@_documented
def make_separable(
    n_samples: int = 10_000, n_features: int = 20, *, margin: float = 0.5, **where: Unpack[Where]
) -> Made:
    """Make two classes that a plane through the origin separates by a margin.

    Rows are standard normal, and pushed apart along a random unit vector w. Every row has ``y·⟨w, x⟩ ≥ margin``, to
    the rounding of ``dtype``. Both classes are equally likely. The best accuracy is 1.

    Parameters
    ----------
    n_samples, n_features : rows and features
    margin : least distance of a row from the plane, positive
    """
    _check("make_separable", "margin", margin, 0.0, math.inf)
    return _made(Separable, "make_separable", n_samples, n_features, {"margin": margin}, **where)


@_documented
def make_overlapping(
    n_samples: int = 10_000, n_features: int = 20, *, accuracy: float = 0.9, **where: Unpack[Where]
) -> Made:
    """Make two overlapping normal clouds of unit covariance, for which the best classifier's accuracy is known.

    The means are ``±Φ⁻¹(accuracy)·w`` for a random unit vector w. The best classifier is linear, the sign of
    ``⟨w, x⟩``.

    Parameters
    ----------
    n_samples, n_features : rows and features
    accuracy : of the best classifier, in (0.5, 1)
    """
    settings = {"distance": _distance("make_overlapping", accuracy)}
    return _made(Gaussians, "make_overlapping", n_samples, n_features, settings, **where)


@_documented
def make_imbalanced(
    n_samples: int = 10_000,
    n_features: int = 20,
    *,
    positive: float = 0.05,
    accuracy: float = 0.9,
    **where: Unpack[Where],
) -> Made:
    """Make data as `make_overlapping` does, with classes of unequal size.

    With δ = Φ⁻¹(accuracy), p = positive and s = log(p/(1−p))/(2δ) the best rule is the sign of ``⟨w, x⟩ + s``. Its
    accuracy is ``p·Φ(δ + s) + (1−p)·Φ(δ − s)``, by default .968; always predicting -1 has .95. The rule that ignores
    p, the sign of ``⟨w, x⟩``, has ``accuracy`` in either class.

    Parameters
    ----------
    n_samples, n_features : rows and features
    positive : probability of label 1 in each row, in (0, 1)
    accuracy : accuracy of the best classifier if the classes had equal size, in (0.5, 1)
    """
    _check("make_imbalanced", "positive", positive, 0.0, 1.0)
    settings = {"distance": _distance("make_imbalanced", accuracy), "positive": positive}
    return _made(Gaussians, "make_imbalanced", n_samples, n_features, settings, **where)


@_documented
def make_wide(
    n_samples: int = 6_000,
    n_features: int = 5000,
    *,
    informative: int = 50,
    accuracy: float = 0.95,
    **where: Unpack[Where],
) -> Made:
    """Make rows with many features of which few matter, by default in the shape of gisette.

    Rows are those of `make_overlapping` with a w over ``informative`` random features; the others are noise.

    Parameters
    ----------
    n_samples, n_features : rows and features
    informative : features that matter, from 1 to n_features
    accuracy : of the best classifier, in (0.5, 1)
    """
    _whole("make_wide", "n_features", n_features, 1)
    _whole("make_wide", "informative", informative, 1, n_features)
    settings = {"distance": _distance("make_wide", accuracy), "informative": informative}
    return _made(Gaussians, "make_wide", n_samples, n_features, settings, **where)


@_documented
def make_duplicated(
    n_samples: int = 10_000, n_features: int = 20, *, share: float = 0.5, accuracy: float = 0.9, **where: Unpack[Where]
) -> Made:
    """Make data as `make_overlapping` does, with a share of rows that repeat earlier ones exactly, label included.

    The sequence is made in chunks of about 260,000 numbers. The share of copies in each chunk is exact to one row,
    and a copy repeats a row of its own chunk. Rows that are not copies are all different.

    Parameters
    ----------
    n_samples, n_features : rows and features
    share : share of the rows that are copies, in [0, 1)
    accuracy : of the best classifier, in (0.5, 1)
    """
    _check("make_duplicated", "share", share, 0.0, 1.0, least=True)
    settings = {"distance": _distance("make_duplicated", accuracy), "share": share}
    return _made(Duplicated, "make_duplicated", n_samples, n_features, settings, **where)


@_documented
def make_susy(n_samples: int | None = None, **where: Unpack[Where]) -> Made:
    """Make rows in the shape of SUSY: 18 features, two overlapping classes, 46 % of label 1.

    There are eight low-level features (skewed and positive, uniform, or symmetric) and ten noisy mixtures of them. The
    best accuracy is 0.80, as is the original's as far as is known. A linear classifier is some two points below it.
    For the original data see `fetch_libsvm`.

    Parameters
    ----------
    n_samples : rows; by default 5,000,000 into a store, as the original, and 10,000 in memory
    """
    if n_samples is None:
        n_samples = 10_000 if where.get("store") is None else Susy.original_rows
    return _made(Susy, "make_susy", n_samples, Susy.features, {}, **where)


@_documented
def make_shells(
    n_samples: int = 10_000, n_features: int = 20, *, latent: int = 5, noise: float = 0.5, **where: Unpack[Where]
) -> Made:
    """Make two classes, one around the other, that no linear classifier separates.

    A row is a normal point of ``latent`` dimensions, seen through ``n_features`` features with noise. Its class says
    whether the point lies inside the sphere that contains half of all points. Rows are made in float32, whatever
    ``dtype`` is.

    Parameters
    ----------
    n_samples, n_features : rows and features
    latent : dimensions behind the features, positive
    noise : standard deviation of the noise, not negative; a feature's own is 1
    """
    _whole("make_shells", "latent", latent, 1)
    _check("make_shells", "noise", noise, 0.0, math.inf, least=True)
    return _made(Shells, "make_shells", n_samples, n_features, {"latent": latent, "noise": noise}, **where)


def _distance(function: str, accuracy: float) -> float:
    """Return δ with Φ(δ) = accuracy."""
    _check(function, "accuracy", accuracy, 0.5, 1.0)
    return NormalDist().inv_cdf(accuracy)


def _whole(function: str, name: str, value: Any, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        end = "inf)" if most is None else f"{most}]"
        raise InputError(
            f"The '{name}' parameter of {function} must be an int in the range [{least}, {end}. Got {value!r} instead."
        )


def _check(function: str, name: str, value: Any, low: float, high: float, *, least: bool = False) -> None:
    """Raise InputError unless ``value`` is a number between ``low``, which it may be if ``least``, and ``high``."""
    if not isinstance(value, float | int | np.number) or not (low < value < high or (least and value == low)):
        between = f"{'[' if least else '('}{low}, {high})"
        raise InputError(
            f"The '{name}' parameter of {function} must be a float in the range {between}. Got {value!r} instead."
        )
