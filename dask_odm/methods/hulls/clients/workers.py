"""Clients on the workers: the rows of two hulls stay with clients, which answer the server's questions.

Each client has about as many consecutive rows, however the rows are cut into chunks. The caller chooses the number of
clients, whatever the number of workers. There is a task for every worker thread, and neighbouring clients share it,
since a task costs as much as the work of many clients. This changes neither the messages nor any bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse, vstack

from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import Columns
from dask_odm.engine.rounds import Rounds
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.hulls.clients.rows import ClientRows, ClientState, begin, floats_of
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.methods.hulls.problem.query import HullQuery, Totals
from dask_odm.methods.hulls.saddle_point import hadamard, rotation
from dask_odm.typing import Array

DEFAULT_CLIENTS = 20  # the paper's
STEPS_KEPT = 64  # steps between checkpoints; a worker that dies costs so many at most, and a checkpoint two rounds
HELD = 4  # peak memory of preparing a client's rows, relative to the rows in float64
VECTORS = 16  # vectors with a number a row that a client holds or works in


class ClientSource(Protocol):
    """The source of a client's rows; a task carries it."""

    def blocks(self) -> list[RowBlock]:
        """Return copies of the raw rows."""


@dataclass(frozen=True, eq=False)
class StoreRange:
    """The rows ``start:stop`` of a store."""

    store: Store
    columns: Columns
    start: int
    stop: int

    def blocks(self) -> list[RowBlock]:
        store = self.store
        found = []
        buffer = store.buffer()
        for i in range(self.start // store.chunk_rows, -(-self.stop // store.chunk_rows)):
            block = store.read(i, buffer)
            y, weight = self.columns(block)
            first = max(self.start - block.first, 0)
            rows = slice(first, min(self.stop - block.first, len(block.X)))
            found.append(RowBlock(block.X[rows].copy(), y[rows], weight[rows], block.first + first))
        return found


@dataclass(frozen=True, eq=False)
class ArrayRange:
    """Rows in memory: X (n, d), dense or CSR, label codes (n,) and weights (n,); empty weights stand for 1."""

    X: Any
    y: Array
    weight: Array

    def blocks(self) -> list[RowBlock]:
        return [RowBlock(self.X, self.y, self.weight)]


@dataclass(frozen=True, eq=False)
class Preparation:
    """The function that prepares the rows of a client: its coordinates, weights and first log e.

    Parameters
    ----------
    query : HullQuery
        Makes features, classes and weights of raw rows.
    log_cap : float
        Largest log e of a row of weight 1.
    start : tuple of two floats
        First log e of a row of weight 1, for either class.
    signs : ndarray of shape (2^k,), or None
        Signs of the rotation of the padded features; None means no rotation.
    size : int
        Number of coordinates, padded with zeros at the end.
    """

    query: HullQuery
    log_cap: float
    start: tuple[float, float]
    signs: Array | None
    size: int

    def __call__(self, source: ClientSource) -> ClientRows:
        """Prepare the rows of one client."""
        pieces = list(self.query.pieces(source.blocks()))
        sign, weight = (np.concatenate([part[i] for part in pieces]) for i in (1, 2))
        order = np.concatenate([np.flatnonzero(sign == each) for each in (1.0, -1.0)])
        S = self._columns([part[0] for part in pieces], order)
        weight = weight[order]
        return ClientRows(S, int((sign == 1.0).sum()), weight, np.log(weight), self.log_cap, self.start)

    def keeps_sparse(self, X: Any) -> bool:
        """Whether the rows ``X`` stay sparse: if they are neither rotated nor scaled."""
        return bool(issparse(X)) and self.signs is None and self.query.features.scaling is None

    def _columns(self, pieces: Sequence[Any], order: Array) -> Any:
        """Return the rows in ``order`` as columns in the clients' coordinates, (size, n)."""
        if self.keeps_sparse(pieces[0]):
            return vstack(pieces, format="csr")[order].T
        return self.rotated(np.concatenate([self.query.features.dense(X) for X in pieces])[order])

    def rotated(self, rows: Array) -> Array:
        """Convert rows (n, d) to columns in the clients' coordinates, (size, n)."""
        S = np.zeros((self.size, len(rows)))
        S[: rows.shape[1]] = rows.T
        if self.signs is not None:
            hadamard(S[: len(self.signs)], self.signs)
        return S

    def back(self, points: Array) -> Array:
        """Convert points (m, size) in the clients' coordinates to features (m, d)."""
        if self.signs is not None:
            columns = np.array(points.T[: len(self.signs)], order="C")
            hadamard(columns, np.ones(len(self.signs)))
            points = (self.signs[:, None] * columns).T
        return points[:, : self.query.features.d]

    def within(self, w: Array) -> Array:
        """Project w (size,) onto the directions that belong to features, in the clients' coordinates."""
        return w if self.signs is None else self.rotated(self.back(w[None]))[:, 0]

    def totals(self, totals: Totals) -> Totals:
        """Convert the totals of the features to the clients' coordinates."""
        return replace(totals, sums=self.rotated(totals.sums).T)


def prepared_for(problem: HullProblem, block_size: int | None, seed: int) -> Preparation:
    """Prepare rows as they are for steps in all coordinates, and rotated and padded for steps in blocks."""
    weights = problem.totals.weight
    start = -math.log(weights[0]), -math.log(weights[1])
    log_cap = -math.log(problem.mass) if problem.mass > 0 else math.inf
    signs = None
    size = problem.d
    if block_size is not None:
        signs, size = rotation(problem.d, seed)
        size += -size % min(block_size, size)
    return Preparation(problem.query, log_cap, start, signs, size)


def row_ranges(rows: int, clients: int) -> list[tuple[int, int]]:
    """Return the first row and the end of every client's range."""
    return list(pairwise(rows * j // clients for j in range(clients + 1)))


def client_bytes(rows: int, d: int, size: int, stored: int | None = None) -> int:
    """Return the peak bytes of a client with so many rows of ``d`` features in ``size`` coordinates.

    ``stored`` is the number of stored entries of rows that stay sparse.
    """
    if stored is None:
        return 8 * rows * (HELD * max(d, size) + VECTORS)
    return 8 * (2 * HELD * stored + rows * VECTORS)


class RowClients:
    """The clients of `dask_odm.methods.hulls.clients.problem.Clients`, on a cluster's workers or in this process.

    There is one of ``sources`` for each client, and one of ``states`` in a resumed run. ``scratch`` is as in `Rounds`.
    """

    def __init__(
        self,
        cluster: Cluster,
        preparation: Preparation,
        sources: Sequence[ClientSource],
        states: Sequence[ClientState] | None = None,
        scratch: str | None = None,
    ) -> None:
        self.count = len(sources)
        self.rounds = 0
        self.floats = 0
        groups = [slice(a, b) for a, b in row_ranges(self.count, min(self.count, cluster.slots))]
        self._rounds = Rounds(
            cluster,
            [list(sources[group]) for group in groups],
            _begin_all,
            name="clients",
            hold=_PrepareAll(preparation),
            states=None if states is None else [list(states[group]) for group in groups],
            checkpoint_every=STEPS_KEPT,
            scratch=scratch,
        )

    def ask(self, step: Callable[..., Any], message: Any) -> list[Any]:
        return self._told(message, self._rounds.ask(_StepAll(step), message))

    def read(self, question: Callable[..., Any], message: Any) -> list[Any]:
        return self._told(message, self._rounds.read(_ReadAll(question), message))

    def states(self) -> list[ClientState]:
        """Return the state of every client. Fetching it is not counted as communication."""
        return [state for group in self._rounds.snapshot() for state in group]

    def _told(self, message: Any, groups: list[list[Any]]) -> list[Any]:
        answers = [answer for group in groups for answer in group]
        self.rounds += 1
        self.floats += self.count * floats_of(message) + floats_of(answers)
        return answers


# Callables that tasks run for all clients of a group ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _PrepareAll:
    preparation: Preparation

    def __call__(self, sources: Sequence[ClientSource]) -> list[ClientRows]:
        return [self.preparation(source) for source in sources]


def _begin_all(held: Sequence[ClientRows]) -> list[ClientState]:
    return [begin(rows) for rows in held]


@dataclass(frozen=True, eq=False)
class _StepAll:
    step: Callable[..., Any]

    def __call__(self, held: Sequence[ClientRows], states: Sequence[ClientState], message: Any) -> tuple[Any, Any]:
        moved = [self.step(rows, state, message) for rows, state in zip(held, states, strict=True)]
        return [state for state, _ in moved], [answer for _, answer in moved]


@dataclass(frozen=True, eq=False)
class _ReadAll:
    question: Callable[..., Any]

    def __call__(self, held: Sequence[ClientRows], states: Sequence[ClientState], message: Any) -> list[Any]:
        return [self.question(rows, state, message) for rows, state in zip(held, states, strict=True)]
