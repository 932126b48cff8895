"""What every kernel promises: tiles, packing, the diagonal, parameters, on rows of any size and dtype."""

import pickle

import numpy as np
import pytest

from dask_odm.kernels import KERNELS, RBF, Laplacian, Linear, Polynomial, from_parameters
from dask_odm.kernels.base import Panels, Sides
from small_problems import matrix
from traced import traced

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
    Polynomial(1.0, gamma=0.1, coef0=0.5, degree=7),
]
EVERY_KERNEL = pytest.mark.parametrize("kernel", ALL, ids=str)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def rows(n: int, d: int, seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def assert_close(values: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (3, 17, 3), (17, 3, 5), (65, 130, 22), (33, 31, 100)])
def test_tile_is_the_formula(kernel, dtype, n, m, d):
    X, Z = rows(n, d, 1, dtype), rows(m, d, 2, dtype) / 2
    tile = kernel.tile(X, Z)
    assert tile.shape == (n, m)
    assert tile.dtype == dtype
    assert_close(tile, matrix(kernel, X, Z), TOLERANCE[dtype])


@EVERY_KERNEL
def test_a_tile_in_a_buffer_has_the_same_bits_and_so_have_some_of_its_rows(kernel):
    X, Z = rows(40, 5, 3), rows(30, 5, 4)
    left, right, out = kernel.pack_left(X), kernel.pack_right(Z), np.full((40, 30), np.nan)
    assert kernel.tile_packed(left, right, out) is out
    np.testing.assert_array_equal(out, kernel.tile(X, Z))
    for chosen in (slice(7, 19), np.array([3, 3, 39, 0])):
        assert_close(kernel.tile_packed(left[chosen], right), out[chosen], 1e-14)


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packing_leaves_the_rows_alone_and_knows_their_number(kernel, dtype):
    X = np.asfortranarray(rows(9, 4, 5, dtype))
    X.flags.writeable = False
    left, right = kernel.pack_left(X), kernel.pack_right(X)
    assert (len(left), left.dtype, len(right)) == (9, dtype, 9)
    for packed in (left, right.values if isinstance(right, Panels) else right):
        packed[:] = 0.0  # a copy, or it would raise


@EVERY_KERNEL
@pytest.mark.parametrize(("n", "d"), [(1, 3), (65, 9001), (513, 130), (1100, 2)])
def test_rows_packed_in_another_dtype_are_never_cast_as_a_whole(kernel, n, d):
    X = rows(n, d, 5, "float32")
    whole, by_blocks = kernel.pack_right(X.astype(np.float64)), kernel.pack_right_in(X, np.float64)
    if isinstance(whole, Panels):
        assert len(whole) == len(by_blocks)
        whole, by_blocks = whole.values, by_blocks.values
    np.testing.assert_array_equal(by_blocks, whole, strict=True)


def test_packing_in_another_dtype_holds_only_a_block_beside_the_result():
    X = rows(1000, 1000, 5, "float32")
    packed, peak = traced(RBF(gamma=0.1).pack_right_in, X, np.float64)
    assert peak < 1.3 * packed.nbytes


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (6, 257, 3), (515, 700, 8), (33, 31, 300)])
def test_products_are_those_of_the_matrix(kernel, dtype, n, m, d):
    """Forward alone and both ways at once, added to what is there."""
    X, Z = rows(n, d, 1, dtype), rows(m, d, 2, dtype) / 2
    left, right, K = kernel.pack_left(X), kernel.pack_right(Z), matrix(kernel, X, Z)
    u, v = rows(1, n, 3)[0], rows(1, m, 4)[0]
    alone, by_row, by_column = np.full(n, 2.0), np.full(n, 2.0), np.full(m, 3.0)
    kernel.products(left, right, Sides(v, alone))
    kernel.products(left, right, Sides(v, by_row, u, by_column))
    scale = (np.abs(K) @ np.abs(v)).max(), (np.abs(K.T) @ np.abs(u)).max() + 1.0
    for found in (alone, by_row):
        assert np.abs(found - 2.0 - K @ v).max() <= TOLERANCE[dtype] * (scale[0] + 2.0)
    assert np.abs(by_column - 3.0 - K.T @ u).max() <= TOLERANCE[dtype] * (scale[1] + 3.0)


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [3, 9, 300])
def test_products_have_the_bits_of_the_tile_times_the_vector(kernel, dtype, d):
    X, Z = rows(301, d, 1, dtype), rows(511, d, 2, dtype) / 2
    left, right = kernel.pack_left(X), kernel.pack_right(Z)
    tile, u, v = kernel.tile_packed(left, right), rows(1, 301, 3, dtype)[0], rows(1, 511, 4, dtype)[0]
    found, wanted = (Sides(v, np.zeros(301), u, np.zeros(511)) for _ in range(2))
    kernel.products(left, right, found)
    kernel.multiply(tile, wanted)
    np.testing.assert_array_equal(found.by_row, wanted.by_row)
    np.testing.assert_array_equal(found.by_column, wanted.by_column)


def test_long_sums_of_narrow_rows_do_not_stall():
    """Ones added up in float32 alone would be wrong in the third digit."""
    X = np.zeros((1, 3), np.float32)
    Z = np.zeros((1 << 17, 3), np.float32)
    v = np.full(len(Z), np.float32(0.1))
    exact = float(v[0]) * len(v)
    for kernel in (RBF(), Laplacian()):
        forward, backward = np.zeros(1), np.zeros(1)
        kernel.products(kernel.pack_left(X), kernel.pack_right(Z), Sides(v, forward))
        kernel.products(kernel.pack_left(Z), kernel.pack_right(X), Sides(np.ones(1), np.zeros(len(Z)), v, backward))
        np.testing.assert_allclose([forward[0], backward[0]], exact, rtol=5e-6)


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_diagonal(kernel, dtype):
    X = rows(50, 6, 6, dtype)
    diagonal = kernel.diagonal(X)
    assert diagonal.dtype == np.float64
    assert_close(diagonal, matrix(kernel, X).diagonal(), TOLERANCE[dtype])


@EVERY_KERNEL
def test_parameters_describe_the_kernel(kernel):
    assert from_parameters(kernel.parameters()) == kernel == pickle.loads(pickle.dumps(kernel))
    assert kernel.parameters()["name"] == kernel.name
    assert KERNELS[kernel.name] is type(kernel)


def test_unknown_kernel():
    with pytest.raises(KeyError):
        from_parameters({"name": "sigmoid", "gamma": 1.0})
