"""Paths and addresses: one spelling of each, and none that holds a secret."""

import os
from pathlib import Path

import pytest

from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.errors import InputError


@pytest.mark.parametrize(("given", "found"), [
    ("s3://bucket/a.zarr", "s3://bucket/a.zarr"),
    ("S3://bucket/deep/a.zarr/", "s3://bucket/deep/a.zarr"),
    ("gs://my-bucket.eu/a", "gs://my-bucket.eu/a"),
    ("az://container/a", "az://container/a"),
    ("file:///data/a%20b.zarr", os.path.abspath("/data/a b.zarr")),
    ("file://localhost/data/../a", os.path.abspath("/a")),
    ("a.zarr", os.path.abspath("a.zarr")),
    (Path("/data/a.zarr"), os.path.abspath("/data/a.zarr")),
    ("/data/s3:/a", os.path.abspath("/data/s3:/a")),
])  # fmt: skip
def test_one_spelling(given, found):
    assert location_of(given) == found
    assert is_address(found) == (found[:2] in ("s3", "gs", "az"))
    assert location_of(found) == found


@pytest.mark.parametrize(("given", "said"), [
    ("https://example.com/a.zarr", "https://"),
    ("s3://", "names no object"), ("s3://bucket", "names no object"), ("s3://bucket/", "names no object"),
    ("s3://bucket/a//b", "names no object"), ("s3://bucket/../b", "names no object"), ("s3:///a", "names no object"),
    ("file://elsewhere/a", "not a path of this machine"),
    ("file:a", None),
    (Path("s3://bucket/a"), "give it as text"),
    ("s3://key:hidden@bucket/a", "come from the environment"),
    ("s3://bucket/a?secret=hidden", "come from the environment"),
    ("az://container/a#hidden", "come from the environment"),
])  # fmt: skip
def test_what_is_no_address(given, said):
    if said is None:
        assert location_of(given) == os.path.abspath(given)
        return
    with pytest.raises(InputError, match=said) as caught:
        location_of(given)
    assert "hidden" not in str(caught.value)
