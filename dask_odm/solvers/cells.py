"""A preconditioner for narrow kernels: landmarks for what is far, blocks of neighbouring rows for what is near.

With cells of neighbouring rows and landmarks' features L, ``K ≈ L Lᵀ + E`` where E is ``K − L Lᵀ`` within a cell and
zero from cell to cell. Landmarks alone leave many eigenvalues of a narrow kernel, which vary from row to row; most of
these are within a cell.

Source: Snelson and Ghahramani, *Local and global sparse Gaussian process approximations* (AISTATS 2007), the partially
independent conditional, there a model and here a preconditioner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, lapack

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.sums import tree_sum
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.products import Products
from dask_odm.solvers.dense import mended
from dask_odm.solvers.woodbury import Woodbury, gather_features, nystrom_features, spread_features
from dask_odm.typing import Array

CELL_ROWS = 512
DIRECTIONS = 32  # the most features that cells are cut in: of more, random projections
POWER_STEPS = 4  # towards the direction in which rows of a part differ most
GROUPS = 8  # of cells, whose sums are added in order
READ_ROWS = 4096  # at a time


def cell_bytes(n: int, r: int, d: int) -> int:
    """Bytes that cells of ``n`` rows take, with ``r`` landmarks, besides the landmarks' features."""
    return n * (4 * 3 * min(d, DIRECTIONS) + 8 * CELL_ROWS) + GROUPS * 8 * r * r + 64 * CELL_ROWS * (r + CELL_ROWS)


