"""Kernel products over a Dask cluster, for the exact solver and for certificates.

The rows are scaled and written once to a file in the fit's scratch folder, and workers map it into memory. Only vectors
and their products travel. The kernel matrix of the active rows is cut into parts along `Gram`'s fixed groups, one task
each. A task prefers the same worker in every product, and the worker keeps the tiles until the active set changes or
another fit begins. If a worker is lost, another one computes its tiles again, to the same bits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.storage.checked_writes import load_array, map_array
from dask_odm.data.storage.files import reserve
from dask_odm.engine.cluster import Cluster, return_free_memory
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Gram, Room, Tiling
from dask_odm.learning.problem.products import CROSS_BYTES, ChosenRows, Multiply, RowProducts, cross_blocks, cross_part
from dask_odm.linalg.row_passes import tree_sum
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array

ROWS = "rows.npy"
ADVICE = "Use fewer threads a worker or more memory."


@dataclass(frozen=True)
class ActiveRows:
    """Description of the kernel matrix of the active rows, as it is sent to tasks."""

    kernel: Kernel
    folder: str  # of the rows
    name: str  # of the file in it with the numbers of the active rows
    double_precision: bool | None  # compute entries in float64 and keep none of them
    of: int  # number of parts that the matrix is cut into, a power of two
    budget: int  # bytes of tiles that a part may keep
    threads: int  # that a part runs on

    def gram(self, part: int, room: Room | None = None) -> Gram:
        """Return one part of the matrix. Tiles that fit the budget are computed now and kept in ``room``."""
        chosen = load_array(os.path.join(self.folder, self.name))
        rows = ChosenRows(read_rows(self.folder), chosen, self.double_precision)
        return Gram(self.kernel, rows, 0 if self.double_precision else self.budget, self.threads, (part, self.of), room)


class _Kept:
    """The parts that this process used last, with their tiles.

    A task takes its part and the part's memory out while it computes. If a task runs twice, or belongs to an earlier
    active set, it finds nothing here and writes to memory of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._parts: dict[int, tuple[ActiveRows, Gram, Room]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @contextmanager
    def part(self, active: ActiveRows, part: int) -> Iterator[Gram]:
        """Yield one part of the matrix: the kept one, or a new one in the old memory if the active set changed."""
        with self._lock:
            if self._folder != active.folder:
                self._folder = active.folder
                self._parts = {}
            last, gram, room = self._parts.pop(part, (None, None, Room()))
        if gram is None or last != active:
            gram = None  # free the old matrix first; the room still holds its memory
            gram = active.gram(part, room)
        yield gram
        with self._lock:
            if self._folder == active.folder:
                self._parts[part] = active, gram, room

    def drop(self, folder: str | None = None) -> None:
        with self._lock:
            if folder in (None, self._folder):
                self._folder = None
                self._parts = {}


_KEPT = _Kept()


def read_rows(folder: str) -> Array:
    """Return the rows of a fit, mapped into memory."""
    return map_array(os.path.join(folder, ROWS))


def gram_part(active: ActiveRows, part: int, v: Array) -> Array:
    """Return one part's share of the product of the active rows' kernel matrix with ``v``. Runs as a task."""
    with single_threaded_blas:
        if active.double_precision:
            return active.gram(part).matvec(v)
        with _KEPT.part(active, part) as gram:
            return gram.matvec(v)


def cross_task(
    kernel: Kernel, folder: str, targets: Array, sources: Array, v: Array, blocks: range, double_precision: bool
) -> Array:
    """Return the products from ``sources`` to the targets of ``blocks``. Runs as a task."""
    X = read_rows(folder)
    there = ChosenRows(X, targets, double_precision)
    here = ChosenRows(X, sources, double_precision)
    with single_threaded_blas:
        return cross_part(kernel, there, here, v, blocks)


def forget(folder: str) -> None:
    """Drop the tiles of a fit in the process that runs this."""
    _KEPT.drop(folder)
    return_free_memory()


@dataclass(frozen=True, eq=False)
class ClusterGram:
    """Multiplies with the kernel matrix of the active rows."""

    active: ActiveRows
    cluster: Cluster

    def matvec(self, v: Array) -> Array:
        arguments = [(self.active, part, v) for part in range(self.active.of)]
        if self.active.double_precision:
            return tree_sum(self.cluster.map_chunks(gram_part, arguments, "certificate"))
        return tree_sum(self.cluster.each(gram_part, arguments, "kernel-product"))


class ClusterProducts(RowProducts):
    """`Products` computed by the workers of a cluster, which must have a client.

    ``folder`` holds the rows in a file `ROWS`; all workers must see it. ``spare`` bounds the bytes of tiles that this
    process keeps for the products that it computes itself.
    """

    def __init__(self, kernel: Kernel, folder: str, cluster: Cluster, spare: int = 0) -> None:
        super().__init__(kernel, read_rows(folder), spare, CPU_COUNT)
        self.folder = folder
        self.cluster = cluster
        self._made = 0
        self.parts = 1
        while self.parts < self.cluster.slots:
            self.parts *= 2
        n, d = self.source.shape
        what = f"A product with the kernel of {n} rows of {d} features"
        self.cluster.require(task_bytes(self.kernel, n, d, 8, self._share()[1]), self.parts, what, ADVICE)

    @property
    def here(self) -> RowProducts:
        return RowProducts(self.kernel, self.source, self.budget, self.threads)

    def _share(self) -> tuple[int, int]:
        return self.cluster.share(self.parts)

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        name = f"active-{self._made}.npy"
        old = f"active-{self._made - 2}.npy"
        np.save(os.path.join(self.folder, name), index)
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, old))
        self._made += 1
        memory, threads = self._share()
        d = int(self.source.shape[1])
        spare = memory - task_bytes(self.kernel, self.n, d, self.dtype.itemsize, threads)
        budget = max(0, spare)
        groups = Tiling(len(index), d, self.dtype.itemsize).groups
        parts = groups if double_precision else min(self.parts, groups)
        active = ActiveRows(self.kernel, self.folder, name, double_precision, parts, budget, threads)
        return ClusterGram(active, self.cluster).matvec

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        blocks = cross_blocks(len(targets))
        count = min(blocks, 4 * self.cluster.slots)  # blocks cost the same, but workers may differ in speed
        bounds = [blocks * i // count for i in range(count + 1)] if count else [0]
        arguments = [
            (self.kernel, self.folder, targets, sources, v, range(a, b), double_precision) for a, b in pairwise(bounds)
        ]
        parts = self.cluster.each(cross_task, arguments, "kernel-scores")
        return np.concatenate(parts) if parts else np.empty(0)


def task_bytes(kernel: Kernel, n: int, d: int, itemsize: int, threads: int) -> int:
    """Return the peak bytes of a task without the tiles it keeps: the rows it reads, buffers and vectors."""
    return n * d * itemsize + Tiling(n, d, itemsize).scratch_bytes(threads, kernel) + 2 * CROSS_BYTES + 6 * 8 * n


@contextmanager
def cluster_products(kernel: Kernel, folder: str, cluster: Cluster, spare: int = 0) -> Iterator[ClusterProducts]:
    """Yield products over the rows in ``folder``, and remove everything of them from the workers afterwards."""
    try:
        yield ClusterProducts(kernel, folder, cluster, spare)
    finally:
        cluster.tell_workers(forget, folder)


def copied(read: Callable[[int, int], Any]) -> Callable[[Array], None]:
    """Return what fills an array with the rows that ``read(start, stop)`` returns, some thousand at a time."""

    def fill(out: Array) -> None:
        step = 8192
        for start in range(0, len(out), step):
            out[start : start + step] = read(start, min(len(out), start + step))

    return fill


def write_rows(folder: str, shape: tuple[int, int], dtype: np.dtype[Any], fill: Callable[[Array], None]) -> None:
    """Write the rows of a fit: ``fill`` writes into the array of ``shape`` that it is given.

    Raises OSError before anything is filled in if the disk has no room. No file is left after an error.
    """
    path = os.path.join(folder, ROWS)
    try:
        with open(path, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            reserve(file.fileno(), file.tell() + shape[0] * shape[1] * dtype.itemsize)
        out = map_array(path, writable=True)
        fill(out)
        out.flush()
    except BaseException:
        with suppress(OSError):
            os.remove(path)
        raise
