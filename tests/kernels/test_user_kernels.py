"""Kernels the user brings: looked up or called, they answer as the kernel they were made from; and what is refused."""

import numpy as np
import pytest

from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels import RBF
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import TILE_ROWS, Gram
from dask_odm.kernels.landmarks import greedy_landmarks
from dask_odm.kernels.user_kernels import CallableKernel, Precomputed
from dask_odm.linalg.rows import ArrayRows
from dask_odm.linalg.threads import single_threaded_blas
from small_problems import matrix

GAMMA = 0.3
BIAS = 1.0
PLENTY = 1 << 30
SIZES = [1, 2, TILE_ROWS - 1, TILE_ROWS + 1, 1300]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def plain(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The Gaussian kernel as a user would bring it."""
    return matrix(RBF(gamma=GAMMA), X, Z)


def given(kind: str, X: np.ndarray) -> tuple[Kernel, np.ndarray]:
    """A kernel of ``kind`` whose values are those of the Gaussian, and the rows it takes for ``X``."""
    if kind == "callable":
        return CallableKernel(BIAS, plain), X
    return Precomputed(BIAS, plain(X, X).astype(X.dtype)), np.arange(len(X), dtype=X.dtype)[:, None]


def rows(n: int, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(dtype)


EVERY_KIND = pytest.mark.parametrize("kind", ["precomputed", "callable"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", ["float32", "float64"])


@EVERY_KIND
@EVERY_DTYPE
def test_tile_and_diagonal_are_the_values_plus_the_bias(kind, dtype):
    X = rows(150, dtype)
    kernel, numbers = given(kind, X)
    K = plain(X, X) + BIAS
    left, right = np.array([3, 149, 3, 0]), np.arange(90)[::-1]
    tile = kernel.tile(numbers[left], numbers[right])
    assert tile.dtype == dtype
    np.testing.assert_allclose(tile, K[np.ix_(left, right)], rtol=0, atol=TOLERANCE[dtype])
    out = np.full((4, 90), np.nan, dtype)
    assert kernel.tile_packed(numbers[left], numbers[right], out) is out
    np.testing.assert_array_equal(out, tile)
    diagonal = kernel.diagonal(numbers)
    assert diagonal.dtype == np.float64
    np.testing.assert_allclose(diagonal, K.diagonal(), rtol=0, atol=TOLERANCE[dtype])


@EVERY_KIND
def test_the_diagonal_is_that_of_the_matrix_and_not_ones(kind):
    X = rows(150)
    K = X @ X.T
    kernel = Precomputed(0.5, K) if kind == "precomputed" else CallableKernel(0.5, lambda A, B: A @ B.T)
    numbers = np.arange(150.0)[:, None] if kind == "precomputed" else X
    np.testing.assert_allclose(kernel.diagonal(numbers[40:]), K.diagonal()[40:] + 0.5, rtol=1e-12)


@EVERY_KIND
@EVERY_DTYPE
@pytest.mark.parametrize("n", SIZES)
def test_gram_is_that_of_the_kernel_itself(kind, dtype, n):
    """Padding must be rows that can be looked up, and rows a callable takes."""
    X = rows(n, dtype)
    kernel, numbers = given(kind, X)
    K, v = plain(X, X) + BIAS, np.random.default_rng(1).normal(size=n)
    answers = []
    with single_threaded_blas:
        for budget in (0, PLENTY):
            for threads in (1, 3):
                gram = Gram(kernel, ArrayRows(numbers), budget, threads)
                answers.append(gram.matvec(v))
    scale = (np.abs(K) @ np.abs(v)).max() + 1.0
    assert np.abs(answers[0] - K @ v).max() <= TOLERANCE[dtype] * scale
    for other in answers[1:]:
        np.testing.assert_array_equal(other, answers[0])


@EVERY_KIND
def test_landmarks_are_those_of_the_kernel_itself(kind):
    X = rows(120)
    kernel, numbers = given(kind, X)
    landmarks = greedy_landmarks(kernel, numbers, 9)
    expected = greedy_landmarks(RBF(BIAS, GAMMA), X, 9)
    np.testing.assert_array_equal(landmarks.index, expected.index)
    strata = StratifiedPartitioner(kernel, 9, 1, 0).groups(numbers)
    np.testing.assert_array_equal(strata(numbers), StratifiedPartitioner(RBF(BIAS, GAMMA), 9, 1, 0).groups(X)(X))


@EVERY_KIND
def test_neither_is_known_by_name(kind):
    kernel, _ = given(kind, rows(3))
    with pytest.raises(InputError, match=f"a model of a {kind} kernel cannot be saved"):
        kernel.parameters()


@pytest.mark.parametrize("n", [1, 3, 700])
@EVERY_DTYPE
def test_a_sound_matrix_is_accepted(n, dtype):
    X = rows(n, dtype)
    K = X @ X.T  # symmetric but for rounding
    K[0, -1] *= 1 + 1e-6
    Precomputed(0.0, K).check()


def test_a_matrix_that_is_not_square():
    with pytest.raises(InputError, match=r"must be a square matrix\. Input is a 4x3 matrix; to predict, .*\(rows, tr"):
        Precomputed(0.0, np.ones((4, 3))).check()


@pytest.mark.parametrize(("i", "j"), [(0, 1), (650, 3), (3, 650), (699, 698)])
def test_a_matrix_that_is_not_symmetric(i, j):
    X = rows(700)
    K = plain(X, X)
    K[i, j] += 0.5
    with pytest.raises(InputError, match=rf"not symmetric: see entry \(({i}, {j}|{j}, {i})\)"):
        Precomputed(0.0, K).check()


def test_a_matrix_with_a_negative_diagonal():
    K = np.eye(5)
    K[3, 3] = -1.0
    with pytest.raises(InputError, match="negative diagonal entry in row 3"):
        Precomputed(0.0, K).check()


WRONG = {
    "turned": (
        lambda A, B: plain(B, A),
        r"shape \(6, 5\) for rows of shape \(6, 4\) and \(5, 4\)\. Got shape \(5, 6\)",
    ),
    "flat": (lambda A, B: plain(A, B)[0], r"Got shape \(5,\)"),
    "text": (lambda A, B: plain(A, B).astype(str), "Got shape .* and dtype <U"),
    "complex": (lambda A, B: plain(A, B) + 0j, "dtype complex128"),
    "nothing": (lambda A, B: None, "dtype object"),
    "nan": (lambda A, B: plain(A, B) * np.nan, "kernel returned NaN or infinity"),
    "infinity": (lambda A, B: plain(A, B) + np.inf, "kernel returned NaN or infinity"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_callable_may_not_return(what):
    function, message = WRONG[what]
    with pytest.raises(InputError, match=message):
        CallableKernel(0.0, function).tile(rows(6), rows(5, seed=1))


@pytest.mark.parametrize("kind", [np.ndarray.tolist, np.asarray, lambda K: K.astype(np.float16)])
def test_a_callable_may_return_any_numbers(kind):
    X, Z = rows(6, "float32"), rows(5, "float32", seed=1)
    tile = CallableKernel(0.0, lambda A, B: kind(plain(A, B))).tile(X, Z)
    assert tile.dtype == np.float32
    np.testing.assert_allclose(tile, plain(X, Z), atol=1e-3)


def test_an_error_in_a_callable_is_passed_on():
    def failing(A, B):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        CallableKernel(0.0, failing).tile(rows(2), rows(2))
