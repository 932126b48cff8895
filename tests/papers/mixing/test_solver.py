"""Parameter mixing: identities of its weights, the theorems' bounds, and what it refuses."""

from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np
import pytest
from scipy.special import softmax

from dask_odm.papers.mixing.mixtures import Centre, Mixture, Moments
from dask_odm.papers.mixing.online_passes import LocalRule
from dask_odm.papers.mixing.solver import Mixing, MixingState, mix_parameters, suspects

M = 12
ANY = 1.0, 1e3, 0.1, 0.5  # parameters of other rules


@pytest.fixture(scope="module")
def ends() -> np.ndarray:
    """Where twelve shards ended, (12, 6); the last feature is the same for all but for rounding."""
    rng = np.random.default_rng(0)
    W = rng.normal(size=(M, 6)) + 2.0
    W[:, -1] = 0.0
    return W


def moments_of(W: np.ndarray) -> Moments:
    """Added up shard by shard and pair by pair, as groups do."""
    each = [Moments.of(w[None], np.array([[1.0, 2.0]])) for w in W]
    return reduce(add, each[:5]) + (reduce(add, each[5:9]) + reduce(add, each[9:]))


def weights_of(W: np.ndarray, mixing: Mixing, present: np.ndarray | None = None) -> np.ndarray:
    moments = moments_of(W)
    centre = mixing.centre(moments, np.full(W.shape[1], len(W)) if present is None else present)
    return centre.weights(centre.distances(W))


def test_moments_are_those_of_all_shards(ends):
    U = ends / np.linalg.norm(ends, axis=1)[:, None]
    moments = moments_of(ends)
    np.testing.assert_allclose(moments.mean, U.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(moments.squares / M, U.var(axis=0), rtol=1e-11)
    np.testing.assert_allclose(moments.figures[:, 0], np.linalg.norm(ends, axis=1))
    assert (moments.count, *moments.figures[:, 1:].sum(axis=0)) == (M, M, 2 * M)


def test_the_mean_squared_distance_is_the_number_of_features(ends):
    centre = Mixing("beta", beta=0.1).centre(moments_of(ends), np.full(6, M))
    assert centre.distances(ends).mean() == pytest.approx(5, abs=1e-10)
    assert centre.precision[-1] == 0


def test_weights_are_the_papers(ends):
    U = (ends / np.linalg.norm(ends, axis=1)[:, None])[:, :5]
    distances = ((U - U.mean(axis=0)) ** 2 / U.var(axis=0)).sum(axis=1)
    np.testing.assert_allclose(weights_of(ends, Mixing("beta", beta=0.3)), softmax(-0.15 * distances), rtol=1e-9)


def test_no_beta_gives_all_shards_the_same_weight(ends):
    np.testing.assert_allclose(weights_of(ends, Mixing("beta", beta=1e-12)), 1 / M, rtol=1e-10)
    assert (weights_of(ends, Mixing("beta", beta=0.0)) == 1 / M).all()
    assert (weights_of(ends, Mixing("kl")) == 1 / M).all()


def test_kappa_is_beta_times_half_the_features_that_count(ends):
    np.testing.assert_allclose(
        weights_of(ends, Mixing("beta", kappa=2.0)), weights_of(ends, Mixing("beta", beta=2.0 * 2.0 / 5)), rtol=1e-12
    )


def test_weights_go_with_the_shards_and_not_with_their_scale(ends):
    mixing, order = Mixing("beta", kappa=4.0), np.random.default_rng(1).permutation(M)
    weights = weights_of(ends, mixing)
    np.testing.assert_allclose(weights_of(ends[order], mixing), weights[order], rtol=1e-9)
    scaled = ends.copy()
    scaled[3] *= 1e6
    np.testing.assert_allclose(weights_of(scaled, mixing), weights, rtol=1e-9)


def test_a_mixture_streams(ends):
    """With scores as far apart as many features make them, where plain exponentials are 0/0."""
    for half_beta in (0.3, 500.0):
        centre = Centre(ends.mean(axis=0), np.ones(6), half_beta)
        parts = [centre.mixture(W) for W in np.array_split(ends, 5)]
        mixed: Mixture = (parts[0] + parts[1]) + ((parts[2] + parts[3]) + parts[4])
        expected = softmax(-half_beta * centre.distances(ends)) @ ends
        np.testing.assert_allclose(mixed.vector / mixed.total, expected, rtol=1e-12)
        np.testing.assert_allclose(mixed.distances, centre.distances(ends))


def test_many_features_do_not_underflow():
    W = np.random.default_rng(0).normal(size=(20, 20_000))
    weights = weights_of(W, Mixing("beta", beta=1.0))
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1.0)


