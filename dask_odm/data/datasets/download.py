"""Download of one file to a folder. It resumes where it was cut off, checks the digest, and shows complete files only.

Until a file is complete, ``name.part`` holds what has arrived so far, and ``name.part.json`` says of which version of
the file. Afterwards ``name.sha256`` holds its digest: the given one, or that of the first download. Every later use
and download is compared with it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from dask_odm.data.storage.files import write_synced
from dask_odm.data.storage.staging import take_lock
from dask_odm.errors import InputError, StoreError
from dask_odm.events import Progress, report


@dataclass(frozen=True)
class Patience:
    """How long a download is tried.

    An attempt is given up after ``timeout`` seconds without a byte. There are ``retries`` after the first attempt, not
    counting attempts that received bytes. The first one waits ``wait`` seconds, and every further one twice as long.
    """

    timeout: float = 30.0
    retries: int = 4
    wait: float = 1.0


class _CutError(Exception):
    """An attempt ended early, for the reason given; another one may succeed."""


def download(url: str, path: str, *, sha256: str | None = None, patience: Patience | None = None) -> str:
    """Fetch ``url`` to ``path``, unless the file is there and unchanged, and return ``path``.

    The file must have the hexadecimal digest ``sha256``, by default that of the first download. Raises InputError if
    the server has no such file, cannot be reached or sends something else; what has arrived is kept and resumed by the
    next call. Raises StoreError if the folder cannot be written.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: only http and https can be fetched.")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = take_lock(f"{path}.lock")
        if lock is None:
            raise InputError(f"{path}: another process is fetching this file; wait for it.")
        try:
            expected = (sha256 or _recorded(path) or "").lower()
            if os.path.exists(path):
                _check_kept(url, path, expected)
            else:
                _fetch(url, path, expected, patience or Patience())
        finally:
            lock.remove()
    except OSError as error:
        raise StoreError(f"cannot write '{error.filename or path}': {error.strerror or error}.") from error
    return path


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recorded(path: str) -> str | None:
    try:
        with open(f"{path}.sha256", encoding="ascii", errors="replace") as file:
            word = (file.read(200).split() or [""])[0]
    except FileNotFoundError:
        return None
    if not re.fullmatch("[0-9a-fA-F]{64}", word):
        raise InputError(f"{path}.sha256: not a SHA-256 digest; remove the file.")
    return word


def _record(path: str, digest: str) -> None:
    write_synced(f"{path}.sha256", f"{digest}  {os.path.basename(path)}\n".encode())


def _check_kept(url: str, path: str, expected: str) -> None:
    """Raise InputError if the existing file differs from the one that was fetched."""
    digest = file_digest(path)
    if expected and digest != expected:
        raise InputError(
            f"{path}: SHA-256 is {digest}, not {expected}; the file was changed or damaged. Remove it to fetch it "
            f"again from {url}."
        )
    if not expected:
        _record(path, digest)


def _fetch(url: str, path: str, expected: str, patience: Patience) -> None:
    part = f"{path}.part"
    failures = 0
    while True:
        before = _size(part)
        try:
            _attempt(url, part, patience.timeout)
            break
        except _CutError as cut:
            failures = 0 if _size(part) > before else failures + 1
            if failures > patience.retries:
                kept = f"; the {_size(part)} bytes that came are kept" if _size(part) else ""
                raise InputError(f"{url}: {cut}{kept}. Check the connection and try again.") from cut
            time.sleep(min(patience.wait * 2 ** max(0, failures - 1), 60.0))
    _finish(url, path, part, expected)


def _finish(url: str, path: str, part: str, expected: str) -> None:
    """Check what was received, write its digest, and move it to its place."""
    digest = file_digest(part)
    if expected and digest != expected:
        _discard(part)
        raise InputError(
            f"{url}: SHA-256 is {digest}, not {expected}. The download was damaged or the server's file was replaced; "
            f"try again, and if you trust the new file remove {path}.sha256 or give its sha256."
        )
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    _record(path, digest)
    os.replace(part, path)
    _discard(part)


def _attempt(url: str, part: str, timeout: float) -> None:
    """Request the missing bytes and append them; raise _CutError if the answer ends early."""
    version = _version(url, part)
    done = _size(part) if version else 0
    headers = {"User-Agent": "dask-odm", "Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": version["validator"]}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and done:  # the server has nothing after these bytes: begin again
            _discard(part)
        elif error.code < 500 and error.code not in (408, 425, 429):  # another attempt would not help
            hint = "no such file there" if error.code in (404, 410) else error.reason
            raise InputError(
                f"{url}: the server answers {error.code} ({hint}). Check the name, or give url=."
            ) from error
        raise _CutError(f"the server answers {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _CutError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    with response:
        _take(url, part, response, done, version)


def _take(url: str, part: str, response: Any, done: int, version: dict[str, str]) -> None:
    """Write the body of an answer after the ``done`` bytes that are there, or in their place."""
    goes_on = response.status == 206 and done > 0
    start, total = _extent(response, goes_on)
    same = not version or _validator(response.headers) in (None, version["validator"])
    if goes_on and (start != done or not same):
        _discard(part)
        raise _CutError("the file changed while it was fetched")
    if not goes_on:
        done = 0
        _discard(part)
        validator = _validator(response.headers)
        if validator:
            write_synced(f"{part}.json", json.dumps({"url": url, "validator": validator}).encode())
    with open(part, "ab" if goes_on else "wb") as file:
        done = _copy(url, response, file, done, total)
    if total is not None and done != total:
        if done > total:
            _discard(part)
        raise _CutError(f"the answer ended after {done} of {total} bytes")


def _copy(url: str, response: Any, file: IO[bytes], done: int, total: int | None) -> int:
    report(Progress("download", done, total, "bytes"))
    while True:
        try:
            data = response.read(1 << 18)
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(f"the connection broke after {done} bytes ({error or type(error).__name__})") from error
        if not data:
            return done
        if done == 0 and data.lstrip()[:1] == b"<":
            raise InputError(f"{url}: the server sent a web page, not the file. Check the address and the connection.")
        file.write(data)
        done += len(data)
        report(Progress("download", done, total, "bytes"))


def _extent(response: Any, goes_on: bool) -> tuple[int, int | None]:
    """Return the position of the body's first byte, and the size of the whole file if the server tells it."""
    if goes_on:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        if not found:
            return -1, None
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _validator(headers: Any) -> str | None:
    """Return what identifies this version of the file: a strong ETag, else the time of its last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _version(url: str, part: str) -> dict[str, str]:
    """Return what is known of a partial file; empty if it cannot be resumed."""
    try:
        with open(f"{part}.json", encoding="utf-8") as file:
            version = json.load(file)
        known = isinstance(version["validator"], str) and version["validator"].isprintable()
        return version if version["url"] == url and known else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _discard(part: str) -> None:
    for path in (f"{part}.json", part):
        with suppress(FileNotFoundError):
            os.remove(path)
