"""Kernel products by Dask: what the exact solver and certificates ask of all rows, spread over the workers.

The rows are written once, scaled, to a file in the fit's scratch folder, which workers map into memory; what travels
is a vector and its product. A face is cut into parts of `Gram`'s fixed groups, a task each, which prefers the same
worker in every product and keeps its tiles there until another face or another fit begins. A worker that is lost
costs its tiles: whoever takes its task computes them again, to the same bits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.storage.checked_writes import load_array, map_array
from dask_odm.data.storage.files import reserve
from dask_odm.engine.cluster import Cluster, return_free_memory
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Gram, Room, Tiling
from dask_odm.learning.problem.products import CROSS_BYTES, ChosenRows, RowProducts, cross_blocks, cross_part
from dask_odm.linalg.sums import tree_sum
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array

ROWS = "rows.npy"
ADVICE = "Use fewer threads a worker or more memory."
CROSS_TASKS = 4  # a slot: targets' blocks cost the same, workers may not be as fast


@dataclass(frozen=True)
class Face:
    """The symmetric matrix of some rows among themselves: what its tasks are told.

    Parameters
    ----------
    kernel : Kernel
    folder, name : str
        Where the rows are, and the file of the numbers of those that are meant.
    double_precision : bool
        Entries in float64, never kept.
    of : int
        Parts it is cut into, a power of two.
    budget, threads : int
        Bytes of tiles that a part may keep, and threads that it runs on.
    """

    kernel: Kernel
    folder: str
    name: str
    double_precision: bool | None
    of: int
    budget: int
    threads: int

    def gram(self, part: int, room: Room | None = None) -> Gram:
        """One part of the matrix; its tiles are computed if they are to be kept, in ``room``."""
        chosen = load_array(os.path.join(self.folder, self.name))
        rows = ChosenRows(read_rows(self.folder), chosen, self.double_precision)
        return Gram(self.kernel, rows, 0 if self.double_precision else self.budget, self.threads, (part, self.of), room)


class _Kept:
    """Parts that were asked for last in this process, with their tiles.

    Whoever computes with a part takes it out meanwhile, and its memory too: a task that runs twice, or of an earlier
    face that outlives its fit's interest in it, then finds nothing, and writes to memory of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._parts: dict[int, tuple[Face, Gram, Room]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @contextmanager
    def part(self, face: Face, part: int) -> Iterator[Gram]:
        """One part of a face: as it was left, or computed in the memory of the last face's."""
        with self._lock:
            if self._folder != face.folder:
                self._folder = face.folder
                self._parts = {}
            last, gram, room = self._parts.pop(part, (None, None, Room()))
        if gram is None or last != face:
            gram = None  # its tiles are in the room
            gram = face.gram(part, room)
        yield gram
        with self._lock:
            if self._folder == face.folder:
                self._parts[part] = face, gram, room

    def drop(self, folder: str | None = None) -> None:
        with self._lock:
            if folder in (None, self._folder):
                self._folder = None
                self._parts = {}


_KEPT = _Kept()


def read_rows(folder: str) -> Array:
    """The rows of a fit, mapped into memory."""
    return map_array(os.path.join(folder, ROWS))


def face_part(face: Face, part: int, v: Array) -> Array:
    """One part's share of a face's product with ``v``: a task."""
    with single_threaded_blas:
        if face.double_precision:
            return face.gram(part).partial(v)
        with _KEPT.part(face, part) as gram:
            return gram.partial(v)


def cross_task(
    kernel: Kernel, folder: str, targets: Array, sources: Array, v: Array, blocks: range, double_precision: bool
) -> Array:
    """Products from ``sources`` to the targets of ``blocks``: a task."""
    X = read_rows(folder)
    there = ChosenRows(X, targets, double_precision)
    here = ChosenRows(X, sources, double_precision)
    with single_threaded_blas:
        return cross_part(kernel, there, here, v, blocks)


def forget(folder: str) -> None:
    """Drop the tiles of a fit in the process this runs in."""
    _KEPT.drop(folder)
    return_free_memory()


