"""What a partitioner is: it puts rows into groups, and deals groups of known sizes to partitions.

A row is known by its group and its rank in it, counted in the order of the rows; so chunks of a store are grouped and
dealt one by one, in any order and more than once, and no permutation is ever held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.typing import Array


class Groups(Protocol):
    """Which group a row is in. Where there is but one, rows are not looked at."""

    @property
    def count(self) -> int: ...
    def __call__(self, X: Array) -> NDArray[np.int32]:
        """Group of every one of scaled rows X (n, d), int32 (n,)."""

    def arrays(self) -> dict[str, Array]:
        """What `Partitioner.read_groups` makes them of again."""


class Dealer(Protocol):
    """Where rows of groups of known sizes go."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""

    def assign(self, groups: Array, ranks: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Partition of every row, and its place there, from its group and its rank in it; (n,) each."""


class Partitioner(Protocol):
    """Frozen settings, which pickle and hash: tasks carry them."""

    def __hash__(self) -> int: ...
    @property
    def n_partitions(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def sample_rows(self, features: int, itemsize: int) -> int:
        """Rows that groups are made from; 0 where they are made from none."""

    def groups(self, sample: Array) -> Groups:
        """Groups from a ``sample`` of scaled rows (m, d)."""

    def read_groups(self, arrays: Mapping[str, Array]) -> Groups:
        """Groups from what `Groups.arrays` gave."""

    def dealer(self, sizes: tuple[int, ...]) -> Dealer:
        """How groups of ``sizes`` rows are dealt."""
