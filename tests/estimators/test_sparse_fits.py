"""Linear learning over sparse stores that are too large for memory: the model of dense rows, wherever it is learned."""

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, hstack, random_array

from cli.test_commands import run, run_json
from dask_odm import MDDRidge, MixingClassifier, ODMClassifier, SaddleSVC, ingest, open_store
from dask_odm.data.store import open_chunks
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import StorePasses, chunk_groups, groups_of, sum_groups
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, PrimalSums, Query
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.linalg.row_passes import PassBytes
from dask_odm.solvers import DSVRG
from small_problems import blobs
from traced import traced

N = 600
SETTINGS = {"kernel": "linear", "solver": "newton", "lam": 10, "tol": 1e-9, "scale": None}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Files of few entries, and stores that are never read into memory."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set({"dask_odm.read-into-memory": 0}):
        patch.setattr(open_chunks, "CHUNK_ENTRIES", 1000)
        yield


def rows_of(features: int, classes: int = 2) -> tuple[csr_array, np.ndarray]:
    """Rows of some 12 entries, with labels that follow from them, but for noise."""
    rng = np.random.default_rng(features)
    X = random_array((N, features), density=12 / features, format="csr", random_state=rng)
    X.data = rng.normal(size=X.nnz)
    scores = X @ rng.normal(size=(features, classes)) + rng.normal(size=(N, classes))
    return X, scores.argmax(axis=1)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """``stores(features, classes)``: paths of a sparse and a dense store of the same weighted rows."""
    folder = tmp_path_factory.mktemp("stores")
    made = {}

    def make(features: int, classes: int = 2) -> tuple[str, str]:
        if (features, classes) not in made:
            rows = rows_of(features, classes)
            weight = np.random.default_rng(0).choice([0.0, 1.0, 2.0], N)
            made[features, classes] = tuple(
                ingest(rows, folder / f"{features}-{classes}-{kind}.zarr", sparse=kind == "sparse", weight=weight,
                       chunk_rows=None if kind == "sparse" else 100, dtype="float64").path
                for kind in ("sparse", "dense")
            )  # fmt: skip
        return made[features, classes]

    return make


def bits(model: ODMClassifier) -> bytes:
    return model.coef_.tobytes() + model.intercept_.tobytes()


# The Hessian is formed of few features; of many, steps take products.
@pytest.mark.parametrize(("features", "scale"), [(200, None), (2100, "minmax")])
def test_the_model_is_that_of_dense_rows(stores, features, scale):
    sparse, dense = stores(features)
    model = ODMClassifier(**SETTINGS | {"scale": scale}).fit(sparse)
    other = ODMClassifier(**SETTINGS | {"scale": scale}).fit(dense)
    assert model.dual_gap_ <= 1e-9
    found = np.asarray(model.decision_function(sparse))
    np.testing.assert_allclose(found, np.asarray(other.decision_function(dense)), atol=1e-4)
    np.testing.assert_allclose(found, np.asarray(model.decision_function(dense)), rtol=1e-12, atol=1e-12)
    assert model.score(sparse) == model.score(dense)
    assert evaluate(model, sparse).accuracy == evaluate(model, dense).accuracy


@pytest.mark.parametrize("solver", ["newton", "dsvrg"])
def test_rows_of_which_most_entries_are_stored_are_shifted_as_dense_ones(tmp_path, solver):
    """Of columns far from 0 next to nothing is learned without a shift."""
    X, y = blobs(200, 3, seed=0)
    X = X * [0.01, 1, 1] + 100
    model = ODMClassifier(kernel="linear", solver=solver, tol=1e-6, random_state=0)
    dense = model.fit(X, y).decision_function(X)
    ingest((csr_array(X), y), tmp_path / "s.zarr", sparse=True, dtype="float64", chunk_rows=64)
    for source, tolerance in (((csr_array(X), y), 1e-6), ((tmp_path / "s.zarr",), 1e-3)):
        np.testing.assert_allclose(model.fit(*source).decision_function(csr_array(X)), dense, atol=tolerance)
    thin = X * (np.random.default_rng(0).random(X.shape) < 0.4)
    assert not np.allclose(model.fit(csr_array(thin), y).coef_, model.fit(thin, y).coef_), "zeros stay zeros"


