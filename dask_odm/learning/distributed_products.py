"""Kernel products for the exact solver and for certificates, by a cluster's workers or by threads of this process.

For workers, the rows are scaled and written once to a file in the fit's scratch folder, and workers map it into memory.
Only vectors and their products travel. The kernel matrix of the active rows is cut into parts along `Gram`'s fixed
groups, one task each. A task prefers the same worker in every product, and the worker keeps the tiles until the active
set changes or another fit begins. If a worker is lost, another one computes its tiles again, to the same bits.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from shutil import disk_usage
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_odm.data.storage.files import load_array, map_array
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.tasks import aligned, worker_task
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Gram, Room, Tiling
from dask_odm.kernels.shape import Shape
from dask_odm.learning.problem.products import (
    ChosenRows,
    Multiply,
    Products,
    Purpose,
    RowProducts,
    cross_blocks,
    cross_part,
    products_bytes,
)
from dask_odm.linalg.csr_rows import row_width
from dask_odm.linalg.row_passes import tree_sum
from dask_odm.linalg.threads import return_free_memory, single_threaded_blas
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
ROWS = "rows.npy"


@contextmanager
def products_of_file(
    kernel: Kernel, folder: str, cluster: Cluster, here: Cluster, purpose: Purpose
) -> Iterator[Products]:
    """Yield products over the scaled rows that `write_rows` left in ``folder``, by ``cluster`` or ``here``."""
    rows = read_rows(folder)
    logger.info("%d rows of %d features, %s; %s", *rows.shape, purpose.what, cluster)
    if cluster.client is None:
        yield products_here(kernel, rows, here, purpose, rows.nbytes)
        return
    spare = require_memory(kernel, rows.shape, rows.dtype, here, purpose, 0)
    with cluster_products(kernel, folder, cluster, max(0, spare - rows.nbytes)) as products:
        yield products


def products_here(kernel: Kernel, source: Any, here: Cluster, purpose: Purpose, more: int) -> RowProducts:
    """Return products over scaled rows by threads of this process, ``here``, in which ``more`` bytes are taken."""
    spare = require_memory(kernel, (len(source), row_width(source)), source.dtype, here, purpose, more)
    return RowProducts(kernel, source, spare, CPU_COUNT)


def require_memory(
    kernel: Kernel, shape: tuple[int, int], dtype: np.dtype[Any], here: Cluster, purpose: Purpose, more: int
) -> int:
    """Return the bytes of this process, ``here``, that are left for tiles when ``more`` bytes are taken.

    Raises MemoryLimitError if the products themselves do not fit.
    """
    needed = more + purpose.nbytes(Shape(kernel, *shape, dtype.itemsize, here.threads))
    here.require(needed, 1, f"{purpose.what} over {shape[0]} rows of {shape[1]} features", purpose.advice)
    return here.memory - needed


def write_rows(folder: str, shape: tuple[int, int], dtype: np.dtype[Any], blocks: Iterable[Array]) -> None:
    """Write the rows of a fit, of ``shape``, which come in ``blocks``.

    Raises OSError before any block is read if the disk has no room. No file is left after an error.
    """
    path = os.path.join(folder, ROWS)
    needed = shape[0] * shape[1] * dtype.itemsize
    free = disk_usage(folder).free
    if needed > free:
        what = f"{os.strerror(errno.ENOSPC)} ({format_bytes(needed)} needed, {format_bytes(free)} free)"
        raise OSError(errno.ENOSPC, what)
    try:
        with open(path, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype).data)
    except BaseException:
        with suppress(OSError):
            os.remove(path)
        raise


def read_rows(folder: str) -> Array:
    """Return the rows of a fit, mapped into memory."""
    return map_array(os.path.join(folder, ROWS))


@contextmanager
def cluster_products(kernel: Kernel, folder: str, cluster: Cluster, spare: int = 0) -> Iterator[ClusterProducts]:
    """Yield products over the rows in ``folder``, and remove everything of them from the workers afterwards."""
    try:
        yield ClusterProducts(kernel, folder, cluster, spare)
    finally:
        cluster.tell_workers(forget, folder)


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

    def drop(self, folder: str) -> None:
        with self._lock:
            if folder == self._folder:
                self._folder = None
                self._parts = {}


_KEPT = _Kept()


def gram_part(active: ActiveRows, part: int, v: Array) -> Array:
    """Return one part's share of the product of the active rows' kernel matrix with ``v``. Runs as a task."""
    with single_threaded_blas:
        v = aligned(v)
        if active.double_precision:
            return active.gram(part).matvec(v)
        with _KEPT.part(active, part) as gram:
            return gram.matvec(v)


@worker_task
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
        self.parts = 1 << (cluster.slots - 1).bit_length()
        n, d = self.source.shape
        what = f"A product with the kernel of {n} rows of {d} features"
        _, threads = cluster.share(self.parts)
        cluster.require(task_bytes(Shape(kernel, n, d, 8, threads)), self.parts, what)

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        name = f"active-{self._made}.npy"
        old = f"active-{self._made - 2}.npy"
        np.save(os.path.join(self.folder, name), index)
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, old))
        self._made += 1
        memory, threads = self.cluster.share(self.parts)
        d = int(self.source.shape[1])
        budget = max(0, memory - task_bytes(Shape(self.kernel, self.n, d, self.dtype.itemsize, threads)))
        groups = Tiling(len(index), d, self.dtype.itemsize).groups
        parts = groups if double_precision else min(self.parts, groups)
        active = ActiveRows(self.kernel, self.folder, name, double_precision, parts, budget, threads)

        def multiply(v: Array) -> Array:
            arguments = [(active, part, v) for part in range(active.of)]
            if double_precision:
                return tree_sum(self.cluster.map_chunks(gram_part, arguments, "certificate"))
            return tree_sum(self.cluster.each(gram_part, arguments, "kernel-product"))

        return multiply

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        blocks = cross_blocks(len(targets))
        count = min(blocks, 4 * self.cluster.slots)  # blocks cost the same, but workers may differ in speed
        bounds = [blocks * i // count for i in range(count + 1)] if count else [0]
        arguments = [
            (self.kernel, self.folder, targets, sources, v, range(a, b), double_precision) for a, b in pairwise(bounds)
        ]
        parts = self.cluster.each(cross_task, arguments, "kernel-scores")
        return np.concatenate(parts) if parts else np.empty(0)


def task_bytes(shape: Shape) -> int:
    """Return the peak bytes of a task without the tiles it keeps: the rows it reads, buffers and vectors."""
    return shape.rows + products_bytes(shape, 8) + 6 * 8 * shape.n
