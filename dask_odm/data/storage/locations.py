"""Locations of stores, models and checkpoints: a path of this machine, or an address in an object store.

Addresses are ``s3://BUCKET/NAME`` (also MinIO, Ceph, R2), ``gs://BUCKET/NAME`` and ``az://CONTAINER/NAME``;
``file:///PATH`` is a path. An address with credentials is refused, and is not repeated in the error.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from dask_odm.errors import InputError

MANIFEST = "manifest.json"  # key that is written last, in every store and record
SCHEMES = ("s3", "gs", "az")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_COLLAPSED = re.compile(rf"({'|'.join((*SCHEMES, 'file'))}):/[^/]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_address(location: str) -> bool:
    """Return whether a location is in an object store."""
    return _ADDRESS.match(location) is not None


def location_of(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, or the address in one spelling, that a user names.

    Raises InputError if an address is of an unknown kind, names no object, or has credentials or options.
    """
    text = os.fspath(path)
    if not isinstance(path, str) and _COLLAPSED.match(text):
        raise InputError(f"'{text}': pathlib takes a slash from an address; give it as text.")
    found = _ADDRESS.match(text)
    if found is None:
        return os.path.abspath(text)
    scheme = found[1].lower()
    if scheme == "file":
        return _path_of(text)
    if scheme not in SCHEMES:
        raise InputError(
            f"an address that begins with '{found[0]}' cannot be read or written; it may begin with s3://, gs://, "
            "az:// or file://. Copy what is there to this machine, or pass what another library opened."
        )
    return _spelled(scheme, text[found.end() :])


def _spelled(scheme: str, rest: str) -> str:
    bucket, _, name = rest.partition("/")
    if "@" in bucket or ":" in bucket or "?" in rest or "#" in rest:
        raise InputError(
            f"an address {scheme}://… holds more than bucket and name; credentials and options come from the "
            "environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL."
        )
    name = name.rstrip("/")
    if not _BUCKET.fullmatch(bucket) or any(part in ("", ".", "..") for part in name.split("/")):
        raise InputError(f"'{scheme}://{rest}' names no object; give {scheme}://BUCKET/NAME.")
    return f"{scheme}://{bucket}/{name}"


def _path_of(text: str) -> str:
    found = urlsplit(text)
    if found.netloc not in ("", "localhost") or not found.path.startswith("/"):
        raise InputError(f"'{text}' is not a path of this machine; give file:///PATH.")
    return os.path.abspath(unquote(found.path))