def test_standard_scaling_divides_and_does_not_shift(stores):
    """As scikit-learn's StandardScaler(with_mean=False) does with sparse rows, here with weights."""
    sparse, _ = stores(200)
    model = ODMClassifier(**SETTINGS | {"scale": "standard"}).fit(sparse)
    X, y = rows_of(200)
    weight = np.random.default_rng(0).choice([0.0, 1.0, 2.0], N)
    by_hand = csr_array(X.multiply(1 / np.sqrt(np.cov(X.toarray().T, aweights=weight, ddof=0).diagonal())))
    other = ODMClassifier(**SETTINGS).fit(by_hand, y, sample_weight=weight)
    np.testing.assert_allclose(model.decision_function(X), other.decision_function(by_hand), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "features"), [("newton", 200), ("dsvrg", 2100)])
def test_any_number_of_workers_gives_the_same_bits(stores, client, scale_workers, without_workers, solver, features):
    sparse, _ = stores(features)
    lam = 1.0 if solver == "newton" else 0.1  # for which few epochs suffice
    settings = SETTINGS | {"solver": solver, "scale": "standard", "lam": lam, "tol": 1e-2, "random_state": 0}
    with without_workers():
        expected = ODMClassifier(**settings).fit(sparse)
        values = np.asarray(expected.decision_function(sparse))
    for count in (1, 3):
        scale_workers(client, count)
        model = ODMClassifier(**settings).fit(sparse)
        assert bits(model) == bits(expected)
        assert model.dual_gap_ == expected.dual_gap_ <= 1e-2
        np.testing.assert_array_equal(np.asarray(model.decision_function(sparse)), values)
    scale_workers(client, 2)


def test_dask_arrays_of_csr_blocks_are_spooled_to_a_sparse_store(stores):
    sparse, _ = stores(2100)
    dataset = open_store(sparse)
    X = dataset.X.data
    weight = dataset.weight.data
    model = ODMClassifier(**SETTINGS).fit(X, dataset.y.data, weight)
    assert bits(model) == bits(ODMClassifier(**SETTINGS).fit(sparse))
    np.testing.assert_array_equal(model.decision_function(X), model.decision_function(sparse))
    holed = X.map_blocks(lambda block: block * np.inf, dtype=X.dtype, meta=X._meta)
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="infinity"):
        ODMClassifier(**SETTINGS).fit(holed, dataset.y.data, weight)
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="infinity"):
        np.asarray(model.decision_function(holed))


def test_memory_counts_entries_and_not_columns(stores):
    """Rows of 2,100 dense columns take a hundred times the bytes of their entries."""
    sparse, _ = stores(2100)
    store = Store.open(sparse)
    here = StorePasses(store, Cluster.local(None, 1))
    assert here.task_bytes(PassBytes(0, 0, 0)) < 0.05 * store.chunk_rows * store.features * 8
    with pytest.raises(MemoryLimitError, match="A pass over the store"):
        ODMClassifier(**SETTINGS, memory_limit="4MB").fit(sparse)


# The ring ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_the_ring_ends_where_newton_ends(stores, scale):
    sparse, dense = stores(200)
    settings = SETTINGS | {"scale": scale, "lam": 1.0}
    best = ODMClassifier(**settings | {"tol": 1e-12}).fit(sparse)
    ring = ODMClassifier(**settings | {"solver": DSVRG("bb"), "random_state": 0, "max_iter": 2000, "tol": 1e-4})
    lowest = best.history_[-1]["objective"]
    assert lowest * (1 - 1e-12) <= ring.fit(sparse).history_[-1]["objective"] <= lowest * (1 + 1e-4)
    assert ring.dual_gap_ <= 1e-4
    if scale != "standard":  # which would shift dense rows
        assert ring.fit(dense).history_[-1]["objective"] == pytest.approx(lowest, rel=1e-4)


@pytest.mark.parametrize("given", ["n_shards", "shard", "shard_feature"])
def test_mixing_learns_from_a_sparse_store_what_it_learns_from_a_dense_one(tmp_path, given):
    X, y = rows_of(200)
    sender = np.arange(N) % 3
    X = hstack([csr_array(sender[:, None].astype(float)), X], format="csr")
    paths = [
        ingest(
            (X, y), tmp_path / f"{sparse}.zarr", sparse=sparse, dtype="float64", chunk_rows=None if sparse else 70
        ).path
        for sparse in (True, False)
    ]
    settings = {"n_shards": {"n_shards": 3}, "shard": {}, "shard_feature": {"shard_feature": 0}}[given]
    senders = {"shard": sender} if given == "shard" else {}
    models = [MixingClassifier(**settings, random_state=0, max_iter=3).fit(path, **senders) for path in paths]
    found, expected = (np.asarray(model.decision_function(paths[0])) for model in models)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert models[0].shards_ == models[1].shards_ == [0, 1, 2]


REFUSED = [
    ODMClassifier(solver="landmark"), ODMClassifier(solver="exact"), ODMClassifier("linear", solver="csvrg"),
    ODMClassifier("linear", solver="svrg"), ODMClassifier("linear", solver="sodm"),
]  # fmt: skip


