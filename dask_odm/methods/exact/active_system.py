"""Solution of the system of a Newton step over the active rows, by conjugate gradients with successive preconditioners.

If the rows split into small kernel components (`dask_odm.methods.exact.kernel_components`), one factor per component
leaves little to do. Otherwise landmarks precondition, and then landmarks with the block preconditioner
(`dask_odm.methods.exact.block_preconditioner`). A small system that is slow is solved by Cholesky in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, lapack

from dask_odm.errors import InputError
from dask_odm.learning.problem.odm import Operator
from dask_odm.learning.problem.products import Products
from dask_odm.linalg.dense import mended
from dask_odm.linalg.krylov import conjugate_gradients
from dask_odm.methods.exact.preconditioners import FacePreconditioner
from dask_odm.typing import Array

SLOW = 16  # products of a system after which landmarks alone are too weak a preconditioner
CLOSE = 0.01  # factor of the residual to reach with block preconditioners: it costs few products and saves steps
ROWS_PER_PRODUCT = 64  # rows of a system per product, after which Cholesky would have been as fast


class FaceSystem:
    """The system ``(I + √c K √c) x = b``. It also keeps ``K √c x``, without products of its own.

    ``gram`` is K of the m active rows, ``root`` (m,) is √c. ``x`` and ``Kx`` (m,) are the solution so far and ``K √c
    x``; ``products`` counts the products with K.
    """

    def __init__(self, gram: Operator, root: Array, b: Array) -> None:
        self._gram = gram
        self._root = root
        self._b = b
        self.x, self.Kx, self.products = np.zeros(len(b)), np.zeros(len(b)), 0
        self._applied = self.Kx

    @property
    def left(self) -> Array:
        """The residual (m,)."""
        return self._b - self.x - self._root * self.Kx

    def go_on(self, precondition: Callable[[Array], Array], *, least: float, most: int) -> None:
        """Go on until the squared residual is ``least``, by at most ``most`` more products."""
        more, products = conjugate_gradients(
            self._apply, self.left, precondition, least=least, most=most, on_step=self._follow
        )
        self.x, self.products = self.x + more, self.products + products

    def _apply(self, p: Array) -> Array:
        self._applied = self._gram.matvec(self._root * p)
        return p + self._root * self._applied

    def _follow(self, length: float) -> None:
        self.Kx = self.Kx + length * self._applied


class FaceSolver:
    """Solver of the systems ``(K_SS + D_S) x = r`` of a run.

    Cholesky may take over for up to ``direct_rows`` active rows. A system takes up to ``most`` products.
    """

    def __init__(self, products: Products, preconditioner: FacePreconditioner, direct_rows: int, most: int) -> None:
        self._products = products
        self._preconditioner = preconditioner
        self._direct_rows = direct_rows
        self._most = most

    def solve(
        self, face: Array, stiffness: Array, residual: Array, least: float, *, near: bool, double: bool
    ) -> tuple[Array, Array, int]:
        """Return ``(K_SS + D_S)⁻¹ residual`` on the active rows ``face``, its scores there, and the number of products.

        ``stiffness`` (n,) is 1/D. ``least`` is the squared scaled residual that suffices. ``near`` uses the block
        preconditioner from the beginning, ``double`` has entries of K in float64.
        """
        if not len(face):
            return np.zeros(0), np.zeros(0), 0
        root = np.sqrt(stiffness[face])
        system = FaceSystem(self._products.face(face, double_precision=double), root, root * residual)
        direct = len(face) <= self._direct_rows
        most = min(self._most, 1 + len(face) // ROWS_PER_PRODUCT) if direct else self._most
        least *= self._precondition(system, face, stiffness, least, most, near)
        left = system.left
        if direct and float(left @ left) > 2.0 * least:  # larger than rounding explains
            x, left = self._solve_direct(face, root, root * residual)
            return root * x, left / root, system.products + 1
        return root * system.x, system.Kx, system.products

    def _precondition(
        self, system: FaceSystem, face: Array, stiffness: Array, least: float, most: int, near: bool
    ) -> float:
        """Run conjugate gradients with the best preconditioners; return the factor by which ``least`` was tightened."""
        known = self._preconditioner
        if known.parts is not None:
            system.go_on(known.parts.on(face, stiffness), least=CLOSE * least, most=most)
            return CLOSE
        if not near:
            system.go_on(known.by_landmarks(face, stiffness), least=least, most=min(SLOW, most))
        if not near and system.products < SLOW:
            return 1.0
        system.go_on(known.by_cells(face, stiffness), least=CLOSE * least, most=most)
        return CLOSE

    def _solve_direct(self, face: Array, root: Array, b: Array) -> tuple[Array, Array]:
        """Return ``x = (I + √c K_SS √c)⁻¹ b``, by Cholesky in float64, and b − x."""
        X = self._products.rows(face).astype(np.float64)
        largest = 0.0

        def solved(ridge: float) -> tuple[Array, Array] | None:
            nonlocal largest
            system = self._products.kernel.tile(X, X)
            system *= root
            system *= root[:, None]
            largest = float(np.abs(system.diagonal()).max())
            system.flat[:: len(face) + 1] += 1.0 + ridge
            # LAPACK expects Fortran order: the transpose is factored in place
            factor, info = lapack.dpotrf(system.T, lower=1, clean=0, overwrite_a=1)
            if info:
                return None
            x = np.asarray(lapack.dpotrs(factor, b, lower=1)[0])
            return x, b - (1.0 + ridge) * x

        try:
            return mended(solved, lambda: np.finfo(float).eps * len(face) * max(1.0, largest))
        except LinAlgError as error:
            raise InputError("the kernel is not positive semi-definite: its systems cannot be solved.") from error