@dataclass(frozen=True, eq=False)
class ClusterFace:
    """`Operator` of one face."""

    face: Face
    cluster: Cluster
    n: int

    def matvec(self, v: Array) -> Array:
        arguments = [(self.face, part, v) for part in range(self.face.of)]
        if self.face.double_precision:
            return tree_sum(self.cluster.map_chunks(face_part, arguments, "certificate"))
        return tree_sum(self.cluster.each(face_part, arguments, "kernel-product"))


@dataclass(eq=False)
class ClusterProducts:
    """`Products` by the workers of a cluster.

    Parameters
    ----------
    kernel : Kernel
    folder : str
        Holds the rows in a file `ROWS`; all workers see it.
    cluster : Cluster
        With a client.
    spare : int
        Bytes of this process that tiles may take where it computes products by itself.
    """

    kernel: Kernel
    folder: str
    cluster: Cluster
    spare: int = 0
    _X: Array = field(init=False)
    _faces: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._X = read_rows(self.folder)
        self.parts = 1
        while self.parts < self.cluster.slots:
            self.parts *= 2
        n, d = self._X.shape
        what = f"A product with the kernel of {n} rows of {d} features"
        self.cluster.require(task_bytes(self.kernel, n, d, 8, self._share()[1]), self.parts, what, ADVICE)

    @property
    def n(self) -> int:
        return len(self._X)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._X.dtype

    @property
    def here(self) -> RowProducts:
        return RowProducts(self.kernel, self._X, self.spare, CPU_COUNT)

    def rows(self, index: Array) -> Array:
        return np.asarray(self._X[index])

    def _share(self) -> tuple[int, int]:
        return self.cluster.share(self.parts)

    def face(self, index: Array, *, double_precision: bool | None = False) -> ClusterFace:
        name = f"face-{self._faces}.npy"
        old = f"face-{self._faces - 2}.npy"
        np.save(os.path.join(self.folder, name), index)
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, old))
        self._faces += 1
        memory, threads = self._share()
        d = int(self._X.shape[1])
        spare = memory - task_bytes(self.kernel, self.n, d, self.dtype.itemsize, threads)
        budget = max(0, spare)
        groups = Tiling(len(index), d, self.dtype.itemsize).groups
        parts = groups if double_precision else min(self.parts, groups)
        face = Face(self.kernel, self.folder, name, double_precision, parts, budget, threads)
        return ClusterFace(face, self.cluster, len(index))

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        blocks = cross_blocks(len(targets))
        count = min(blocks, CROSS_TASKS * self.cluster.slots)
        bounds = [blocks * i // count for i in range(count + 1)] if count else [0]
        arguments = [
            (self.kernel, self.folder, targets, sources, v, range(a, b), double_precision) for a, b in pairwise(bounds)
        ]
        parts = self.cluster.each(cross_task, arguments, "kernel-scores")
        return np.concatenate(parts) if parts else np.empty(0)


def task_bytes(kernel: Kernel, n: int, d: int, itemsize: int, threads: int) -> int:
    """Peak bytes of a task, tiles that are kept aside: the rows it reads, buffers and vectors."""
    return n * d * itemsize + Tiling(n, d, itemsize).scratch_bytes(threads, kernel) + 2 * CROSS_BYTES + 6 * 8 * n


@contextmanager
def cluster_products(kernel: Kernel, folder: str, cluster: Cluster, spare: int = 0) -> Iterator[ClusterProducts]:
    """Products over the rows in ``folder``, and nothing of them left on the workers afterwards."""
    try:
        yield ClusterProducts(kernel, folder, cluster, spare)
    finally:
        cluster.tell_workers(forget, folder)


def write_rows(folder: str, shape: tuple[int, int], dtype: np.dtype[Any], fill: Callable[[Array], None]) -> None:
    """Write the rows of a fit: ``fill`` is given the array to write to, of ``shape``.

    Raises
    ------
    OSError
        The disk has no room for them, found before anything is filled in. No file is left, as after any other error.
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