def test_peak_memory_of_a_task_is_projected(tmp_path):
    """With more features than a chunk has entries, most of it are sums."""
    d = 200_000
    X = random_array((N, d), density=12 / d, format="csr", random_state=np.random.default_rng(0))
    store = ingest((X, np.arange(N) % 2), tmp_path / "a.zarr")
    odm = ODMSettings(10.0, 0.5, 0.1)
    query = Query(FeatureMap(d, 1.0), BandLoss(odm, float(N)), np.full(d + 1, 0.01))
    here = StorePasses(store, Cluster.local(None, 1))
    projected = here.task_bytes(PrimalProblem(query.features, query.loss, here).pass_bytes("diagonal"))

    def ask() -> PrimalSums:
        ((_, _, total),) = sum_groups(store, query, Query.sums, ["diagonal"], StoreBlock.columns, 0, groups_of(store))
        return total

    found = ask()  # compiles
    _, peak = traced(ask)
    assert 0.2 * projected < peak <= projected
    y = np.where(np.arange(N) % 2 == 1, 1.0, -1.0)
    margins = y * (X @ query.w[:-1] + query.w[-1])
    pull = 10.0 / (N * 0.9**2) * (np.maximum(0.9 - margins, 0) - 0.5 * np.maximum(margins - 1.1, 0))
    np.testing.assert_allclose(found.dual_image[:-1], X.T @ (y * pull), rtol=1e-5, atol=1e-9)


def test_groups_of_sparse_chunks_have_many_entries_or_are_few(stores):
    sparse, dense = (Store.open(path) for path in stores(2100))
    assert sparse.n_chunks >= 8
    assert len(groups_of(sparse)) == 8  # of 7,200 entries, for 2,100 features
    assert groups_of(dense) == chunk_groups(dense.n_chunks)
    assert [i for group in groups_of(sparse) for i in group] == list(range(sparse.n_chunks))


def test_a_selection_of_named_sparse_rows_is_learned(tmp_path):
    X, y = rows_of(200)
    X.sort_indices()  # as those of a store are; others are learned by another route
    rows = pd.DataFrame(X.toarray(), columns=[f"word {j}" for j in range(200)])
    ingest((rows, y), tmp_path / "a.zarr", sparse=True, dtype="float64")
    model = ODMClassifier("linear", random_state=0)
    with dask.config.set({"dask_odm.read-into-memory": "10MB"}):
        found = bits(model.fit(open_store(tmp_path / "a.zarr").isel(sample=slice(0, 100))))
    assert found == bits(model.fit(X[:100], y[:100]))


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.solver)
def test_what_cannot_learn_from_a_large_sparse_store_says_so_and_learns_from_a_small_one(stores, model):
    sparse, _ = stores(200)
    with pytest.raises(InputError, match="learns from sparse rows in memory only, and those of the store take"):
        model.set_params(random_state=0, tol=0.1, lam=1).fit(sparse)
    with dask.config.set({"dask_odm.read-into-memory": "1MiB"}):
        X, y = rows_of(200)
        weight = np.random.default_rng(0).choice([0.0, 1.0, 2.0], N)
        values = np.asarray(model.fit(sparse).decision_function(sparse))
        np.testing.assert_allclose(values, model.fit(X, y, sample_weight=weight).decision_function(X), atol=1e-9)


def test_a_regressor_says_so(stores, tmp_path):
    X, y = rows_of(200)
    path = ingest((X, y + 0.5), tmp_path / "r.zarr", sparse=True, target="real", dtype="float64").path
    with pytest.raises(
        InputError,
        match=r"sparse rows in memory only.*beyond 0 B; its moments have .* features squared, so choose fewer",
    ):
        MDDRidge().fit(path)
    with dask.config.set({"dask_odm.read-into-memory": "1MiB"}):
        expected = MDDRidge().fit(X, y + 0.5)
        np.testing.assert_allclose(MDDRidge().fit(path).predict(X), expected.predict(X), atol=1e-9)


def test_hulls_say_so(stores):
    sparse, _ = stores(200)
    with pytest.raises(InputError, match=r"sparse rows in memory only.*; take ODMClassifier\(kernel='linear'\)"):
        SaddleSVC().fit(sparse)


def test_the_command_line(stores, tmp_path):
    sparse, _ = stores(2100)
    facts = run_json("info", sparse)
    assert facts["entries"] == rows_of(2100)[0].nnz
    run("verify", sparse)
    dense = run_json("ingest", sparse, tmp_path / "dense.zarr", "--no-sparse")
    assert dense["store"]["entries"] is None
