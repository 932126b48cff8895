"""Data sets of `dask_odm.datasets` that need no network: made of any size, or bundled with scikit-learn.

Made rows are taken, from row ``start`` on, of an endless sequence that ``random_state`` and the distribution fix. So a
test set of the same distribution has the same ``random_state`` and a ``start`` behind the training rows. With ``store``
the rows are written there directly, in bounded memory, and are the same as in memory. Labels are -1 and 1
(``make_shells``: inner and outer).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.arguments import FROM_0, FROM_1, check
from dask_odm.data.datasets.made_up import Chessboard, Gaussians, RowGenerator, Separable, Shells, Susy
from dask_odm.data.store.layout import FLOAT_TYPES
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError

Made = tuple[NDArray[Any], NDArray[Any]] | Store
F = TypeVar("F", bound=Callable[..., Made])
_CONSTRAINTS: dict[str, list[Any]] = {
    "n_samples": [FROM_1, None],
    "n_features": [FROM_1],
    "margin": [Interval(Real, 0.0, None, closed="neither")],
    "accuracy": [Interval(Real, 0.5, 1.0, closed="neither")],
    "positive": [Interval(Real, 0.0, 1.0, closed="neither")],
    "share": [Interval(Real, 0.0, 1.0, closed="left")],
    "latent": [FROM_1],
    "n_squares": [FROM_1],
    "noise": [Interval(Real, 0.0, None, closed="left")],
    "start": [FROM_0],
    "random_state": [FROM_0, None],
    "dtype": [StrOptions(set(FLOAT_TYPES))],
}
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


def _maker(function: F) -> F:
    """Have a function check its parameters, and document those that all generators share."""
    own = inspect.signature(function)
    parameters = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
    parameters += [each for each in inspect.signature(_made).parameters.values() if each.kind == each.KEYWORD_ONLY]
    signature = own.replace(parameters=parameters)

    @wraps(function)
    def make(*args: Any, **given: Any) -> Made:
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        check(function.__name__, _CONSTRAINTS, bound.arguments)
        return function(*args, **given)

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n{_SHARED}"
    return cast(F, make)


def _made(
    generator: RowGenerator,
    n_samples: int,
    *,
    start: int = 0,
    random_state: int | None = 0,
    store: str | os.PathLike[str] | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
) -> Made:
    """Return rows of a generator, with the seed and the other parameters that all generators share."""
    seed = np.random.SeedSequence().generate_state(1, np.uint64)[0] if random_state is None else random_state
    generator = replace(generator, seed=int(seed))
    if store is None:
        return generator.arrays(n_samples, start, dtype)
    return generator.write(store, n_samples, start, dtype=dtype, overwrite=overwrite)


@_maker
def make_separable(n_samples: int = 10_000, n_features: int = 20, *, margin: float = 0.5, **where: Any) -> Made:
    """Make two classes that a plane through the origin separates by a margin.

    Rows are standard normal, and pushed apart along a random unit vector w. Every row has ``y·⟨w, x⟩ ≥ margin``, to
    the rounding of ``dtype``. Both classes are equally likely. The best accuracy is 1.

    Parameters
    ----------
    n_samples, n_features : rows and features
    margin : least distance of a row from the plane, positive
    """
    return _made(Separable(n_features, margin=margin), n_samples, **where)


@_maker
def make_overlapping(n_samples: int = 10_000, n_features: int = 20, *, accuracy: float = 0.9, **where: Any) -> Made:
    """Make two overlapping normal clouds of unit covariance, for which the best classifier's accuracy is known.

    The means are ``±Φ⁻¹(accuracy)·w`` for a random unit vector w. The best classifier is linear, the sign of
    ``⟨w, x⟩``.

    Parameters
    ----------
    n_samples, n_features : rows and features
    accuracy : of the best classifier, in (0.5, 1)
    """
    return _made(Gaussians(n_features, distance=_distance(accuracy)), n_samples, **where)


@_maker
def make_imbalanced(
    n_samples: int = 10_000, n_features: int = 20, *, positive: float = 0.05, accuracy: float = 0.9, **where: Any
) -> Made:
    """Make data as `make_overlapping` does, with classes of unequal size.

    With δ = Φ⁻¹(accuracy), p = positive and s = log(p/(1−p))/(2δ), the best rule is the sign of ``⟨w, x⟩ + s``. Its
    accuracy is ``p·Φ(δ + s) + (1−p)·Φ(δ − s)``, by default .968. Always predicting -1 has an accuracy of .95. The rule
    that ignores p, the sign of ``⟨w, x⟩``, has the accuracy ``accuracy`` in either class.

    Parameters
    ----------
    n_samples, n_features : rows and features
    positive : probability of label 1 in each row, in (0, 1)
    accuracy : accuracy of the best classifier if the classes had equal size, in (0.5, 1)
    """
    return _made(Gaussians(n_features, distance=_distance(accuracy), positive=positive), n_samples, **where)


@_maker
def make_wide(
    n_samples: int = 6_000, n_features: int = 5_000, *, informative: int = 50, accuracy: float = 0.95, **where: Any
) -> Made:
    """Make rows with many features, of which few are informative, by default in the shape of gisette.

    Rows are those of `make_overlapping` with a w over ``informative`` random features; the others are noise.

    Parameters
    ----------
    n_samples, n_features : rows and features
    informative : features that matter, from 1 to n_features
    accuracy : of the best classifier, in (0.5, 1)
    """
    constraints = {"informative": [Interval(Integral, 1, n_features, closed="both")]}
    check("make_wide", constraints, {"informative": informative})
    return _made(Gaussians(n_features, distance=_distance(accuracy), informative=informative), n_samples, **where)


def _distance(accuracy: float) -> float:
    """Return δ with Φ(δ) = accuracy."""
    return NormalDist().inv_cdf(accuracy)


@_maker
def make_duplicated(
    n_samples: int = 10_000, n_features: int = 20, *, share: float = 0.5, accuracy: float = 0.9, **where: Any
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
    return _made(Gaussians(n_features, distance=_distance(accuracy), share=share), n_samples, **where)


@_maker
def make_susy(n_samples: int | None = None, **where: Any) -> Made:
    """Make rows in the shape of SUSY: 18 features, two overlapping classes, 46 % of label 1.

    There are eight low-level features (skewed and positive, uniform, or symmetric) and ten noisy mixtures of them. The
    best possible accuracy is 0.80, as far as is known the same as for the original. A linear classifier reaches some
    two points less. For the original data, see `fetch_libsvm`.

    Parameters
    ----------
    n_samples : rows; by default 5,000,000 into a store, as the original, and 10,000 in memory
    """
    if n_samples is None:
        n_samples = 10_000 if where.get("store") is None else Susy.original_rows
    return _made(Susy(), n_samples, **where)


@_maker
def make_shells(
    n_samples: int = 10_000, n_features: int = 20, *, latent: int = 5, noise: float = 0.5, **where: Any
) -> Made:
    """Make two classes, one around the other, that no linear classifier separates.

    A row is a normally distributed point of ``latent`` dimensions, mapped to ``n_features`` features with noise. Its
    class says whether the point lies inside the sphere that contains half of all points. Rows are always made in
    float32, and then converted to ``dtype``.

    Parameters
    ----------
    n_samples, n_features : rows and features
    latent : dimensions behind the features, positive
    noise : standard deviation of the noise, not negative; a feature's own is 1
    """
    return _made(Shells(n_features, latent=latent, noise=noise), n_samples, **where)


@_maker
def make_chessboard(
    n_samples: int = 10_000,
    n_features: int = 20,
    *,
    latent: int = 2,
    n_squares: int = 10,
    noise: float = 0.03,
    accuracy: float = 0.95,
    **where: Any,
) -> Made:
    """Make two classes that alternate on the squares of a chessboard, with a known accuracy of the best classifier.

    A row is a point of a board of ``latent`` dimensions with squares of side 1, rotated into ``n_features`` features,
    with noise at right angles to the board. Every square has the same share of the rows. Along each dimension, their
    density falls from the middle of the square to zero at its edges. The best classifier knows the colour of each
    square. A model must learn each square, so it needs a narrow kernel and many landmarks.

    Parameters
    ----------
    n_samples, n_features : rows and features
    latent : dimensions of the board, from 1 to n_features
    n_squares : squares along each dimension of the board
    noise : standard deviation of the noise in each direction off the board, not negative
    accuracy : of the best classifier, in (0.5, 1): the probability that a label is that of its square's colour
    """
    check("make_chessboard", {"latent": [Interval(Integral, 1, n_features, closed="both")]}, {"latent": latent})
    board = Chessboard(n_features, latent=latent, n_squares=n_squares, noise=noise, accuracy=accuracy)
    return _made(board, n_samples, **where)


# name: its loader, and the two classes to keep if there are more
_BUNDLED: dict[str, tuple[Callable[..., Any], tuple[int, int] | None]] = {
    "breast_cancer": (datasets.load_breast_cancer, None),
    "digits": (datasets.load_digits, (4, 9)),
    "iris": (datasets.load_iris, (1, 2)),
    "wine": (datasets.load_wine, (0, 1)),
}
BUNDLED = tuple(_BUNDLED)


def load_bundled(
    name: str,
    classes: tuple[Any, Any] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]] | Store:
    """Load one of scikit-learn's bundled data sets, with two classes.

    Parameters
    ----------
    name : ``breast_cancer`` (569 rows, 30 features), ``digits`` (64), ``iris`` (4) or ``wine`` (13)
    classes : the two classes to keep, by the names y has, such as ``("setosa", "virginica")`` or ``(3, 8)``. By
        default the digits 4 and 9, of iris versicolor and virginica, of wine class_0 and class_1
    store : folder to write the rows to, with the names of features; None for arrays
    dtype : ``float64``, as scikit-learn has them, or ``float32``
    overwrite : replace an existing store

    Returns
    -------
    (X, y) of shapes (rows, d) and (rows,), or with ``store`` the open Store. y holds the names of the classes, for
    digits the digits

    Raises
    ------
    InputError
        No such data set, no such classes, or the output exists.
    StoreError
        The output cannot be written.
    """
    if name not in _BUNDLED:
        raise InputError(f"no bundled data set {name!r}; there are {', '.join(BUNDLED)}.")
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be 'float32' or 'float64'. Got {dtype!r} instead.")
    loader, pair = _BUNDLED[name]
    data = loader()
    names = [each.item() for each in np.asarray(data.target_names)]
    chosen = classes or tuple(names[i] for i in pair or (0, 1))
    if not isinstance(chosen, tuple | list) or len(chosen) != 2 or len(set(chosen) & set(names)) != 2:
        known = ", ".join(map(repr, names))
        raise InputError(f"classes must be two of those of {name}: {known}. Got {classes!r} instead.")
    kept = [names.index(each) for each in chosen]
    rows = np.isin(data.target, kept)
    X = np.ascontiguousarray(data.data[rows], dtype=dtype)
    codes = data.target[rows].astype(np.int64)
    if store is None:
        return X, np.array(names)[codes]
    with StoreWriter(store, dtype=dtype, overwrite=overwrite) as writer:
        writer.append(X, codes)
        features = [str(feature) for feature in data.feature_names]
        return writer.finish(names, feature_names=features, source=f"scikit-learn: {name}")
