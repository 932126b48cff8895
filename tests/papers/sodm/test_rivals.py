"""The cascade, DiP and DC as solvers: gaps of all rows, fixed points, checkpoints of their own."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

import reference
from dask_odm import InputError, ODMClassifier, load_model
from dask_odm.engine.partitioners import ClusterPartitioner, RandomPartitioner
from dask_odm.engine.shuffle import partition_arrays
from dask_odm.kernels import RBF, Linear
from dask_odm.learning.training.run import FitRun
from dask_odm.papers.sodm import recipe as tree_recipe
from dask_odm.solvers import DC, SODM, Cascade, DiP
from small_problems import SmallProblem, blobs, dual_of
from small_stores import store_of

# cascades and DiP end above tol on such rows, and say so: `test_what_is_left_behind_is_told` has it
pytestmark = pytest.mark.filterwarnings("ignore:solver='(cascade|dip)' ended:sklearn.exceptions.ConvergenceWarning")
RIVALS = {"cascade": Cascade, "dip": DiP, "dc": DC}
N = 300
SETTINGS = {"gamma": 0.5, "lam": 1e3, "upsilon": 0.3, "theta": 0.4, "random_state": 0, "scale": None}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    return blobs(N, 3, seed=2)


def problem(rows, kernel) -> SmallProblem:
    return SmallProblem(kernel, *rows, np.ones(len(rows[1])), 1e3, 0.3, 0.4)


def fit(solver, source, *more, n_partitions=8, stop_at=1, **settings) -> ODMClassifier:
    tree = (RIVALS | {"sodm": SODM})[solver](n_partitions, fan_in=2, stop_at=stop_at)
    return ODMClassifier(**{**SETTINGS, **settings}, solver=tree).fit(source, *more)


@pytest.mark.parametrize("solver", RIVALS)
def test_what_is_left_behind_is_told(rows, solver):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(solver, *rows)
    told = [str(each.message) for each in caught if issubclass(each.category, ConvergenceWarning)]
    if solver == "dc":
        assert not told
    else:
        (message,) = told
        assert f"solver='{solver}' ended at a relative gap of {model.dual_gap_:.1e} over all rows" in message


@pytest.mark.parametrize(("kernel", "source"), [("rbf", "store"), ("linear", "memory")])
@pytest.mark.parametrize("solver", RIVALS)
def test_the_gap_is_that_of_all_rows(rows, solver, kernel, source, tmp_path):
    p = problem(rows, {"rbf": RBF(1.0, 0.5), "linear": Linear(1.0)}[kernel])
    given = rows if source == "memory" else (store_of(tmp_path / "a.zarr", *rows, chunk_rows=70),)
    model = fit(solver, *given, kernel=kernel)
    assert model.dual_gap_ == pytest.approx(p.gap(dual_of(model, rows[1])), rel=1e-6, abs=1e-9)
    assert model.history_[-1]["gap"] < 1e-8, "of the rows that came to the root"
    if solver == "dc":
        assert model.dual_gap_ < 1e-8
        assert {record["rows"] for record in model.history_} == {N}
    else:
        assert 1e-8 < model.dual_gap_ < 1.0
        passed = [record["rows"] for record in model.history_]
        assert passed[0] == N
        assert passed[1] > passed[2] > passed[3] >= len(model.support_)


def test_a_cascade_is_that_of_the_reference(rows):
    X, y = rows
    dealt = partition_arrays(X, y, np.ones(N), RandomPartitioner(8, FitRun.of(ODMClassifier(**SETTINGS)).seed))
    leaves = np.split(dealt.numbers, np.cumsum(dealt.counts)[:-1])
    expected, levels = reference.cascade(problem(rows, RBF(1.0, 0.5)).K, y, leaves, 2, 1e3, 0.3, 0.4)
    model = fit("cascade", X, y)
    np.testing.assert_allclose(dual_of(model, y), expected, atol=1e-7 * np.abs(expected).max())
    assert [r["rows"] for r in model.history_] == [sum(map(len, nodes)) for nodes in levels]


@pytest.mark.parametrize(("stop_at", "intercept"), [(8, True), (4, False)])
def test_dc_that_ends_early_predicts_by_the_nearest_cluster(rows, stop_at, intercept):
    """The means of the clusters are written out, and a slow dual solves the rows that each predicts."""
    X, y = rows
    given = np.concatenate([X, np.random.default_rng(1).normal(size=(100, 3))])
    model = fit("dc", X, y, stop_at=stop_at, fit_intercept=intercept)
    groups = model._model.groups
    assert model.history_[-1]["partitions"] == groups.count == stop_at
    K = reference.rbf(given, X, 0.5)
    centred = X - X.mean(axis=0)
    sample = np.abs(groups.rows[:, None] - centred).sum(axis=2).argmin(axis=1)
    np.testing.assert_allclose(groups.rows, centred[sample], atol=1e-12)
    np.testing.assert_array_equal(np.sort(sample), np.arange(N), "all rows are the sample")
    inside = [sample[groups.labels == c] for c in range(stop_at)]
    distances = [K[np.ix_(own, own)].mean() - 2.0 * K[:, own].mean(axis=1) for own in inside]
    nearest = np.argmin(distances, axis=0)
    np.testing.assert_array_equal(model._model.cells_of(given), nearest)
    expected = np.empty(len(given))
    for c in range(stop_at):
        own = nearest[:N] == c
        biased = K[:N][np.ix_(own, own)] + intercept
        s = reference.solve_by_active_sets(biased, y[own], 1e3, 0.3, 0.4)
        at = nearest == c
        expected[at] = (K[np.ix_(at, own)] + intercept) @ (y[own] * s)
    np.testing.assert_allclose(model.decision_function(given), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])


def test_dc_refuses_clusters_that_differ_by_rounding_alone(rows, monkeypatch):
    found = ClusterPartitioner.groups

    def with_one_more(self, sample):
        groups = found(self, sample)
        last = groups.labels == groups.count - 1
        labels = np.concatenate([groups.labels, groups.labels[last] + 1])
        norms = np.append(groups.norms, groups.norms[-1] + 1e-9)
        return replace(groups, rows=np.concatenate([groups.rows, groups.rows[last]]), norms=norms, labels=labels)

    monkeypatch.setattr(ClusterPartitioner, "groups", with_one_more)
    with pytest.raises(InputError, match=r"some of the 5 clusters differ by rounding alone: scale the features"):
        fit("dc", *rows, stop_at=4)


def test_dc_s_clusters_are_the_same_from_a_store_and_from_a_file(rows, tmp_path):
    X, y = rows[0].astype(np.float32), rows[1]
    settings = {"stop_at": 4, "scale": "minmax", "gamma": 4.0}
    model = fit("dc", X, y, **settings)
    stored = fit("dc", store_of(tmp_path / "a.zarr", X, y, chunk_rows=70), **settings)
    np.testing.assert_array_equal(stored._model.cells_of(X), model._model.cells_of(X))
    for each in (model, stored):
        learned = np.repeat(np.arange(each._model.groups.count), np.diff(each._model.starts))
        np.testing.assert_array_equal(each._model.cells_of(X)[each.support_], learned)
    np.testing.assert_allclose(stored.decision_function(X), model.decision_function(X), atol=1e-2)
    stored.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert again.decision_function(X).tobytes() == stored.decision_function(X).tobytes()
    sparse = fit("dc", csr_array(X), y, **(settings | {"scale": None}))
    dense = fit("dc", X, y, **(settings | {"scale": None}))
    np.testing.assert_allclose(sparse.decision_function(csr_array(X)), dense.decision_function(X), atol=1e-2)


def test_dc_that_ends_early_refuses_what_has_no_clusters(rows):
    X, y = rows
    with pytest.raises(InputError, match=r"are for two classes\. Got 3 classes instead"):
        fit("dc", X, (y + (X[:, 0] > 0)).astype(int) % 3, stop_at=2)
    with pytest.raises(InputError, match="kernel='precomputed' has none of"):
        fit("dc", reference.rbf(X, X, 0.5), y, kernel="precomputed", stop_at=2)


def test_a_large_root_of_dc_is_newton_s(rows, monkeypatch):
    monkeypatch.setattr(tree_recipe, "NODE_ROWS", 200)
    model = fit("dc", *rows, tol=1e-6)
    assert model.dual_gap_ <= 1e-6
    monkeypatch.undo()
    node = fit("dc", *rows)
    np.testing.assert_allclose(model.decision_function(rows[0]), node.decision_function(rows[0]), atol=1e-2)
    assert [r["partitions"] for r in model.history_] == [r["partitions"] for r in node.history_]


def test_clusters_of_features_need_features():
    with pytest.raises(InputError, match="which kernel='precomputed' has none of"):
        fit("dip", np.eye(20), np.arange(20) % 2, kernel="precomputed", n_partitions=2)


@pytest.mark.parametrize("solver", RIVALS)
def test_equal_rows_make_as_many_partitions_as_differ(solver):
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    X[y == 1] = 1.0
    model = fit(solver, X, y, n_partitions=3, scale=None)
    assert model.score(X, y) == 1.0
