"""Models of cells: the space is divided, and each cell has a kernel model of its own.

A tree of planes divides it, or the means of clusters in the kernel's space do. A row meets the support rows of its cell
only. Cells share kernel and scaling; in a tree each has its own γ. Support rows are in the order of the cells.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dask_odm.data.rows.memory import SparseRows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.groups import Groups
from dask_odm.kernels.named import RBF
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import compiled_in_order, pointer
from dask_odm.linalg.threads import run_threads
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.model import PREDICTED_ROWS, require_finite_parts, starts_divide
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class CellTree:
    """Binary tree of planes: a scaled row x of node i is on its right side if ``planes[i] · x > thresholds[i]``.

    ``planes`` (m, d) and ``thresholds`` (m,) are float64. ``children`` (m, 2), int64, has the nodes below on the left
    and on the right: the number of a node, or −1 − the number of a cell. Without a node, all rows are in cell 0.
    """

    planes: Array
    thresholds: Array
    children: Array

    @classmethod
    def single(cls, features: int) -> CellTree:
        """Return the tree of one cell."""
        return cls(np.empty((0, features)), np.empty(0), np.empty((0, 2), np.int64))

    @property
    def count(self) -> int:
        """Number of cells."""
        return len(self.thresholds) + 1

    def __call__(self, X: Any) -> NDArray[np.int64]:
        """Return the cell of each scaled row of X (n, d), an array or `CSRRows`."""
        found = np.zeros(len(X), np.int64)
        if len(self.thresholds):
            rows, cells = self.pairs(X, np.zeros(len(self.thresholds)), len(X)).T
            found[rows] = cells
        return found

    def pairs(self, X: Any, margins: Array, count: int | None = None) -> Array:
        """Return the cells that each scaled row is in or near, as pairs of a row and a cell, (m, 2).

        A row is near both sides of a node's plane if it is within the node's margin of it. ``count`` is m if known.
        Pairs are in the order of the rows, or of cells if rows are sparse.
        """
        if isinstance(X, CSRRows):
            each = [np.stack([rows, np.full(len(rows), cell)], axis=1) for rows, cell in self._reached(X, margins)]
            return np.concatenate([np.empty((0, 2), np.int64), *each])
        arguments = np.ascontiguousarray(X), self.planes, self.thresholds, self.children, margins
        memory = np.empty(len(self.thresholds) + 2, np.int64)
        count = _reach(*arguments, memory, np.empty((0, 2), np.int64)) if count is None else count
        found = np.empty((count, 2), np.int64)
        _reach(*arguments, memory, found)
        return found

    def _reached(self, X: CSRRows, margins: Array) -> Iterator[tuple[Array, int]]:
        """Yield, for every cell with rows in or near it, their ascending numbers and the cell."""
        waiting = [(np.arange(len(X)), 0 if len(self.thresholds) else -1)]
        while waiting:
            rows, node = waiting.pop()
            if not len(rows):
                continue
            if node < 0:
                yield rows, -1 - node
                continue
            along = X[rows].along(self.planes[node])
            right = along > self.thresholds[node] - margins[node]
            left = ~(along > self.thresholds[node] + margins[node])
            waiting += [(rows[left], int(self.children[node, 0])), (rows[right], int(self.children[node, 1]))]

    def rescaled(self, before: Scaling, after: Scaling) -> CellTree:
        """Return the tree that divides rows of another scaling as this one divides those of the scaling ``before``."""
        raw = self.planes * before.factor
        planes = np.divide(raw, after.factor, out=np.zeros_like(raw), where=after.factor != 0)
        return CellTree(planes, self.thresholds + raw @ (before.shift - after.shift), self.children)

    def grafted(self, below: list[CellTree]) -> CellTree:
        """Return the tree in which cell i is divided by the tree ``below[i]``; cells are numbered in their order."""
        cells = np.cumsum([0, *(tree.count for tree in below)])
        nodes = len(self.thresholds) + np.cumsum([0, *(len(tree.thresholds) for tree in below)])
        roots = np.where(np.diff(nodes) > 0, nodes[:-1], -1 - cells[:-1])

        def moved(tree: CellTree, i: int) -> Array:
            return np.where(tree.children < 0, tree.children - cells[i], tree.children + nodes[i])

        own = np.where(self.children < 0, roots[-1 - np.minimum(self.children, -1)], self.children)
        return CellTree(
            np.concatenate([self.planes, *(tree.planes for tree in below)]),
            np.concatenate([self.thresholds, *(tree.thresholds for tree in below)]),
            np.concatenate([own, *(moved(tree, i) for i, tree in enumerate(below))]),
        )

    def require_sound(self) -> None:
        """Raise ValueError unless exactly one way leads from the root to every node and every cell."""
        nodes = self.thresholds.size
        shapes = self.thresholds.shape, self.planes.shape[:1], self.children.shape
        if self.children.dtype != np.int64 or shapes != ((nodes,), (nodes,), (nodes, 2)):
            raise ValueError(f"children of type {self.children.dtype} and shape {self.children.shape}")
        ends = np.sort(self.children, axis=None)
        once = np.array_equal(ends, np.r_[-1 - nodes : 0, 1:nodes]) if nodes else True
        above = np.repeat(np.arange(nodes), 2)
        if not once or (self.children.ravel() <= above)[self.children.ravel() >= 0].any():
            raise ValueError("children that are no tree")


@compiled_in_order
def _reach(
    X: Array, planes: Array, thresholds: Array, children: Array, margins: Array, memory: Array, out: Array
) -> int:  # fmt: skip
    """Write row and cell of every pair to ``out``, if there is room, and return their number.

    ``memory`` has room for two nodes more than there are.
    """
    d = X.shape[1]
    values = pointer(X)
    normals = pointer(planes)
    below = pointer(children)
    waiting = pointer(memory)
    count = 0
    for i in range(X.shape[0]):
        waiting[0] = 0 if thresholds.size else -1
        left = 1
        while left > 0:
            left -= 1
            node = waiting[left]
            if node < 0:
                if count < out.shape[0]:
                    out[count, 0] = i
                    out[count, 1] = -1 - node
                count += 1
                continue
            along = 0.0
            for j in range(d):
                along += normals[node * d + j] * values[i * d + j]
            if along > thresholds[node] - margins[node]:
                waiting[left] = below[2 * node + 1]
                left += 1
            if not along > thresholds[node] + margins[node]:
                waiting[left] = below[2 * node]
                left += 1
    return count


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalModel(KernelModel):
    """A kernel model for each cell of the feature space; a row is predicted by that of its cell.

    Cell c has the support rows ``starts[c]:starts[c + 1]``, and the row c of ``intercept`` (cells, machines).
    """

    starts: Array  # (cells + 1,), int64

    @property
    def own_outputs(self) -> int:
        return self.pairs or int(self.intercept.shape[1])

    @abstractmethod
    def _place(self, scaled: Any) -> Array:
        """Return the cell of each scaled row."""

    def cell(self, number: int) -> KernelModel:
        """Return the model of one cell."""
        first, last = self.starts[number : number + 2].tolist()
        own = slice(first, last)
        support: Any = self.support.take(own) if isinstance(self.support, SparseRows) else self.support[own]
        return KernelModel(
            self.kernel, self.scaling, support, self.coefficients[:, first:last],
            self.intercept[number], 0, self.double_precision,
        )  # fmt: skip

    def cells_of(self, X: Any) -> NDArray[np.int64]:
        """Return the cell of each raw row of X (n, d), dense or CSR."""
        scaled = self._scaled(X, np.result_type(X.dtype, self.support.dtype), sparse=issparse(X) and self.is_sparse)
        step = 32 * PREDICTED_ROWS
        blocks = [self._place(scaled(slice(i, i + step))) for i in range(0, X.shape[0], step)]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int64)

    def machine_scores(self, X: Any, threads: int = 1, by_tiles: bool = False) -> Array:
        cells = self.cells_of(X)
        order = np.argsort(cells, kind="stable")
        values = np.empty((self.intercept.shape[1], X.shape[0]))
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1))

        def predict(span: tuple[int, int]) -> None:
            rows = order[span[0] : span[1]]
            values[:, rows] = self.cell(int(cells[rows[0]])).machine_scores(X[rows], 1, by_tiles)

        run_threads(predict, pairwise([*starts.tolist(), len(order)]), threads, "predict")
        return values

    @classmethod
    def _checked(cls, description: dict[str, Any], arrays: dict[str, Any], cells: int) -> dict[str, Any]:
        """Return the fields of all models of ``cells`` cells; raise ValueError if the arrays do not fit each other."""
        starts = arrays["starts"]
        intercept = arrays["intercept"]
        require_finite_parts({"intercept": intercept})
        if intercept.ndim != 2 or len(intercept) != cells or not cells:
            raise ValueError(f"an intercept of shape {intercept.shape} for {cells} cells")
        found = cls._checked_parts(description, arrays | {"intercept": intercept[0]})
        if not starts_divide(starts, cells, found["support"].shape[0]):
            raise ValueError("cells that do not divide the support vectors")
        return found | {"intercept": intercept, "starts": starts}


@dataclass(frozen=True, eq=False, kw_only=True)
class CellModel(LocalModel):
    """A kernel model for each cell of a tree, with a γ of its own."""

    tree: CellTree
    gammas: Array  # (cells,)
    kind: ClassVar[str] = "cells"
    parts: ClassVar[tuple[str, ...]] = (*KernelModel.parts, "planes", "thresholds", "children", "starts", "gammas")

    def _place(self, scaled: Any) -> Array:
        return self.tree(scaled)

    def cell(self, number: int) -> KernelModel:
        found = replace(super().cell(number), kernel=_with_gamma(self.kernel, float(self.gammas[number])))
        if found.kernel.name != RBF.name or self.is_sparse or not found.support.shape[0]:
            return found
        # seen from one of the cell's own rows, distances within it lose fewer digits than from the middle of all cells
        return replace(found, scaling=found.scaling.seen_from(found.support[:1][0]))

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | vars(self.tree) | {"starts": self.starts, "gammas": self.gammas}

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> CellModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        tree = CellTree(*(arrays[name] for name in ("planes", "thresholds", "children")))
        require_finite_parts({name: arrays[name] for name in ("planes", "thresholds")})
        tree.require_sound()
        found = cls._checked(description, arrays, tree.count)
        if tree.planes.shape[1:] != found["support"].shape[1:]:
            raise ValueError(f"planes of shape {tree.planes.shape}")
        gammas = arrays["gammas"]
        require_finite_parts({"gammas": gammas})
        if gammas.shape != (tree.count,) or not (gammas > 0).all():
            raise ValueError(f"gammas of shape {gammas.shape} that are not all positive")
        _with_gamma(found["kernel"], float(gammas[0]))  # raises for a kernel without
        return cls(**found, tree=tree, gammas=gammas)


def _with_gamma(kernel: Kernel, gamma: float) -> Kernel:
    return from_parameters(kernel.parameters() | {"gamma": gamma})


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusterModel(LocalModel):
    """A kernel model for each cluster of rows in the kernel's space; a row's cluster is that of the nearest mean."""

    groups: Groups
    kind: ClassVar[str] = "clusters"
    parts: ClassVar[tuple[str, ...]] = (*KernelModel.parts, "means", "labels", "norms", "starts")

    def _place(self, scaled: Any) -> Array:
        return self.groups(scaled)

    def arrays(self) -> dict[str, Any]:
        groups = self.groups
        own = {"means": np.asarray(groups.rows), "labels": groups.labels, "norms": groups.norms}
        return super().arrays() | own | {"starts": self.starts}

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> ClusterModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        rows, labels, norms = (arrays[name] for name in ("means", "labels", "norms"))
        require_finite_parts({"means": rows, "norms": norms})
        held = cls._checked(description, arrays, len(norms))
        if norms.ndim != 1 or rows.ndim != 2 or rows.shape[1:] != held["support"].shape[1:]:
            raise ValueError(f"means of shape {rows.shape} and norms of shape {norms.shape}")
        numbered = labels.dtype == np.int64 and labels.shape == rows.shape[:1]
        if not numbered or not np.array_equal(np.unique(labels), np.arange(len(norms))):
            raise ValueError(f"labels of type {labels.dtype} and shape {labels.shape} for {len(norms)} clusters")
        return cls(**held, groups=Groups(held["kernel"], rows, norms, labels))
