"""The Gram operator against the dense matrix: every size, both dtypes, the same bits however it is computed."""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import TILE_ROWS, Gram, Tiling
from dask_odm.linalg.rows import ArrayRows
from dask_odm.linalg.threads import single_threaded_blas
from small_problems import matrix
from traced import traced

SIZES = [1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 1300]
PLENTY = 1 << 30
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def rows(n: int, d: int = 3, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def vector(n: int, seed: int = 1) -> np.ndarray:
    v = np.random.default_rng(seed).normal(size=n)
    v[::3] = 0.0
    return v


def assert_close(values: np.ndarray, expected: np.ndarray, dtype: str, scale: np.ndarray | float) -> None:
    assert np.abs(values - expected).max() <= TOLERANCE[dtype] * np.max(scale)


@pytest.mark.parametrize("kernel", [RBF(1.0, 0.3), Laplacian(1.0, 0.3)], ids=lambda k: k.name)
@pytest.mark.parametrize("budget", [0, PLENTY], ids=["recomputed", "kept"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_operations_are_those_of_the_dense_matrix(n, dtype, budget, kernel):
    X, v = rows(n, dtype=dtype), vector(n)
    K, gram = matrix(kernel, X), Gram(kernel, ArrayRows(X), budget)
    assert gram.keeps == (budget > 0)
    assert (gram.n, gram.dtype) == (n, dtype)
    scale = np.abs(K) @ np.abs(v) + 1.0
    assert_close(gram.matvec(v), K @ v, dtype, scale)
    assert gram.matvec(v).dtype == np.float64


@pytest.mark.parametrize("kernel", [RBF(1.0, 0.3), Laplacian(1.0, 0.3), Linear(1.0), Polynomial()], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [*SIZES, 5 * TILE_ROWS + 3])
def test_memory_and_threads_change_no_bit(kernel: Kernel, n, dtype):
    X, v = ArrayRows(rows(n, dtype=dtype)), vector(n)
    with single_threaded_blas:
        expected = Gram(kernel, X, PLENTY, 1).matvec(v).tobytes()
        for budget in (0, PLENTY):
            for threads in (1, 2, 3):
                assert Gram(kernel, X, budget, threads).matvec(v).tobytes() == expected


def test_an_error_while_reading_is_passed_on_and_does_no_harm():
    class Failing(ArrayRows):
        fail = True

        def read(self, start, stop):
            if self.fail and start:
                raise OSError("gone")
            return super().read(start, stop)

    X = Failing(rows(1300))
    gram = Gram(RBF(), X, 0, 2)
    with pytest.raises(OSError, match="gone"):
        gram.matvec(np.ones(1300))
    Failing.fail = False
    np.testing.assert_array_equal(gram.matvec(np.ones(1300)), Gram(RBF(), X, 0).matvec(np.ones(1300)))


@dataclass(frozen=True, eq=False)
class GatheredRows(ArrayRows):
    """Rows that are copied whenever they are read.

    The second copy of each thread is returned when all have theirs. So all hold rows when the first of them packs
    them, even on a busy machine, where one might otherwise do all work before another begins.
    """

    together: threading.Barrier
    here: threading.local = field(default_factory=threading.local)

    def read(self, start: int, stop: int) -> np.ndarray:
        copy = self.X[np.arange(start, stop)]
        self.here.reads = getattr(self.here, "reads", 0) + 1
        if self.here.reads == 2:
            self.together.wait(timeout=60)
        return copy


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "dtype"), [(1500, 100, "float32"), (120, 30_000, "float64")])
@pytest.mark.parametrize(
    ("kernel", "threads"),
    [(RBF(1.0, 1e-3), 1), (RBF(1.0, 1e-3), 2), (Laplacian(1.0, 1e-3), 2), (Linear(1.0), 2)],
    ids=lambda each: getattr(each, "name", None),
)
def test_peak_memory_of_a_pass_is_projected(kernel, n, d, dtype, threads):
    """Panels of few wide rows among them."""
    X, v = rows(n, d, dtype), vector(n)
    tiling = Tiling(n, d, X.dtype.itemsize)
    Gram(kernel, ArrayRows(X[:3]), 0).matvec(v[:3])  # compiles
    with single_threaded_blas:
        _, peak = traced(lambda: Gram(kernel, GatheredRows(X, threading.Barrier(threads)), 0, threads).matvec(v))
    projected = tiling.scratch_bytes(threads, kernel)
    assert projected / 4 < peak <= projected
