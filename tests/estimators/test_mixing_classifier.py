"""MixingClassifier: shards by random deal, by an array and by a feature; suspects; robust ODM; what is refused."""

import shutil

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dask_odm import InputError, MixingClassifier, ODMClassifier, Store, StoreError
from dask_odm.datasets import contaminate_labels, deal_shards, make_separable
from small_stores import store_of

N, SHARDS = 1200, 12
NAMES = np.array([f"sender {k:02}" for k in range(SHARDS)])


@pytest.fixture(scope="module")
def told() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels of which those of three of twelve senders are flipped, the senders, the bad ones, the truth."""
    X, y = make_separable(N, 5, dtype="float64")
    sender = NAMES[deal_shards(N, SHARDS)]
    wrong, bad = contaminate_labels(y, sender, flipped=3)
    return X, wrong, sender, bad, y


@pytest.fixture(scope="module")
def store(told, tmp_path_factory) -> Store:
    return store_of(tmp_path_factory.mktemp("mixing") / "a.zarr", *told[:2], chunk_rows=130)


def mixed(**changes) -> MixingClassifier:
    return MixingClassifier(**{"max_iter": 15, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def model(told) -> MixingClassifier:
    return mixed().fit(*told[:2], shard=told[2])


def test_the_bad_senders_are_named_and_the_truth_is_learned(told, model):
    X, _, _, bad, truth = told
    assert model.suspects_ == bad.tolist()
    assert model.shards_ == NAMES.tolist()
    assert model.score(X, truth) > 0.99
    np.testing.assert_allclose(model.shard_weights_.sum(axis=1), 1.0)
    assert model.shard_weights_.shape == (model.n_iter_, SHARDS)
    assert model.shard_weights_[-1][np.isin(NAMES, bad)].sum() < 0.05
    assert (model.shard_errors_[np.isin(NAMES, bad)] > 0.9).all()
    assert model.history_[0]["solver"] == "pa"


def test_where_all_are_honest_nobody_is_a_suspect(told):
    X, _, sender, _, truth = told
    for changes in ({}, {"mixing": "kl"}, {"local": "perceptron"}):
        assert mixed(**changes).fit(X, truth, shard=sender).suspects_ == []


@pytest.mark.usefixtures("over_passes")
def test_a_store_takes_who_sent_each_row(told, model, store, tmp_path):
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        over = mixed().fit(store, shard=told[2])
    np.testing.assert_allclose(over.coef_, model.coef_, rtol=1e-9)
    np.testing.assert_allclose(over.shard_weights_, model.shard_weights_, atol=1e-9)
    assert over.suspects_ == model.suspects_
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["list", "series", "categories", "dask array", "numbers"])
def test_who_sent_a_row_may_come_in_any_form(told, model, form):
    X, y, sender = told[:3]
    shard = {
        "list": sender.tolist(),
        "series": pd.Series(sender, index=np.arange(N)[::-1]),
        "categories": pd.Series(sender, dtype="category"),
        "dask array": da.from_array(sender, chunks=100),
        "numbers": np.searchsorted(NAMES, sender),
    }[form]
    again = mixed().fit(X, y, shard=shard)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.shards_ == (list(range(SHARDS)) if form == "numbers" else model.shards_)


@pytest.mark.parametrize("place", ["memory", "csr", "frame", "store"])
@pytest.mark.parametrize("scale", [None, "standard"])
def test_a_feature_that_says_who_is_not_learned_from(told, place, scale, tmp_path, over_passes):
    X, y, sender = told[:3]
    wide = np.column_stack([X[:, :2], 3.0 + np.searchsorted(NAMES, sender), X[:, 2:]])
    names = ["a", "b", "sender", "c", "d", "e"]
    data = {
        "memory": lambda: (wide, y),
        "csr": lambda: (csr_array(wide), y),
        "frame": lambda: (pd.DataFrame(wide, columns=names), y),
        "store": lambda: (store_of(tmp_path / "w.zarr", wide, y, chunk_rows=200, names=names),),
    }[place]()
    feature = "sender" if place in ("frame", "store") else 2
    found = mixed(shard_feature=feature, scale=scale).fit(*data)
    expected = mixed(scale=scale).fit(X, y, shard=sender)
    assert found.coef_[0, 2] == 0
    np.testing.assert_allclose(np.delete(found.coef_, 2, axis=1), expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=1e-6, atol=1e-9)
    assert found.shards_ == list(range(3, 3 + SHARDS))


def test_the_shards_follow_from_the_rows_alone():
    X, y = make_separable(240, 3, dtype="float64")
    assert mixed(max_iter=1).fit(X, y).shards_ == [0, 1, 2, 3]
    assert mixed(max_iter=1).fit(X[:60], y[:60]).shards_ == [0, 1]
    assert len(mixed(max_iter=1, n_shards=10).fit(X, y).shards_) == 10
    weight = np.where(np.arange(240) < 120, 1.0, 0.0)
    alone, dropped = mixed().fit(X[:120], y[:120]), mixed().fit(X, y, weight)
    np.testing.assert_array_equal(dropped.coef_, alone.coef_)


@pytest.mark.parametrize("max_iter", [30])
def test_odm_steps_mixed_alike_come_near_the_odm(max_iter):
    """On honest rows, mixing stochastic steps of shards that look alike approaches the optimum of all rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    y = np.where(X @ [1.0, -2.0, 0.5] + 0.7 * rng.normal(size=4000) > 0.3, 1, -1)
    odm = {"lam": 50.0, "theta": 0.1, "upsilon": 0.5}
    exact = ODMClassifier("linear", tol=1e-10, **odm).fit(X, y)
    near = mixed(local="odm", mixing="kl", n_shards=10, max_iter=max_iter, **odm).fit(X, y)
    ends = [np.append(model.coef_, model.intercept_) for model in (exact, near)]
    assert np.linalg.norm(ends[1] - ends[0]) < 0.03 * np.linalg.norm(ends[0])


