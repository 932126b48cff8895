"""Kernels of distances against slow formulas: their own exp2, far rows, rows far from zero, tiles of odd sizes."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import laplacian_kernel

import reference
from dask_odm.kernels.base import Sides
from dask_odm.kernels.loops import COLUMNS, ROWS, exp2
from dask_odm.kernels.named import RBF, WIDE, Laplacian
from small_problems import matrix


@pytest.mark.parametrize(("dtype", "lowest", "unit"), [(np.float32, -126.0, 2.0**-23), (np.float64, -1022.0, 2.0**-52)])
def test_exp2_is_right_to_two_units_in_the_last_place(dtype, lowest, unit):
    t = np.concatenate([np.linspace(lowest, 0.0, 100_001), -np.geomspace(1e-12, 1.0, 10_000)]).astype(dtype)
    exact = np.exp2(t.astype(np.longdouble))
    out = t.copy()
    exp2(out, dtype(0.0))
    assert np.abs(out / exact - 1.0).max() < 2 * unit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp2_at_the_ends(dtype):
    t = np.array([0.0, 1e-7, 5.0, -0.5, -1.0, -1.5, -1e30], dtype)
    exp2(t, dtype(0.0))
    np.testing.assert_allclose(t[:6], [1.0, 1.0, 1.0, 0.5**0.5, 0.5, 0.5**1.5], rtol=1e-6)
    assert t[:3].tolist() == [1.0] * 3, "rounding must not push a value above 1"
    assert 0.0 <= t[6] < 1e-30
    flat = np.full(37, -2.0, dtype)
    exp2(flat, dtype(1.0))
    np.testing.assert_array_equal(flat, 1.25)


@pytest.mark.parametrize("make", [RBF, Laplacian])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_rows_give_one_and_far_rows_nothing(make, dtype):
    X = np.array([[0.0, 0.0, 0.0], [1e3, -1e3, 0.0]], dtype)
    tile = make(gamma=10.0).tile(X, X)
    assert tile.diagonal().tolist() == [1.0, 1.0]
    assert tile[0, 1] == pytest.approx(0.0, abs=1e-37)


@pytest.mark.parametrize("make", [RBF, Laplacian])
@pytest.mark.parametrize("gamma", [1e-8, 1e-3, 1.0, 1e3, 1e6])
def test_any_gamma(make, gamma):
    X = np.random.default_rng(1).normal(size=(40, 3))
    tolerance = 1e-15 * (10 + 100 * gamma) if make is RBF else 2e-14
    np.testing.assert_allclose(make(gamma=gamma).tile(X, X), matrix(make(gamma=gamma), X), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-12)])
def test_rows_away_from_zero_lose_only_the_digits_of_the_expansion(dtype, tolerance):
    """‖x‖² of 100 leaves seven digits less two in float32: why rows are centred before they come here."""
    X = (np.random.default_rng(2).uniform(size=(30, 4)) + 5.0).astype(dtype)
    tile = RBF(gamma=1.0).tile(X, X)
    np.testing.assert_allclose(tile, reference.rbf(X, X, 1.0), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("d", [1, 2, 3, 8, 22, 123, WIDE - 1, WIDE, WIDE + 1])
def test_every_number_of_features(d, dtype, tolerance):
    """Both sides of where BLAS takes over."""
    rng = np.random.default_rng(d)
    X, Z = (rng.uniform(-1.0, 1.0, (n, d)).astype(dtype) for n in (7, 260))
    np.testing.assert_allclose(RBF(1.0, 1.0 / d).tile(X, Z), reference.rbf(X, Z, 1.0 / d) + 1.0, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, ROWS, ROWS + 1, 2 * ROWS - 1])
@pytest.mark.parametrize("m", [1, COLUMNS - 1, COLUMNS, COLUMNS + 1, 2 * COLUMNS + 3])
def test_laplacian_tiles_of_any_size(n, m):
    """Rows go four at a time, columns in blocks; what is left over must be neither forgotten nor overwritten."""
    rng = np.random.default_rng(3)
    X, Z = (rng.uniform(-1.0, 1.0, (rows, 9)) for rows in (n, m))
    around = np.full((n + 2, m), 7.0)
    kernel = Laplacian(gamma=0.3)
    tile = kernel.tile_packed(kernel.pack_left(X), kernel.pack_right(Z), around[1:-1])
    np.testing.assert_allclose(tile, laplacian_kernel(X, Z, 0.3), rtol=0, atol=1e-14)
    assert (around[[0, -1]] == 7.0).all()


@pytest.mark.parametrize("make", [RBF, Laplacian])
@pytest.mark.parametrize("d", [1, 6, 30, WIDE])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_float32_errors_bound_sums_of_float32(make, d, scale):
    rng = np.random.default_rng(d)
    X, Z, kernel = scale * rng.normal(size=(300, d)), scale * rng.normal(size=(700, d)), make(gamma=1.0 / d)
    Z[:300] = X + 1e-6 * rng.normal(size=X.shape)  # near rows, whose norms and product cancel
    a = rng.choice([1.0, 100.0], 700) * rng.normal(size=700)
    found = np.zeros(300)
    narrow = [each.astype(np.float32) for each in (X, Z, a)]
    kernel.products(kernel.pack_left(narrow[0]), kernel.pack_right(narrow[1]), Sides(v=narrow[2], by_row=found))
    bound = np.abs(a).sum() * kernel.float32_errors(X) + np.abs(a) @ kernel.float32_errors(Z)
    assert (np.abs(found - kernel.tile(X, Z) @ a) <= bound).all()
