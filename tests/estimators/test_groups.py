"""Groups that are left out in closed form: against refits, over stores, in a search; and blocks of places."""

import numpy as np
import pytest
import xarray as xr
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

from dask_odm import InputError, ODMClassifier, ODMClassifierCV, spatial_blocks
from dask_odm.estimators.odm_estimator import advise_groups
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.solvers import Cells, Landmark
from small_stores import store_of

KERNEL = {
    "gamma": 0.3,
    "lam": 60.0,
    "theta": 0.3,
    "upsilon": 0.4,
    "tol": 1e-9,
    "loo": True,
    "random_state": 0,
    "scale": None,
}
LINEAR = {"kernel": "linear", "lam": 60.0, "theta": 0.3, "upsilon": 0.4, "tol": 1e-10, "loo": True, "scale": None}
WAYS = {"exact": {**KERNEL, "solver": "exact"}, "landmark": {**KERNEL, "solver": Landmark(160)}, "linear": LINEAR}


def grouped(n=160, groups=32, seed=0, classes=2):
    """Rows of groups that are shifted together."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    X = rng.normal(size=(n, 3)) + 0.8 * rng.normal(size=(groups, 3))[group]
    y = np.digitize(X[:, 0] + 0.7 * rng.normal(size=n), np.linspace(-0.7, 0.7, classes - 1) if classes > 2 else [0.0])
    return X, y, np.array([f"field {g}" for g in group])


def refits(model, X, y, groups, **fit):
    """Decision values of each group by a model of the others, at the same weight of a row."""
    out = []
    for name in dict.fromkeys(groups):
        rest = groups != name
        plain = clone(model).set_params(loo=False, lam=model.lam * rest.sum() / len(y))
        out.append((groups == name, plain.fit(X[rest], y[rest]).decision_function(X[~rest])))
    return out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("classes", [2, 3])
def test_values_are_those_of_refits(way, classes):
    X, y, groups = grouped(classes=classes)
    model = ODMClassifier(**WAYS[way], multi_class="ovr").fit(X, y, groups=groups)
    found = [np.abs(model.loo_decision_function_[rows] - values).mean() for rows, values in refits(model, X, y, groups)]
    assert np.mean(found) < 0.01
    if classes == 2:
        assert model.loo_score_ == pytest.approx(np.mean((model.loo_decision_function_ > 0) == (y == 1)))
    singly = clone(model).fit(X, y)
    assert np.abs(model.loo_decision_function_ - singly.loo_decision_function_).mean() > 0.01


@pytest.mark.parametrize("way", WAYS)
def test_groups_of_one_row_are_rows(way):
    X, y, _ = grouped()
    singly = ODMClassifier(**WAYS[way]).fit(X, y)
    model = ODMClassifier(**WAYS[way]).fit(X, y, groups=np.arange(len(y)))
    np.testing.assert_allclose(model.loo_decision_function_, singly.loo_decision_function_, atol=2e-4)
    assert model.loo_parameters_ == pytest.approx(singly.loo_parameters_)


@pytest.mark.parametrize("way", ["exact", "linear"])
def test_votes_on_groups_of_one_class_are_those_of_refits(way):
    """Of a group with two of three classes, a machine of others has learned: no scores are made up."""
    X, y, fields = grouped(100, 12, classes=3)
    groups = np.array([f"{field} {label}" for field, label in zip(fields, y, strict=True)])
    mixed = (fields == "field 3") & (y > 0)
    groups[mixed] = "field 3 of 1 and 2"
    model = ODMClassifier(**WAYS[way], multi_class="ovo").fit(X, y, groups=groups)
    assert np.isnan(model.loo_decision_function_).all(axis=1).tolist() == mixed.tolist()
    assert not hasattr(model, "loo_group_scores_")
    model.fit(X[~mixed], y[~mixed], groups=groups[~mixed])
    X, y, groups = X[~mixed], y[~mixed], groups[~mixed]
    votes = np.zeros((len(y), 3))
    for name in dict.fromkeys(groups):
        out = groups == name
        for a, b in ((0, 1), (0, 2), (1, 2)):
            own = np.isin(y, (a, b))
            lam = model.lam * (own & ~out).sum() / own.sum()  # the same weight of a row in the loss
            pair = ODMClassifier(**WAYS[way] | {"loo": False, "lam": lam}).fit(X[own & ~out], y[own & ~out])
            wins = pair.decision_function(X[out]) > 0
            votes[out, a] += ~wins
            votes[out, b] += wins
    found = model.loo_decision_function_
    assert (np.abs(found - votes).max(axis=1) < 0.5).mean() > 0.97
    assert model.loo_score_ == model.loo_score() == (found.argmax(axis=1) == y).mean()
    places = np.unique(groups, return_inverse=True)[1]
    expected = np.bincount(places, found.argmax(axis=1) == y) / np.bincount(places)
    np.testing.assert_allclose(model.loo_group_scores_, expected[list(dict.fromkeys(places))])  # as they come


def test_the_score_of_pairs_is_the_share_of_right_signs():
    """Where groups have rows of several classes. Rows count by their own weights, whatever those of the classes."""
    X, y, groups = grouped(classes=3)
    weight = np.arange(len(y)) % 4.0
    settings = WAYS["exact"] | {"multi_class": "ovo", "class_weight": {0: 9.0, 2: 0.2}}
    model = ODMClassifier(**settings).fit(X, y, weight, groups)
    right = total = 0.0
    for values, label, share in zip(model._left_out_pairs, y, weight, strict=True):
        for value, pair in zip(values, ((0, 1), (0, 2), (1, 2)), strict=True):
            if label in pair and share > 0:
                right += share * ((value > 0) == (label == pair[1]))
                total += share
    assert model.loo_score_ == pytest.approx(right / total)


def test_sparse_rows_weights_and_cells():
    X, y, groups = grouped()
    X = np.where(np.abs(X) < 0.3, 0.0, X)
    weight = np.where(np.arange(len(y)) % 5 == 0, 0.0, 1.0)
    counted = weight > 0
    for settings in (WAYS["linear"], WAYS["exact"], {**KERNEL, "solver": Cells(1000)}):
        dense = ODMClassifier(**settings).fit(X, y, weight, groups)
        part = ODMClassifier(**settings).fit(X[counted], y[counted], groups=groups[counted])
        values = dense.loo_decision_function_
        assert np.isnan(values[~counted]).all()
        np.testing.assert_allclose(values[counted], part.loo_decision_function_, atol=1e-4)
        if settings is not WAYS["exact"]:
            sparse = ODMClassifier(**settings).fit(csr_array(X), y, weight, groups)
            np.testing.assert_allclose(sparse.loo_decision_function_, values, atol=1e-4)


@pytest.mark.parametrize("way", ["landmark", "linear"])
def test_a_store(way, tmp_path):
    import dask

    X, y, groups = grouped()
    given = np.where(np.arange(len(y)) % 17 == 5, None, y.astype(object))
    known = np.array([label is not None for label in given])
    path = store_of(tmp_path / "a.zarr", X, given, chunk_rows=25).path
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        model = ODMClassifier(**WAYS[way]).fit(path, groups=groups)
    plain = ODMClassifier(**WAYS[way]).fit(X[known], y[known], groups=groups[known])
    np.testing.assert_allclose(model.loo_decision_function_[known], plain.loo_decision_function_, atol=1e-3)


def test_groups_where_auto_compares_cells_with_landmarks(monkeypatch):
    """Beyond "exact", trials are made before the fit; they have no groups."""
    monkeypatch.setattr("dask_odm.methods.recipes.AUTO", AutoLimits(grouped_rows=0))
    X, y, groups = grouped(1200, 240)
    model = ODMClassifier(**KERNEL | {"scale": "minmax"}).fit(X, y, groups=groups)
    assert "in trials on a third of the rows, 'cells' gets" in model.history_[0]["why"]
    assert len(model.loo_group_scores_) == len(np.unique(groups))
    axes = {"gammas": [0.3], "lams": [60.0], "upsilons": [0.4], "thetas": [0.3]}
    for loo, begins in ((True, "groups of 1200 rows are left out"), (False, "1200 rows of")):
        search = ODMClassifierCV(**axes, loo=loo, random_state=0).fit(X, y, groups=groups)
        why = search.history_[0]["why"]
        assert why.startswith(begins), "the last fit without loo leaves nothing out"


def test_a_search_finds_what_is_best_on_new_groups():
    """A narrow kernel learns the groups by heart: left out singly, rows make it look best."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(60), 15)
    centres = rng.normal(size=(60, 4))
    labels = (centres[:, 0] + 0.8 * rng.normal(size=60) > 0).astype(int)
    X, y = centres[group] + 0.05 * rng.normal(size=(900, 4)), labels[group]
    new = rng.normal(size=(4000, 4))
    t = (new[:, 0] + 0.8 * rng.normal(size=4000) > 0).astype(int)
    singly = ODMClassifierCV(random_state=0).fit(X, y)
    together = ODMClassifierCV(random_state=0).fit(X, y, groups=group)
    assert together.score(new, t) > singly.score(new, t) + 0.02
    assert singly.best_score_ > 0.97
    assert abs(together.best_score_ - together.score(new, t)) < 0.1


