"""Object stores that do not do as they are asked: from Python and from the command line, one message each."""

import sys

import dask
import numpy as np
import pytest

from cli.running import run
from dask_odm.data.storage import locations
from dask_odm.data.storage.objects import NewObjects
from dask_odm.data.store.records import write_record
from dask_odm.data.store.store import Store
from faults.table import check, raises
from object_server import BUCKET, ObjectServer


def both(row: str, address: str) -> None:
    """What opening a store says in both ways."""
    raises(row, lambda: Store.open(address))
    check(row, run("info", address, status=2).stderr.removeprefix("dask-odm: "))


@pytest.mark.parametrize(("row", "kind", "status"), [
    ("Object store that does not answer", "status", 500),
    ("Object store that does not answer", "refuse", 0),
    ("Object store that refuses access", "status", 403),
])  # fmt: skip
def test_a_server_that_does_not_serve(row, kind, status, place, object_server: ObjectServer):
    object_server.fail(kind, status=status)
    with dask.config.set({"dask_odm.object-store-patience": "0.2s"}):
        both(row, f"{place}/a.zarr")
        raises(row, lambda: write_record(f"{place}/m", "model", {"x": np.arange(3)}, {}))
    object_server.fail()
    write_record(f"{place}/m", "model", {"x": np.arange(3)}, {})


def test_no_such_bucket(place):
    both("No such bucket", place.replace(BUCKET, "nowhere"))


def test_another_writer(place):
    one, two = NewObjects(place), NewObjects(place)
    for each in (one, two):
        each.begin(overwrite=False)
        each.complete("manifest.json", b"{}")
    one.publish(overwrite=False)
    raises("Another writer at the same address", lambda: two.publish(overwrite=False))


@pytest.mark.parametrize("address", ["s3://bucket", "s3://key:word@bucket/a", "s3://bucket/a?x=1", "http://bucket/a"])
def test_no_address(address):
    both("Invalid address", address)


def test_no_credentials():
    from obstore.exceptions import GenericError

    def ask() -> None:
        with locations.explained("s3://bucket/a", "read"):
            raise GenericError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1s")

    raises("No credentials", ask)


def test_no_package(monkeypatch):
    locations._client.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    both("Package for object stores not installed", "s3://bucket/a.zarr")
