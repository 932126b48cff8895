"""`MDDRidge.update`: rows added to a fitted model give the bits of a fit of all rows, wherever they are."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dask_odm import InputError, MDDRidge, ingest, load_model
from dask_odm.estimators import mdd_ridge
from dask_odm.linalg.row_passes import RowBlock
from small_stores import store_of

N = 4000


def rows(d=5, dtype=np.float64, n=N):
    rng = np.random.default_rng(d)
    X = (rng.normal(size=(n, d)) * rng.uniform(0.1, 5.0, d) + rng.normal(size=d) * 10.0).astype(dtype)
    return X, X @ rng.normal(size=d) + rng.normal(size=n)


def same(model: MDDRidge, other: MDDRidge) -> None:
    """Fail unless both have the same bits, those of further updates included."""
    for name in ("coef_", "intercept_", "moments_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name))
    assert model.moments_layout_ == other.moments_layout_


@pytest.mark.parametrize(("d", "dtype", "scale"), [
    *((5, np.float32, None), (5, np.float64, "minmax")),  # compiled loops
    *((90, np.float32, "standard"), (90, np.float64, None)),  # BLAS
    *((700, np.float32, "minmax"), (700, np.float64, "standard")),  # blocks of fewer rows than a piece
])  # fmt: skip
def test_parts_are_the_whole(dtype, d, scale):
    X, y = rows(d, dtype)
    weight = np.random.default_rng(0).integers(0, 3, N) * 0.7  # rows of weight 0 take no part
    weight[::2] = 1.3
    whole = MDDRidge(scale=scale).fit(X, y, weight)
    for cuts in ((8, 200), (256, 258, 3900), (1024, 2048, N - 2)):
        first, *others = np.split(np.arange(N), cuts)
        model = MDDRidge(scale=scale).fit(X[first], y[first], weight[first])
        for part in others:
            model.update(X[part], y[part], weight[part])
        same(model, whole)


def test_two_targets_and_sparse_rows_with_and_without_weights():
    X, _ = rows(30)
    X[np.abs(X) < 8.0] = 0.0
    Y = X[:, :2] + np.random.default_rng(1).normal(size=(N, 2))
    for take in (np.asarray, csr_array):
        model = MDDRidge(0.1).fit(take(X[:1500]), Y[:1500])
        model.update(csr_array(X[1500:]), Y[1500:], np.ones(N - 1500))
        same(model, MDDRidge(0.1).fit(take(X), Y))


def test_a_store_of_two_targets_is_added(tmp_path):
    X, y = rows(n=500)
    Y = np.stack([y, -2.0 * y + X[:, 0]], axis=1)
    store = store_of(tmp_path / "a.zarr", X[300:], Y[300:], real=True)
    same(MDDRidge().fit(X[:300], Y[:300]).update(store), MDDRidge().fit(X, Y))


def test_a_large_sparse_block_is_made_dense_a_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(mdd_ridge, "BLOCK_BYTES", 8 * 30 * 100)
    X, y = rows(30)
    X[np.abs(X) < 8.0] = 0.0
    store = ingest((csr_array(X[1500:]), y[1500:]), tmp_path / "a.zarr", sparse=True, target="real", dtype="float64")
    model = MDDRidge().fit(X[:1500], y[:1500])
    seen = []
    monkeypatch.setattr(mdd_ridge, "RowBlock", lambda X, *rest: seen.append(X.shape[0]) or RowBlock(X, *rest))
    same(model.update(store), MDDRidge().fit(X, y))
    assert store.n_chunks == 1
    assert seen == [100] * 25


def test_settings_may_change_since_moments_do_not_depend_on_them():
    X, y = rows()
    model = MDDRidge(0.1, scale="minmax").fit(X[:100], y[:100])
    model.set_params(lam=2.0, scale="standard", fit_intercept=False).update(X[100:], y[100:])
    same(model, MDDRidge(2.0, scale="standard", fit_intercept=False).fit(X, y))
    assert model.history_[0]["solver"] == "moments"


def test_stores_and_dask_arrays_that_are_not_read_into_memory(tmp_path):
    X, y = rows(dtype=np.float32)
    y[:1000:17] = y[2000::17] = np.nan  # rows without a target
    parts = {"all": slice(N), "first": slice(0, 1333), "third": slice(2000, N)}
    stores = {
        name: store_of(tmp_path / f"{name}.zarr", X[part], y[part], chunk_rows=301, real=True)
        for name, part in parts.items()
    }
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        whole = MDDRidge(scale="standard").fit(stores["all"])
        MDDRidge(scale="standard").fit(stores["first"]).save(tmp_path / "m.zarr")
        model = load_model(tmp_path / "m.zarr")
        model.update(da.from_array(X[1333:2000], chunks=(70, -1)), da.from_array(y[1333:2000], chunks=70))
        same(model.update(stores["third"]), whole)
    here = MDDRidge().fit(stores["first"]).update(X[1333:2000], y[1333:2000]).update(stores["third"])
    same(here, MDDRidge().fit(stores["all"]))
    assert here.moments_layout_["in_store"] is False
    known = ~np.isnan(y)
    np.testing.assert_allclose(here.coef_, MDDRidge().fit(X[known], y[known]).coef_, rtol=1e-5)


def test_a_frame_of_the_same_columns_is_asked_for():
    X, y = rows()
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = MDDRidge().fit(frame[:300], y[:300])
    with pytest.raises(InputError, match="feature names"):
        model.update(frame[["b", "a", "c", "d", "e"]][300:], y[300:])
    same(model.update(frame[300:], y[300:]), MDDRidge().fit(frame, y))
    assert list(model.feature_names_in_) == list("abcde")


def test_a_dask_frame_of_words_is_added_by_the_recipe_of_the_fit_if_it_is_too_large_for_memory():
    X, y = rows(n=400)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(word=np.where(X[:, 0] > X[:, 0].mean(), "up", "down"))
    here = MDDRidge().fit(frame, y).update(frame[:100], y[:100])
    lazy = dd.from_pandas(frame[:100].assign(y=y[:100]), npartitions=2)
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        spooled = MDDRidge().fit(frame, y).update(lazy, "y")
    np.testing.assert_allclose(spooled.coef_, here.coef_)


def test_features_of_a_store_are_picked_by_name(tmp_path):
    X, y = rows()
    first, own, other = (
        store_of(tmp_path / f"{i}.zarr", X[part][:, order], y[part], names=list(names), real=True)
        for i, (part, order, names) in enumerate(
            [
                (slice(300), [0, 1, 2, 3, 4], "abcde"),
                (slice(300, None), [0, 1, 2, 3, 4], "abcde"),
                (slice(300, None), [1, 0, 4, 3, 2], "baedc"),
            ]
        )
    )
    models = [MDDRidge().fit(first).update(store) for store in (own, other)]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


class TestRefusals:
    """Each leaves the model as it was."""

    @pytest.fixture
    def model(self):
        return MDDRidge().fit(*rows())

    def test_other_rows(self, model):
        before = model.coef_.copy()
        with pytest.raises(InputError, match="4 features"):
            model.update(np.ones((3, 4)), np.ones(3))
        with pytest.raises(InputError, match=r"not finite|too large"):
            model.update(np.full((3, 5), 1e200), np.ones(3))
        np.testing.assert_array_equal(model.coef_, before)

    def test_no_moments(self, model, tmp_path):
        del model.moments_
        model.save(tmp_path / "m.zarr")
        with pytest.raises(InputError, match="has no moments_ to add rows to"):
            load_model(tmp_path / "m.zarr").update(*rows())
        with pytest.raises(InputError, match="has no moments_"):
            MDDRidge(n_partitions=2).fit(*rows()).update(*rows())
