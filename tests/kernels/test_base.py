"""What every kernel promises: tiles, packing, the diagonal, parameters, on rows of any size and dtype."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from dask_odm.kernels import KERNELS, RBF, Laplacian, Linear, Polynomial, from_parameters
from small_problems import matrix

ALL = [
    RBF(gamma=0.7),
    RBF(bias=1.0, gamma=3.0),
    Laplacian(gamma=0.4),
    Laplacian(bias=1.0, gamma=1.5),
    Linear(),
    Linear(bias=1.0),
    Polynomial(gamma=0.3, coef0=1.0, degree=3),
    Polynomial(bias=1.0, gamma=0.5, coef0=0.0, degree=2),
    Polynomial(gamma=2.0, coef0=0.25, degree=1),
]
EVERY_KERNEL = pytest.mark.parametrize("kernel", ALL, ids=str)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def rows(n: int, d: int, seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def assert_close(values: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (3, 17, 2), (17, 3, 7), (65, 130, 22), (33, 31, 100)])
def test_tile_is_the_formula(kernel, dtype, n, m, d):
    X, Z = rows(n, d, 1, dtype), rows(m, d, 2, dtype) / 2
    tile = kernel.tile(X, Z)
    assert tile.shape == (n, m)
    assert tile.dtype == dtype
    assert_close(tile, matrix(kernel, X, Z), TOLERANCE[dtype])


@EVERY_KERNEL
def test_tile_into_a_buffer_and_from_packed_rows_are_the_same_bits(kernel):
    X, Z = rows(40, 5, 3), rows(30, 5, 4)
    out = np.full((40, 30), np.nan)
    assert kernel.tile(X, Z, out) is out
    np.testing.assert_array_equal(out, kernel.tile(X, Z))
    np.testing.assert_array_equal(out, kernel.tile_packed(kernel.pack_left(X), kernel.pack_right(Z)))


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packing_leaves_the_rows_alone_and_is_contiguous(kernel, dtype):
    X = np.asfortranarray(rows(9, 4, 5, dtype))
    X.flags.writeable = False
    for packed in (kernel.pack_left(X), kernel.pack_right(X)):
        assert packed.flags.c_contiguous
        assert packed.dtype == dtype
    kernel.tile(X, X)  # would raise if it wrote to its input


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_diagonal(kernel, dtype):
    X = rows(50, 6, 6, dtype)
    diagonal = kernel.diagonal(X)
    assert diagonal.dtype == np.float64
    assert_close(diagonal, matrix(kernel, X).diagonal(), TOLERANCE[dtype])


@EVERY_KERNEL
def test_is_positive_semi_definite(kernel):
    values = np.linalg.eigvalsh(kernel.tile(rows(60, 3, 7), rows(60, 3, 7)))
    assert values[0] > -1e-12 * values[-1]


@EVERY_KERNEL
def test_parameters_describe_the_kernel(kernel):
    assert from_parameters(kernel.parameters()) == kernel == pickle.loads(pickle.dumps(kernel))
    assert kernel.parameters()["name"] == kernel.name
    assert KERNELS[kernel.name] is type(kernel)


def test_unknown_kernel():
    with pytest.raises(KeyError):
        from_parameters({"name": "sigmoid", "gamma": 1.0})
