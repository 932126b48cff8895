"""The system of a Newton step over the active rows, by conjugate gradients with one preconditioner after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.problems.odm import Operator
from dask_odm.solvers.krylov import conjugate_gradients
from dask_odm.typing import Array


class FaceSystem:
    """``(I + √c K √c) x = b``, and ``K √c x`` of the x found so far: no product is spent on it.

    Parameters
    ----------
    gram : Operator
        K of the m active rows.
    root : ndarray of shape (m,)
        √c, square roots of their stiffness.
    b : ndarray of shape (m,)

    Attributes
    ----------
    x, Kx : ndarrays of shape (m,)
    products : int
        With K, so far.
    """

    def __init__(self, gram: Operator, root: Array, b: Array) -> None:
        self._gram, self._root, self._b = gram, root, b
        self.x, self.Kx, self.products = np.zeros(len(b)), np.zeros(len(b)), 0
        self._applied = self.Kx

    @property
    def left(self) -> Array:
        """The residual (m,)."""
        return self._b - self.x - self._root * self.Kx

    def go_on(self, precondition: Callable[[Array], Array], *, least: float, most: int) -> None:
        """Until the residual's square is ``least``, by at most so many products more."""
        more, products = conjugate_gradients(
            self._apply, self.left, precondition, least=least, most=most, on_step=self._follow
        )
        self.x, self.products = self.x + more, self.products + products

    def _apply(self, p: Array) -> Array:
        self._applied = self._gram.matvec(self._root * p)
        return p + self._root * self._applied

    def _follow(self, length: float) -> None:
        self.Kx = self.Kx + length * self._applied
