"""Memory of learning over landmarks: bytes by rows, features and landmarks, of this process and of tasks of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dask.system import CPU_COUNT

from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.landmarks import residual_rows
from dask_odm.learning.problem.nystrom_features import span_bytes
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.row_passes import PassBytes
from dask_odm.methods.landmark.machines import tile_rows as tile_rows_of_machines
from dask_odm.methods.landmark.query import TILE_BYTES, drawn_bytes, group_count, tile_rows
from dask_odm.methods.landmark.sketch import SKETCH, STEP
from dask_odm.methods.landmark.solver import FIRST_STRIDE, sketch_rows, start_rows


@dataclass(frozen=True)
class LandmarkMemory:
    """Bytes of ``r`` landmarks for ``n`` rows of ``d`` features, of ``itemsize`` bytes each."""

    r: int
    n: int
    d: int
    itemsize: int

    @classmethod
    def of(cls, data: TrainingData, r: int) -> LandmarkMemory:
        return cls(r, data.rows, data.features, data.dtype.itemsize)

    @property
    def packed(self) -> int:
        """The landmarks packed in float64."""
        return 8 * self.r * (self.d + 10)

    @property
    def tile(self) -> int:
        """What a thread computes in, for rows in memory."""
        rows = min(tile_rows(self.r, self.itemsize), self.n // group_count(self.n) + 1)
        return rows * (2 * (self.d + 10) + self.r) * self.itemsize

    def solve(self) -> int:
        """Newton's method of one machine, about, beside the rows."""
        r, n, d = self.r, self.n, self.d
        row = drawn_bytes(d, self.itemsize)
        start = start_rows(n, r)
        few = r // FIRST_STRIDE + 1
        tiles = CPU_COUNT * max(self.tile, replace(self, r=few, n=min(n, start)).tile)
        rough = 3 * start * row + 2 * 8 * few * d if start < n // 2 else 0  # as rows are drawn, and as they are joined
        drawn = min(sketch_rows(n, r), n)
        drawing = 3 * drawn * row  # likewise; those of a preconditioner before are no more than is left of the start
        making = drawn * row + self.packed + min(CPU_COUNT * STEP, drawn) * 2 * 8 * d  # of the preconditioner
        # of the gap for the kernel itself
        checking = self.packed + CPU_COUNT * 8 * min(n, residual_rows(d)) * (2 * d + 2 * r)
        # the Gram matrix, its factor and blocks, the preconditioner with its factor and values
        squares = 8 * (5 * r * r + min(SKETCH * r, drawn) * r)
        # the landmarks, packed for kernel values in float64 at last, or their Gram matrix in the making
        solving = tiles + max(rough, self.packed + max(drawing, making))
        return squares + r * d * self.itemsize + max(3 * self.packed, solving, self.packed + checking)

    def streamed(self, draws: int) -> PassBytes:
        """A task of a pass over a store that draws up to ``draws`` rows."""
        row = drawn_bytes(self.d, self.itemsize)
        # landmarks as they are sent and as they are used, of this pass and of the last one, and packed in float64
        landmarks = self.r * self.d * (4 * self.itemsize + 8)
        work = landmarks + 2 * TILE_BYTES + 3 * row * tile_rows(self.r, self.itemsize)
        return PassBytes(8 * self.r, 40, work, 2, 2 * draws, row)

    def leaving_out(self) -> PassBytes:
        """A task of a pass that leaves rows out: active rows, perhaps all, are joined, and white in float64."""
        return PassBytes(8 * self.r**2, 16, 10 * TILE_BYTES + 4 * 8 * BLOCK * self.r, answer_row=16)

    # Many machines over the same landmarks

    def machine_pass(self, m: int, width: int, targets: int = 1) -> PassBytes:
        """A task of a pass for ``m`` machines, of which ``width`` learn from the same class, or of several targets."""
        # a tile in float64, its rows, margins and what follows
        values = tile_rows_of_machines(self.r, 8) * (8 * self.r + 2 * 8 * (self.d + 10) + 8 * 8 * width)
        work = values + 8 * m * self.r + 3 * 8 * self.r * self.d
        row = 40 + width + (2 * 8 * targets if targets > 1 else 0)  # y of rows that miss none, and in units
        return PassBytes(8 * m * self.r, row, work, 2 * width)

    def class_means(self, classes: int, machines: int) -> int:
        """Preconditioners: means of the classes, samples of these with their features, and the machines' factors."""
        means = self.itemsize * self.r**2 * (classes + SKETCH + 1 + machines)
        return means + 8 * classes * SKETCH * self.r * self.d

    def lockstep(self, m: int) -> int:
        """Coordinates and directions of ``m`` machines that learn together, and squares of landmarks."""
        return 8 * (12 * m * self.r + 5 * self.r**2)

    def descent(self, width: int) -> int:
        """Descent and single machines over kept features, if up to ``width`` machines learn from one class."""
        kept = self.n * (self.r * self.itemsize + width * (self.itemsize + 4) + 6 * 8)
        # of a thread: features in the making, or a machine's squares and what it knows of its rows
        return kept + CPU_COUNT * max(span_bytes(self.r, self.d), 8 * (8 * self.r**2 + 12 * self.n))
