"""The sizes on which memory depends, with the pieces that are the same for every solver."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dask_odm.kernels.base import Kernel


@dataclass(frozen=True)
class Shape:
    """``n`` rows of ``d`` features, ``itemsize`` bytes each, under a ``kernel`` with any parameters, for ``threads``.

    A solver's `memory` module derives from it what the solver needs. All of these members are bytes.
    """

    kernel: Kernel
    n: int
    d: int
    itemsize: int
    threads: int

    def of(self, n: int) -> Shape:
        """Return the shape of ``n`` rows."""
        return replace(self, n=n)

    @property
    def rows(self) -> int:
        return self.n * self.d * self.itemsize

    def packed(self, n: int, itemsize: int) -> int:
        """``n`` rows packed for one side of a tile."""
        return self.kernel.packed_bytes(n, self.d, itemsize)
