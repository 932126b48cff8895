"""Deal groups of rows to partitions: each group evenly to all of them, or a group to each.

Source: SODM, section on stratified partitions. A row is identified by its group and its rank in it, counted in the
order of the rows. The rank goes through a seeded bijection, a Feistel network with cycle walking. So chunks of a store
are dealt one by one, in any order and more than once, no permutation is ever held in memory, and rows on disk go where
the same rows in memory would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dask_odm.errors import InputError
from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array

# multipliers and shifts of SplitMix64's finaliser
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(27), np.uint64(31)


def require_rows(rows: int, parts: int, name: str = "n_partitions") -> None:
    """Raise InputError if the parameter ``name`` asks for more ``parts`` than there are ``rows``."""
    if parts > rows:
        raise InputError(f"{name} must be at most the number of rows, {rows}. Got {parts} instead.")


def permute(ranks: Array, n: int, key: int) -> NDArray[np.int64]:
    """Return the image of ``ranks`` under a bijection of 0 … n − 1 that ``key`` chooses; int64, of their shape."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(4, np.uint64)  # one for each round of the network
    out = np.array(ranks, np.uint64)
    _walk_cycles(out, np.uint64(n), np.uint64(half), np.uint64((1 << half) - 1), keys)
    return out.astype(np.int64)


@compiled
def _walk_cycles(x: Array, n: int, half: int, mask: int, keys: Array) -> None:
    """Send every number through the network until it is below ``n``. All are uint64, and products are meant to wrap."""
    for i in range(x.size):
        image = x[i]
        while True:
            left = image >> half
            right = image & mask
            for key in keys:
                # a round of SplitMix64's finaliser
                mixed = (right + key) * _FIRST
                mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _SECOND
                left, right = right, (left ^ (mixed ^ (mixed >> _SHIFTS[1]))) & mask
            image = (left << half) | right
            if image < n:
                break
        x[i] = image


@dataclass(frozen=True)
class EvenDealer:
    """The even deal of groups of ``sizes`` rows to ``n_partitions``, whose sizes differ by at most one.

    If not ``shuffled``, rows are dealt in their order, round-robin, as in SODM's published code.
    """

    sizes: tuple[int, ...]
    n_partitions: int
    seed: int
    shuffled: bool = True

    @cached_property
    def _first(self) -> Array:
        """Number of rows dealt before each group, so that each group starts at the next partition."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""
        rows = int(self._first[-1])
        parts = self.n_partitions
        return tuple((rows - k + parts - 1) // parts for k in range(parts))

    def assign(self, groups: Array, before: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return each row's partition and its place there, from the rows' groups; (n,) each.

        ``before`` (n_groups,) counts the earlier rows of each group. Places are random too. Rows often come sorted by
        class or group, and a solver visits them block by block; blocks of one class or group would mislead it.
        """
        partition = np.empty(len(groups), np.int32)
        place = np.empty(len(groups), np.int64)
        for g, rows in _rows_by_group(groups):
            dealt = self._dealt(g, before[g] + np.arange(len(rows)))
            partition[rows], place[rows] = dealt % self.n_partitions, dealt // self.n_partitions
        for k, rows in _rows_by_group(partition):
            place[rows] = permute(place[rows], self.counts[k], _key(self.seed, 1, k))
        return partition, place

    def partition_of(self, ranks: Array, group: int = 0) -> NDArray[np.int32]:
        """Return the partitions, as by `assign`, of rows of one group by their ranks (n,); places would cost more."""
        return (self._dealt(group, ranks) % self.n_partitions).astype(np.int32)

    def _dealt(self, group: int, ranks: Array) -> NDArray[np.int64]:
        order = permute(ranks, self.sizes[group], _key(self.seed, 0, group)) if self.shuffled else ranks
        dealt: NDArray[np.int64] = self._first[group] + order
        return dealt


@dataclass(frozen=True)
class GroupDealer:
    """A partition for every group of ``sizes`` rows, with its rows in random order.

    With ``skip_empty``, a group without a row is no partition.
    """

    sizes: tuple[int, ...]
    seed: int
    skip_empty: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""
        return tuple(size for size in self.sizes if size or not self.skip_empty)

    def assign(self, groups: Array, before: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return each row's partition and its place there, at random, as `EvenDealer.assign`."""
        place = np.empty(len(groups), np.int64)
        for g, rows in _rows_by_group(groups):
            place[rows] = permute(before[g] + np.arange(len(rows)), self.sizes[g], _key(self.seed, 1, g))
        partition = np.cumsum(np.array(self.sizes) > 0) - 1 if self.skip_empty else np.arange(len(self.sizes))
        return partition[groups].astype(np.int32), place


Dealer = EvenDealer | GroupDealer  # gives each row its partition and its place there, for groups of known sizes


def _key(seed: int, *use: int) -> int:
    return int(np.random.SeedSequence([seed, *map(int, use)]).generate_state(1)[0])


def _rows_by_group(groups: Array) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield every group that has rows, and their numbers in ascending order."""
    if len(groups) and groups.min() >= 0 and groups.max() < 1 << 16:
        groups = groups.astype(np.uint16)  # NumPy sorts two-byte numbers by radix, several times as fast
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order].astype(np.int64), prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(groups[order[start]]), order[start:stop]
