"""Grow the tree of cells: nodes are split at the median of their rows along the first principal direction.

Sources: Thomann, Blaschzyk, Meister and Steinwart, *Spatial decompositions for large scale SVMs* (AISTATS 2017), and
Segata and Blanzieri, *Fast and scalable local kernel machines* (JMLR 11, 2010), whose cells are of other shapes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.kernels.blocks import PANEL_BYTES
from dask_odm.linalg.csr_rows import CSRRows, row_width
from dask_odm.linalg.jit import compiled_in_order
from dask_odm.models.cell_model import CellTree
from dask_odm.typing import Array


@dataclass(frozen=True)
class TreeGrowth:
    """How the planes of a tree are found."""

    least_share: float = 0.05  # of a node's rows on either side of a plane
    directions: int = 4  # principal directions that are tried, one after the other
    direction_rows: int = 1000  # of a node, from which they are found; fewer if they would take `COPIED_BYTES`


GROWTH = TreeGrowth()


def grow(rows: Any, most: int, seed: int, known: CellTree | None = None, at: int = 0) -> tuple[CellTree, Array, Array]:
    """Return a tree over scaled ``rows`` (n, d) whose cells have at most ``most`` of them.

    Equal rows stay together, so that a cell with many of them may have more. For every node, the second array
    has the standard deviation of its rows along its direction, the third the seconds that dividing them took. Rows are
    divided by the planes of a ``known`` tree, from its node ``at`` on, as far as it goes.
    """
    nodes: list[tuple[Array, float, float, float]] = []  # planes, thresholds, widths and seconds
    children: list[list[int]] = []
    cells = 0
    # nodes to divide: their rows, the node above with the side they are on, and their place in the known tree
    waiting: list[tuple[Array, int, int, int]] = [(np.arange(len(rows)), -1, 0, at if _root(known) == 0 else -1)]
    while waiting:
        index, above, side, place = waiting.pop()
        number = len(nodes)
        began = time.perf_counter()
        found = None
        if len(index) > most:
            found = _known_plane(rows, index, known, place)
            if found is None:
                place = -1
                found = _plane(rows, index, most, np.random.default_rng([seed, number]))
        if above >= 0:
            children[above][side] = -1 - cells if found is None else number
        if found is None:
            cells += 1
            continue
        plane, threshold, width, right = found
        nodes.append((plane, threshold, width, time.perf_counter() - began))
        children.append([0, 0])
        left_place, right_place = (-1, -1) if known is None or place < 0 else known.children[place].tolist()
        waiting += [(index[right], number, 1, right_place), (index[~right], number, 0, left_place)]
    if not nodes:
        return CellTree.single(rows.shape[1]), np.empty(0), np.empty(0)
    planes, thresholds, widths, seconds = (np.array(each) for each in zip(*nodes, strict=True))
    return CellTree(planes, thresholds, np.array(children, np.int64)), widths, seconds


def _root(tree: CellTree | None) -> int:
    """Return the number of a tree's first node, or −1 if there is none."""
    return 0 if tree is not None and len(tree.thresholds) else -1


def _known_plane(
    rows: Any, index: Array, known: CellTree | None, place: int
) -> tuple[Array, float, float, Array] | None:
    """Return what `_plane` does, of the plane at a node of a known tree; None without one, or if it divides nothing."""
    if known is None or place < 0:
        return None
    along = _along(rows, index, known.planes[place])
    right = along > known.thresholds[place]
    if right.all() or not right.any():
        return None
    return known.planes[place], float(known.thresholds[place]), float(along.std()), right


def places_in(known: CellTree, tree: CellTree) -> Array:
    """Return the node of a ``known`` tree where each cell of a ``tree`` is that was grown by it, or −1 if none is."""
    found = np.full(tree.count, -1)
    waiting = [(_root(tree), _root(known))]
    while waiting:
        node, place = waiting.pop()
        if node < 0:
            found[-1 - node] = place
        elif place >= 0 and np.array_equal(tree.planes[node], known.planes[place]):
            waiting += zip(tree.children[node].tolist(), known.children[place].tolist(), strict=True)
    return found


