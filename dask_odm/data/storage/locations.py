"""Locations of data: a path of this machine, or an address in an object store, with its client and its files.

Addresses are ``s3://BUCKET/NAME`` (also MinIO, Ceph, R2), ``gs://BUCKET/NAME`` and ``az://CONTAINER/NAME``;
``file:///PATH`` is a path. An address with credentials is refused, and is not repeated in the error.

All threads of a process share the clients. Credentials come from the platform: the environment, a web identity token,
or the role of the machine or pod. They stay in the client. Its error texts are not repeated, since they quote requests;
only status and code of an answer are. The client itself repeats requests, with growing pauses, after 5xx answers and
cut connections.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from dask_odm.data.storage.files import open_whole
from dask_odm.errors import DaskODMError, InputError, ObjectStoreError

MANIFEST = "manifest.json"  # key that is written last, in every store and record
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_COLLAPSED = re.compile(rf"({'|'.join((*_KEYS, 'file'))}):/[^/]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STATUS = re.compile(r"status(?: code)?: (\d{3})(?: ([A-Z][A-Za-z ]{2,40}[a-z]))?")
_CODE = re.compile(r"<Code>([A-Za-z]{2,60})</Code>")


def is_address(location: str) -> bool:
    """Return whether a location is in an object store."""
    return _ADDRESS.match(location) is not None


def location_of(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, or the address in one spelling, that a user names.

    Raises InputError for anything else, or if an address is of an unknown kind, names no object, or has credentials or
    options.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a path must be a str or a pathlib.Path. Got {path!r:.60} instead.")
    text = os.fspath(path)
    if not isinstance(path, str) and _COLLAPSED.match(text):
        raise InputError(f"'{text}': pathlib takes a slash from an address; give it as text.")
    found = _ADDRESS.match(text)
    if found is None:
        return os.path.abspath(text)
    scheme = found[1].lower()
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InputError(f"'{text}' is not a path of this machine; give file:///PATH.")
        return os.path.abspath(unquote(parts.path))
    if scheme not in _KEYS:
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


class NotAsExpectedError(Exception):
    """The condition of a put does not hold: the object to replace is gone, or is another version."""


def client_of(location: str) -> Any:
    """Return the client of an address's bucket; raise InputError if the package for object stores is not installed."""
    scheme, _, rest = location.partition("://")
    settings = sorted(item for item in os.environ.items() if item[0].startswith(("AWS_", "GOOGLE_", "AZURE_")))
    return _client(scheme, rest.partition("/")[0], patience(), hash(tuple(settings)))


def name_of(location: str) -> str:
    """Return the name of an object in its bucket, without a slash before it."""
    return location.partition("://")[2].partition("/")[2]


def patience() -> float:
    """Return the seconds for which a request is retried."""
    import dask  # imported here, since stores on this machine do not need it
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get("dask_odm.object-store-patience", "60s")))


@lru_cache(maxsize=16)
def _client(scheme: str, bucket: str, seconds: float, settings: int) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise InputError(f"{scheme}:// addresses need the package obstore: pip install 'dask-odm[objects]'.") from error
    pauses = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
    # time bounds the retries, not their number
    retries: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=seconds), "backoff": pauses}
    # give up a hanging connection while there is time for another; let a transfer that moves go on
    options: Any = {"timeout": timedelta(hours=1), "read_timeout": timedelta(seconds=max(1.0, seconds / 2))}
    # plain http is allowed only if the server's address asks for it
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if scheme == "s3" and endpoint.startswith("http://"):
        options["allow_http"] = True
    kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    return kind(bucket, client_options=options, retry_config=retries)


@contextmanager
def explained(location: str, doing: str) -> Iterator[None]:
    """Raise errors of the client as `ObjectStoreError`.

    A key that does not exist stays a FileNotFoundError, and a condition that does not hold is a `NotAsExpectedError`.
    Nothing of the client's own error is kept, neither as text nor as cause.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        yield
    except DaskODMError:
        raise
    except (AlreadyExistsError, PreconditionError):
        raise NotAsExpectedError(location) from None
    except FileNotFoundError:
        raise FileNotFoundError(2, "not there", location) from None
    except (BaseError, OSError, ValueError) as error:
        found = error
    else:
        return
    raise ObjectStoreError(f"cannot {doing} '{location}': {_reason(location, found)}.") from None


def _reason(location: str, found: Exception) -> str:
    """Return the likely reason for an error of the client, and a way out."""
    keys = _KEYS[location.partition("://")[0]]
    text = str(found).replace(f"/{name_of(location)}", "/")  # whatever words the key has
    status = _STATUS.search(text)
    code = _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return "there is no such bucket; check its name"
    if "169.254." in text or (status is None and "redential" in text.partition("Debug source")[0]):
        return f"no credentials; set {keys}, or give the machine or pod a role"
    answer = ""
    if status is not None:
        answer = " ".join(filter(None, (status[1], status[2], f"({code[1]})" if code else "")))
    if answer[:3] in ("401", "403") or type(found).__name__.startswith(("Permission", "Unauth")):
        return (
            f"the object store refuses access ({answer or 'denied'}); check the credentials ({keys}, or the "
            "role of machine or pod) and what they allow"
        )
    return (
        f"the object store {f'answers {answer}' if answer else 'does not answer'}, tried for {patience():g} s; see "
        "whether it is up and its address (AWS_ENDPOINT_URL, AWS_REGION) is right, and run this again"
    )


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that an error quotes, or None."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


class ObjectFile(io.RawIOBase):
    """Unbuffered file over the object at an address; FileNotFoundError if there is none."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._at = 0
        self._name = name_of(location)
        with explained(location, "read"):
            found = client_of(location).head(self._name)
        self.size = int(found["size"])
        self._tag = found["e_tag"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position, counted from the beginning, the current position or the end."""
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and return the number of bytes read."""
        target = memoryview(buffer).cast("B")
        stop = min(self._at + len(target), self.size)
        if stop <= self._at:
            return 0
        options = {"range": (self._at, stop), "if_match": self._tag}
        try:
            with explained(self._location, "read"):
                data = memoryview(client_of(self._location).get(self._name, options=options).bytes())
        except NotAsExpectedError:
            raise OSError(errno.ESTALE, "it was replaced while it was read", self._location) from None
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_buffered(path: str) -> IO[bytes]:
    """Open a file or an object for buffered reading; an object is read 4 MB a request."""
    return io.BufferedReader(ObjectFile(path), 4 << 20) if is_address(path) else open_whole(path)


def source_size(path: str) -> int:
    """Return the size in bytes of a file or an object."""
    return ObjectFile(path).size if is_address(path) else os.path.getsize(path)


def objects_at(location: str, enters: Callable[[str], bool]) -> list[str]:
    """Return the object at an address, or the objects directly below it, as the files of a folder; else no objects.

    ``enters`` says by their names which folders are entered, too.
    """
    name = name_of(location)
    with explained(location, "list"):
        client = client_of(location)
        try:
            client.head(name)
            return [location]
        except FileNotFoundError:
            found = []
            folders = [name]
            for folder in folders:
                below = client.list_with_delimiter(f"{folder}/")
                found += [each["path"] for each in below["objects"]]
                inner = [each.rstrip("/") for each in below["common_prefixes"]]
                folders += [each for each in inner if enters(each.rpartition("/")[2])]
    return [location.removesuffix(name) + each for each in found]
