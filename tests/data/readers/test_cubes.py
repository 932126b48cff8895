"""Cubes as sources of stores: all labelled rows, or a sample of them, compared with plain NumPy."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dask_odm import InputError, ODMClassifier, ingest, open_store
from dask_odm.data.store import open_chunks
from dask_odm.events import Progress, listen
from dask_odm.linalg.rows import uniforms_of
from data.reading import stored
from small_cubes import BANDS, labels_of, plain_rows, scene

CHUNKS = {"in memory": None, "lines": {"y": 4}, "tiles": {"y": 2, "x": 3, "band": 2}}


def cube(chunks) -> xr.DataArray:
    return scene() if chunks is None else scene().chunk(chunks)


def in_order(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort(X.T)
    return X[order], y[order]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("kind", ["floats", "words", "codes"])
def test_labelled_rows_are_stored(tmp_path, chunks, kind):
    labels, _ = labels_of(kind)
    store = ingest((cube(CHUNKS[chunks]), labels), tmp_path / "a.zarr", dtype="float64")
    X, y = stored(store)
    expected = plain_rows(kind).training
    np.testing.assert_array_equal(in_order(X, y)[0], in_order(*expected)[0])
    np.testing.assert_array_equal(in_order(X, y)[1], in_order(*expected)[1])
    assert list(store.feature_names) == BANDS


def drawn(count: int) -> np.ndarray:
    """Places of the rows of each class with the smallest draws, ascending."""
    plain = plain_rows()
    taken = (plain.complete & (plain.labels != None)).ravel()  # noqa: E711
    draws = np.where(taken, uniforms_of(np.arange(taken.size), 3), 2.0)
    found = []
    for label in (1.0, 2.0):
        own = np.where(plain.labels.ravel() == label, draws, 2.0)
        found += np.argsort(own)[: min(count, int((own < 2.0).sum()))].tolist()
    return np.sort(found)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("count", [1, 5, 1000])
def test_so_many_rows_of_each_class(tmp_path, chunks, count):
    source = (cube(CHUNKS[chunks]), labels_of("floats")[0])
    X, y = stored(ingest(source, tmp_path / "a.zarr", dtype="float64", per_class=count, seed=3))
    places = drawn(count)
    np.testing.assert_array_equal(X, plain_rows().X.reshape(-1, 3)[places])
    assert y.tolist() == plain_rows().labels.ravel()[places].tolist()


def test_a_share_of_the_rows(tmp_path):
    source = (cube({"y": 4}), labels_of("floats")[0])
    events = []
    with listen(events.append):
        X, _ = stored(ingest(source, tmp_path / "a.zarr", dtype="float64", fraction=0.5, seed=3))
    places = [place for place in drawn(1000) if uniforms_of(np.array([place]), 3)[0] < 0.5]
    assert 0 < len(places) < len(drawn(1000))
    np.testing.assert_array_equal(X, plain_rows().X.reshape(-1, 3)[places])
    last = [event for event in events if isinstance(event, Progress)][-1]
    assert (last.phase, last.done) == ("ingest", last.total)  # though not all that was read is in the store


def test_a_variable_of_labels_and_weights(tmp_path):
    dataset = scene().to_dataset("band").assign(cover=labels_of("words")[0], share=("y", np.arange(1.0, 10.0)))
    store = ingest(dataset.chunk(y=3), tmp_path / "a.zarr", label="cover", weight="share", dtype="float64")
    expected = np.broadcast_to(np.arange(1.0, 10.0)[:, None], (9, 10))
    known = plain_rows().complete & labels_of("words")[0].notnull().values
    np.testing.assert_array_equal(np.sort(store.read_column("weight")), np.sort(expected[known]))
    assert set(store.classes) == {"water", "dry land"}
    assert ODMClassifier(lam=100).fit(store).predict(dataset).dims == ("y", "x")


@pytest.mark.parametrize("chunks", CHUNKS)
def test_every_row_keeps_its_place(tmp_path, chunks):
    source = (cube(CHUNKS[chunks]), labels_of("words")[0])
    stores = ingest(
        source, tmp_path / "a.zarr", dtype="float64", chunk_rows=5, compression="zstd", test_size=0.3, block_bytes=100
    )
    for store in (*stores, ingest(stores[0], tmp_path / "again.zarr", dtype="float64", chunk_rows=11)):
        store.verify()
        rows = open_store(store.path).load()
        there = {"y": rows.at_y, "x": rows.at_x}
        np.testing.assert_array_equal(scene().sel(there).transpose("sample", "band"), rows.X)
        np.testing.assert_array_equal(source[1].sel(there), rows.y)


def test_places_in_time_and_without_coordinates(tmp_path):
    times = pd.to_datetime(["2024-03-01T10:20:31.024", "1969-12-31"], format="ISO8601")
    seasons = scene().expand_dims(time=times).drop_vars("x").assign_coords(y=list("abcdefghi"))
    labels = labels_of("floats")[0].drop_vars(["x", "y"]).expand_dims(time=times)
    rows = open_store(ingest((seasons, labels), tmp_path / "a.zarr", dtype="float64").path).load()
    np.testing.assert_array_equal(np.unique(rows.at_time), np.sort(times.to_numpy()))
    there = {"y": rows.at_y.astype(int), "x": rows.at_x.astype(int), "time": rows.at_time == times[1]}
    expected = seasons.isel({d: at.astype(int) for d, at in there.items()})
    np.testing.assert_array_equal(expected.transpose("sample", "band"), rows.X)


def test_predictions_of_a_store_have_the_places_of_its_rows(tmp_path):
    store = ingest((scene(), labels_of("floats")[0]), tmp_path / "a.zarr", dtype="float64")
    model = ODMClassifier(lam=100).fit(store)
    rows = open_store(store.path)
    found = model.decision_function(rows).load()
    there = {"y": found.at_y, "x": found.at_x}
    np.testing.assert_allclose(found, model.decision_function(scene()).sel(there), atol=1e-10)
    assert model.score(rows) == ODMClassifier(lam=100).fit(rows).score(rows)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_sparse_rows_have_the_places_of_dense_ones(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(open_chunks, "CHUNK_ENTRIES", 30)
    source = (scene(), labels_of("words")[0])
    stores = [
        ingest(source, tmp_path / f"{sparse}.zarr", dtype="float64", sparse=sparse, compression=compression)
        for sparse in (True, False)
    ]
    assert stores[0].n_chunks > 2
    stores[0].verify()
    sparse, dense = (open_store(store.path) for store in stores)
    np.testing.assert_array_equal(sparse.X.data.compute().toarray(), dense.X)
    for name in ("at_y", "at_x", "y"):
        np.testing.assert_array_equal(sparse[name], dense[name])


BAD = {
    "no sample of tables": (np.ones((5, 2)), {"per_class": 3}, "per_class draws from cubes"),
    "no sample of files": ("a.csv", {"fraction": 0.3}, "fraction draws from cubes"),
    "both": ((scene(), labels_of("floats")[0]), {"per_class": 1, "fraction": 0.5}, "choose one"),
    "none": ((scene(), labels_of("floats")[0]), {"per_class": 0}, "'per_class' parameter of ingest must be"),
    "too many": (
        (scene(), labels_of("floats")[0]),
        {"fraction": 1.5},
        "'fraction' parameter of ingest must be a float",
    ),
    "all missing": ((scene().where(False), labels_of("floats")[0]), {"per_class": 2}, "miss a feature"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused(tmp_path, what):
    source, options, message = BAD[what]
    with pytest.raises(InputError, match=message):
        ingest(source, tmp_path / "a.zarr", **options)
    assert not list(tmp_path.iterdir())
