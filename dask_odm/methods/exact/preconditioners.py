"""Preconditioners of the systems of Newton steps: landmarks, landmarks with blocks of neighbours, or kernel
components.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.products import Products
from dask_odm.linalg.woodbury import Woodbury
from dask_odm.methods.exact.block_preconditioner import BlockPreconditioner, blocks_of
from dask_odm.methods.exact.kernel_components import component_products, rows_of_components
from dask_odm.typing import Array

Solved = Callable[[Array], Array]
Precondition = Callable[[Array, Array], Solved]


def landmark_count(n: int) -> int:
    """Return the number of landmarks of the preconditioner for ``n`` rows."""
    return min(1024, n // 24 + 128, n)


def _features(products: Products, rng: np.random.Generator, threads: int) -> Array:
    index = np.sort(rng.choice(products.n, landmark_count(products.n), replace=False))
    landmarks = Landmarks.of(products.kernel, products.rows(index), index)
    return landmarks.narrow_features(products.rows, products.n, threads)


def _block_preconditioner(products: Products, features: Array, seed: int, threads: int) -> BlockPreconditioner:
    return BlockPreconditioner(products, features, blocks_of(products, np.random.default_rng([seed, 1])), threads)


class ActivePreconditioner:
    """Preconditioners of the systems of a solve: by landmarks, and by blocks, which are made when first needed.

    Both are functions of the active rows (m,) and the stiffness c (n,) of all rows, and return an approximation of ``(I
    + √c K √c)⁻¹`` as a function of residuals (m,). Landmarks are rows that ``rng`` draws. If rows split into kernel
    components, ``by_landmarks`` is None, and every component has landmarks and blocks of its own.
    """

    def __init__(self, products: Products, rng: np.random.Generator, seed: int, threads: int) -> None:
        self._products = products
        self._seed = seed
        self._threads = threads
        self._components = rows_of_components(products)
        self.splits = len(self._components) > 1
        features = np.zeros((products.n, 1), np.float32) if self.splits else _features(products, rng, threads)
        self._woodbury = Woodbury(features, threads)

    def by_landmarks(self, active: Array, stiffness: Array) -> Solved:
        """Return the preconditioner by landmarks alone, of rows that do not split."""
        self._woodbury.follow(stiffness)
        return self._woodbury.on(active)

    @cached_property
    def by_blocks(self) -> Precondition:
        """The landmarks' preconditioner with the Nyström residual of K within blocks."""
        if self.splits:
            return ComponentBlocks(self._products, self._components, self._seed, self._threads).on
        return _block_preconditioner(self._products, self._woodbury.features, self._seed, self._threads).on

    @property
    def state(self) -> tuple[Array, Array]:
        """Inner matrix (r, r) and stiffness (n,) of the landmarks' preconditioner, from which it can `go_on`."""
        return self._woodbury.inner, self._woodbury.stiffness

    def go_on(self, inner: Array, stiffness: Array) -> None:
        """Resume from a `state`."""
        self._woodbury.go_on(inner, stiffness)


class ComponentBlocks:
    """``(I + √c K √c)⁻¹`` for rows in kernel components, without the kernel values between these.

    Every component has landmarks and blocks of its own. The bias, which all share, is of rank one.
    """

    def __init__(self, products: Products, components: list[Array], seed: int, threads: int) -> None:
        self._bias = products.kernel.bias
        self._each = []
        for number, rows in enumerate(components):
            alone = component_products(products, rows)
            features = _features(alone, np.random.default_rng([seed, number]), threads)
            self._each.append((rows, _block_preconditioner(alone, features, seed, threads)))

    def on(self, active: Array, stiffness: Array) -> Solved:
        """Return the preconditioner as a function of residuals on the active rows; ``stiffness`` (n,) is c."""
        within = self._within(active, stiffness)
        root = np.sqrt(stiffness[active])
        constant = within(root)
        share = self._bias / (1.0 + self._bias * float(root @ constant))

        def apply(v: Array) -> Array:
            out = within(v)
            return out - share * float(root @ out) * constant

        return apply

    def _within(self, active: Array, stiffness: Array) -> Solved:
        """Return the preconditioner of every component alone, without the bias."""
        place = np.full(len(stiffness), -1)
        place[active] = np.arange(len(active))
        each: list[tuple[Array, Solved]] = []
        for rows, blocks in self._each:
            own = np.flatnonzero(place[rows] >= 0)
            if len(own):
                each.append((place[rows[own]], blocks.on(own, stiffness[rows])))

        def within(v: Array) -> Array:
            out = np.empty_like(v)
            for at, solved in each:
                out[at] = solved(v[at])
            return out

        return within