def test_a_feature_of_a_single_shard_does_not_count(ends):
    alone = np.zeros((M, 1))
    alone[4] = 5.0
    W = np.column_stack([ends[:, :5], 0.01 * alone])
    mixing, present = Mixing("beta", kappa=8.0), np.array([M] * 5 + [1])
    expected = weights_of(ends, mixing)[4]
    assert weights_of(W, mixing, present)[4] == pytest.approx(expected, rel=0.02)
    assert weights_of(W, mixing)[4] < 1e-2 * expected


@dataclass(eq=False)
class SlowShards:
    """Shards that are arrays, asked as `ShardRounds` are; they keep what each pass counted, and the weights."""

    shards_rows: list[tuple[np.ndarray, np.ndarray]]
    rule: LocalRule
    counted: list[np.ndarray] = field(default_factory=list)

    @property
    def shards(self) -> int:
        return len(self.shards_rows)

    @property
    def k(self) -> int:
        return self.shards_rows[0][0].shape[1]

    @property
    def present(self) -> np.ndarray:
        return np.full(self.k, self.shards)

    def walk(self, w: np.ndarray, epoch: int) -> Moments:
        self.ends = np.repeat(w[None], self.shards, axis=0)
        self.counted.append(
            np.array(
                [self.rule.walk(X, y, np.ones(len(y)), self.ends[i], 0) for i, (X, y) in enumerate(self.shards_rows)]
            )
        )
        return Moments.of(self.ends, self.counted[-1])

    def mix(self, centre: Centre) -> Mixture:
        return centre.mixture(self.ends)


def made(separable: bool, unit: bool, seed: int = 0) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Ten shards of forty rows in four features, two of which lie where not separable; and a good unit vector u."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=4)
    u /= np.linalg.norm(u)
    shards = []
    for i in range(10):
        X = rng.normal(size=(40, 4))
        y = np.where(X @ u > 0, 1.0, -1.0)
        X += 0.2 * y[:, None] * u
        if unit:
            X /= np.linalg.norm(X, axis=1)[:, None]
        shards.append((X, -y if i < 2 and not separable else y))
    return shards, u


def run(shards, name: str, mixing: Mixing) -> tuple[MixingState, np.ndarray]:
    problem = SlowShards(shards, LocalRule(name, *ANY))
    state = mix_parameters(problem, mixing, 25)
    return state, np.array(problem.counted)


each_mixing = pytest.mark.parametrize("mixing", [Mixing("kl"), Mixing("beta", kappa=4.0)], ids=["kl", "beta"])


@each_mixing
@pytest.mark.parametrize("separable", [True, False])
def test_mistakes_of_the_perceptron_stay_below_theorems_1_and_2(mixing, separable):
    shards, u = made(separable, unit=False)
    state, counted = run(shards, "perceptron", mixing)
    largest = max(np.linalg.norm(X, axis=1).max() for X, _ in shards)
    gamma = 0.2 if not separable else min((y * (X @ u)).min() for X, y in shards)
    mistakes = (state.weights * counted[..., 0]).sum()
    assert mistakes == pytest.approx(sum(record["moved"] for record in state.history))
    excess = np.array([np.maximum(0.0, gamma - y * (X @ u)).sum() for X, y in shards])
    assert 0 < mistakes <= largest**2 / gamma**2 + 2.0 / gamma * (state.weights * excess).sum()
    if separable:
        assert state.history[-1]["moved"] == 0, "it ends once no row is wrong"
        assert state.epoch < 25


@each_mixing
def test_losses_of_passive_aggressive_stay_below_theorem_3(mixing):
    shards, u = made(separable=True, unit=False)
    state, counted = run(shards, "pa", mixing)
    gamma = min((y * (X @ u)).min() for X, y in shards)
    largest = max(np.linalg.norm(X, axis=1).max() for X, _ in shards)
    losses = (state.weights * counted[..., 1]).sum()
    assert losses == pytest.approx(sum(record["objective"] for record in state.history))
    assert 0 < losses <= (1.0 / gamma) ** 2 * largest**2  # u/γ has no loss


def test_suspects_contradict_beyond_chance():
    sizes = np.array([100, 100, 100, 100, 6])
    weights = np.array([[0.2] * 5, [0.4, 0.4, 0.1, 0.0, 0.1]])
    wrong = np.array([5, 5, 20, 96, 3])
    assert suspects(wrong, sizes, weights).tolist() == [3], "half of six rows may be chance"
    assert suspects(np.array([5, 5, 60, 50, 1]), sizes, weights).tolist() == [2, 3]
    assert suspects(np.zeros(5), sizes, weights).tolist() == []
