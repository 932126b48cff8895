"""Data sets of the LIBSVM site, as files or stores, and the download of a file.

They are listed at https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. The site publishes no checksums,
so a file's digest is recorded when it is first fetched, in ``name.sha256``, and every later use and download is
compared with it. The first download is trusted, and a later change is noticed.

A download resumes where it was cut off, and shows complete files only. Until then ``name.part`` holds what has arrived
so far, and ``name.part.version`` says of which version of the file.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from dask_odm.data.ingest import Path, ingest
from dask_odm.data.storage.files import sync, write_synced
from dask_odm.data.storage.staging import take_lock
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError, StoreError
from dask_odm.events import Progress, report
from dask_odm.progress import shown_if_long

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"


class LibsvmSet(NamedTuple):
    """Number of features of a data set on the site, and its files; test rows may be in a file of their own."""

    n_features: int
    train: str
    test: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """Files by part: "train", and perhaps "test"."""
        return {"train": self.train} | ({} if self.test is None else {"test": self.test})


LIBSVM_SETS = {
    **{f"a{i}a": LibsvmSet(123, f"a{i}a", f"a{i}a.t") for i in range(1, 10)},
    **{f"w{i}a": LibsvmSet(300, f"w{i}a", f"w{i}a.t") for i in range(1, 9)},
    "australian": LibsvmSet(14, "australian_scale"),
    "breast-cancer": LibsvmSet(10, "breast-cancer_scale"),
    "cod-rna": LibsvmSet(8, "cod-rna", "cod-rna.t"),
    "covtype": LibsvmSet(54, "covtype.libsvm.binary.scale.bz2"),
    "diabetes": LibsvmSet(8, "diabetes_scale"),
    "epsilon": LibsvmSet(2000, "epsilon_normalized.bz2", "epsilon_normalized.t.bz2"),
    "fourclass": LibsvmSet(2, "fourclass_scale"),
    "german": LibsvmSet(24, "german.numer_scale"),
    "gisette": LibsvmSet(5000, "gisette_scale.bz2", "gisette_scale.t.bz2"),
    "heart": LibsvmSet(13, "heart_scale"),
    "HIGGS": LibsvmSet(28, "HIGGS.xz"),
    "ijcnn1": LibsvmSet(22, "ijcnn1.bz2", "ijcnn1.t.bz2"),
    "ionosphere": LibsvmSet(34, "ionosphere_scale"),
    "madelon": LibsvmSet(500, "madelon", "madelon.t"),
    "mushrooms": LibsvmSet(112, "mushrooms"),
    "phishing": LibsvmSet(68, "phishing"),
    "real-sim": LibsvmSet(20958, "real-sim.bz2"),
    "skin-nonskin": LibsvmSet(3, "skin_nonskin"),
    "sonar": LibsvmSet(60, "sonar_scale"),
    "splice": LibsvmSet(60, "splice", "splice.t"),
    "SUSY": LibsvmSet(18, "SUSY.xz"),
    "svmguide1": LibsvmSet(4, "svmguide1", "svmguide1.t"),
}


@shown_if_long()
def fetch_libsvm(
    name: str,
    *,
    part: str | None = None,
    cache: Path | None = None,
    url: str | None = None,
    sha256: Mapping[str, str] | None = None,
    store: Path | None = None,
    timeout: float = 30.0,
    retries: int = 4,
    wait: float = 1.0,
    **options: Any,
) -> tuple[str, ...] | Store | tuple[Store, Store]:
    """Fetch a data set of the LIBSVM site once; later calls check the files in the cache and use them.

    Parameters
    ----------
    name : name of the data set, such as ``a7a`` or ``SUSY``; with ``url``, any file's name
    part : ``train`` or ``test`` if the site has both; by default all
    cache : folder of the files; by default the environment's ``DASK_ODM_CACHE``, else ``~/.cache/dask-odm``
    url : address of the folder that holds the files, such as that of a mirror
    sha256 : digests by file name. By default a file is compared with its first download, whose digest is kept beside
        it in ``name.sha256``. The site publishes no digests, so a first download is trusted
    store : folder to ingest the files into, all of them into one store
    timeout : seconds without a byte after which an attempt is given up
    retries : attempts after the first; attempts that received bytes do not count
    wait : seconds before the first retry, doubled before every further one
    **options : options of `ingest`, such as ``test_size`` or ``overwrite``; only with ``store``

    Returns
    -------
    tuple of paths (training rows first), or with ``store`` what `ingest` returns

    Raises
    ------
    InputError
        No such data set or file, a server that cannot be reached, or a checksum that does not match. What has arrived
        so far is kept, and the next call resumes it if the server supports that.
    StoreError
        The cache or the store cannot be written.
    """
    if options and store is None:
        raise InputError(f"{', '.join(options)}: only with store=.")
    known = LIBSVM_SETS.get(name)
    files = _files(name, known, part, custom=url is not None)
    cache = cache or os.environ.get("DASK_ODM_CACHE") or os.path.join("~", ".cache", "dask-odm")
    folder = os.path.join(os.path.abspath(os.path.expanduser(cache)), "libsvm")
    base = (url or LIBSVM_URL).rstrip("/")
    patience: Any = {"timeout": timeout, "retries": retries, "wait": wait}
    digests = sha256 or {}
    paths = tuple(
        download(f"{base}/{file}", os.path.join(folder, file), sha256=digests.get(file), **patience) for file in files
    )
    if store is None:
        return paths
    if known is not None:
        options = {"n_features": known.n_features, **options}
    return ingest(list(paths), store, **{"format": "libsvm", **options})


def _files(name: str, known: LibsvmSet | None, part: str | None, *, custom: bool) -> tuple[str, ...]:
    if known is None and not custom:
        near = difflib.get_close_matches(name, LIBSVM_SETS, cutoff=0.5)
        raise InputError(
            f"no data set {name!r} in the table; {'close are' if near else 'there are'} "
            f"{', '.join(near or LIBSVM_SETS)}. For another file of the site, give its name and url={LIBSVM_URL!r}."
        )
    if known is None and (not name or os.path.basename(name) != name or name.startswith(".")):
        raise InputError(f"{name!r} is not a file's name; give the folder in url= and the file's name alone.")
    parts = {"train": name} if known is None else known.parts
    if part is None:
        return tuple(parts.values())
    if part not in parts:
        raise InputError(f"{name} has no part {part!r}; there is {', '.join(parts)}.")
    return (parts[part],)


class _CutError(Exception):
    """An attempt ended early, for the reason given; another one may succeed."""


def download(
    url: str, path: str, *, sha256: str | None = None, timeout: float = 30.0, retries: int = 4, wait: float = 1.0
) -> str:
    """Fetch ``url`` to ``path``, unless the file is there and unchanged, and return ``path``.

    The file must have the hexadecimal digest ``sha256``, by default that of the first download. An attempt is given up
    after ``timeout`` seconds without a byte. There are ``retries`` after the first attempt, not counting attempts that
    received bytes; the first waits ``wait`` seconds, and every further one twice as long. Raises InputError if the
    server has no such file, cannot be reached or sends something else; what has arrived is kept and resumed by the next
    call. Raises StoreError if the folder cannot be written.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: only http and https can be fetched.")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = take_lock(f"{path}.lock")
        if lock is None:
            raise InputError(f"{path}: another process is fetching this file; wait for it.")
        try:
            expected = (sha256 or _recorded(path)).lower()
            kept = os.path.exists(path)
            if not kept:
                _fetch(url, f"{path}.part", timeout, retries, wait)
            _accept(url, path, expected, kept=kept)
        finally:
            lock.remove()
    except OSError as error:
        raise StoreError(f"cannot write '{error.filename or path}': {error.strerror or error}.") from error
    return path


