"""The threshold of the discrepancy, below which the rounds converge. Above it a fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.errors import InputError
from dask_odm.methods.ridge.settings import MDDFit
from dask_odm.methods.ridge.workers import ShardExchange
from dask_odm.typing import Array


def contraction(
    fit: MDDFit, exchange: ShardExchange, spread: Callable[[Array], Array], size: int, unit: float, bound: float
) -> float:
    """Return the factor by which a round shrinks the error, or a bound of it below 1.

    A ``discrepancy`` below 1 always converges, because a shard's regularised system dominates what it takes from the
    others. For larger values Lanczos's method finds the factor, and InputError is raised if it is not below 1.

    Parameters
    ----------
    fit : MDDFit
    exchange : ShardExchange
    spread : callable
        Maps v (K, 1) of all shards to what a round sends to each of them, (K, 1).
    size : int
        K.
    unit : float
        The weight of a discrepancy of 1.
    bound : float
        A bound of the factor for a discrepancy below 1.
    """
    strength = fit.discrepancy if fit.exchanges else 0.0
    if strength < 1.0:
        return bound if strength else 0.0
    start = np.random.default_rng(fit.run.seed).normal(size=(size, 1))
    q = strength * unit * exchange.radius(spread, fit.n_partitions - 1, start)
    if q >= 1.0:
        raise InputError(
            f"discrepancy={fit.discrepancy:g} is beyond the threshold of these shards, {strength / q:.6g}, above which "
            "the rounds diverge; choose a smaller one. Below 1 it always converges."
        )
    return q
