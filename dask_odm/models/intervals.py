"""Intervals of numbers: the residuals that left-out rows seldom exceed, around a prediction.

If noise differs over the space, two expectiles are learned beside the prediction, one above it and one below. Their
distances from it are what residuals of either side are measured by (as in *Conformalized quantile regression*, Romano,
Patterson and Candès, NeurIPS 2019, with expectiles for quantiles and left-out rows for held-out ones).
"""

from __future__ import annotations

import numpy as np

from dask_odm.typing import Array

MACHINES = 3  # of a model that is `spread`: the prediction, and the expectiles below and above it


def spread_sizes(values: Array, y: Array) -> Array:
    """Return the residuals (n,) of `MACHINES` ``values`` (n, 3), in units of the expectile's distance on their side."""
    residual = y - values[:, 0]
    down, up = _sides(values)
    found: Array = np.abs(residual) / np.where(residual > 0, up, down)
    return found


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
