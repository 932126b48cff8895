"""Sets of classes, and intervals of numbers, that hold a row's own with a given probability, from rows kept out.

A class belongs to a row's set if the row conforms to it at least as well as most rows, of which the model did not
learn, conform to their own classes. How well a row conforms to a class is the class's decision value; of two classes it
is the decision value with the class's sign. Let ``r`` be these figures of n rows. Values at or above the
``⌊(n + 1)(1 − coverage)⌋``-th smallest r make the set (Vovk, Gammerman, Shafer, *Algorithmic learning in a random
world*, 2005). Of rows that were held out, the set holds the own class of a new row with at least this probability.

An interval of numbers is made of the residuals that left-out rows seldom exceed, around a prediction. If noise differs
over the space, two expectiles are learned beside the prediction, one above it and one below. Their distances from it
are what residuals of either side are measured by (as in *Conformalized quantile regression*, Romano, Patterson and
Candès, NeurIPS 2019, with expectiles for quantiles and left-out rows for held-out ones).
"""

from __future__ import annotations

from numbers import Real

import numpy as np

from dask_odm.errors import InputError
from dask_odm.typing import Array

MACHINES = 3  # of a model that is `spread`: the prediction, and the expectiles below and above it
POINTS = 2049  # coverages of a table, equally spaced from 0 to 1


def conformity_table(values: Array, codes: Array, weight: Array, classes: int) -> Array:
    """Return thresholds (classes + 1, `POINTS`) of every class, and last of all rows together.

    ``values`` (n,) or (n, classes) are of rows that the model did not learn from, ``codes`` (n,) their classes. Column
    j is for a coverage of ``j / (POINTS − 1)``, and −inf where too few rows tell.
    """
    own = _by_class(values)[np.arange(len(codes)), codes]
    parts = [codes == code for code in range(classes)] + [np.ones(len(codes), bool)]
    return np.stack([_thresholds(own[part], weight[part]) for part in parts])


def _thresholds(own: Array, weight: Array) -> Array:
    """Return thresholds (POINTS,) from the decision values of rows for their own classes."""
    order = np.argsort(own, kind="stable")
    own, weight = own[order], weight[order]
    found = np.full(POINTS, -np.inf)
    if not len(own) or weight.sum() <= 0:
        return found
    unit = weight.sum() / len(own)  # a new row weighs as much as one of these on average
    below = np.cumsum(weight)  # of rows up to each
    allowed = (weight.sum() + unit) * (1.0 - np.linspace(0.0, 1.0, POINTS))  # of rows that may lie below
    place = np.searchsorted(below, allowed * (1.0 + 1e-12), side="right") - 1
    found[place >= 0] = own[place[place >= 0]]
    return found


def thresholds_of(table: Array, coverage: float, *, by_class: bool) -> Array:
    """Return the threshold of each class for a coverage in (0, 1), (classes,), from a `conformity_table`.

    Raises InputError for another coverage.
    """
    if not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
        raise InputError(f"coverage must be a number between 0 and 1. Got {coverage!r} instead.")
    column = table[:, int(np.ceil(coverage * (POINTS - 1) - 1e-9))]
    return column[:-1] if by_class else np.full(len(column) - 1, column[-1])


def sets(values: Array, thresholds: Array, moved: float = 0.0) -> Array:
    """Return whether each class is in the set of each row, bool (n, classes).

    ``moved`` was taken off the values of two classes, and is not in the thresholds.
    """
    return _by_class(values + moved) >= thresholds


def is_table(table: Array) -> bool:
    """Return whether an array is a table of thresholds: falling along the coverages."""
    shaped = table.ndim == 2 and len(table) >= 3 and table.shape[1] == POINTS
    return shaped and not np.isnan(table).any() and bool((table[:, 1:] <= table[:, :-1]).all())


def _by_class(values: Array) -> Array:
    return np.stack([-values, values], axis=1) if values.ndim == 1 else values


def spread_sizes(values: Array, y: Array) -> Array:
    """Return the residuals (n,) of `MACHINES` ``values`` (n, 3), in units of the expectile's distance on their side."""
    residual = y - values[:, 0]
    down, up = _sides(values)
    return np.abs(residual) / np.where(residual > 0, up, down)


def spread_ends(values: Array, size: float) -> Array:
    """Return the ends (n, 2) of intervals around the first of `MACHINES` ``values`` (n, 3), up to a `spread_sizes`."""
    down, up = _sides(values)
    return np.stack([values[:, 0] - size * down, values[:, 0] + size * up], axis=-1)


def ends(values: Array, size: Array | float) -> Array:
    """Return the ends (n, 2) of intervals around ``values`` (n,), or (n, t, 2) around those of several targets."""
    return np.stack([values - size, values + size], axis=-1)


def _sides(values: Array) -> tuple[Array, Array]:
    """Return the distances (n,) of the expectiles below and above the first value."""
    down, up = values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]
    # each at least the mean of both: smaller ones are less of one side than of noise in the three models
    least = 0.5 * (np.abs(down) + np.abs(up)) + np.finfo(values.dtype).tiny
    return np.maximum(down, least), np.maximum(up, least)
