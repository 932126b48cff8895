"""Preconditioners of the systems of Newton steps: landmarks, better landmarks, or landmarks with blocks of neighbours.

Landmarks are drawn uniformly. If they are slow, but leave little of the kernel, others are chosen by what is left of
each row, and take a third of the products. Of a narrow kernel they leave many eigenvalues, most of which lie within a
block of neighbouring rows. With such blocks and the landmarks' features L, ``K ≈ L Lᵀ + E``, where E is ``K − L Lᵀ``
within a block and zero between blocks.

Source: Snelson and Ghahramani, *Local and global sparse Gaussian process approximations* (AISTATS 2007). Their
partially independent conditional is a model; here it preconditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular

from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import MemoryPivots, choose
from dask_odm.learning.problem.nystrom_features import span_images, span_scores
from dask_odm.learning.problem.products import CHUNK_BYTES, Products
from dask_odm.linalg.row_passes import tree_sum
from dask_odm.linalg.systems import times_transpose
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.exact.gram import ActiveFactor, scaled_gram
from dask_odm.typing import Array

Solved = Callable[[Array], Array]
BLOCK_GROUPS = 8  # groups of rows, or of blocks; their sums are added in order
DIRECTIONS = 32  # most directions that rows are projected on to split them
CANDIDATES = 8 * BLOCK  # rows that better landmarks are chosen from; a quarter of them takes twice the products
GATHERED_BYTES = 1024  # bytes of memory per row of a solve for rows that are gathered at a time


class Woodbury:
    """``(I + √c L Lᵀ √c)⁻¹`` on any active rows, from float32 ``features`` L (n, r) of landmarks with ``L Lᵀ ≈ K``.

    It computes in float64: for a stiffness c of 10⁷, more digits cancel than float32 has. When c changes, the matrix
    ``inner``, ``I + Lᵀ diag(c) L``, is updated by the rows whose c changed, so that a solve resumes from both. Sums
    over groups of rows are added in order.
    """

    def __init__(self, features: Array, threads: int) -> None:
        n, r = features.shape
        self.features = features
        self._threads = threads
        self.inner = np.eye(r)
        self.stiffness = np.zeros(n)

    def _follow(self, stiffness: Array) -> None:
        """Update the inner matrix to the c of ``stiffness`` (n,)."""
        change = stiffness - self.stiffness
        moved = np.flatnonzero(change)
        if 2 * len(moved) > np.count_nonzero(stiffness):
            self.inner, change, moved = np.eye(len(self.inner)), stiffness, np.flatnonzero(stiffness)

        def group(rows: Array) -> Array:
            total = np.zeros_like(self.inner)
            for rising in (True, False):
                chosen = rows[(change[rows] > 0) == rising]
                for start in range(0, len(chosen), 1024):
                    some = chosen[start : start + 1024]
                    values = self.features[some] * np.sqrt(np.abs(change[some]))[:, None]
                    product = values.T @ values  # of a matrix with itself: half the work of any other
                    total = np.add(total, product, total) if rising else np.subtract(total, product, total)
            return total

        for part in run_threads(group, np.array_split(moved, BLOCK_GROUPS // 2), self._threads):
            self.inner = self.inner + part
        self.stiffness = stiffness

    def on(self, active: Array, stiffness: Array) -> Solved:
        """Return the operator on the rows ``active`` as a function of residuals there; ``stiffness`` (n,) is c."""
        self._follow(stiffness)
        factor, root = cho_factor(self.inner), np.sqrt(self.stiffness[active])
        bounds = [len(active) * g // BLOCK_GROUPS for g in range(BLOCK_GROUPS + 1)]
        spans = [slice(a, b) for a, b in pairwise(bounds)]

        def apply(v: Array) -> Array:
            w = root * v

            def gather(span: slice) -> Array:
                out = np.zeros(len(self.inner))
                span_images(self.features, w[span, None], out[None], active[span])
                return out

            inside = cho_solve(factor, sum(run_threads(gather, spans, self._threads)))
            run_threads(lambda s: span_scores(self.features, inside, w[s], active[s]), spans, self._threads)
            return v - root * w

        return apply


def blocks_at_once(n: int, rows: int, d: int, itemsize: int, threads: int) -> int:
    """Return how many of the blocks of ``n`` rows, of up to ``rows`` each, are gathered at a time."""
    most = n * GATHERED_BYTES // (2 * itemsize * d * rows)
    most = most // BLOCK_GROUPS * BLOCK_GROUPS or max(most, threads)
    return min(most, -(-n // rows))


def blocks_of(products: Products, rng: np.random.Generator) -> list[Array]:
    """Split all n rows into blocks of at most `BLOCK` neighbours by halving them where they differ most.

    The rows of each block ascend.
    """
    d = products.rows(np.zeros(1, np.int64)).shape[1]
    # random projections to a few directions roughly keep distances
    onto = None if d <= DIRECTIONS else rng.standard_normal((d, DIRECTIONS)).astype(np.float32)
    rows = np.empty((products.n, min(d, DIRECTIONS)), np.float32)
    step = filled_rows(d)
    with np.errstate(over="ignore"):  # values too large for float32 are infinite
        for start in range(0, products.n, step):
            index = np.arange(start, min(products.n, start + step))
            X = products.rows(index).astype(np.float32)
            rows[index] = X if onto is None else X @ onto
    cells: list[Array] = []
    left = [(np.arange(products.n), -(-products.n // BLOCK))]  # rows, and the blocks to split them into
    while left:
        index, count = left.pop()
        if count == 1:
            cells.append(np.sort(index))
            continue
        some = rows[index]
        some -= some.mean(axis=0)
        order = np.argsort(some @ _widest(some, rng), kind="stable")
        at = len(index) * (count // 2) // count
        left += [(index[order[at:]], count - count // 2), (index[order[:at]], count // 2)]
    return cells


def _widest(some: Array, rng: np.random.Generator) -> Array:
    """Return approximately the direction in which centred rows vary most, by four power steps."""
    direction = np.asarray(rng.standard_normal(some.shape[1]), some.dtype)
    for _ in range(4):
        following = (some @ direction) @ some
        length = np.linalg.norm(following)
        if not length > 0:
            break
        direction = np.asarray(following / length)
    return direction


@dataclass(frozen=True, eq=False)
class _Block:
    """The active rows of a block, their places among all active rows, √c, and the factor of ``I + √c E √c``."""

    rows: Array
    at: Array
    root: Array
    factor: ActiveFactor


@dataclass(frozen=True, eq=False)
class BlockPreconditioner:
    """``(I + √c (L Lᵀ + E) √c)⁻¹`` on any active rows, in float64, from float32 ``features`` L (n, r).

    ``cells`` are the ascending rows of every block.
    """

    products: Products
    features: Array
    cells: list[Array]
    threads: int

    def on(self, active: Array, stiffness: Array) -> Solved:
        """Return the preconditioner as a function of residuals on the rows ``active``; ``stiffness`` (n,) is c."""
        place = np.full(len(stiffness), -1)
        place[active] = np.arange(len(active))
        chosen = [cell[place[cell] >= 0] for cell in self.cells]
        groups, totals = self._factored(chosen, place, np.sqrt(stiffness))
        inner = cho_factor(np.eye(self.features.shape[1]) + tree_sum(totals), lower=True)
        blocks = [block for group in groups for block in group]
        shares = [
            blocks[len(blocks) * g // BLOCK_GROUPS : len(blocks) * (g + 1) // BLOCK_GROUPS] for g in range(BLOCK_GROUPS)
        ]

        def apply(v: Array) -> Array:
            out = np.empty_like(v)

            def gather(share: list[_Block]) -> Array:
                total = np.zeros(self.features.shape[1])
                for block in share:
                    out[block.at] = x = block.factor.solve(v[block.at])
                    span_images(self.features, (block.root * x)[:, None], total[None], block.rows)
                return total

            inside = cho_solve(inner, sum(run_threads(gather, shares, self.threads)))

            def spread(share: list[_Block]) -> None:
                for block in share:
                    model = np.empty(len(block.at))
                    span_scores(self.features, inside, model, block.rows)
                    out[block.at] -= block.factor.solve(block.root * model)

            run_threads(spread, shares, self.threads)
            return out

        return apply

    def _factored(self, cells: list[Array], place: Array, root: Array) -> tuple[list[list[_Block]], list[Array]]:
        """Factor the blocks, every eighth in one group, gathering as many rows at a time as their bytes allow.

        Return the groups, and the share of each in the inner matrix (r, r).
        """
        r = self.features.shape[1]
        groups: list[list[_Block]] = [[] for _ in range(BLOCK_GROUPS)]
        totals = [np.zeros((r, r)) for _ in range(BLOCK_GROUPS)]
        d = self.products.rows(np.zeros(1, np.int64)).shape[1]
        itemsize = self.products.dtype.itemsize
        step = blocks_at_once(self.products.n, max(map(len, cells)), d, itemsize, self.threads)
        for start in range(0, len(cells), step):
            index = np.sort(np.concatenate(cells[start : start + step]))
            X = self.products.rows(index)

            def factor(first: int, stop: int = start + step, index: Array = index, X: Array = X) -> None:
                g = first % BLOCK_GROUPS
                for cell in cells[first:stop:BLOCK_GROUPS]:
                    if len(cell):
                        block, Z = self._block(cell, place[cell], root[cell], X[np.searchsorted(index, cell)])
                        groups[g].append(block)
                        totals[g] += Z @ Z.T

            run_threads(factor, range(start, min(start + min(step, BLOCK_GROUPS), len(cells))), self.threads)
            del X, factor  # before others are gathered
        return groups, totals

    def _block(self, rows: Array, at: Array, root: Array, X: Array) -> tuple[_Block, Array]:
        """Factor the block of ``rows`` (m,), seen by the kernel as ``X`` (m, d); also return ``(F⁻¹ √c L)ᵀ`` (r, m)."""
        B = root[:, None] * self.features[rows].astype(np.float64)
        system = scaled_gram(self.products.kernel, X, root)
        system -= B @ B.T
        # rounding of L to float32 may make E indefinite
        factor = ActiveFactor.of(system.copy, unit=float(np.finfo(np.float32).eps))
        inverse = np.tril(lapack.dtrtri(factor.lower, lower=1)[0])
        return _Block(rows, at, root, factor), times_transpose(B.T, inverse)


def chooses(d: int) -> bool:
    """Return whether rows have so few features that better landmarks may be chosen, since proposals are held."""
    return 8 * CANDIDATES * d <= CHUNK_BYTES


def landmark_count(n: int) -> int:
    """Return the number of landmarks of the preconditioner for ``n`` rows."""
    return min(1024, n // 24 + 128, n)


def _features(products: Products, landmarks: Landmarks, threads: int) -> Array:
    """Return float32 features L (n, r) of all rows; the inverse of the landmarks' factor is rounded to float32."""
    inverse = solve_triangular(landmarks.factor, np.eye(len(landmarks)), lower=True).astype(np.float32)
    right = products.kernel.pack_right_in(landmarks.rows, np.float32)
    found = np.empty((products.n, len(landmarks)), np.float32)

    step = filled_rows(landmarks.rows.shape[1])

    def fill(start: int) -> None:
        rows = products.rows(np.arange(start, min(products.n, start + step)))
        tile = products.kernel.tile_packed(products.kernel.pack_left(rows.astype(np.float32)), right)
        found[start : start + len(rows)] = times_transpose(tile, inverse)

    run_threads(fill, range(0, products.n, step), threads)
    return found


