"""Stores for the tests of the data layer."""

import shutil

import pytest

from dask_odm.data.store.store import Store
from data.stores import write_store


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> dict[str | None, Store]:
    folder = tmp_path_factory.mktemp("stores")
    return {kind: write_store(folder / f"{kind}.zarr", compression=kind) for kind in (None, "zstd")}


@pytest.fixture(params=[None, "zstd"], ids=["plain", "zstd"])
def store(request, pristine, tmp_path) -> Store:
    """A copy that the test may damage."""
    original = pristine[request.param]
    shutil.copytree(original.path, tmp_path / "a.zarr")
    return Store.open(tmp_path / "a.zarr")
