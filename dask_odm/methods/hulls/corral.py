"""The corral of Wolfe's method: some points of a polytope, and the point of least norm of their hull.

points   affinely independent, p_1 … p_k, with weights above zero that make the point of least norm of their affine hull
factor   upper triangular R with ``RᵀR = s 11ᵀ + PPᵀ``. A triangular system adds a column, rotations remove one.
         Systems are solved with a step of refinement, which squares the error of R

All arrays are in buffers that are kept. A new point is appended; when a point leaves, those behind it move up.

A *forgetful* corral keeps the point of least norm only. A vertex moves that along the segment to it, which is a step of
Gilbert's algorithm.

Source: P. Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_odm.learning.step_log import Record
from dask_odm.linalg.jit import compiled
from dask_odm.methods.hulls.problem.hulls import RowSets, Vertex
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class CorralState:
    """The checkpoint of a run.

    ``vectors`` (3, k, d) are directions, the points that are their vertices, and the parts of these in the positive
    hull; a point is the difference of points of both hulls. ``weights`` has shape (k,), ``factor`` (k, k) is R and
    ``spread`` is s. ``lower`` is the largest lower bound so far; ``passes`` over the rows and the problem's ``memory``
    are those before the last vertex, which a resumed run computes again.
    """

    vectors: Array
    weights: Array
    factor: Array
    spread: float
    lower: float
    passes: int
    memory: Array
    history: list[Record]


class Corral:
    """Points and their weights; the arguments are as in `CorralState`.

    ``rows`` has the row sets that every point is made of, or None for rows that are not in memory.
    """

    def __init__(
        self, vectors: Array, weights: Array, factor: Array, spread: float, rows: Sequence[RowSets | None], *,
        forgetful: bool,
    ) -> None:  # fmt: skip
        self.forgetful = forgetful
        self.weights = weights
        self.spread = spread
        self.rows = list(rows)
        self._vectors = vectors
        self._factor = factor
        self._make_room(16)

    @classmethod
    def of_vertex(cls, vertex: Vertex, scale: float, *, forgetful: bool = False) -> Corral:
        """Build the corral of a single vertex that has no direction; ``scale`` is the largest norm of a row."""
        point = vertex.difference
        spread = max(scale**2, np.finfo(float).tiny)
        factor = np.array([[np.sqrt(spread + float(point @ point))]])
        vectors = np.stack([np.zeros_like(point), point, vertex.points[0]])[:, None]
        return cls(vectors, np.ones(1), factor, spread, [vertex.rows], forgetful=forgetful)

    @classmethod
    def of_state(cls, state: CorralState, rows: Sequence[RowSets | None], *, forgetful: bool) -> Corral:
        """Build the corral of a resumed run."""
        return cls(state.vectors, state.weights, state.factor, state.spread, rows, forgetful=forgetful)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def points(self) -> Array:
        """The points, (k, d)."""
        return self._vectors[1, : len(self)]

    @property
    def nearest(self) -> Array:
        """The point of least norm, (d,)."""
        return self.weights @ self.points

    @property
    def ends(self) -> Array:
        """The points of both hulls whose difference `nearest` is, (2, d)."""
        positive = self.weights @ self._vectors[2, : len(self)]
        return np.array([positive, positive - self.nearest])

    def state(self, lower: float, passes: int, memory: Array, history: Sequence[Record]) -> CorralState:
        """Return a copy of the corral as a checkpoint."""
        k = len(self)
        factor = np.triu(self._factor[:k, :k])
        arrays = self._vectors[:, :k].copy(), self.weights, factor
        return CorralState(*arrays, self.spread, lower, passes, memory, list(history))

    def join(self, direction: Array, vertex: Vertex) -> bool:
        """Add the vertex of a direction, and move the nearest point.

        Returns False, and changes nothing, if in float64 the vertex is in the affine hull of the corral already: if
        the share of its square outside is 1e-13 at most. A forgetful corral returns False, too, if it did not move.
        """
        k = len(self)
        p = vertex.difference
        column = self.spread + self.points @ p
        solve_transposed(self._factor, column)
        whole = self.spread + float(p @ p)
        left = whole - float(column @ column)
        if left <= 1e-13 * whole:
            return False
        if k == len(self._factor):
            self._make_room(2 * k)
        self._vectors[:, k] = direction, p, vertex.points[0]
        self._factor[:k, k] = column
        self._factor[k, k] = np.sqrt(left)
        self.weights = np.append(self.weights, 0.0)
        self.rows.append(vertex.rows)
        self._move()
        if self.forgetful:
            self._forget()
        return not self.forgetful or bool((self.nearest != direction).any())

    def _move(self, dropped: float = 1e-14) -> None:
        """Move to the point of least norm of the affine hull, dropping points whose weight falls to zero on the way.

        A weight of at most ``dropped`` is zero up to rounding.
        """
        while True:
            aim = self._affine_weights()
            if (aim > dropped).all():
                self.weights = aim
                return
            falling = np.flatnonzero(aim <= dropped)
            fall = self.weights[falling] - aim[falling]
            steps = np.divide(self.weights[falling], fall, out=np.zeros(len(fall)), where=fall > 0)
            step = min(1.0, float(steps.min()))
            self.weights = (1.0 - step) * self.weights + step * aim
            self.weights[falling[steps == steps.min()]] = 0.0
            self._keep(self.weights > dropped)

    def _forget(self) -> None:
        """Keep the point of least norm only."""
        z = self.nearest
        self._vectors[:, 0] = np.zeros_like(z), z, self.ends[0]
        self._factor[0, 0] = np.sqrt(self.spread + float(z @ z))
        self.weights = np.ones(1)
        self.rows = [None]

    def _affine_weights(self) -> Array:
        """Return the weights (k,), of sum 1, of the point of least norm in the points' affine hull."""
        points = self.points
        u = np.ones(len(self))
        self._solve(u)
        error = 1.0 - self.spread * u.sum() - points @ (u @ points)
        self._solve(error)
        u += error
        return u / u.sum()

    def _solve(self, b: Array) -> None:
        """Solve ``RᵀR x = b``, overwriting b with x."""
        solve_transposed(self._factor, b)
        solve_upper(self._factor, b)

    def _keep(self, stay: Array) -> None:
        """Keep only the points of the mask ``stay``, and make their weights sum to one again."""
        k = len(self)
        for removed, i in enumerate(np.flatnonzero(~stay)[::-1]):
            remove_column(self._factor, k - removed, int(i))
        first = int(np.argmin(stay))  # the first that goes; those before it are in their places
        self._vectors[:, first : stay.sum()] = self._vectors[:, first:k][:, stay[first:]]
        self.rows = [rows for rows, stays in zip(self.rows, stay, strict=True) if stays]
        self.weights = self.weights[stay] / self.weights[stay].sum()

    def _make_room(self, room: int) -> None:
        """Grow the buffers to hold ``room`` points, if they hold fewer."""
        more = max(0, room - len(self._factor))
        self._vectors = np.pad(self._vectors, ((0, 0), (0, more), (0, 0)))
        self._factor = np.pad(self._factor, ((0, more), (0, more)))


@compiled
def solve_transposed(factor: Array, b: Array) -> None:
    """Solve ``Rᵀ x = b`` (n,) with R the first n rows and columns of ``factor``, overwriting b with x."""
    for i in range(b.size):
        x = b[i] / factor[i, i]
        b[i] = x
        for j in range(i + 1, b.size):
            b[j] -= factor[i, j] * x


@compiled
def solve_upper(factor: Array, b: Array) -> None:
    """Solve ``R x = b`` (n,) with R the first n rows and columns of ``factor``, overwriting b with x."""
    for i in range(b.size - 1, -1, -1):
        s = b[i]
        for j in range(i + 1, b.size):
            s -= factor[i, j] * b[j]
        b[i] = s / factor[i, i]


@compiled
def remove_column(factor: Array, n: int, k: int) -> None:
    """Remove column ``k`` from the triangular factor of n columns, in place, by rotations."""
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