def filled_rows(d: int) -> int:
    """Return the rows of ``d`` features whose values at the landmarks are computed at a time."""
    return max(64, min(2 * BLOCK, CHUNK_BYTES // (4 * d)))


class ActivePreconditioner:
    """Preconditioners of the systems of a solve: by landmarks, and a finer one, which is made when first needed.

    ``stiffness`` (n,) is the largest of every row.
    """

    def __init__(self, products: Products, stiffness: Array, seed: int, threads: int) -> None:
        self._products = products
        self._stiffness = stiffness
        self._seed = seed
        self._threads = threads
        index = self._drawn(landmark_count(products.n), seed)
        self.landmarks = self._woodbury(Landmarks.of(products.kernel, products.rows(index), index))

    @cached_property
    def finer(self) -> Woodbury | BlockPreconditioner:
        """Landmarks chosen by their residual, which replace those before if these left little; else blocks."""
        products = self._products
        r = landmark_count(products.n)
        index = self._drawn(CANDIDATES, [self._seed, 2])
        if chooses(products.rows(index[:1]).shape[1]):
            X = products.rows(index)
            left = products.kernel.diagonal(X) - np.square(self.landmarks.features[index]).sum(axis=1)
            # up to there chosen landmarks take less time than blocks (benchmarks/flat.py)
            if float(np.mean(self._stiffness[index] * left)) < 20.0:
                del self.landmarks  # before others take as much memory
                self.landmarks = self._woodbury(
                    choose(products.kernel, MemoryPivots(X, self._threads), r, method="rp", seed=self._seed)
                )
                return self.landmarks
        cells = blocks_of(products, np.random.default_rng([self._seed, 1]))
        return BlockPreconditioner(products, self.landmarks.features, cells, self._threads)

    def _drawn(self, count: int, seed: int | list[int]) -> Array:
        n = self._products.n
        return np.sort(np.random.default_rng(seed).choice(n, min(n, count), replace=False))

    def _woodbury(self, landmarks: Landmarks) -> Woodbury:
        return Woodbury(_features(self._products, landmarks, self._threads), self._threads)
