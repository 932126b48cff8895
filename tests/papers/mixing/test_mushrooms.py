"""The paper's mushrooms row: a hundred shards, clean, with thirty flipped ones, and with eighty of random labels."""

import numpy as np
import pytest

from dask_odm import MixingClassifier
from dask_odm.datasets import contaminate_labels, deal_shards

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mushrooms(load_svm):
    X, y = load_svm("mushrooms")
    order = np.random.default_rng(0).permutation(len(y))
    train, test = np.split(order, [round(0.8 * len(y))])
    return X[train], y[train], X[test], y[test], deal_shards(len(train), 100)


def fitted(mushrooms, mixing: str, local: str = "pa", **contamination):
    X, y, X_test, y_test, shard = mushrooms
    told, bad = contaminate_labels(y, shard, **contamination)
    model = MixingClassifier(local, mixing=mixing, random_state=0).fit(X, told, shard=shard)
    return model, model.score(X_test, y_test), bad.tolist()


def test_clean_shards(mushrooms):
    model, accuracy, _ = fitted(mushrooms, "kl")
    assert accuracy >= 0.998
    assert model.suspects_ == []


@pytest.mark.parametrize("what", [{"flipped": 30}, {"random": 80}], ids=str)
def test_flipped_and_random_shards(mushrooms, what):
    model, accuracy, bad = fitted(mushrooms, "beta", **what)
    if "flipped" in what:
        assert accuracy >= 0.985
        assert model.shard_weights_[-1][bad].sum() < 0.05
    else:
        assert accuracy >= 0.98
        assert fitted(mushrooms, "kl", **what)[1] < 0.96
    assert len(set(model.suspects_) & set(bad)) >= 0.95 * len(bad)
    assert set(model.suspects_) <= set(bad)


def test_a_robust_odm(mushrooms):
    _, alike, _ = fitted(mushrooms, "kl", "odm", random=80)
    _, accuracy, _ = fitted(mushrooms, "beta", "odm", random=80)
    assert accuracy >= 0.98 > alike