def levels_of(tree: CellTree, cell_rows: Array, seconds: Array) -> list[dict[str, Any]]:
    """Return a record for each level of a tree, from the root on, of the rows of its cells and its nodes' seconds."""
    nodes = len(tree.thresholds)
    rows = np.concatenate([np.zeros(nodes, np.int64), cell_rows[::-1]])  # cell c is at −1 − c, as in `children`
    for node in reversed(range(nodes)):  # those below have higher numbers
        rows[node] = rows[tree.children[node]].sum()
    level = np.array([0 if nodes else -1])
    found: list[dict[str, Any]] = []
    while len(level):
        inner = level[level >= 0]
        record = {"level": len(found), "nodes": len(inner), "cells": len(level) - len(inner)}
        record |= {"least_rows": int(rows[level].min()), "most_rows": int(rows[level].max())}
        found.append(record | {"seconds": float(seconds[inner].sum())})
        level = tree.children[inner].ravel()
    return found


def _plane(rows: Any, index: Array, most: int, rng: np.random.Generator) -> tuple[Array, float, float, Array] | None:
    """Return a plane, its threshold, the rows' width and which are on its right; None if they cannot be divided.

    If nearly all rows are equal along the principal directions, a random one is tried, along which rows are equal only
    if they are. It divides those that differ as long as half a cell of them is on one side.
    """
    count = min(len(index), GROWTH.direction_rows, max(1, COPIED_BYTES // (8 * row_width(rows))))
    some = index[np.sort(rng.choice(len(index), count, replace=False))]
    directions = [(plane, GROWTH.least_share * len(index)) for plane in _directions(rows[some].astype(np.float64), rng)]
    for plane, least in (*directions, (rng.standard_normal(rows.shape[1]), most / 2)):
        along = _along(rows, index, plane)
        threshold = _median(along)
        right = along > threshold
        if least <= np.count_nonzero(right) <= len(right) - least:
            return plane, threshold, float(along.std()), right
    return None


def _along(rows: Any, index: Array, plane: Array) -> Array:
    """Return the products of the plane and the rows at ``index``."""
    if isinstance(rows, CSRRows):
        return rows[index].along(plane)
    along = np.empty(len(index))
    for span in slabs_of(rows, len(index)):
        _project(rows[index[span]], plane, along[span])
    return along


@compiled_in_order
def _project(X: Array, plane: Array, out: Array) -> None:
    """Write the products of rows and plane to ``out``, to the bit as a tree finds them; BLAS parts equal rows."""
    for i in range(len(X)):
        along = 0.0
        for j in range(X.shape[1]):
            along += plane[j] * X[i, j]
        out[i] = along


def slabs_of(scaled: Any, count: int | None = None) -> list[slice]:
    """Return slices of all scaled rows, or of ``count``, that take `PANEL_BYTES` when they are read."""
    n = scaled.shape[0]
    step = max(1, PANEL_BYTES // (row_width(scaled) * scaled.dtype.itemsize))
    return [slice(start, start + step) for start in range(0, n if count is None else count, step)]


def _median(along: Array) -> float:
    """Return the number midway between the two values next to each other that halve ``along`` best."""
    values, counts = np.unique(along, return_counts=True)
    if len(values) == 1:
        return float(values[0])
    below = np.cumsum(counts)[:-1]
    at = int(np.abs(below - len(along) // 2).argmin())
    return float(0.5 * (values[at] + values[at + 1]))


def _directions(rows: Any, rng: np.random.Generator) -> Array:
    """Return up to `TreeGrowth.directions` principal directions of rows by subspace iteration, widest first."""
    if isinstance(rows, CSRRows):
        X = rows.matrix()
        mean = np.asarray(X.mean(axis=0))  # taken from products, since the difference is not sparse
    else:
        X = rows - rows.mean(axis=0)
        mean = np.zeros(X.shape[1])
    basis = rng.standard_normal((X.shape[1], min(GROWTH.directions, X.shape[1])))
    for _ in range(3):
        products = X @ basis - mean @ basis
        basis, _ = np.linalg.qr(X.T @ products - np.outer(mean, products.sum(axis=0)))
    products = X @ basis - mean @ basis
    _, vectors = np.linalg.eigh(products.T @ products)
    return (basis @ vectors[:, ::-1]).T
