"""Sizes at which the exact solver takes one way or another, and the memory that it then needs."""

from __future__ import annotations

from dataclasses import dataclass

from dask_odm.methods.exact.block_preconditioner import block_bytes, block_scratch_bytes
from dask_odm.methods.exact.preconditioners import landmark_count

ROUNDING_GAP = 1e-14  # gap that float64 cannot tell from zero


@dataclass(frozen=True)
class ExactLimits:
    """Sizes, counts and shares at which one way of solving takes over from another."""

    whole_rows: int = 3072  # most rows whose Gram matrix is held whole, in float32
    whole_numbers: int = 1 << 22  # most numbers in these rows
    dense_rows: int = 1024  # most of these rows whose matrix is held in float64 if float32 has too few digits
    rounding_rows: int = 256  # most rows that are solved in float64 to rounding, which takes no longer for them
    landmark_rows: int = 900  # fewest rows for which landmarks precondition the systems of a matrix that is held
    start_rows: int = 400  # fewest rows that are first solved for a quarter of them
    direct_rows: int = 4096  # most active rows for which Cholesky may take over from slow conjugate gradients
    products: int = 400  # most products of one system
    patience: int = 10  # steps that may pass without a smaller gap
    far: float = 0.5  # largest gap after two steps that does not call for smaller λ first
    # an inexact step may leave a gap of this times min(0.1, √gap) · gap; more makes rows change sides
    forcing: float = 0.003
    rough: float = 0.03  # gap to which a start is solved
    exactest: float = 1e-8  # no system is solved further than this times what the gap requires

    def holds(self, n: int, d: int, *, double: bool) -> bool:
        """Return whether the matrix of ``n`` rows of ``d`` features is held whole in float32, or in ``double``."""
        if n <= self.rounding_rows:
            return True
        return n <= (self.dense_rows if double else self.whole_rows) and n * d <= self.whole_numbers


LIMITS = ExactLimits()
NODE_LIMITS = ExactLimits(rounding_rows=1024)  # of a tree, whose small nodes pass on what they find


def solver_bytes(n: int, d: int, itemsize: int, limits: ExactLimits = LIMITS) -> int:
    """Return the peak bytes of a solve, without rows and what products take."""
    rows = 40 * 8 * n
    packed = 48 * n * (d + 10)
    if limits.holds(n, d, double=True):  # the matrix, a system of that size, and a tenth of the rows as landmarks
        return 2 * 8 * n * n + 3 * 4 * n * (n // 10) + packed + rows
    r = landmark_count(n)
    m = min(n, limits.direct_rows)
    held = 2 * 4 * n * n + 3 * 4 * n * (n // 10) + packed if limits.holds(n, d, double=False) else 0
    landmarks = 4 * n * r + 8 * 8 * r * r + 3 * 1024 * (d + r) * itemsize
    largest = max(held, 8 * m * (m + 2 * d), block_scratch_bytes(n, r, d))  # one after the other
    return largest + landmarks + rows + block_bytes(n)
