"""MDD rounds on the workers: the shards' factors stay where they are made, solutions travel.

A round sends one message to all shards, of d numbers for a linear model and a number a row for a kernel model. Every
shard answers with its solution. If a worker is lost, its shards are read and factored again, to the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dask_odm.data.rows.memory import Partitions
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.storage.checked_writes import load_arrays
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.learning.problem.products import Products
from dask_odm.methods.ridge.fixed_point import spectral_radius
from dask_odm.methods.ridge.shard_systems import (
    Answer,
    HeldKernel,
    HeldLinear,
    LinearPart,
    apply_inverse,
    apply_own,
    begin,
    factored_kernel,
    move,
    tell,
)
from dask_odm.typing import Array

NAME = "shards"
Mix = Callable[[Sequence[Array]], Array]


class ShardExchange:
    """A `dask_odm.methods.ridge.fixed_point.Exchange` by rounds over shards.

    ``mix`` makes the message to all shards from their solutions.
    """

    def __init__(self, rounds: Rounds, mix: Mix) -> None:
        self._rounds = rounds
        self._mix = mix

    def tell(self) -> list[Answer]:
        return self._rounds.read(tell)

    def move(self, message: Array) -> list[Answer]:
        return self._rounds.ask(move, message)

    def mix(self, parts: Sequence[Array]) -> Array:
        return self._mix(parts)

    def radius(self, spread: Callable[[Array], Array], others: int, start: Array) -> float:
        """Return the largest absolute eigenvalue of ``D⁻¹C``; C is the coupling of a round, the mean of the others.

        ``spread`` maps v (K, 1) of all shards to what a round sends to each of them, (K, 1). ``others`` is the number
        of shards in a mean of the others, ``start`` a random v.
        """

        def couple(v: Array) -> Array:
            own = np.concatenate(self._rounds.read(apply_own, v))
            found: Array = (spread(v) - own) / others
            return found

        return spectral_radius(couple, lambda v: np.concatenate(self._rounds.read(apply_inverse, v)), start)


def stacked_states(solutions: Array, sides: Array, sizes: Sequence[int]) -> list[dict[str, Array]]:
    """Split the stacked solutions and right-hand sides of all shards into states of ``sizes`` rows each."""
    bounds = np.cumsum([0, *sizes])
    return [{"w": solutions[a:b], "side": sides[a:b]} for a, b in pairwise(bounds)]


def linear_rounds(cluster: Cluster, parts: Sequence[LinearPart], states: Any, folder: str | None) -> Rounds:
    """Open rounds over the shards of a linear model.

    Workers read them from files in ``folder``, which all of them see.
    """
    if cluster.client is None or folder is None:
        return Rounds(cluster, parts, begin, name=NAME, hold=LinearPart.hold, states=states)
    paths = [os.path.join(folder, f"shard-{i}.npz") for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        np.savez(path, **part.arrays())
    return Rounds(cluster, paths, begin, name=NAME, hold=_hold_file, states=states, scratch=folder)


def _hold_file(path: str) -> HeldLinear:
    return LinearPart.of_arrays(load_arrays(path)).hold()


def linear_mix(parts: Sequence[LinearPart]) -> Mix:
    """Return the function that sums ``share_i w_i`` (d, t) in the order of the shards."""
    shares = [part.share for part in parts]

    def mix(solutions: Sequence[Array]) -> Array:
        total = np.zeros_like(solutions[0])
        for share, w in zip(shares, solutions, strict=True):
            total += share * w
        return total

    return mix


@dataclass(frozen=True)
class KernelShards:
    """The shards of a kernel model, before their matrices are computed; tasks carry it.

    ``partitions`` has all rows in the order of the shards, in memory or on disk; ``scaling`` makes them the rows that
    the kernel sees. ``stretch`` and ``pull`` are as in `HeldKernel`.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    lam: float
    stretch: float
    pull: float

    @property
    def count(self) -> int:
        return len(self.partitions.counts)

    def factor_bytes(self, workers: int) -> int:
        """Return the bytes that a worker holds, if so many share the shards."""
        rows = max(self.partitions.counts)
        return -(-self.count // workers) * 8 * rows * (rows + self.partitions.features + 8)

    def hold(self, i: int, threads: int = 1) -> HeldKernel:
        """Compute and factor the matrix of shard ``i``; raise InputError if it is not positive definite."""
        rows, _ = self.partitions.rows(i, i + 1, self.scaling, 1 << 62)
        X = rows.read(0, rows.n).astype(np.float64)
        y, weight = self.partitions.labels(i, i + 1)
        shift = (self.lam * float(weight.sum()) / weight)[:, None]
        factor = factored_kernel(self.kernel, X, self.stretch, shift[:, 0], threads)
        if factor is None:
            raise InputError(
                f"the kernel matrix of {rows.n} rows with lam={self.lam:g} added is not positive definite, or "
                "overflows: choose a larger lam, or scale the features (scale='minmax')."
            )
        first = sum(self.partitions.counts[:i])
        return HeldKernel(
            factor, y.reshape(len(y), -1), weight, shift, self.stretch, self.pull, max(1, self.count - 1), first
        )


def kernel_rounds(cluster: Cluster, shards: KernelShards, states: Any, folder: str | None) -> Rounds:
    """Open rounds over the shards of a kernel model."""
    numbers = list(range(shards.count))
    _, threads = cluster.share(shards.count)
    scratch = folder if cluster.client is not None else None
    hold = partial(_hold_kernel, shards, threads)
    return Rounds(cluster, numbers, begin, name=NAME, hold=hold, states=states, scratch=scratch)


def _hold_kernel(shards: KernelShards, threads: int, i: int) -> HeldKernel:
    return shards.hold(i, threads)


def kernel_mix(products: Products) -> Mix:
    """Return the function that computes ``K w`` (N, t) for all rows' coefficients, target by target."""
    face = products.face(np.arange(products.n), double_precision=None)

    def mix(solutions: Sequence[Array]) -> Array:
        w = np.concatenate(list(solutions))
        return np.stack([face.matvec(np.ascontiguousarray(w[:, j])) for j in range(w.shape[1])], axis=1)

    return mix
