"""The corral of Wolfe's method: some points of a polytope, and the point of least norm of their hull.

points   affinely independent, p_1 … p_k, with weights above zero that make the point of least norm of their affine hull
factor   upper triangular R with ``RᵀR = s 11ᵀ + PPᵀ``: a column more by one triangular system, one less by rotations;
         systems are solved with a step of refinement, which squares the error of R

All is in buffers that stay: a point that joins is one row more of them, and what is behind one that goes moves up.
P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_odm.learning.step_log import Record
from dask_odm.linalg.jit import compiled
from dask_odm.methods.hulls.problem.hulls import RowSets, Vertex
from dask_odm.typing import Array

DEPENDENT = 1e-13  # of a point's square: what is left of it beside the corral's, where it is of their affine hull
DROPPED = 1e-14  # a weight that is zero but for rounding
LEAST_ROOM = 16  # points that the buffers have room for to begin with


@dataclass(frozen=True, eq=False)
class CorralState:
    """Where a run stands: all that it takes to go on from there.

    Attributes
    ----------
    directions : ndarray of shape (k, d)
        That each point of the corral was asked for.
    points, positive : ndarrays of shape (k, d)
        The corral, and the points of the positive hull that it is of.
    weights : ndarray of shape (k,)
    factor : ndarray of shape (k, k)
        R.
    spread : float
        s.
    lower : float
        The largest lower bound so far.
    passes : int
        Over the rows before the last look, which is taken again where a run goes on.
    memory : ndarray
        The problem's, before the last look.
    history : list of dict
    """

    directions: Array
    points: Array
    positive: Array
    weights: Array
    factor: Array
    spread: float
    lower: float
    passes: int
    memory: Array
    history: list[Record]


class Corral:
    """Points and their weights.

    Parameters
    ----------
    directions, points, positive : ndarrays of shape (k, d)
    weights : ndarray of shape (k,)
    factor : ndarray of shape (k, k)
    spread : float
        As of `CorralState`.
    rows : sequence of RowSets or None
        Of which every point is; not of rows that are streamed.
    """

    def __init__(
        self, directions: Array, points: Array, positive: Array, weights: Array, factor: Array, spread: float,
        rows: Sequence[RowSets | None],
    ) -> None:  # fmt: skip
        self.weights, self.spread, self.rows = weights, spread, list(rows)
        self._directions = directions
        self._points = points
        self._positive = positive
        self._factor = factor
        self._make_room(LEAST_ROOM)

    @classmethod
    def of_vertex(cls, vertex: Vertex, scale: float) -> Corral:
        """A vertex alone, that was asked for by no direction; ``scale`` is the largest norm of a row."""
        point = vertex.difference[None]
        spread = max(scale**2, np.finfo(float).tiny)
        factor = np.array([[np.sqrt(spread + float(point[0] @ point[0]))]])
        return cls(np.zeros_like(point), point, vertex.points[:1], np.ones(1), factor, spread, [vertex.rows])

    @classmethod
    def of_state(cls, state: CorralState, rows: Sequence[RowSets | None]) -> Corral:
        """That of a run which goes on."""
        arrays = state.directions, state.points, state.positive, state.weights
        return cls(*arrays, state.factor, state.spread, rows)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def points(self) -> Array:
        """(k, d)."""
        return self._points[: len(self)]

    @property
    def nearest(self) -> Array:
        """The point of least norm, (d,)."""
        return np.asarray(self.weights @ self.points)

    @property
    def nearest_positive(self) -> Array:
        """The point of the positive hull that it is of, (d,)."""
        return np.asarray(self.weights @ self._positive[: len(self)])

    def state(self, lower: float, passes: int, memory: Array, history: Sequence[Record]) -> CorralState:
        """A copy of all that is kept."""
        k = len(self)
        directions, points, positive = (each[:k].copy() for each in (self._directions, self._points, self._positive))
        factor = np.triu(self._factor[:k, :k])
        return CorralState(
            directions, points, positive, self.weights, factor, self.spread, lower, passes, memory, list(history)
        )

    def join(self, direction: Array, vertex: Vertex) -> bool:
        """Take in the vertex of a direction, and move the nearest point; False where float64 tells no way further."""
        k = len(self)
        p = vertex.difference
        column = self.spread + self.points @ p
        solve_transposed(self._factor, column)
        whole = self.spread + float(p @ p)
        left = whole - float(column @ column)
        if left <= DEPENDENT * whole:
            return False
        if k == len(self._points):
            self._make_room(2 * k)
        self._directions[k], self._points[k], self._positive[k] = direction, p, vertex.points[0]
        self._factor[:k, k], self._factor[k, k] = column, np.sqrt(left)
        self.weights = np.append(self.weights, 0.0)
        self.rows.append(vertex.rows)
        self._move()
        return True

    def _move(self) -> None:
        """Towards the least norm of the affine hull, without the points whose weight gets to zero."""
        while True:
            aim = self._affine_weights()
            if (aim > DROPPED).all():
                self.weights = aim
                return
            falling = np.flatnonzero(aim <= DROPPED)
            fall = self.weights[falling] - aim[falling]
            steps = np.divide(self.weights[falling], fall, out=np.zeros(len(fall)), where=fall > 0)
            step = min(1.0, float(steps.min()))
            self.weights = (1.0 - step) * self.weights + step * aim
            self.weights[falling[steps == steps.min()]] = 0.0
            self._keep(self.weights > DROPPED)

    def _affine_weights(self) -> Array:
        """Weights (k,), of sum 1, of the point of least norm of the points' affine hull."""
        points = self.points
        u = np.ones(len(self))
        self._solve(u)
        error = 1.0 - self.spread * u.sum() - points @ (u @ points)
        self._solve(error)
        u += error
        return np.asarray(u / u.sum())

    def _solve(self, b: Array) -> None:
        """``RᵀR x = b``, x where b was."""
        solve_transposed(self._factor, b)
        solve_upper(self._factor, b)

    def _keep(self, stay: Array) -> None:
        """Only the points that ``stay`` (mask); weights sum to one again."""
        k = len(self)
        for removed, i in enumerate(np.flatnonzero(~stay)[::-1]):
            remove_column(self._factor, k - removed, int(i))
        for buffer in (self._directions, self._points, self._positive):
            move_up(buffer, stay)
        self.rows = [rows for rows, stays in zip(self.rows, stay, strict=True) if stays]
        self.weights = self.weights[stay] / self.weights[stay].sum()

    def _make_room(self, room: int) -> None:
        """Buffers for as many points."""
        k = len(self)
        grown = []
        for buffer in (self._directions, self._points, self._positive, self._factor):
            rows = max(k, room)
            grown.append(np.zeros((rows, rows if buffer is self._factor else buffer.shape[1])))
            grown[-1][:k, : k if buffer is self._factor else None] = buffer[:k]
        self._directions, self._points, self._positive, self._factor = grown


