"""Clients of object stores, shared by all threads of a process, with their settings, retries and errors.

Credentials come from the platform: the environment, a web identity token, or the role of the machine or pod. They stay
in the client. Its error texts are not repeated, since they quote requests; only status and code of an answer are.
The client itself repeats requests, with growing pauses, after 5xx answers and cut connections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

from dask_odm.errors import DaskODMError, InputError, ObjectStoreError

_STATUS = re.compile(r"status(?: code)?: (\d{3})(?: ([A-Z][A-Za-z ]{2,40}[a-z]))?")
_CODE = re.compile(r"<Code>([A-Za-z]{2,60})</Code>")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class NotAsExpectedError(Exception):
    """The condition of a put does not hold: the object to replace is gone, or is another version."""


def client_of(location: str) -> Any:
    """Return the client of an address's bucket; raise InputError if the package for object stores is not installed."""
    scheme, _, rest = location.partition("://")
    settings = sorted(item for item in os.environ.items() if item[0].startswith(("AWS_", "GOOGLE_", "AZURE_")))
    return _client(scheme, rest.partition("/")[0], patience(), hash(tuple(settings)))


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
    scheme, rest = location.split("://", 1)
    text = str(found).replace(f"/{rest.partition('/')[2] or rest}", "/")  # whatever words the key has
    status = _STATUS.search(text)
    code = _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return "there is no such bucket; check its name"
    if "169.254." in text or (status is None and "redential" in text.partition("Debug source")[0]):
        return f"no credentials; set {_KEYS[scheme]}, or give the machine or pod a role"
    answer = ""
    if status is not None:
        answer = " ".join(filter(None, (status[1], status[2], f"({code[1]})" if code else "")))
    if answer[:3] in ("401", "403") or type(found).__name__.startswith(("Permission", "Unauth")):
        return (
            f"the object store refuses access ({answer or 'denied'}); check the credentials ({_KEYS[scheme]}, or the "
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