def _accept(url: str, path: str, expected: str, *, kept: bool) -> None:
    """Check the file, ``kept`` from before or just received, by the ``expected`` digest, which is recorded if empty."""
    part = f"{path}.part"
    with open(path if kept else part, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if expected and digest != expected and kept:
        raise InputError(
            f"{path}: SHA-256 is {digest}, not {expected}; the file was changed or damaged. Remove it to fetch it "
            f"again from {url}."
        )
    if expected and digest != expected:
        _discard(part)
        raise InputError(
            f"{url}: SHA-256 is {digest}, not {expected}. The download was damaged or the server's file was replaced; "
            f"try again, and if you trust the new file remove {path}.sha256 or give its sha256."
        )
    if not (kept and expected):
        write_synced(f"{path}.sha256", f"{digest}  {os.path.basename(path)}\n".encode())
    if not kept:
        sync(part)
        os.replace(part, path)
        _discard(part)


def _recorded(path: str) -> str:
    """Return the digest of the first download; empty if there was none."""
    try:
        with open(f"{path}.sha256", encoding="ascii", errors="replace") as file:
            word = (file.read(200).split() or [""])[0]
    except FileNotFoundError:
        return ""
    if not re.fullmatch("[0-9a-fA-F]{64}", word):
        raise InputError(f"{path}.sha256: not a SHA-256 digest; remove the file.")
    return word


def _fetch(url: str, part: str, timeout: float, retries: int, wait: float) -> None:
    """Attempt to fetch the file to ``part`` until it is complete."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _attempt(url, part, timeout)
        except _CutError as cut:
            failures = 0 if _size(part) > before else failures + 1
            if failures > retries:
                kept = f"; the {_size(part)} bytes that came are kept" if _size(part) else ""
                raise InputError(f"{url}: {cut}{kept}. Check the connection and try again.") from cut
            time.sleep(min(wait * 2 ** max(0, failures - 1), 60.0))


def _attempt(url: str, part: str, timeout: float) -> None:
    """Request the missing bytes and append them; raise _CutError if the answer ends early."""
    version = _version(url, part)
    done = _size(part) if version else 0
    headers = {"User-Agent": "dask-odm", "Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": version}
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
        tag = response.headers.get("ETag", "W/")  # a weak one does not identify a version
        found = str(response.headers.get("Last-Modified", "") if tag.startswith("W/") else tag)
        if response.status != 206:
            done = 0
            _discard(part)
            write_synced(f"{part}.version", f"{url}\n{found}".encode())
        elif found not in ("", version):
            _discard(part)
            raise _CutError("the file changed while it was fetched")
        _append(url, response, part, done)


def _append(url: str, response: Any, part: str, done: int) -> None:
    """Append the body of an answer to the ``done`` bytes that are there."""
    total = None if response.length is None else done + response.length
    report(Progress("download", done, total, "bytes"))
    with open(part, "ab") as file:
        while True:
            try:
                data = response.read(1 << 18)
            except (OSError, http.client.HTTPException) as error:
                raise _CutError(f"the connection broke after {done} bytes ({error or type(error).__name__})") from error
            if not data:
                break
            if done == 0 and data.lstrip()[:1] == b"<":
                raise InputError(f"{url}: the server sent a web page, not the file. Check address and connection.")
            file.write(data)
            done += len(data)
            report(Progress("download", done, total, "bytes"))
    if total not in (None, done):
        raise _CutError(f"the answer ended after {done} of {total} bytes")


def _version(url: str, part: str) -> str:
    """Return the validator of the version that a partial file is of; empty if it cannot be resumed."""
    try:
        with open(f"{part}.version", encoding="ascii", errors="replace") as file:
            address, _, validator = file.read().partition("\n")
    except FileNotFoundError:
        return ""
    return validator if address == url and validator.isascii() and validator.isprintable() else ""


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _discard(part: str) -> None:
    for path in (f"{part}.version", part):
        with suppress(FileNotFoundError):
            os.remove(path)
