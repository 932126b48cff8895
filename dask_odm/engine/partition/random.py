"""Random partitions: every row goes to any of them, regardless of its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_odm.engine.partition.dealing import EvenDealer
from dask_odm.typing import Array


@dataclass(frozen=True)
class OneGroup:
    """All rows in one group."""

    count: int = 1

    def __call__(self, X: Array) -> NDArray[np.int32]:
        return np.zeros(len(X), np.int32)

    def arrays(self) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class RandomPartitioner:
    """``n_partitions`` of rows drawn by ``seed``, whose sizes differ by at most one; features are not looked at."""

    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return 0

    def groups(self, sample: Array) -> OneGroup:
        return OneGroup()

    def read_groups(self, arrays: Mapping[str, Array]) -> OneGroup:
        return OneGroup()

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed)
