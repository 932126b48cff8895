"""The interface of a partitioner: it puts rows into groups, and deals groups of known sizes to partitions.

A row is identified by its group and its rank in it, counted in the order of the rows. So chunks of a store are grouped
and dealt one by one, in any order and more than once, and no permutation is ever held in memory.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.engine.partition.dealing import Dealer
from dask_odm.errors import InputError
from dask_odm.typing import Array


def sampled_rows(count: int, enough: int, features: int, itemsize: int) -> int:
    """Return how many rows ``count`` groups are made from: ``enough``, if they take at most 64 MB."""
    return max(count, min(enough, (64 << 20) // (features * itemsize)))


def require_rows(rows: int, parts: int, name: str = "n_partitions") -> None:
    """Raise InputError if the parameter ``name`` asks for more ``parts`` than there are ``rows``."""
    if parts > rows:
        raise InputError(f"{name} must be at most the number of rows, {rows}. Got {parts} instead.")


class Groups(Protocol):
    """A function that gives the group of each row, and pickles. If there is only one group, rows are not looked at."""

    @property
    def count(self) -> int: ...
    def __call__(self, X: Array) -> NDArray[np.int32]:
        """Return the group of each scaled row of X (n, d), int32 (n,)."""


class Partitioner(Protocol):
    """Frozen settings of a partitioning, which tasks carry."""

    @property
    def n_partitions(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def sample_rows(self, features: int, itemsize: int) -> int:
        """Return the number of rows that groups are made from; 0 if they need none."""

    def groups(self, sample: Array) -> Groups:
        """Make groups from a ``sample`` of scaled rows (m, d)."""

    def dealer(self, sizes: tuple[int, ...]) -> Dealer:
        """Return the dealer of groups of ``sizes`` rows."""
