"""A store as a source: everything it holds, once more."""

import numpy as np
import pytest

from dask_odm import InputError, Store, ingest, open_store
from dask_odm.data.readers.formats import open_source
from data.reading import read_all, stored


@pytest.mark.parametrize("form", [str, Store.open, open_store])
@pytest.mark.parametrize("block_bytes", [1, 300, 10**6])
def test_a_store_is_what_went_in(tmp_path, pristine, form, block_bytes):
    original = pristine["zstd"]
    source = form(original.path)
    assert open_source(source).description == f"store '{original.path}'"
    store = ingest(source, tmp_path / "b.zarr", block_bytes=block_bytes, chunk_rows=77)
    np.testing.assert_array_equal(stored(store)[0], stored(original)[0], strict=True)
    np.testing.assert_array_equal(stored(store)[1], stored(original)[1], strict=True)
    np.testing.assert_array_equal(store.read_column("weight"), original.read_column("weight"))
    assert (store.feature_names, store.classes) == (original.feature_names, original.classes)
    assert store.chunk_rows == 77


def test_a_store_without_its_labels_or_in_two(tmp_path, pristine):
    path = pristine[None].path
    assert read_all(path, label=False)[1] is None
    train, test = ingest(path, tmp_path / "b.zarr", test_size=0.25)
    assert (train.rows, test.rows) == (750, 250)


def test_options_that_a_store_has_no_use_for(pristine):
    store = pristine[None]
    for source, options in (((store, [1]), {}), (store, {"label": "y"}), (store.path, {"weight": "w"})):
        with pytest.raises(InputError, match="holds its own labels and weights; leave y, label and weight out"):
            open_source(source, **options)
    with pytest.raises(InputError, match="5 features, but n_features is 4"):
        open_source(store, n_features=4)
