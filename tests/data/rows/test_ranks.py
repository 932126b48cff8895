"""Ranks of columns against scikit-learn and SciPy: ties, zeros, ends, weights, sparse rows; fits on warped columns."""

import re
from functools import partial

import numpy as np
import pytest
from dask.utils import parse_bytes
from scipy.sparse import csr_array
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.preprocessing import QuantileTransformer

import dask_odm as odm
from dask_odm.data.rows import ranks as ranks_module
from dask_odm.data.rows.ranks import Ranks
from dask_odm.data.rows.scaling import RANKS, Scaling, StoredScaling
from dask_odm.data.store.records import read_record, write_record
from dask_odm.data.store.statistics import Statistics, StatisticsAccumulator
from dask_odm.models.predict import model_from
from dask_odm.solvers import SODM, Cells, Landmark
from small_stores import store_of


def plain(X: np.ndarray) -> Statistics:
    gathered = StatisticsAccumulator(X.shape[1])
    gathered.update(X)
    return gathered.result()


def ranks_of(X: np.ndarray, weight: np.ndarray | None = None, given: object = None) -> Ranks:
    return Ranks.of_rows(X if given is None else given, np.ones(len(X)) if weight is None else weight, plain(X))


def levels(ranks: Ranks, X: np.ndarray) -> np.ndarray:
    return ranks(X, np.empty_like(X), np.zeros(X.shape[1]), np.ones(X.shape[1]))


def rows(n: int = 5000) -> np.ndarray:
    """A lognormal, a rounded, a mostly zero, a two-valued and a constant column."""
    rng = np.random.default_rng(0)
    few = np.where(rng.random(n) < 0.1, rng.normal(size=n), 0.0)
    columns = np.exp(2 * rng.normal(size=n)), rng.integers(-3, 9, n), few, rng.random(n) < 0.02, np.full(n, 7.0)
    return np.column_stack(columns).astype(np.float64)


