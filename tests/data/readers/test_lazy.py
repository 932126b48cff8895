"""Dask arrays, dask frames and xarray objects: what they hold is what is stored, one partition computed at a time."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from dask_odm import InputError, ingest, open_store
from dask_odm.data.readers.formats import open_source
from data.reading import read_all, read_blocks, stored

dd = pytest.importorskip("dask.dataframe")

RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(100, 3)), RNG.choice(["p", "q"], 100), RNG.uniform(size=100)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=Y, w=W)


def _unknown(array: da.Array, pieces: int = 3) -> da.Array:
    """The same values, with chunk sizes that dask does not know."""
    frame = dd.from_pandas(pd.DataFrame(array.compute()), npartitions=pieces)
    lazy = frame.to_dask_array()
    return lazy if array.ndim == 2 else lazy[:, 0]


@pytest.mark.parametrize("block_bytes", [1, 200, 10**6])
@pytest.mark.parametrize(("rows", "labels"), [
    (da.from_array(X, chunks=(30, 2)), da.from_array(Y, chunks=30)),
    (da.from_array(X, chunks=(30, 3)), da.from_array(Y, chunks=45)),
    (da.from_array(X, chunks=(30, 3)), Y), (_unknown(da.from_array(X)), Y),
    (_unknown(da.from_array(X)), da.from_array(Y, chunks=11)),
    (_unknown(da.from_array(X)), dd.from_pandas(FRAME["kind"], npartitions=3)),
    (_unknown(da.from_array(X)), dd.from_pandas(FRAME["kind"], npartitions=7)),
    (da.from_array(X, chunks=(50, 3)), _unknown(da.from_array(Y), 5)),
])  # fmt: skip
def test_dask_arrays(tmp_path, rows, labels, block_bytes):
    store = ingest((rows, labels), tmp_path / "a.zarr", weight=W, dtype="float64", block_bytes=block_bytes)
    found, values = stored(store)
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(values, Y)
    np.testing.assert_array_equal(store.read_column("weight"), W)
    assert store.feature_names is None


def test_one_partition_is_computed_at_a_time_and_once():
    seen: list[int] = []

    def part(block_info=None):
        seen.append(block_info[None]["chunk-location"][0])
        return np.full((20, 3), 1.0)

    table = da.map_blocks(part, chunks=((20,) * 5, (3,)), dtype=float, meta=np.empty((0, 0)))
    blocks = read_blocks((table[:, :2], table[:, 2]), block_bytes=160)
    with dask.config.set(scheduler="synchronous"):
        counts = [len(seen) for _ in blocks]
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert counts == [1 + i // 2 for i in range(10)]


@pytest.mark.parametrize("known", [True, False])  # whether the frames know where they are cut
@pytest.mark.parametrize("cuts", [(50, 51), (30, 7), (7, 30), (100, 40)])
def test_labels_and_weights_that_are_cut_at_other_rows(cuts, known):
    frame, labels, weight = (
        each if known else each.clear_divisions()
        for each in (
            dd.from_pandas(FRAME[["a", "b"]], chunksize=cuts[0]),
            dd.from_pandas(FRAME["kind"], chunksize=cuts[1]),
            dd.from_pandas(FRAME["w"], chunksize=cuts[1] + 2),
        )
    )
    found, given, weights = read_all((frame, labels), weight=weight, dtype="float64")
    np.testing.assert_array_equal(found, X[:, :2])
    np.testing.assert_array_equal(given, Y)
    np.testing.assert_array_equal(weights, W)
    for short in (labels.partitions[1:], dd.concat([labels, labels.partitions[:1]])):
        rows = len(short.compute())  # Dask counts the rows of all partitions
        with pytest.raises(InputError, match=f"the dask DataFrame: y has {rows} rows where X has 100"):
            read_all((frame, short))


def test_whole_numbers_that_are_cut_at_other_rows_keep_their_digits():
    large = 2**60 + np.arange(4)
    labels = dd.from_delayed(
        [dask.delayed(pd.Series(large[:1])), dask.delayed(pd.Series([*large[1:], None], dtype="Int64"))]
    )
    rows = da.from_array(np.eye(5), chunks=(2, 5))
    _, found, _ = read_all((rows, labels), drop_missing=True)
    np.testing.assert_array_equal(found, large)


def test_masked_and_sparse_chunks():
    import scipy.sparse

    masked = np.ma.masked_array(X, mask=False)
    masked[3, 1] = np.ma.masked
    with pytest.raises(InputError, match=r"the dask array: missing values in column 1 \(1 row\), first at row 3;"):
        read_all(da.from_array(masked, chunks=(20, 3)))
    pieces = da.from_array(np.where(X > 0, X, 0), chunks=(20, 3)).map_blocks(scipy.sparse.csr_array)
    np.testing.assert_array_equal(read_all(pieces, dtype="float64", block_bytes=100)[0], np.where(X > 0, X, 0))


# xarray -----------------------------------------------------------------------------------------------------


def _dataset(order: tuple[str, str] = ("sample", "feature"), chunks: object = None) -> xr.Dataset:
    dataset = xr.Dataset(
        {"X": (("sample", "feature"), X), "y": ("sample", Y), "weight": ("sample", W), "other": ("sample", Y[::-1])},
        coords={"feature": ["a", "b", "c"]},
    ).transpose(*order)
    return dataset if chunks is None else dataset.chunk(chunks)


ARRAYS = da.from_array(X, chunks=(30, 3))


@pytest.mark.parametrize(("source", "options", "message"), [
    ((ARRAYS, Y[:50]), {}, "the dask array: y has 50 rows where X has 100"),
    ((_unknown(ARRAYS), Y[:50]), {}, "the dask array: y has 50 rows where X has 100"),
    ((_unknown(ARRAYS), dd.from_pandas(FRAME["kind"][:99], npartitions=3)), {}, r"row.*|y has 33 rows where X has"),
    (ARRAYS, {"weight": [1.0]}, "weight has 1 rows where X has 100"),
    (da.zeros(3), {}, "the dask array: rows must have two dimensions"),
    (da.zeros((3, 2), dtype=bool), {}, "the dask array: features must be integers or floats. Got bool"),
    (da.from_array(np.array([["a"]])), {}, "Got <U1 instead; convert it with .*, or make a frame"),
    (ARRAYS, {"label": "kind"}, "no label column 'kind'; the columns have no names"),
    (ARRAYS, {"n_features": 5}, "3 features, but n_features is 5"),
    (dd.from_pandas(FRAME, npartitions=2), {}, r"the dask DataFrame: column 'kind' .* holds no numbers"),
    (dd.from_pandas(FRAME, npartitions=2), {"label": "z"}, "no label column 'z'; the columns are a, b, c, kind, w"),
    (da.from_array(np.array([[1.0, 2], [3, np.inf]]), chunks=1), {}, "the dask array, row 1, column 1: infinity"),
    (_dataset().drop_vars("X"), {}, "the Dataset has no variable 'X'; it has other, weight, y"),
    (_dataset(), {"label": "z"}, "the Dataset has no variable 'z'; it has X, other"),
    (_dataset(), {"weight": "z"}, "the Dataset has no variable 'z'"),
    (_dataset()["y"], {}, r"the DataArray: X must have two dimensions. Got \('sample',\)"),
    (_dataset()["X"], {"weight": "w"}, "the DataArray: weight='w'; give the weights"),
    (_dataset()["X"], {"label": "y"}, "the DataArray: label='y'; name a variable of a Dataset, or give"),
    (_dataset(), {"label": 2}, "the Dataset: label=2; name a variable"),
    ((_dataset()["X"], Y[:4]), {}, "the DataArray: y has 4 rows where X has 100"),
    (
        _dataset().assign(X=_dataset()["X"] > 0),
        {},
        r"the Dataset: features must .* Got bool instead; convert it with astype\(float\)",
    ),
    (_dataset().assign_coords(feature=["a", "a", "b"]), {}, "two columns are named 'a'"),
    (_dataset().where(_dataset()["X"] < 9), {}, "the Dataset: y must share one dimension with X"),
])  # fmt: skip
def test_what_cannot_be_read(source, options, message):
    with pytest.raises(InputError, match=message):
        read_all(source, **options)


def test_variables_of_other_names():
    dataset = _dataset().rename({"weight": "importance"})
    source = open_source(dataset, label="other", weight="importance")
    blocks = list(source.blocks())
    assert np.concatenate([block.y for block in blocks]).tolist() == Y[::-1].tolist()
    assert np.concatenate([block.weight for block in blocks]).tolist() == W.tolist()
    assert source.label_name == "'other'"
    assert read_all(_dataset(), label=False)[1] is None


@pytest.mark.parametrize("chunked", [False, True])
def test_samples_are_along_the_dimension_of_y_else_sample_else_the_first(chunked):
    plain = xr.DataArray(X, dims=("p", "q"))
    y = xr.DataArray(np.arange(3), dims="q")
    named = xr.DataArray(X.T, dims=("f", "sample"), coords={"f": [10, 20, 30]})
    if chunked:
        plain, y, named = plain.chunk({"p": 7}), y.chunk({"q": 2}), named.chunk({"sample": 9})
    rows, labels, _ = read_all((plain, y), dtype="float64", block_bytes=10)
    np.testing.assert_array_equal(rows, X.T)
    assert labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(read_all(named, dtype="float64")[0], X)
    assert open_source(named).feature_names == ("10", "20", "30")
    np.testing.assert_array_equal(read_all(plain, dtype="float64")[0], X)
    np.testing.assert_array_equal(read_all((plain, Y), weight=W)[2], W)


@pytest.mark.parametrize("how", ["weight", "labels in memory", "a column"])
def test_zarr_arrays(tmp_path, how):
    """Their values, whatever their chunks."""
    rng = np.random.default_rng(0)
    rows, labels, weights = rng.normal(size=(70, 4)), rng.integers(0, 2, 70), rng.uniform(size=70)
    X, y, weight = (
        zarr.create_array({}, data=a, chunks=(n,) * a.ndim) for a, n in ((rows, 3), (labels, 20), (weights, 9))
    )
    if how == "weight":
        done = ingest((X, y), tmp_path / "a.zarr", dtype="float64", weight=weight)
    elif how == "labels in memory":
        done = ingest((X, labels), tmp_path / "a.zarr", dtype="float64")
    else:
        done = ingest(X, tmp_path / "a.zarr", dtype="float64", label=-1)
    found = open_store(done.path)
    features = rows[:, :3] if how == "a column" else rows
    np.testing.assert_array_equal(found["X"], features)
    np.testing.assert_array_equal(found["y"], rows[:, 3] if how == "a column" else labels)
    if how == "weight":
        np.testing.assert_array_equal(found["weight"], weights)
    with pytest.raises(InputError, match="the zarr array: y has 3 rows where X has 70"):
        ingest((X, labels[:3]), tmp_path / "b.zarr")
