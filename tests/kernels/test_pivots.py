"""Landmarks drawn uniformly and by a randomly pivoted Cholesky: its law, what it leaves, and degenerate data."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.data.rows.memory import SparseRows
from dask_odm.errors import InputError
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import RACES, MemoryPivots, Proposals, Race, ResidualRace, accepted, choose
from small_problems import matrix

KERNELS = [RBF(gamma=0.8), RBF(1.0, 0.8), Laplacian(1.0, 0.5), Linear(1.0), Polynomial(1.0, 0.3, 1.0, 2)]
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=str)
EVERY_METHOD = pytest.mark.parametrize("method", RACES)


def rows(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def chosen(method: str, kernel: Kernel, X, count: int, seed: int = 0, **options) -> Landmarks:
    return choose(kernel, MemoryPivots(X), count, method=method, seed=seed, **options)


def left_of(K: np.ndarray, pivots: list[int]) -> np.ndarray:
    """The Schur complement of K given pivots."""
    if not len(pivots):
        return K
    return K - K[:, pivots] @ np.linalg.solve(K[np.ix_(pivots, pivots)], K[pivots])


@EVERY_KERNEL
@pytest.mark.parametrize("n", [40, 200])
def test_proposals_are_accepted_by_what_is_left_of_them(kernel, n):
    """Against Schur complements formed anew for every proposal; 200 are two panels."""
    X, rng = rows(n), np.random.default_rng(1)
    held, chance = Landmarks.of(kernel, rows(5, seed=2)), rng.uniform(size=n)
    K = matrix(kernel, np.vstack([held.rows, X]))
    drawn, expected = left_of(K, list(range(len(held)))).diagonal(), list(range(len(held)))
    for i in range(len(held), len(K)):
        left = left_of(K, expected)[i, i]
        if left > max(chance[i - len(held)] * drawn[i], 1e-6):
            expected.append(i)
    expected = [i - len(held) for i in expected[len(held) :]]
    found = accepted(kernel, X, held.features(X), chance, 1e-6, n)
    assert found.tolist() == expected
    assert accepted(kernel, X, held.features(X), chance, 1e-6, 3).tolist() == expected[:3]


def test_pivots_follow_the_law_of_randomly_pivoted_cholesky():
    """Which of three clusters the first three pivots lie in, by the exact probabilities of drawing one at a time."""
    centres, sizes = np.array([[0.0], [1.0], [2.5]]), [120, 60, 20]
    cluster = np.repeat(range(3), sizes)
    X, kernel = centres[cluster] + 0.01 * rows(200, 1), RBF(gamma=1.0)
    K, expected = matrix(kernel, centres), {}
    for i in range(3):
        for j in range(3):
            first = left_of(K, [i]).diagonal() * sizes
            if j == i:
                continue
            pair = sizes[i] / 200 * first[j] / first.sum()
            key = tuple(sorted((i, j)))
            expected[key] = expected.get(key, 0.0) + pair
    found = dict.fromkeys(expected, 0)
    for seed in range(400):
        index = chosen("rp", kernel, X, 2, seed).index
        key = tuple(sorted(cluster[index].tolist()))
        found[key] = found.get(key, 0) + 1
    for key, probability in expected.items():
        deviation = np.sqrt(400 * probability * (1 - probability))
        assert abs(found[key] - 400 * probability) < 4 * deviation + 2


@pytest.mark.parametrize("held", [False, True], ids=["by diagonal", "by residual"])
def test_the_first_of_a_race_is_drawn_in_proportion(held):
    X, kernel = rows(5, 2, seed=3), Linear()
    landmarks = Landmarks.of(kernel, X[:1]) if held else None
    chance = left_of(matrix(kernel, X), [0] if held else []).diagonal()
    first = [
        int(ResidualRace(kernel, landmarks, 1, 1e-9, seed, 1).chunk(X, np.arange(5), 0).numbers[0])
        for seed in range(800)
    ]
    expected = 800 * chance / chance.sum()
    deviation = np.sqrt(expected * (1 - expected / 800))
    assert (np.abs(np.bincount(first, minlength=5) - expected) <= 4 * deviation + 1e-3).all()


@EVERY_METHOD
def test_chunks_and_turns_have_random_numbers_of_their_own(method):
    X = rows(6)
    keys = {
        RACES[method](RBF(), None, 6, 0.0, seed, turn).chunk(X, np.arange(6), chunk).keys.tobytes()
        for seed in range(2)
        for turn in range(2)
        for chunk in range(2)
    }
    assert len(keys) == 8


@dataclass(frozen=True, eq=False)
class Listening(MemoryPivots):
    """Remembers what was left before every block."""

    heard: list[float] = field(default_factory=list)

    def run(self, race: Race) -> Proposals:
        proposals = super().run(race)
        self.heard.append(proposals.total)
        return proposals


def test_rare_rows_are_found_that_uniform_landmarks_miss():
    X = np.concatenate([0.05 * rows(4000, 2), 30.0 + 0.05 * rows(40, 2), -30.0 + 0.05 * rows(4, 2)])
    kernel = RBF(gamma=1.0)
    for seed in range(5):
        # of 50 uniform rows, 24 in 25 leave the four out
        assert chosen("rp", kernel, X, 50, seed).residual(X).sum() < 1e-3
    left = [chosen("uniform", kernel, X, 50, seed).residual(X).sum() for seed in range(5)]
    assert np.median(left) > 3.0


@EVERY_KERNEL
@EVERY_METHOD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_rows_by_number_and_independent(kernel, method, dtype):
    X = rows(900).astype(dtype)
    landmarks = chosen(method, kernel, X, 40)
    rank = {"linear": 4, "poly": 10}.get(kernel.name, 40)
    assert len(landmarks) == rank
    assert (np.diff(landmarks.index) > 0).all()
    np.testing.assert_array_equal(landmarks.rows, X[landmarks.index])
    assert np.isfinite(landmarks.factor).all()


@EVERY_METHOD
def test_threads_change_nothing_seeds_do(method):
    X = rows(40_000, 4).astype(np.float32)
    index = [
        choose(RBF(gamma=0.5), MemoryPivots(X, threads), 60, method=method, seed=seed).index.tolist()
        for threads, seed in [(1, 3), (3, 3), (1, 4)]
    ]
    assert index[0] == index[1]
    assert index[0] != index[2]


def test_proposals_are_the_same_however_chunks_are_grouped():
    rng = np.random.default_rng(0)
    parts = [Proposals(rng.exponential(size=9), 9 * i + np.arange(9), 9, (0.1 * i,)) for i in range(7)]
    whole = Proposals.merged(parts, 5)
    for cut in (1, 3, 6):
        some = Proposals.merged([Proposals.merged(parts[cut:], 5), Proposals.merged(parts[:cut], 5)], 5)
        np.testing.assert_array_equal(some.numbers, whole.numbers)
        assert some.total == whole.total
        assert some.seen == 63


def test_a_share_of_the_trace_ends_it():
    X, kernel = rows(3000, 2), RBF(gamma=0.5)
    before = 0
    for trace in (1e-1, 1e-3, 1e-6):
        landmarks = chosen("rp", kernel, X, 3000, trace=trace)
        assert landmarks.residual(X).sum() <= trace * 3000
        assert before < len(landmarks) < 600
        before = len(landmarks)
    assert len(chosen("rp", kernel, X, 20, trace=1e-6)) == 20


def test_it_ends_at_the_first_block_that_leaves_no_more():
    X, kernel = rows(2000, 2), RBF(gamma=0.5)
    for trace in 10.0 ** -np.arange(0.25, 5, 0.25):
        source = Listening(X)
        choose(kernel, source, 2000, method="rp", trace=trace)
        *before, last = source.heard
        assert last <= trace * 2000 < min(before)


def test_a_share_of_the_rows_takes_part_the_same_in_every_turn():
    X, kernel, seen = rows(2000, 2), RBF(gamma=1e6), set()
    for turn in range(3):
        race = ResidualRace(kernel, None, 2000, 0.0, 7, turn, share=0.2)
        proposals = Proposals.merged(
            [race.chunk(X[i : i + 400], np.arange(i, i + 400), i) for i in range(0, 2000, 400)], 2000
        )
        assert proposals.seen == 2000
        assert proposals.total == len(proposals.numbers)
        seen.add(tuple(np.sort(proposals.numbers)))
    assert len(seen) == 1
    assert 320 < len(seen.pop()) < 480
    few, more = chosen("rp", kernel, X, 2000, rows=200), chosen("rp", kernel, X, 300, rows=10)
    assert len(few) == 2000
    assert 250 < len(more) <= 300


@EVERY_METHOD
def test_sparse_rows_are_chosen_as_dense_ones(method):
    X = np.where(rows(1000, 6) > 0.5, rows(1000, 6), 0.0)
    dense, sparse = chosen(method, RBF(gamma=0.3), X, 60), chosen(method, RBF(gamma=0.3), SparseRows(csr_array(X)), 60)
    np.testing.assert_array_equal(sparse.index, dense.index)
    np.testing.assert_array_equal(sparse.rows, dense.rows)


@EVERY_METHOD
def test_repeated_rows_are_chosen_once(method):
    X = np.repeat(rows(15), 40, axis=0).astype(np.float32)
    landmarks = chosen(method, RBF(gamma=0.5), X, 600)
    assert len(landmarks) == len(np.unique(landmarks.rows, axis=0)) == 15
    assert landmarks.residual(X).max() < 1e-6


@EVERY_METHOD
def test_constant_features_change_nothing(method):
    X = rows(400, 2)
    with_constant = np.column_stack([X, np.full(400, 7.0)])
    index = chosen(method, RBF(gamma=2.0), with_constant, 30).index
    np.testing.assert_array_equal(index, chosen(method, RBF(gamma=2.0), X, 30).index)
    assert len(chosen(method, RBF(), np.full((50, 3), 2.0), 20)) == 1


@EVERY_METHOD
def test_one_row_and_more_landmarks_than_rows(method):
    assert chosen(method, RBF(), rows(1), 100).index.tolist() == [0]
    assert chosen(method, RBF(gamma=1.0), rows(30), 100).index.tolist() == list(range(30))
    assert len(chosen(method, RBF(gamma=1.0), rows(300), 1)) == 1


@EVERY_METHOD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_kernels_end_at_their_rank(method, dtype):
    X = rows(500, 1).astype(dtype)
    assert len(chosen(method, Linear(), X, 100)) == 1
    assert len(chosen(method, Linear(1.0), X, 100)) == 2
    assert len(chosen(method, RBF(gamma=1e9), X, 100)) == 100
    assert 1 <= len(chosen(method, RBF(gamma=1e-12), X, 100)) <= 2
    few = chosen(method, RBF(gamma=0.5), X, 400)
    eigenvalues = np.linalg.eigvalsh(matrix(RBF(gamma=0.5), X))[::-1]
    floor = {"float32": 1e-9, "float64": 1e-13}[dtype]
    assert (eigenvalues > 500 * 400 * floor).sum() <= len(few) <= (eigenvalues > floor).sum()


@EVERY_METHOD
@pytest.mark.parametrize("rows_", [np.zeros((20, 2)), np.full((20, 2), 1e200)], ids=["zero", "overflow"])
def test_kernels_that_vanish_or_overflow_are_refused(method, rows_):
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(InputError, match="overflows or is zero"):
        chosen(method, Linear(), rows_, 5)


@EVERY_METHOD
def test_rows_of_zero_are_no_landmark_of_a_linear_kernel(method):
    X = np.concatenate([np.zeros((500, 2)), rows(5, 2)])
    assert chosen(method, Linear(), X, 505).index.min() >= 500