@compiled
def solve_transposed(factor: Array, b: Array) -> None:
    """``Rᵀ x = b`` (n,) by the first n rows and columns of an upper triangular ``factor``; x where b was."""
    for i in range(b.size):
        x = b[i] / factor[i, i]
        b[i] = x
        for j in range(i + 1, b.size):
            b[j] -= factor[i, j] * x


@compiled
def solve_upper(factor: Array, b: Array) -> None:
    """``R x = b``, as `solve_transposed`."""
    for i in range(b.size - 1, -1, -1):
        s = b[i]
        for j in range(i + 1, b.size):
            s -= factor[i, j] * b[j]
        b[i] = s / factor[i, i]


@compiled
def remove_column(factor: Array, n: int, k: int) -> None:
    """Make of the triangular factor of n columns that of the others than ``k``, in its place, by rotations."""
    for i in range(n):
        for j in range(max(k, i - 1), n - 1):
            factor[i, j] = factor[i, j + 1]
    for i in range(k, n - 1):
        a = factor[i, i]
        b = factor[i + 1, i]
        length = np.hypot(a, b)
        c = a / length
        s = b / length
        for j in range(i, n - 1):
            upper = factor[i, j]
            lower = factor[i + 1, j]
            factor[i, j], factor[i + 1, j] = c * upper + s * lower, c * lower - s * upper


@compiled
def move_up(buffer: Array, stay: Array) -> None:
    """Move the rows that ``stay`` (mask) to the front, in their order."""
    to = 0
    for i in range(stay.size):
        if stay[i]:
            for j in range(buffer.shape[1]):
                buffer[to, j] = buffer[i, j]
            to += 1