def test_a_robust_odm_learns_what_an_odm_cannot():
    """Of forty senders sixteen tell the opposite."""
    X, truth = make_separable(4000, 50, dtype="float64")
    sender = deal_shards(4000, 40)
    wrong, bad = contaminate_labels(truth, sender, flipped=16)
    plain = ODMClassifier("linear", lam=1e3).fit(X, wrong)
    robust = mixed(local="odm").fit(X, wrong, shard=sender)
    assert plain.score(X, truth) < 0.95
    assert robust.score(X, truth) > 0.99
    assert robust.suspects_ == bad.tolist()


def test_a_checkpoint_of_other_shards_is_refused(told, tmp_path):
    path = str(tmp_path / "c.zarr")
    for kind in (str, object):
        sender = told[2].astype(kind)
        mixed(max_iter=2, checkpoint=path).fit(*told[:2], shard=sender)
        mixed(max_iter=2, checkpoint=path, resume=True).fit(*told[:2], shard=sender)
        with pytest.raises(StoreError, match="is of another fit"):
            mixed(max_iter=2, checkpoint=path, resume=True).fit(*told[:2], shard=sender[::-1])
        shutil.rmtree(path)


def test_it_ends_once_no_row_moves_w():
    X, y = make_separable(400, 3, margin=1.0, dtype="float64")
    model = mixed(local="perceptron", mixing="kl", max_iter=200).fit(X, y)
    assert model.n_iter_ < 200
    assert model.score(X, y) == 1.0


def test_one_shard_that_has_all_the_weight_is_warned_of(told):
    with pytest.warns(UserWarning, match=r"shard 'sender \d\d' holds .*% of the weight .*smaller beta or kappa"):
        mixed(kappa=2000.0).fit(*told[:2], shard=told[2])


def test_shards_of_one_class_are_warned_of_and_if_all_are_refused(told):
    X, y, sender = told[:3]
    sorted_in = np.where(sender == NAMES[0], np.where(y > 0, "up", "down"), sender)
    with pytest.warns(UserWarning, match=r"2 of 13 shards hold rows of one class only \('down', 'up'\)"):
        mixed().fit(X, y, shard=sorted_in)
    with pytest.raises(InputError, match="every shard holds rows of one class only"):
        mixed().fit(X, y, shard=np.where(y > 0, "up", "down"))


BAD = {
    "missing": ({"shard": [None, *range(1, N)]}, {}, "missing for 1 rows, first for row 0"),
    "a matrix": ({"shard": np.zeros((N, 2))}, {}, r"a label for every row.* shape \(1200, 2\)"),
    "shards twice": ({"shard": np.arange(N) % 4}, {"shard_feature": 0}, "shard and shard_feature both"),
    "shards counted": ({"shard": np.arange(N) % 4}, {"n_shards": 4}, "n_shards must be None where shard says"),
    "one wanted": ({}, {"n_shards": 1}, r"'n_shards' parameter .* range \[2, inf\)"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", ["memory", "store"])
def test_bad_input_is_named(told, store, what, place, over_passes):
    given, changes, message = BAD[what]
    data = told[:2] if place == "memory" else (store,)
    with pytest.raises(InputError, match=message):
        mixed(**changes).fit(*data, **given)


def test_a_feature_of_many_values_names_no_sender():
    X = np.random.default_rng(0).random((70_000, 2))
    with pytest.raises(InputError, match="in 70000 shards, more than 65536: name a column that says who sent a row"):
        mixed(shard_feature=0).fit(X, X[:, 1] > 0.5)


@pytest.mark.parametrize("intercept", [True, False])
def test_errors_of_shards_are_those_of_the_predictions(told, intercept):
    """Rows of zeros included, whose score without an intercept is 0."""
    X, y, sender = told[0].copy(), told[1], told[2]
    X[::3] = 0.0
    model = mixed(fit_intercept=intercept).fit(X, y, shard=sender)
    wrong = model.predict(X) != y
    np.testing.assert_allclose(model.shard_errors_, [wrong[sender == name].mean() for name in model.shards_])
    assert intercept or not model.decision_function(X[::3]).any()
