"""How strong a discrepancy may be: the rounds converge below a threshold, and are refused above it."""

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
    """The factor by which a round of discrepancy shrinks the error, or a bound of it below 1.

    Below 1 ``discrepancy`` always converges: a shard's regularised system is at least as large as what it takes of the
    others. From there on Lanczos's method finds the factor.

    Parameters
    ----------
    fit : MDDFit
    exchange : ShardExchange
    spread : callable
        From v (K, 1) of all shards to what each is told of all, (K, 1).
    size : int
        K.
    unit : float
        What a discrepancy of 1 weighs.
    bound : float
        Of the factor, where the discrepancy is below 1.

    Raises
    ------
    InputError
        The rounds would not converge.
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
