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
from dask_odm.methods.exact.block_preconditioner import GROUPS, CellBlocks, cells_of
from dask_odm.methods.exact.kernel_components import labels_of, part_products, parts_of_rows
from dask_odm.typing import Array

LANDMARKS = 1024  # most landmarks
Solved = Callable[[Array], Array]


def landmark_count(n: int) -> int:
    """Return the number of landmarks of the preconditioner for ``n`` rows."""
    return min(LANDMARKS, n // 24 + 128, n)


def drawn_landmarks(n: int, rng: np.random.Generator) -> Array:
    """Draw ascending rows, of ``n``, as landmarks."""
    return np.sort(rng.choice(n, landmark_count(n), replace=False))


def _features(products: Products, index: Array, threads: int) -> Array:
    landmarks = Landmarks.of(products.kernel, products.rows(index), index)
    return landmarks.narrow_features(products.rows, products.n, threads)


def _cell_blocks(products: Products, features: Array, seed: int, threads: int) -> CellBlocks:
    return CellBlocks(products, features, cells_of(products, np.random.default_rng([seed, 1])), threads)


class FacePreconditioner:
    """Preconditioners of the systems of a solve: by landmarks, and by blocks, which are made when first needed.

    ``index`` (r,) are the landmarks' rows, ascending. Factors of kernel components may take ``room`` bytes. If rows
    split into components, ``parts`` is the preconditioner to use instead, and landmarks are not made; else it is None.
    """

    def __init__(self, products: Products, index: Array, seed: int, threads: int, *, room: int) -> None:
        self._products = products
        self._seed = seed
        self._threads = threads
        in_parts = labels_of(products) is not None
        self.parts = PartBlocks(products, seed, threads, room=room) if in_parts else None
        features = np.zeros((products.n, 1), np.float32) if in_parts else _features(products, index, threads)
        self._woodbury = Woodbury(features, threads)

    @cached_property
    def _cells(self) -> CellBlocks:
        return _cell_blocks(self._products, self._woodbury.features, self._seed, self._threads)

    def by_landmarks(self, face: Array, stiffness: Array) -> Solved:
        """Return the landmarks' ``(I + √c K √c)⁻¹`` on the active rows ``face``; ``stiffness`` (n,) is c."""
        self._woodbury.follow(stiffness)
        return self._woodbury.on(face)

    def by_cells(self, face: Array, stiffness: Array) -> Solved:
        """Return `by_landmarks` with the Nyström residual of K within blocks."""
        return self._cells.on(face, stiffness)

    @property
    def state(self) -> tuple[Array, Array]:
        """Inner matrix (r, r) and stiffness (n,) of the landmarks' preconditioner, from which it can `go_on`."""
        return self._woodbury.inner, self._woodbury.stiffness

    def go_on(self, inner: Array, stiffness: Array) -> None:
        """Resume from a `state`."""
        self._woodbury.go_on(inner, stiffness)


class PartBlocks:
    """``(I + √c K √c)⁻¹`` for rows in kernel components, without the kernel values between these.

    Small components have one Cholesky factor each, large ones have landmarks and blocks of their own. Factors may take
    ``room`` bytes. The bias, which all components share, is of rank one. See
    `dask_odm.methods.exact.kernel_components`.
    """

    def __init__(self, products: Products, seed: int, threads: int, *, room: int) -> None:
        self._products = products
        self._seed = seed
        self._threads = threads
        self._room = room
        self._rows = parts_of_rows(products)

    def are_small(self, face: Array) -> bool:
        """Return whether the components of the active rows ``face`` are small enough for one factor each."""
        place = np.zeros(self._products.n, bool)
        place[face] = True
        entries = np.sort([float(np.count_nonzero(place[rows])) ** 2 for rows in self._rows])
        # a component that is being factored, at most one per group, takes twice as much besides its factor
        return bool(8.0 * (entries.sum() + 2.0 * entries[-GROUPS:].sum()) <= self._room)

    def on(self, face: Array, stiffness: Array) -> Solved:
        """Return the preconditioner as a function of residuals on the active rows ``face``; ``stiffness`` (n,) is c."""
        if self.are_small(face):
            return self._whole.on(face, stiffness)
        within, root, bias = self._within(face, stiffness), np.sqrt(stiffness[face]), self._products.kernel.bias
        constant = within(root)
        share = bias / (1.0 + bias * float(root @ constant))

        def apply(v: Array) -> Array:
            out = within(v)
            return out - share * float(root @ out) * constant

        return apply

    @cached_property
    def _whole(self) -> CellBlocks:
        constant = np.full((self._products.n, 1), np.sqrt(self._products.kernel.bias), np.float32)
        return CellBlocks(self._products, constant, self._rows, self._threads)

    @cached_property
    def _each(self) -> list[CellBlocks]:
        found = []
        for part, rows in enumerate(self._rows):
            alone = part_products(self._products, rows)
            index = drawn_landmarks(len(rows), np.random.default_rng([self._seed, part]))
            features = _features(alone, index, self._threads)
            found.append(_cell_blocks(alone, features, self._seed, self._threads))
        return found

    def _within(self, face: Array, stiffness: Array) -> Solved:
        """Return the preconditioner of every component alone, without the bias."""
        place = np.full(len(stiffness), -1)
        place[face] = np.arange(len(face))
        each: list[tuple[Array, Solved]] = []
        for rows, blocks in zip(self._rows, self._each, strict=True):
            own = np.flatnonzero(place[rows] >= 0)
            if len(own):
                each.append((place[rows[own]], blocks.on(own, stiffness[rows])))

        def within(v: Array) -> Array:
            out = np.empty_like(v)
            for at, solved in each:
                out[at] = solved(v[at])
            return out

        return within
