"""Passes: the one way to sum over all rows, wherever they are and whatever is summed.

A *query* is a question about rows at one point. Its methods take blocks of rows and return their sum. `Passes` hands
it the blocks, group by group, and adds the answers in the order of the rows. So no bit depends on which thread or
worker added what. `ThreadPasses` has rows in memory; `dask_odm.engine.passes.StorePasses` has the chunks of a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, Protocol

from scipy.sparse import csr_array, issparse

from dask_odm.events import Meter
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

# A node of the binary tree in which sums are added up: its level, its place in that level, and the sum of the 2**level
# parts below it.
Node = tuple[int, int, Any]


def tree_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Add the sums of neighbours below the same node, up to the nodes that have no neighbour among them.

    Nodes are of a run of parts, in its order. Of a generator, only a few sums are held at a time. A run of n parts has
    up to ``2 log2(n)`` nodes, and neighbouring runs are joined by a further call.
    """
    held: list[Node] = []
    for level, place, total in nodes:
        while place % 2 and held and held[-1][:2] == (level, place - 1):
            total = held.pop()[2] + total
            level += 1
            place //= 2
        held.append((level, place, total))
    return held


def tree_sum(parts: Iterable[Any]) -> Any:
    """Add ``parts``, a power of two in number, pair by pair. Of a generator, only a few parts are held at a time.

    Aligned runs of parts, each a power of two long, may be summed first: a `tree_sum` of their sums has the same bits.
    So have the `tree_nodes` of any runs.
    """
    ((_, _, total),) = tree_nodes((0, place, part) for place, part in enumerate(parts))
    return total


def summed_by_threads(function: Callable[[int], Any], count: int, threads: int, phase: str | None = None) -> Any:
    """Return the `tree_sum` of ``function(0)`` to ``function(count - 1)``, called by threads, which hold few results.

    ``count`` is a power of two. The calls are reported as progress of the ``phase``.
    """
    held: dict[tuple[int, int], Any] = {}  # sums by their level and place
    lock = threading.Lock()

    def add_up(place: int) -> None:
        level = 0
        total = function(place)
        while True:
            with lock:
                other = held.pop((level, place ^ 1), None)
                if other is None:
                    held[level, place] = total
                    return
            total = other + total if place % 2 else total + other
            level += 1
            place //= 2

    run_threads(add_up, range(count), threads, phase)
    ((_, total),) = held.items()
    return total


PASS = "pass"  # the phase that a pass over the rows reports


@dataclass(frozen=True, eq=False)
class RowBlock:
    """A block of rows ``X`` (n, d), dense, CSR or `Rows`, in the form that the query takes.

    ``y`` (n,) are targets, or the codes of two classes: 1 for the positive one, 0 for the other, −1 for a row that is
    left out. An empty ``weight`` means 1 for all; weights of classes are not in it. ``first`` is the number of the
    first row. ``values`` (n, r) are the rows' kernel values at landmarks, if kept.
    """

    X: Any
    y: Array
    weight: Array
    first: int = 0
    values: Array | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class PassBytes:
    """Bytes that one task of a pass holds at its peak, besides the rows of a block.

    A task holds several sums of ``sums`` bytes each, ``row`` bytes for every row of a block, and ``work`` of buffers.
    Of every row that it reads it keeps ``kept_bits`` bits for later passes. A sum also holds up to ``drawn`` rows of
    its own, of ``drawn_row`` bytes each. Answers for single rows take ``answer_row`` bytes for each row of a task.
    """

    sums: int
    row: int
    work: int
    kept_bits: int = 0
    drawn: int = 0
    drawn_row: int = 0
    answer_row: int = 0

    def of_sums(self, count: int, rows: int) -> int:
        """Return the bytes of ``count`` sums, which hold ``rows`` drawn rows together at most."""
        return count * self.sums + min(count * self.drawn, rows) * self.drawn_row


class Passes(Protocol):
    """Sums over all rows."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def groups(self) -> int:
        """Number of groups of rows, the same for every pass over these rows. Their sums are added in order."""
        ...

    @property
    def streamed(self) -> bool:
        """Whether a block is gone after it was summed, so that a query must copy what it needs of its rows later."""
        ...

    def run(
        self,
        query: Any,
        method: Callable[..., Any],
        *arguments: Any,
        of_groups: Any = (),
        nbytes: int | None = 0,
        kept: str | None = None,
    ) -> Any:
        """Return the sum of ``method(query, blocks, *arguments)`` over all rows.

        The query is sent to the threads or workers that have the rows. If it has an attribute ``piece_rows`` (int), it
        must sum a block in runs of that many rows from the first on, and may be given these runs as blocks. ``method``
        is one of its class, takes an iterable of `RowBlock`, and returns a sum that supports ``+``. ``of_groups`` has
        one more argument for each group, or is empty; ``nbytes`` are those of the answer, if it is large, and None if
        it is a list of values of all rows, which no worker is to hold. ``kept`` names an attribute of the answer, a
        tuple with an item for each group, which may stay where the groups are: it can be handed back as ``of_groups``
        of a later pass, and not be looked at if rows are `streamed`.
        """
        ...


def rows_between(X: Any, start: int, stop: int) -> Any:
    """Return rows ``start:stop`` of an array or CSR array, sharing its memory."""
    if not issparse(X):
        return X[start:stop]
    bounds = X.indptr[start : stop + 1]
    entries = slice(int(bounds[0]), int(bounds[-1]))
    return csr_array((X.data[entries], X.indices[entries], bounds - bounds[0]), shape=(len(bounds) - 1, X.shape[1]))


class ThreadPasses:
    """Passes over rows in memory, dense or CSR, by threads of this process; their number changes no bit."""

    streamed = False

    def __init__(self, groups: Sequence[Sequence[RowBlock]], threads: int = 1) -> None:
        self._groups = groups
        self._threads = threads
        self.groups = len(groups)
        self.rows = sum(len(block) for group in groups for block in group)

    @classmethod
    def cut(
        cls, X: Any, y: Array, weight: Array, step: int, most: int, threads: int = 1, *, aligned: bool = False
    ) -> ThreadPasses:
        """Cut ``X`` into blocks of ``step`` rows, and these into up to ``most`` groups of about as many blocks each.

        ``aligned`` groups have as many blocks as a power of two, except for the last one.
        """
        starts = range(0, X.shape[0], step)
        blocks = [RowBlock(rows_between(X, i, i + step), y[i : i + step], weight[i : i + step], i) for i in starts]
        count = min(len(blocks), most)
        bounds = [len(blocks) * g // count for g in range(count + 1)]
        if aligned:
            each = 1 << (-(-len(blocks) // most) - 1).bit_length()
            bounds = [*range(0, len(blocks), each), len(blocks)]
        return cls([blocks[a:b] for a, b in pairwise(bounds)], threads)

    def run(
        self,
        query: Any,
        method: Callable[..., Any],
        *arguments: Any,
        of_groups: Any = (),
        nbytes: int | None = 0,
        kept: str | None = None,
    ) -> Any:
        more: Sequence[tuple[Any, ...]] = [(argument,) for argument in of_groups] or [()] * self.groups
        with single_threaded_blas, Meter(PASS, self.rows, "rows") as meter:

            def summed(part: tuple[Sequence[RowBlock], tuple[Any, ...]]) -> Any:
                group, argument = part
                found = method(query, group, *arguments, *argument)
                meter.add(sum(map(len, group)))
                return found

            parts = run_threads(summed, zip(self._groups, more, strict=True), self._threads)
        return reduce(add, parts)
