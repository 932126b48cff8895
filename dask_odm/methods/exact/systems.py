"""Solution of the linear system of a Newton step, ``(K_SS + D_S) x = r`` over the active rows S.

`ProductSystem` needs products with K alone, `GramSystem` has K in memory. Both end in an `ActiveFactor` if they solve
directly. `ExactLimits` has the sizes that decide between these ways, `dask_odm.methods.exact.memory` what they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError

from dask_odm.errors import InputError
from dask_odm.learning.problem.products import Multiply, Products
from dask_odm.linalg.lapack import symmetric_product
from dask_odm.linalg.systems import conjugate_gradients
from dask_odm.linalg.threads import return_free_memory
from dask_odm.methods.exact.gram import ActiveFactor, GramLandmarks, HeldProducts, scaled_gram
from dask_odm.methods.exact.preconditioners import ActivePreconditioner
from dask_odm.typing import Array


@dataclass(frozen=True)
class ExactLimits:
    """Sizes, counts and shares at which one way of solving takes over from another."""

    whole_rows: int = 3072  # most rows whose Gram matrix is held whole, in float32
    whole_numbers: int = 1 << 22  # most numbers in these rows
    dense_rows: int = 1024  # most of these rows whose matrix is held in float64 if float32 has too few digits
    rounding_rows: int = 256  # most rows that are solved in float64 to rounding, which takes no longer for them
    rounding_gap: float = 1e-14  # that float64 cannot tell from zero
    landmark_rows: int = 900  # fewest rows for which landmarks precondition the systems of a matrix that is held
    start_rows: int = 400  # fewest rows that are first solved for a quarter of them
    direct_rows: int = 4096  # most active rows for which Cholesky may take over from slow conjugate gradients
    products: int = 400  # most products of one system
    landmark_products: int = 16  # most of these with landmarks alone as preconditioner
    patience: int = 10  # steps that may pass without a smaller gap
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


@dataclass(frozen=True, eq=False)
class Correction:
    """Solution ``x`` (m,) of a system, its number of products, and whether it was slow.

    ``Kx`` (m,) is ``K x`` on the active rows, or None if that is as soon found with the rest of the rows.
    """

    x: Array
    Kx: Array | None
    products: int
    slow: bool


class ActiveSystem:
    """The system ``(1 + √c K √c) z = b``, solved by one preconditioner after another.

    ``multiply`` multiplies with K of the m active rows, ``root`` (m,) is √c. ``z`` and ``left`` (m,) are the solution
    so far and its residual; ``products`` counts the products with K.
    """

    def __init__(self, multiply: Multiply, root: Array, b: Array) -> None:
        self._multiply = multiply
        self._root = root
        self._b = b
        self.z = np.zeros(len(b))
        self.left = b
        self.products = 0

    def go_on(self, precondition: Callable[[Array], Array], *, least: float, most: int) -> None:
        """Go on until the squared residual is ``least``, by at most ``most`` more products."""

        def apply(p: Array) -> Array:
            return p + self._root * self._multiply(self._root * p)

        more, self.left, products = conjugate_gradients(apply, self.left, precondition, least=least, most=most)
        self.z = self.z + more
        self.products += products

    def solution(self, slow: bool) -> Correction:
        """Return the correction so far; the residual tells ``K √c z`` without another product."""
        Kx = (self._b - self.z - self.left) / self._root
        return Correction(self._root * self.z, Kx, self.products, slow)


@dataclass(frozen=True, eq=False)
class ProductSystem:
    """Conjugate gradients by products, and Cholesky in float64 for few active rows whose systems are slow.

    Landmarks precondition; once they are slow, better ones or blocks of neighbouring rows.
    """

    products: Products
    preconditioner: ActivePreconditioner
    limits: ExactLimits
    threads: int

    def solve(
        self, active: Array, stiffness: Array, residual: Array, least: float, *, slow: bool, double: bool
    ) -> Correction:
        """Return ``(K_SS + D_S)⁻¹ residual`` on the ``active`` rows (m,), m > 0.

        ``stiffness`` (n,) is 1/D. ``least`` is the squared scaled residual that suffices; a direct solution goes
        further. ``slow`` says that landmarks were too weak a preconditioner before, ``double`` asks for products with
        entries of K in float64.
        """
        root = np.sqrt(stiffness[active])
        b = root * residual
        system = ActiveSystem(self.products.among(active, double_precision=double), root, b)
        direct = len(active) <= self.limits.direct_rows
        # after one product in 48 rows Cholesky would have been as fast
        most = min(self.limits.products, 1 + len(active) // 48) if direct else self.limits.products
        patience = self.limits.landmark_products
        if not slow:
            system.go_on(self.preconditioner.landmarks.on(active, stiffness), least=least, most=min(patience, most))
        if slow or system.products >= patience:
            least *= 0.01  # with the finer one, a residual of a tenth costs few products and saves steps
            system.go_on(self.preconditioner.finer.on(active, stiffness), least=least, most=most)
        slow = system.products >= patience
        left = system.left
        if direct and float(left @ left) > 2.0 * least:  # larger than rounding explains
            factor = self._factor(active, root)
            z = factor.solve(b)
            return Correction(root * z, (b - (1.0 + factor.ridge) * z) / root, system.products + 1, slow)
        return system.solution(slow)

    def _factor(self, active: Array, root: Array) -> ActiveFactor:
        if len(active) >= 1024:  # takes far longer than this
            return_free_memory()  # of blocks, which threads had
        X = self.products.rows(active)
        threads = self.threads
        try:
            return ActiveFactor.of(lambda: scaled_gram(self.products.kernel, X, root, threads), threads)
        except LinAlgError as error:
            raise InputError("the kernel is not positive semi-definite: its systems cannot be solved.") from error


class GramSystem:
    """Cholesky of the active rows in the dtype of K, and conjugate gradients with landmarks while they are fast.

    ``landmarks`` is None if Cholesky is as fast from the first step on. `solve` is like that of a `ProductSystem`, with
    entries of K in its own dtype.
    """

    def __init__(self, products: HeldProducts, landmarks: GramLandmarks | None, memory: Array) -> None:
        self._products = products
        self._landmarks = landmarks
        self._memory = memory  # flat, for the matrix of the active rows or its factor
        self._stiffness = np.zeros(0)  # of the last factor
        self._factor: ActiveFactor | None = None

    def solve(
        self, active: Array, stiffness: Array, residual: Array, least: float, *, slow: bool, double: bool
    ) -> Correction:
        root = np.sqrt(stiffness[active])
        if self._landmarks is not None and not slow:
            self._factor = None  # its memory is overwritten
            own = self._products.gathered(active, np.ones(len(active)), self._memory)
            system = ActiveSystem(lambda v: symmetric_product(own, v), root, root * residual)
            most = 1 + len(active) // 40  # then Cholesky would have been as fast
            system.go_on(self._landmarks.on(active, stiffness), least=least, most=most)
            if system.products < most:
                return replace(system.solution(False), Kx=None)
        if self._factor is None or not np.array_equal(stiffness, self._stiffness):
            self._factor = None  # the next is made in its memory, and may fail
            self._factor = ActiveFactor.of(
                lambda: self._products.gathered(active, root, self._memory), self._products.threads
            )
            self._stiffness = stiffness
        z = self._factor.solve((root * residual).astype(self._memory.dtype))
        return Correction(root * z, None, 1, True)
