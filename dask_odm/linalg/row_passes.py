"""Passes: the one way to sum over all rows, whoever has them and whatever is summed.

A *query* is what is asked of rows at one point; its methods take blocks of rows and return their sum. `Passes` hands
the blocks to it, group by group, and adds up the answers in the order of the rows, so that no bit depends on who added
what where. `ThreadPasses` has rows in memory; `dask_odm.engine.passes.StorePasses` the chunks of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, Protocol

from scipy.sparse import csr_array, issparse

from dask_odm.events import Meter
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

PASS = "pass"  # the phase that a pass over the rows reports


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some rows.

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (n, d), or Rows
        As the query takes them.
    y : ndarray of shape (n,)
        Targets: label codes of two classes, or whatever the loss is a function of.
    weight : ndarray of shape (n,), or empty: all 1
    first : int
        The first one's number.
    values : ndarray of shape (n, r), optional
        The rows' kernel values at landmarks, where these are kept.
    """

    X: Any
    y: Array
    weight: Array
    first: int = 0
    values: Array | None = None


def rows_of(block: RowBlock) -> int:
    """How many rows a block has."""
    return len(block.y)


@dataclass(frozen=True)
class PassBytes:
    """What one task of a pass holds at its peak, besides the rows of a block.

    Parameters
    ----------
    sums : int
        Bytes of one sum; a task holds several.
    row : int
        Bytes for every row of a block.
    work : int
        Bytes of buffers.
    """

    sums: int
    row: int
    work: int


class Passes(Protocol):
    """Sums over all rows."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def groups(self) -> int:
        """Groups of rows, whose sums are added up in order; the same for every pass over the same rows."""
        ...

    @property
    def streamed(self) -> bool:
        """Whether a block is gone after it was summed: what a query needs of its rows later it has to take along."""
        ...

    def run(
        self,
        query: Any,
        method: Callable[..., Any],
        *arguments: Any,
        of_groups: Sequence[Any] = (),
        nbytes: int = 0,
    ) -> Any:
        """What ``method(query, blocks, *arguments)`` sums over all rows.

        Parameters
        ----------
        query : object
            Sent to whoever has the rows. If it has an attribute ``piece_rows`` (int), it must sum a block run by run,
            so many rows each from the first on, and may be given these runs as blocks.
        method : callable
            Of the query's class; takes an iterable of `RowBlock` and returns what can be added.
        of_groups : sequence
            One more argument for every group, if there is one.
        nbytes : int
            Bytes of the answer, where they are many.
        """
        ...


def rows_between(X: Any, start: int, stop: int) -> Any:
    """Rows ``start:stop`` of an array or CSR array, which share the memory of all."""
    if not issparse(X):
        return X[start:stop]
    bounds = X.indptr[start : stop + 1]
    entries = slice(int(bounds[0]), int(bounds[-1]))
    return csr_array((X.data[entries], X.indices[entries], bounds - bounds[0]), shape=(len(bounds) - 1, X.shape[1]))


class ThreadPasses:
    """Passes over rows in memory, dense or CSR, by threads of this process.

    Parameters
    ----------
    groups : sequence of sequences of RowBlock
    threads : int
        No bit depends on it.
    """

    streamed = False

    def __init__(self, groups: Sequence[Sequence[RowBlock]], threads: int = 1) -> None:
        self._groups = groups
        self._threads = threads
        self._sizes = [sum(map(rows_of, group)) for group in groups]
        self._rows = sum(self._sizes)

    @classmethod
    def cut(cls, X: Any, y: Array, weight: Array, step: int, most: int, threads: int = 1) -> ThreadPasses:
        """Blocks of ``step`` rows of ``X``, in up to ``most`` groups of about as many blocks."""
        starts = range(0, X.shape[0], step)
        blocks = [RowBlock(rows_between(X, i, i + step), y[i : i + step], weight[i : i + step], i) for i in starts]
        count = min(len(blocks), most)
        bounds = [len(blocks) * g // count for g in range(count + 1)]
        return cls([blocks[a:b] for a, b in pairwise(bounds)], threads)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def groups(self) -> int:
        return len(self._groups)

    def run(
        self,
        query: Any,
        method: Callable[..., Any],
        *arguments: Any,
        of_groups: Sequence[Any] = (),
        nbytes: int = 0,
    ) -> Any:
        more: Sequence[tuple[Any, ...]] = [(argument,) for argument in of_groups] or [()] * self.groups
        with single_threaded_blas, Meter(PASS, self._rows, "rows") as meter:

            def summed(part: tuple[Sequence[RowBlock], int, tuple[Any, ...]]) -> Any:
                group, size, argument = part
                found = method(query, group, *arguments, *argument)
                meter.add(size)
                return found

            parts = run_threads(summed, zip(self._groups, self._sizes, more, strict=True), self._threads)
        return reduce(add, parts)
