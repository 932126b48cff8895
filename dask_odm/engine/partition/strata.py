"""Stratified partitions: every partition gets its share of rows from everywhere in the kernel's space.

Source: SODM, section on stratified partitions. Landmarks are chosen greedily from a sample of rows; a row's stratum is
its nearest landmark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_odm.engine.partition.base import sampled_rows
from dask_odm.engine.partition.dealing import EvenDealer
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import Landmarks, greedy_landmarks
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Strata:
    """Groups of rows by their nearest landmark."""

    landmarks: Landmarks

    @property
    def count(self) -> int:
        return len(self.landmarks.rows)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        return self.landmarks.strata(X)


@dataclass(frozen=True)
class StratifiedPartitioner:
    """At most ``n_landmarks`` strata of ``kernel``, each dealt evenly; sizes of partitions differ by at most one.

    With ``shuffled=False``, rows are dealt in their order, see `dask_odm.engine.partition.dealing.EvenDealer`.
    """

    kernel: Kernel
    n_landmarks: int
    n_partitions: int
    seed: int
    shuffled: bool = True

    def sample_rows(self, features: int, itemsize: int) -> int:
        return sampled_rows(self.n_landmarks, max(4096, 4 * self.n_landmarks), features, itemsize)

    def groups(self, sample: Array) -> Strata:
        return Strata(greedy_landmarks(self.kernel, sample, self.n_landmarks))

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed, self.shuffled)