@pytest.mark.parametrize(("estimator", "groups", "message"), [
    (ODMClassifier(loo=True), np.zeros(160), "two or more"),
    (ODMClassifier(loo=True), np.arange(159), r"shape \(160,\)"),
    (ODMClassifier(loo=True), np.where(np.arange(160) == 3, np.nan, 1.0), "groups: missing .* row 3; give one"),
    (ODMClassifier(), np.arange(160), "set loo to True"),
    (ODMClassifierCV(), np.arange(159), r"shape \(160,\)"),
    (ODMClassifierCV(cv=4), np.arange(160), "GroupKFold"),
    (ODMClassifierCV(cv=GroupKFold(4)), np.arange(159), r"shape \(160,\)"),
])  # fmt: skip
def test_groups_that_cannot_be_left_out(estimator, groups, message):
    X, y, _ = grouped()
    with pytest.raises(InputError, match=message):
        estimator.fit(X, y, groups=groups)


def test_blocks_of_places():
    places = np.array([[0.0, 100.0], [9.9, 109.9], [10.0, 100.0], [0.0, 110.0], [35.0, 100.0]])
    assert spatial_blocks(places, 10.0).tolist() == [0, 0, 2, 1, 3]
    assert spatial_blocks(places, [100.0, 10.0]).tolist() == [0, 0, 0, 1, 0]
    cube = xr.DataArray(np.zeros((4, 6, 2)), {"y": np.arange(4) * 5.0, "x": np.arange(6) * 5.0}, ["y", "x", "band"])
    found = spatial_blocks(cube, {"y": 10.0, "x": 15.0})
    assert found.dims == ("y", "x")
    assert found.values.tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2
    for bad in (lambda: spatial_blocks(places, 0.0), lambda: spatial_blocks(places, [1.0, 2.0, 3.0]),
                lambda: spatial_blocks(cube, {"band": 2.0}), lambda: spatial_blocks(cube, 3.0),
                lambda: spatial_blocks([["a"]], 1.0)):  # fmt: skip
        with pytest.raises(InputError):
            bad()