def cells_of(products: Products, rng: np.random.Generator) -> list[Array]:
    """All n rows in cells of at most `CELL_ROWS` neighbours, each ascending: halved where they differ most."""
    rows, n = _projected(products, rng), products.n
    cells: list[Array] = []

    def cut(index: Array, count: int) -> None:
        if count == 1:
            cells.append(np.sort(index))
            return
        some = rows[index]
        some -= some.mean(axis=0)
        order = np.argsort(some @ _widest(some, rng), kind="stable")
        at = len(index) * (count // 2) // count
        cut(index[order[:at]], count // 2)
        cut(index[order[at:]], count - count // 2)

    cut(np.arange(n), -(-n // CELL_ROWS))
    return cells


def _projected(products: Products, rng: np.random.Generator) -> Array:
    """All rows, float32 (n, d), or in fewer random directions that keep most of their distances."""
    starts = range(0, products.n, READ_ROWS)
    blocks = (products.rows(np.arange(i, min(products.n, i + READ_ROWS))).astype(np.float32) for i in starts)
    first = next(blocks)
    d = first.shape[1]
    onto = None if d <= DIRECTIONS else rng.standard_normal((d, DIRECTIONS)).astype(np.float32)
    return np.concatenate([block if onto is None else block @ onto for block in (first, *blocks)])


def _widest(some: Array, rng: np.random.Generator) -> Array:
    """About the direction in which centred rows vary most."""
    direction = np.asarray(rng.standard_normal(some.shape[1]), some.dtype)
    for _ in range(POWER_STEPS):
        following = (some @ direction) @ some
        length = np.linalg.norm(following)
        if not length > 0:
            break
        direction = np.asarray(following / length)
    return direction


@dataclass(frozen=True, eq=False)
class _Block:
    """The active rows of a cell, their places on the face, the factor of ``I + √c E √c``, and √c."""

    rows: Array
    at: Array
    factor: Array
    root: Array

    def solved(self, v: Array) -> Array:
        found: Array = lapack.dpotrs(self.factor, v, lower=1)[0]
        return found


class CellBlocks:
    """``(I + √c (L Lᵀ + E) √c)⁻¹`` on any active rows, in float64 for the float32 features L that it is made of.

    Parameters
    ----------
    products : Products
    features : float32 ndarray of shape (n, r)
        L.
    cells : list of ndarray
        Ascending rows of every cell.
    threads : int
    """

    def __init__(self, products: Products, features: Array, cells: list[Array], threads: int) -> None:
        self._products, self._features, self._cells, self._threads = products, features, cells, threads

    def on(self, face: Array, stiffness: Array) -> Callable[[Array], Array]:
        """The preconditioner as a function of residuals on the rows ``face``, whose c is ``stiffness`` (n,)."""
        place = np.full(len(stiffness), -1)
        place[face] = np.arange(len(face))
        chosen = [cell[place[cell] >= 0] for cell in self._cells]
        groups = [[cell for cell in chosen[g::GROUPS] if len(cell)] for g in range(GROUPS)]
        factored = run_threads(lambda group: self._factored(group, stiffness), groups, self._threads)
        inner = cho_factor(np.eye(self._features.shape[1]) + tree_sum(total for _, total in factored), lower=True)
        pairs = [zip(group, own, strict=True) for group, (own, _) in zip(groups, factored, strict=True)]
        root = np.sqrt(stiffness)
        blocks = [_Block(cell, place[cell], factor, root[cell]) for pair in pairs for cell, factor in pair]
        shares = [blocks[len(blocks) * g // GROUPS : len(blocks) * (g + 1) // GROUPS] for g in range(GROUPS)]

        def apply(v: Array) -> Array:
            out = np.empty_like(v)

            def gather(share: list[_Block]) -> Array:
                total = np.zeros(self._features.shape[1])
                for block in share:
                    out[block.at] = x = block.solved(v[block.at])
                    gather_features(self._features, block.rows, block.root * x, total)
                return total

            inside = cho_solve(inner, sum(run_threads(gather, shares, self._threads)))

            def spread(share: list[_Block]) -> None:
                for block in share:
                    model = np.empty(len(block.at))
                    spread_features(self._features, block.rows, inside, model)
                    out[block.at] -= block.solved(block.root * model)

            run_threads(spread, shares, self._threads)
            return out

        return apply

    def _factored(self, group: list[Array], stiffness: Array) -> tuple[list[Array], Array]:
        """Cholesky factors of ``I + √c E √c`` of every cell, and what the cells add to the inner matrix."""
        total = np.zeros((self._features.shape[1],) * 2, order="F")
        factors = []
        for cell in group:
            root = np.sqrt(stiffness[cell])
            B = root[:, None] * self._features[cell].astype(np.float64)
            X = self._products.rows(cell).astype(np.float64)
            system = self._products.kernel.tile(X, X) * root * root[:, None] - B @ B.T
            factor = _factor(system)
            Z = blas.dtrsm(1.0, factor, B, lower=1)
            total = blas.dsyrk(1.0, Z, beta=1.0, c=total, trans=1, lower=1, overwrite_c=1)
            factors.append(factor)
        return factors, total


def _factor(system: Array) -> Array:
    """Cholesky factor of ``I + system``; L in float32 may cost E its definiteness, which more on the diagonal mends."""
    n, largest = len(system), float(np.abs(system.diagonal()).max())

    def attempt(ridge: float) -> Array | None:
        factor, info = lapack.dpotrf(system + (1.0 + ridge) * np.eye(n), lower=1)
        return None if info else factor

    return mended(attempt, lambda: float(np.finfo(np.float32).eps) * max(1.0, largest))


class FacePreconditioner:
    """Preconditioners of the systems of a solve, by landmarks alone or with cells; these are made when first wanted.

    Parameters
    ----------
    products : Products
    index : ndarray of shape (r,)
        Ascending rows that are the landmarks.
    seed : int
    threads : int
    """

    def __init__(self, products: Products, index: Array, seed: int, threads: int) -> None:
        landmarks = Landmarks.of(products.kernel, products.rows(index), index)
        self._features = nystrom_features(landmarks, products.rows, products.n, threads)
        self._products, self._seed, self._threads = products, seed, threads
        self.woodbury = Woodbury(self._features, threads)

    @cached_property
    def _blocks(self) -> CellBlocks:
        cells = cells_of(self._products, np.random.default_rng([self._seed, 1]))
        return CellBlocks(self._products, self._features, cells, self._threads)

    def by_landmarks(self, face: Array, stiffness: Array) -> Callable[[Array], Array]:
        """About ``(I + √c K √c)⁻¹`` on the rows ``face``, where ``stiffness`` c (n,) is not zero."""
        self.woodbury.follow(stiffness)
        return self.woodbury.on(face)

    def by_cells(self, face: Array, stiffness: Array) -> Callable[[Array], Array]:
        """The same with what landmarks leave of K within cells."""
        return self._blocks.on(face, stiffness)