def test_few_rows_have_the_normal_scores_of_their_middle_ranks():
    X = np.random.default_rng(0).integers(1, 40, (200, 2)).astype(np.float64)
    X[:, 1] = np.exp(X[:, 1])
    score = np.clip(ndtri((rankdata(X, axis=0) - 0.5) / 200), -3, 3)
    expected = (score - score.min(axis=0)) / np.ptp(score, axis=0)
    np.testing.assert_allclose(levels(ranks_of(X), X), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_between_knots_it_is_the_quantile_transformer_of_scikit_learn(dtype):
    X = rows().astype(dtype)
    ranks = ranks_of(X)
    assert np.diff(ranks.bounds).max() <= 256
    for j in range(3):
        own = slice(*ranks.bounds[j : j + 2])
        base, high = ranks.levels[own][[0, -1]]
        assert high - base == pytest.approx(1.0)
        other = QuantileTransformer(n_quantiles=own.stop - own.start).fit(ranks.knots[own, None])
        other.quantiles_, other.references_ = ranks.knots[own, None], ranks.levels[own] - base
        new = np.linspace(2 * X[:, j].min() - 1, 2 * X[:, j].max(), 999).astype(dtype)  # beyond the ends, too
        found = levels(ranks, np.repeat(new[:, None], X.shape[1], axis=1))[:, j]
        inside = np.diff(ranks.levels[own], prepend=-9) > 0  # of equal levels the other takes the middle
        assert inside.sum() > 10
        np.testing.assert_allclose(found - base, other.transform(new[:, None])[:, 0], atol=1e-6)


def test_ties_zeros_words_and_constants():
    X = rows()
    found = levels(ranks_of(X), X)
    np.testing.assert_array_equal(found[:, 3], X[:, 3])
    np.testing.assert_array_equal(found[:, 4], 0.0)
    np.testing.assert_array_equal(found[X == 0.0], 0.0)
    for j in range(3):
        order = np.argsort(X[:, j], kind="stable")
        assert (np.diff(found[order, j])[np.diff(X[order, j]) == 0] == 0).all()
        assert (np.diff(found[order, j]) >= -1e-15).all()
        assert len(np.unique(found[:, j])) > 0.9 * min(len(np.unique(X[:, j])), 250)


def test_sparse_rows_have_the_levels_of_dense_ones():
    X = np.where(np.random.default_rng(1).random((300, 40)) < 0.05, rows(300)[:, [0, 1] * 20], 0.0)
    ranks = ranks_of(X)
    assert ranks.same(ranks_of(X, given=csr_array(X)))
    scaling = Scaling.from_statistics(ranks.statistics(csr_array(X), np.ones(300)), RANKS, centre=True)
    sparse = scaling.of_csr(csr_array(X))
    assert sparse.shift is None
    assert len(sparse.values) == np.count_nonzero(X)
    np.testing.assert_array_equal(np.asarray(sparse), scaling(X))
    dense = ranks.statistics(X, np.ones(300))
    assert scaling.variance(dense) == pytest.approx(scaling(X).var(), rel=1e-10)


def test_rows_that_are_counted_twice_are_as_two_rows(monkeypatch):
    X, weight = rows(300), 1.0 + np.arange(300) % 2
    monkeypatch.setattr(ranks_module, "PIECE_ENTRIES", 1)  # a column at a time
    one, two = ranks_of(X, weight), ranks_of(np.repeat(X, weight.astype(int), axis=0))
    np.testing.assert_array_equal(one.knots, two.knots)
    np.testing.assert_allclose(one.levels, two.levels, atol=1e-12)


def test_one_way_to_map_has_the_bits_of_another(tmp_path):
    X = rows(700)
    scaling = Scaling.from_statistics(ranks_of(X).statistics(X, np.ones(700)), RANKS, centre=True, marks=(3,))
    scaling = scaling.seen_from(X[5])
    whole = scaling(X)
    np.testing.assert_array_equal(whole[5], 0.0)
    np.testing.assert_array_equal(np.concatenate([scaling(X[i : i + 1]) for i in range(700)]), whole)
    np.testing.assert_array_equal(scaling(X.astype(np.float32).astype(np.float64)).astype(np.float32),
                                  scaling(X.astype(np.float32)))  # fmt: skip
    scaling.save(str(tmp_path / "scaling.npy"))
    stored = StoredScaling(str(tmp_path / "scaling.npy"))
    np.testing.assert_array_equal(stored(X), whole)
    np.testing.assert_array_equal(stored.shift, scaling.shift)
    given = X.copy()
    assert scaling(given, given) is given
    np.testing.assert_array_equal(given, whole)


def task(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(2).normal(size=(n, 3))
    return X, X[:, 0] * X[:, 1] > 0.3 * X[:, 2]


WARPS = [np.exp, lambda x: x**3, lambda x: 1e6 + np.arctan(x)]


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly"])
@pytest.mark.parametrize("solver", ["exact", Landmark(60), Cells(60), SODM(2)], ids=str)
def test_what_is_learned_does_not_change_when_columns_are_warped(kernel, solver):
    """All values of so few rows are knots; between those of others, warped columns are not quite linear."""
    X, y = task(100)
    model = odm.ODMClassifier(kernel, scale="ranks", solver=solver, gamma=4.0, lam=50.0, tol=1e-8, random_state=0)
    warped = np.column_stack([warp(x) for warp, x in zip(WARPS, X.T, strict=True)])
    if kernel == "poly":  # whose zero is that of the columns
        warped = np.column_stack([x**3 for x in X.T])
    expected = model.fit(X, y).decision_function(X)
    assert model.score(X, y) > 0.8
    np.testing.assert_allclose(model.fit(warped, y).decision_function(warped), expected, atol=1e-4)


def test_warped_columns_of_many_rows_and_rows_beyond_them():
    (X, y), (Z, z) = task(3000), (task(3500)[0][3000:], task(3500)[1][3000:])
    model = odm.ODMClassifier("laplacian", scale="ranks", solver=Landmark(200), lam=1e3, tol=1e-6, random_state=0)
    expected = model.fit(X, y).decision_function(Z)
    assert model.score(Z, z) > 0.9
    found = model.fit(np.exp(X), y).decision_function(np.exp(Z))
    assert np.abs(found - expected).max() < 0.1
    ends = model.decision_function(np.exp(X.max(axis=0, keepdims=True)))
    np.testing.assert_array_equal(model.decision_function(np.full((1, 3), 1e300)), ends)


@pytest.mark.parametrize(
    "make", [odm.ODMRegressor, partial(odm.ODMRegressorCV, gammas=None, lams=[1e4])], ids=["one", "cv"]
)
def test_columns_with_heavy_tails_are_learned(make):
    X = np.exp(2 * np.random.default_rng(0).normal(size=(500, 3)))
    y = np.log(X[:, 0]) * np.log(X[:, 1])
    ranked, plain = (make(scale=scale, random_state=0).fit(X[:350], y[:350]) for scale in ("ranks", "standard"))
    assert ranked.score(X[350:], y[350:]) > 0.85 > 0.2 + plain.score(X[350:], y[350:])


def test_a_saved_model_predicts_the_same_and_other_versions_do_not_know_it(tmp_path):
    X, y = task(150)
    model = odm.ODMClassifier(scale="ranks", random_state=0).fit(X, y)
    model.save(tmp_path / "m.zarr")
    again = odm.load_model(tmp_path / "m.zarr")
    assert (again.scale, again.scale_) == ("ranks", "ranks")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    record = read_record(tmp_path / "m.zarr", "model")
    assert record.attributes["model"]["kind"] == "kernel on ranks"
    arrays = {name: record.array(name) for name in record.arrays}
    for name, wrong in [
        ("rank_knots", arrays["rank_knots"][::-1]),
        ("rank_levels", np.full_like(arrays["rank_levels"], np.nan)),
        ("rank_bounds", arrays["rank_bounds"][:-1]),
        ("rank_bounds", arrays["rank_bounds"] + 1),
    ]:
        path = tmp_path / "wrong.zarr"
        write_record(path, "model", arrays | {name: np.ascontiguousarray(wrong)}, record.attributes, overwrite=True)
        with pytest.raises(odm.StoreError, match="does not hold a kernel on ranks model"):
            model_from(read_record(path, "model"))


def test_a_value_is_found_among_as_many_knots_as_a_column_may_have():
    def of(count: int) -> Ranks:
        knots = np.cumsum(np.random.default_rng(0).random(count)) - 40.0
        arrays = {"rank_bounds": np.array([0, count]), "rank_knots": knots, "rank_levels": np.linspace(0, 1, count)}
        return Ranks.of_arrays(arrays, 1)

    for count in (1, 2, 17, 32, 257):
        ranks = of(count)
        x = np.concatenate([ranks.knots, ranks.knots[:-1] + np.diff(ranks.knots) / 2, [-1e9, 1e9]])
        np.testing.assert_allclose(levels(ranks, x[:, None])[:, 0], np.interp(x, ranks.knots, ranks.levels), atol=1e-12)
    with pytest.raises(ValueError, match=r"\(258,\)"):
        of(258)


def test_float32_rows_are_compared_with_the_knots_as_float64_rows_are():
    X = 1000.0 + np.random.default_rng(0).random((3000, 2))
    ranks = ranks_of(X)
    near = X.astype(np.float32)  # many are the numbers that knots are rounded to
    out = [ranks(rows, np.empty(X.shape), np.zeros(2), np.ones(2)) for rows in (near, near.astype(np.float64))]
    np.testing.assert_array_equal(*out)


@pytest.mark.usefixtures("over_passes")
@pytest.mark.parametrize("stored", [False, True])
def test_a_fit_tells_the_memory_of_the_tables(tmp_path, stored):
    X = np.random.default_rng(0).random((300, 2000))
    y = np.arange(300) % 2
    given = (store_of(tmp_path / "a.zarr", X, y).path,) if stored else (X, y)

    def told(scale: str) -> int:
        model = odm.ODMClassifier(scale=scale, solver=Landmark(20), random_state=0, memory_limit=1 << 20)
        with pytest.raises(odm.MemoryLimitError) as found:
            model.fit(*given)
        return int(parse_bytes(re.search("needs (.*) per task", str(found.value))[1]))

    ranks = odm.ODMClassifier(scale="ranks", solver=Landmark(20), random_state=0).fit(*given)._model.scaling.ranks
    assert told("ranks") - told("standard") > 0.99 * (ranks.knots.nbytes + ranks.levels.nbytes)


@pytest.mark.usefixtures("over_passes")
@pytest.mark.parametrize("solver", [Landmark(50), Cells(100)], ids=str)
def test_stores_in_chunks_of_any_size_have_the_same_ranks(tmp_path, monkeypatch, solver):
    monkeypatch.setattr(ranks_module, "SAMPLED_ROWS", 200)
    X, y = task(600)
    found = []
    for chunk_rows in (100, 230):
        store = store_of(tmp_path / f"{chunk_rows}.zarr", X, y.astype(int), chunk_rows=chunk_rows)
        model = odm.ODMClassifier(scale="ranks", solver=solver, random_state=0).fit(store.path)
        found.append(model._model.scaling.arrays())
        assert model.score(store.path) > 0.8
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])
    assert 100 < len(found[0]["rank_knots"]) / 3 < 230, "of a sample"


@pytest.mark.parametrize("model", [odm.ODMClassifier("linear"), odm.MDDRidge()], ids=lambda model: type(model).__name__)
def test_linear_models_refuse_ranks(model):
    X, y = task(50)
    with pytest.raises(odm.InputError, match="scale='ranks' is for kernels other than 'linear'"):
        model.set_params(scale="ranks").fit(X, y.astype(float))