def test_blocks_of_one_row_are_told_of():
    """Such as of a size in pixels for coordinates in metres."""
    cube = xr.DataArray(np.zeros((4, 6)), {"y": 50.0 - 10.0 * np.arange(4), "x": 20.0 * np.arange(6)}, ["y", "x"])
    told = r"size=\{'y': 5, 'x': 5\} hold one row.* neighbours are 10 along 'y' and 20 along 'x' apart"
    with pytest.warns(UserWarning, match=told) as warned:
        assert len(np.unique(spatial_blocks(cube, {"y": 5, "x": 5}))) == 24
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="size=5.0 hold one row.* neighbours are 14.1 apart"):
        spatial_blocks([[10.0 * i, 10.0 * i] for i in range(20)], 5.0)


def test_pixels_left_out_singly_are_told_of_once(caplog):
    rng = np.random.default_rng(0)
    places = {"y": np.arange(12) * 5.0, "x": np.arange(12) * 5.0}
    cube = xr.DataArray(rng.normal(size=(12, 12, 2)), places, ["y", "x", "band"])
    labels = (cube.sum("band") > 0).astype(int)
    model = ODMClassifier(gamma=0.5, lam=100, solver="exact", random_state=0)
    advise_groups.cache_clear()
    model.fit(cube, labels)
    model.set_params(loo=True).fit(cube, labels, groups=spatial_blocks(cube, {"y": 20.0, "x": 20.0}))
    assert not caplog.records
    model.fit(cube, labels)
    model.fit(cube, labels)
    assert [r.message.split(":")[0] for r in caplog.records] == ["Rows have coordinates, and are left out singly"]
