"""Memory of the exact solver: bytes by the shape of a problem, beside its rows.

A solve with few rows holds their Gram matrix. One with more computes products, and makes preconditioners of landmarks
and of blocks of rows. Its steps follow each other, so the largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.pivots import MemoryPivots
from dask_odm.kernels.shape import Shape
from dask_odm.learning.problem.products import CHUNK_BYTES, products_bytes
from dask_odm.methods.exact.gram import block_rows
from dask_odm.methods.exact.preconditioners import (
    BLOCK_GROUPS,
    CANDIDATES,
    DIRECTIONS,
    blocks_at_once,
    chooses,
    filled_rows,
    landmark_count,
)
from dask_odm.methods.exact.systems import LIMITS, ExactLimits


def solve_bytes(shape: Shape, limits: ExactLimits = LIMITS, *, certify: bool = True) -> int:
    """Return the peak bytes of a solve with its products, without rows and kept tiles.

    A solve goes on in float64 only for the sake of ``certify``, or if that costs little.
    """
    return ExactMemory(shape.kernel, shape.n, shape.d, shape.itemsize, shape.threads, limits).solve(certify=certify)


def leaving_bytes(active: Shape) -> int:
    """Return the bytes that leaving rows out takes, of which those of the shape have a curvature."""
    if not active.n:
        return 0
    gram = ExactMemory(active.kernel, active.n, active.d, active.itemsize, active.threads).gram(8)
    return 8 * active.n**2 + max(2 * 8 * active.n**2, active.rows + gram)


@dataclass(frozen=True)
class ExactMemory(Shape):
    """Bytes of a solve and of its pieces. ``limits`` decide between its ways."""

    limits: ExactLimits = LIMITS

    def solve(self, *, certify: bool = True) -> int:
        """A solve, see `solve_bytes`."""
        vectors = 40 * 8 * self.n
        if self.n <= self.limits.rounding_rows:
            return vectors + self.held(8)
        double = self.limits.holds(self.n, self.d, double=True)
        ways = [self.held(8) if double else self.preconditioned(8 if certify else 4)]
        if self.limits.holds(self.n, self.d, double=False):
            ways.append(self.held(4))
        return vectors + max(ways)

    def held(self, of_matrix: int) -> int:
        """A solve that holds its Gram matrix, with ``of_matrix`` bytes for each of its numbers."""
        n = self.n
        # the gap of a float32 matrix is checked by products in float64
        checking = products_bytes(self, 8) if of_matrix == 4 else 0
        landmarks = 3 * of_matrix * n * (n // 10) if n >= self.limits.landmark_rows else 0
        return 2 * of_matrix * n * n + max(self.gram(of_matrix), checking + landmarks, self.start())

    def preconditioned(self, of_value: int) -> int:
        """A solve by products with preconditioners, with values of up to ``of_value`` bytes."""
        r = landmark_count(self.n)
        products = products_bytes(self, of_value)
        some = replace(self, n=min(self.n, self.limits.direct_rows))
        freed = min(products, self.threads * CHUNK_BYTES)  # of products before the factor, and kept by the allocator
        direct = 8 * some.n**2 + some.rows + some.gram(8) + freed
        kept, making = self.landmarks(r)
        blocks, scratch = self.blocks(r)
        # one after the other
        return kept + max(making, products, direct, blocks + max(scratch, products), self.start())

    def start(self) -> int:
        """The solve of a quarter of the rows that comes first."""
        if self.n < self.limits.start_rows:
            return 0
        few = replace(self, n=self.n // 4, limits=replace(self.limits, rounding_rows=0))
        return few.rows + few.solve(certify=False)

    def gram(self, of_value: int) -> int:
        """What `gram_of` takes besides rows and matrix, for values of so many bytes."""
        step = block_rows(self.kernel, self.n, self.d, of_value)
        some = min(step, BLOCK)
        row = 0 if self.itemsize == of_value else self.d * of_value  # as it is converted
        left = some * (row + (self.d + 10) * of_value)
        right = step * row + self.packed(step, of_value)
        if step == self.n:
            return max(right, right - step * row + self.threads * left)
        return self.threads * (left + right + some * step * of_value)

    def landmarks(self, r: int) -> tuple[int, int]:
        """Features of ``r`` landmarks with `Woodbury`, and what making them takes."""
        n, d = self.n, self.d
        rows = filled_rows(d)
        made = r * d * (self.itemsize + 4) + max(3 * 8 * r * (d + 10), 5 * 8 * r * r)  # packed, factor, inverse
        filling = r * d * (self.itemsize + 2 * 4) + self.threads * rows * ((self.itemsize + 2 * 4) * d + 2 * 4 * r)
        following = (BLOCK_GROUPS // 2 + 4) * 8 * r * r  # sums of the rows that changed, a factor and its parts
        choosing = 0
        if chooses(d):
            candidates = np.broadcast_to(np.zeros(1, f"f{self.itemsize}"), (min(n, CANDIDATES), d))
            choosing = MemoryPivots(candidates, self.threads).choosing_bytes(r)
        return 4 * n * r + 8 * r * r, max(made + 8 * r * r, filling + 8 * r * r, following, choosing)

    def blocks(self, r: int) -> tuple[int, int]:
        """Factors of blocks of rows, which are kept for a system, and what making them takes with ``r`` landmarks."""
        n, d = self.n, self.d
        block = replace(self, n=-(-n // -(-n // BLOCK)), threads=1)
        splitting = n * 4 * 3 * min(d, DIRECTIONS) + 2 * CHUNK_BYTES
        gathered = min(n, block.n * blocks_at_once(n, block.n, d, self.itemsize, self.threads)) * d * self.itemsize
        # scaled features, their products with a factor, the block with its factor and inverse
        of_thread = block.rows + 3 * 8 * block.n * r + 4 * 8 * block.n**2 + block.gram(8)
        inner = (BLOCK_GROUPS + 2) * 8 * r * r
        return n * 8 * block.n, max(splitting, gathered + self.threads * of_thread + inner)
