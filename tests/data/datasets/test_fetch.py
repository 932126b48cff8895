"""Downloads from a server of this machine: whole, cut off and resumed, changed, refused, and never half there."""

import bz2
import hashlib
import http.server
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

import dask_odm.datasets as ds
from dask_odm.data.datasets.fetch import LIBSVM_SETS, download
from dask_odm.data.storage.staging import take_lock
from dask_odm.errors import InputError, StoreError
from dask_odm.events import Progress, listen
from data.reading import libsvm_bytes, read_all

TEXT = libsvm_bytes(400)
DATA = bz2.compress(TEXT)
QUICK = {"timeout": 2.0, "retries": 2, "wait": 0.0}


@dataclass
class Site:
    """What a server serves, how it misbehaves, and what it was asked."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True
    validators: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    cut: list[int] = field(default_factory=list)  # of each answer to come, bytes after which the connection ends
    status: list[int] = field(default_factory=list)  # of each answer to come, the status in place of 200
    length: bool = True
    careless: bool = False  # ignores If-Range
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, name, wanted = self.site, self.path.rpartition("/")[2], self.headers["Range"]
        site.asked.append((name, wanted, self.headers["If-Range"]))
        status = site.status.pop(0) if site.status else 200
        if status != 200 or name not in site.files:
            self.send_error(status if status != 200 else 404)
            return
        data, start = site.files[name], 0
        same = site.careless or self.headers["If-Range"] in site.validators.values()
        if wanted and site.ranges and same:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(data):
                self.send_error(416)
                return
        self._send(data, start)

    def _send(self, data: bytes, start: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.site.length:
            self.send_header("Content-Length", str(len(data) - start))
        for name, value in self.site.validators.items():
            self.send_header(name, value)
        self.end_headers()
        end = start + self.site.cut.pop(0) if self.site.cut else len(data)
        self.wfile.write(data[start:end])

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site({"a7a": TEXT, "a7a.t": TEXT[: TEXT.index(b"\n") + 1], "SUSY.xz": DATA, "data.bz2": DATA})
    handler = type("Handler", (_Handler,), {"site": site})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def target(tmp_path) -> str:
    return str(tmp_path / "cache" / "data.bz2")


def _folder(target: str) -> set[str]:
    return set(os.listdir(os.path.dirname(target)))


def _fetch(site: Site, target: str, **options) -> bytes:
    options = {**QUICK, **options}
    with open(download(f"{site.address}/data.bz2", target, **options), "rb") as file:
        return file.read()


def test_a_file_is_fetched_once_and_checked_ever_after(site, target):
    heard: list[Progress] = []
    with listen(heard.append):
        assert _fetch(site, target) == DATA
    assert heard[0] == Progress("download", 0, len(DATA), "bytes")
    assert heard[-1] == Progress("download", len(DATA), len(DATA), "bytes")
    assert _folder(target) == {"data.bz2", "data.bz2.sha256"}
    with open(f"{target}.sha256") as file:
        assert file.read() == f"{hashlib.sha256(DATA).hexdigest()}  data.bz2\n"
    assert _fetch(site, target) == DATA
    assert len(site.asked) == 1
    with open(target, "r+b") as file:
        file.write(b"X")
    with pytest.raises(InputError, match=r"data\.bz2: SHA-256 is .*; the file was changed or damaged. Remove it"):
        _fetch(site, target)
    os.remove(target)
    assert _fetch(site, target) == DATA


def test_a_file_that_was_put_there_is_taken_as_it_is_and_recorded(site, target):
    os.makedirs(os.path.dirname(target))
    with open(target, "wb") as file:
        file.write(b"1 1:1\n")
    assert _fetch(site, target) == b"1 1:1\n"
    assert site.asked == []
    assert _folder(target) == {"data.bz2", "data.bz2.sha256"}


@pytest.mark.parametrize("validators", [{"ETag": '"one"'}, {"Last-Modified": "Sat, 21 Nov 2020 11:00:00 GMT"}])
def test_an_interrupted_download_goes_on_where_it_ended(site, target, validators):
    site.validators = validators
    site.cut = [1000, 500]
    assert _fetch(site, target) == DATA
    expected = next(iter(validators.values()))
    assert site.asked == [
        ("data.bz2", None, None),
        ("data.bz2", "bytes=1000-", expected),
        ("data.bz2", "bytes=1500-", expected),
    ]
    assert _folder(target) == {"data.bz2", "data.bz2.sha256"}


def test_a_server_that_does_not_tell_the_length(site, target):
    site.length = False
    heard: list[Progress] = []
    with listen(heard.append):
        assert _fetch(site, target) == DATA
    assert {event.total for event in heard} == {None}


@pytest.fixture
def given_up(site, target) -> None:
    """Seven hundred bytes came before a download was given up."""
    site.cut = [700, 0, 0, 0]
    with pytest.raises(InputError, match=rf"the answer ended after 700 of {len(DATA)} bytes; the 700 bytes that came"):
        _fetch(site, target)
    assert _folder(target) == {"data.bz2.part", "data.bz2.part.version"}
    site.asked.clear()


@pytest.mark.usefixtures("given_up")
def test_a_download_that_was_given_up_goes_on_in_the_next_call(site, target):
    assert _fetch(site, target) == DATA
    assert site.asked == [("data.bz2", "bytes=700-", '"one"')]


@pytest.mark.usefixtures("given_up")
@pytest.mark.parametrize("careless", [False, True])
def test_a_file_that_changed_since_is_fetched_anew(site, target, careless):
    """Never the beginning of one version and the end of another, though the server ignores If-Range."""
    site.files["data.bz2"] = bz2.compress(TEXT + b"1 1:2\n")
    site.validators, site.careless = {"ETag": '"two"'}, careless
    assert _fetch(site, target) == site.files["data.bz2"]


@pytest.mark.usefixtures("given_up")
def test_a_part_of_another_address_is_not_gone_on_with(site, target):
    download(f"{site.address}/SUSY.xz", target, **QUICK)
    assert site.asked == [("SUSY.xz", None, None)]


@pytest.mark.usefixtures("given_up")
@pytest.mark.parametrize(("file", "text"), [
    ("part", DATA), ("part", DATA + b"more"),
    *(("part.version", text) for text in (b"", b"\n", b"\xff", b"{site}/data.bz2\n\xff", b"{site}/data.bz2\na\nb")),
])  # fmt: skip
def test_a_part_that_is_whole_or_too_long_and_notes_on_it_that_are_damaged(site, target, file, text):
    with open(f"{target}.{file}", "wb") as written:
        written.write(text.replace(b"{site}", site.address.encode()))
    assert _fetch(site, target) == DATA


def test_an_interrupt_leaves_what_came(site, target):
    def stop(event: Progress) -> None:
        if event.done > 0:
            raise KeyboardInterrupt

    with listen(stop), pytest.raises(KeyboardInterrupt):
        _fetch(site, target)
    assert _folder(target) == {"data.bz2.part", "data.bz2.part.version"}
    assert _fetch(site, target) == DATA


@pytest.mark.parametrize("kind", ["no ranges", "no validator", "weak ETag"])
def test_what_cannot_be_resumed_is_fetched_anew(site, target, kind):
    site.ranges = kind != "no ranges"
    if not site.ranges:
        site.cut = [900]
    else:
        site.validators = {} if kind == "no validator" else {"ETag": 'W/"one"'}
        site.cut = [900, 300]
    assert _fetch(site, target) == DATA
    assert all(wanted is None for _, wanted, _ in site.asked) or not site.ranges
    assert _folder(target) == {"data.bz2", "data.bz2.sha256"}


def test_a_checksum_that_is_given(site, target):
    digest = hashlib.sha256(DATA).hexdigest()
    with pytest.raises(InputError, match=rf"SHA-256 is {digest}, not 000.*server's file was replaced; try again"):
        _fetch(site, target, sha256="0" * 64)
    assert _folder(target) == set()
    assert _fetch(site, target, sha256=digest.upper()) == DATA
    with pytest.raises(InputError, match=rf"SHA-256 is {digest}, not 000"):
        _fetch(site, target, sha256="0" * 64)


def test_a_file_that_was_replaced_since_its_first_download_is_noticed(site, target):
    _fetch(site, target)
    os.remove(target)
    site.files["data.bz2"] = TEXT
    with pytest.raises(InputError, match=r"if you trust the new file remove .*data\.bz2\.sha256"):
        _fetch(site, target)
    os.remove(f"{target}.sha256")
    assert _fetch(site, target) == TEXT


def test_a_digest_that_is_none(site, target):
    _fetch(site, target)
    with open(f"{target}.sha256", "w") as file:
        file.write("hello")
    with pytest.raises(InputError, match=r"data\.bz2\.sha256: not a SHA-256 digest; remove the file"):
        _fetch(site, target)


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refusal_is_final(site, target, status):
    site.status = [status]
    with pytest.raises(InputError, match=rf"data\.bz2: the server answers {status} .*Check the name, or give url="):
        _fetch(site, target)
    assert len(site.asked) == 1
    assert _folder(target) == set()


def test_a_server_that_is_busy_is_asked_again(site, target):
    site.status = [503, 429]
    assert _fetch(site, target) == DATA
    site.asked.clear()
    os.remove(target)
    site.status = [500] * 5
    with pytest.raises(InputError, match=r"the server answers 500 \(Internal Server Error\). Check the connection"):
        _fetch(site, target)
    assert len(site.asked) == 1 + QUICK["retries"]


def test_a_truncated_answer_is_never_the_file(site, target):
    site.cut = [len(DATA) - 1] + [0] * 10
    with pytest.raises(InputError, match=f"ended after {len(DATA) - 1} of {len(DATA)} bytes"):
        _fetch(site, target)
    assert not os.path.exists(target)


def test_a_web_page_is_not_the_file(site, target):
    site.files["data.bz2"] = b"\n<!DOCTYPE html><html>log in</html>"
    with pytest.raises(InputError, match="the server sent a web page, not the file"):
        _fetch(site, target)
    assert not os.path.exists(target)
    site.files["data.bz2"] = DATA
    assert _fetch(site, target) == DATA


def test_a_server_that_is_not_there(site, target, unused_port):
    with pytest.raises(InputError, match=rf"http://127\.0\.0\.1:{unused_port}/a: .*Connection refused"):
        download(f"http://127.0.0.1:{unused_port}/a", target, **QUICK)
    for url in ("file:///etc/passwd", "ftp://a/b", "a7a"):
        with pytest.raises(InputError, match="only http and https"):
            download(url, target)
    with pytest.raises(InputError, match="cannot be reached"):
        download("http://[", target, **QUICK)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_server_that_says_nothing_is_given_up(target):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/a"
        with pytest.raises(InputError, match=r"cannot be reached .*timed out"):
            download(url, target, timeout=0.2, retries=0)


def test_two_processes_do_not_fetch_one_file(site, target):
    os.makedirs(os.path.dirname(target))
    lock = take_lock(f"{target}.lock")
    with pytest.raises(InputError, match="another process is fetching this file; wait for it"):
        _fetch(site, target)
    lock.remove()
    assert _fetch(site, target) == DATA


def test_a_cache_that_cannot_be_written(site, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file'?: "):
        _fetch(site, str(tmp_path / "file" / "data.bz2"))


def test_a_data_set_is_fetched_and_ingested(site, tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_ODM_CACHE", str(tmp_path / "cache"))
    train, test = ds.fetch_libsvm("a7a", url=site.address)
    assert [os.path.relpath(path, tmp_path) for path in (train, test)] == ["cache/libsvm/a7a", "cache/libsvm/a7a.t"]
    assert ds.fetch_libsvm("a7a", url=f"{site.address}/", part="test") == (test,)
    store = ds.fetch_libsvm("a7a", url=site.address, store=tmp_path / "a.zarr")
    assert len(site.asked) == 2
    X, y = load_svmlight_file(train, n_features=123, zero_based=False)
    assert store.rows == len(y) + 1
    assert store.features == 123  # of the table, though the text has fewer
    np.testing.assert_array_equal(store.read(0).X[:-1], X.toarray().astype(np.float32))
    pair = ds.fetch_libsvm("a7a", url=site.address, store=tmp_path / "b.zarr", test_size=0.25)
    assert pair[0].rows + pair[1].rows == store.rows


def test_any_file_of_a_folder_may_be_named(site, tmp_path):
    (path,) = ds.fetch_libsvm("data.bz2", url=site.address, cache=tmp_path)
    assert read_all(path, format="libsvm")[0].shape == (400, 9)
    store = ds.fetch_libsvm("data.bz2", url=site.address, cache=tmp_path, store=tmp_path / "a.zarr", dtype="float64")
    assert store.features == 9
    with pytest.raises(InputError, match=r"SHA-256 is .*, not 0000"):
        ds.fetch_libsvm("data.bz2", url=site.address, cache=tmp_path, sha256={"data.bz2": "0" * 64})


@pytest.mark.parametrize(("name", "options", "message"), [
    (
        "a7b",
        {},
        r"no data set 'a7b' in the table; close are .*a7a.*For another file of the site, give its name and",
    ),
    ("zzzzzz", {}, "there are a1a, a2a"),
    ("../passwd", {"url": "http://127.0.0.1"}, "'../passwd' is not a file's name"),
    ("", {"url": "http://127.0.0.1"}, "'' is not a file's name"),
    ("SUSY", {"part": "test"}, "SUSY has no part 'test'; there is train"),
    ("SUSY", {"test_size": 0.5}, "test_size: only with store="),
])  # fmt: skip
def test_names_and_options_that_do_not_fit(name, options, message):
    with pytest.raises(InputError, match=message):
        ds.fetch_libsvm(name, **options)


def test_the_table_is_plausible():
    for name, entry in LIBSVM_SETS.items():
        assert list(entry.parts) in (["train"], ["train", "test"]), name
        assert len(set(entry.parts.values())) == len(entry.parts)
        assert all(os.path.basename(file) == file for file in entry.parts.values())
        assert entry.n_features > 0


@pytest.mark.parametrize("name", ["svmguide1", "a7a"])
def test_the_table_fits_the_real_files(load_svm, name):
    features = [load_svm(f"{name}.{part}")[0].shape[1] for part in LIBSVM_SETS[name].parts]
    assert LIBSVM_SETS[name].n_features == max(features)
