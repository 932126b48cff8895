"""Grow the tree of cells: nodes are split at the median of their rows along the first principal direction.

Sources: Thomann, Blaschzyk, Meister and Steinwart, *Spatial decompositions for large scale SVMs* (AISTATS 2017), and
Segata and Blanzieri, *Fast and scalable local kernel machines* (JMLR 11, 2010), whose cells are of other shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.linalg.jit import compiled_in_order
from dask_odm.models.cell_model import CellTree
from dask_odm.typing import Array

SAMPLE_ROWS = 4000  # rows of a node that its directions are found from
LEAST_SHARE = 0.05  # of a node's rows on either side of a plane
DIRECTIONS = 4  # principal directions that are tried, one after the other


def grow(rows: Any, most: int, seed: int) -> tuple[CellTree, Array]:
    """Return a tree over scaled ``rows`` (n, d) whose cells have at most ``most`` of them.

    Equal rows stay together, so that a cell of rows that hardly differ may have more. For every node, the second array
    has the standard deviation of its rows along its direction.
    """
    planes: list[Array] = []
    thresholds: list[float] = []
    widths: list[float] = []
    children: list[list[int]] = []
    cells = 0
    # nodes to divide: their rows, and the node above with the side they are on
    waiting: list[tuple[Array, int, int]] = [(np.arange(len(rows)), -1, 0)]
    while waiting:
        index, above, side = waiting.pop()
        number = len(children)
        found = None if len(index) <= most else _plane(rows, index, np.random.SeedSequence([seed, number]))
        if above >= 0:
            children[above][side] = -1 - cells if found is None else number
        if found is None:
            cells += 1
            continue
        plane, threshold, width, right = found
        widths.append(width)
        planes.append(plane)
        thresholds.append(threshold)
        children.append([0, 0])
        waiting += [(index[right], number, 1), (index[~right], number, 0)]
    if not planes:
        return CellTree.single(rows.shape[1]), np.empty(0)
    return CellTree(np.stack(planes), np.array(thresholds), np.array(children, np.int64)), np.array(widths)


def rows_within(rows: Array, tree: CellTree, margins: Array) -> tuple[Array, Array]:
    """Return the cells that each scaled row (n, d) is in or near, as pairs of a row and a cell.

    A row is near both sides of a node's plane if it is within the node's margin of it.
    """
    arguments = np.ascontiguousarray(rows), tree.planes, tree.thresholds, tree.children, margins
    count = _reach(*arguments, np.empty((0, 2), np.int64))
    pairs = np.empty((count, 2), np.int64)
    _reach(*arguments, pairs)
    return pairs[:, 0], pairs[:, 1]


@compiled_in_order
def _reach(X: Array, planes: Array, thresholds: Array, children: Array, margins: Array, out: Array) -> int:
    """Write row and cell of every pair to ``out``, if there is room, and return their number."""
    count = 0
    waiting = np.empty(len(thresholds) + 2, np.int64)
    for i in range(len(X)):
        waiting[0] = 0 if len(thresholds) else -1
        left = 1
        while left > 0:
            left -= 1
            node = waiting[left]
            if node < 0:
                if count < len(out):
                    out[count, 0] = i
                    out[count, 1] = -1 - node
                count += 1
                continue
            along = 0.0
            for j in range(X.shape[1]):
                along += planes[node, j] * X[i, j]
            if along > thresholds[node] or along >= thresholds[node] - margins[node]:
                waiting[left] = children[node, 1]
                left += 1
            if not along > thresholds[node] or along <= thresholds[node] + margins[node]:
                waiting[left] = children[node, 0]
                left += 1
    return count


def _plane(rows: Any, index: Array, seed: np.random.SeedSequence) -> tuple[Array, float, float, Array] | None:
    """Return a plane, its threshold, the rows' width and which are on its right; None if they cannot be divided."""
    rng = np.random.default_rng(seed)
    some = index
    if len(index) > SAMPLE_ROWS:
        some = index[np.sort(rng.choice(len(index), SAMPLE_ROWS, replace=False))]
    for plane in _directions(rows[some].astype(np.float64), rng):
        along = np.concatenate([rows[each] @ plane for each in _parts(index)])
        threshold = _median(along)
        right = along > threshold
        share = np.count_nonzero(right) / len(right)
        if LEAST_SHARE <= share <= 1.0 - LEAST_SHARE:
            return plane, threshold, float(along.std()), right
    return None


def _parts(index: Array) -> list[Array]:
    return [index[span] for span in slabs_of(len(index))]


def slabs_of(n: int, step: int = 1 << 14) -> list[slice]:
    """Return slices of at most ``step`` of ``n`` rows."""
    return [slice(i, i + step) for i in range(0, n, step)]


def _median(along: Array) -> float:
    """Return the number midway between the two values next to each other that halve ``along`` best."""
    ordered = np.sort(along)
    middle = len(ordered) // 2
    value = ordered[middle]
    first = int(np.searchsorted(ordered, value, "left"))
    last = int(np.searchsorted(ordered, value, "right"))
    at = first if first > 0 and (last == len(ordered) or middle - first <= last - middle) else last
    if at in (0, len(ordered)):
        return float(value)
    return float(0.5 * (ordered[at - 1] + ordered[at]))


def _directions(X: Array, rng: np.random.Generator) -> Array:
    """Return up to `DIRECTIONS` principal directions of rows, largest variance first, by subspace iteration."""
    X = X - X.mean(axis=0)
    count = min(DIRECTIONS, X.shape[1])
    basis = rng.standard_normal((X.shape[1], count))
    for _ in range(8):
        basis, _ = np.linalg.qr(X.T @ (X @ basis))
    _, vectors = np.linalg.eigh((X @ basis).T @ (X @ basis))
    found: Array = (basis @ vectors[:, ::-1]).T
    return found
