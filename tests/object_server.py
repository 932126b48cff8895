"""An S3 server on the loopback network, moto's in a process of its own, with faults on demand.

``python tests/object_server.py ADDRESS`` serves until its standard input ends, and prints its port. A PUT to
``/-faults`` says, as JSON, what goes wrong from then on; a GET of ``/-requests`` tells the methods and paths asked for
since.
"""

import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import pytest

BUCKET = "rows"
KEY, SECRET = "AKIDFORTESTS", "secret-that-nobody-may-see"
NEEDED = ("obstore", "moto", "flask", "flask_cors")


@dataclass(frozen=True)
class ObjectServer:
    """A server with one bucket, as a client sees it.

    Parameters
    ----------
    url : str
    """

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def fail(self, kind: str = "", *, match: str = "", times: int = 10**9, **more: Any) -> None:
        """Let requests whose "METHOD path" matches fail, so many times; nothing where no kind is named.

        Kinds are ``status`` (with ``status``), ``refuse`` (the connection is cut), ``cut`` (it is cut in the midst of
        the answer), ``lost`` (the request is carried out, its answer is not sent) and ``slow`` (with ``seconds``, and a
        ``rate`` of bytes a second a connection).
        """
        self._ask("PUT", "-faults", json.dumps({"kind": kind, "match": match, "times": times, **more}).encode())

    def requests(self) -> list[str]:
        """Methods and paths asked for since faults were set."""
        return json.loads(self._ask("GET", "-requests"))

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with a prefix."""
        text = self._ask("GET", f"{BUCKET}?list-type=2&prefix={prefix}").decode()
        return re.findall(r"<Key>([^<]+)</Key>", text)

    def get(self, key: str) -> bytes:
        return self._ask("GET", f"{BUCKET}/{key}")

    def put(self, key: str, data: bytes) -> None:
        self._ask("PUT", f"{BUCKET}/{key}", data)

    def delete(self, key: str) -> None:
        self._ask("DELETE", f"{BUCKET}/{key}")

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {
            "Content-Type": "application/octet-stream",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request",
        }
        request = urllib.request.Request(f"{self.url}/{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[ObjectServer]:
    """A server with an empty bucket; skips the test where it is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: the S3 server of the test extra is not installed")
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            server = ObjectServer(f"http://{address}:{port}")
            server._ask("PUT", BUCKET)
            yield server
        finally:
            process.stdin.close()
            process.kill()


@pytest.fixture(scope="session")
def started_server() -> Iterator[ObjectServer]:
    """The server that all tests of a process share."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def object_server(started_server: ObjectServer) -> Iterator[ObjectServer]:
    """The server, with what this process and those it starts need to reach it; nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in started_server.environment.items():
            patch.setenv(name, value)
        patch.setenv("DASK_DASK_ODM__OBJECT_STORE_PATIENCE", "2s")  # of workers that are started
        started_server.fail()
        yield started_server
        started_server.fail()


@pytest.fixture
def place(object_server: ObjectServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """An address below which a test alone writes; requests are tried for two seconds."""
    name = re.sub(r"[^a-z0-9-]+", "-", request.node.nodeid.rpartition("::")[2].lower())
    with dask.config.set({"dask_odm.object-store-patience": "2s"}):
        yield f"s3://{BUCKET}/{name}"
    object_server.fail()


# The process -------------------------------------------------------------------------------------------------


class Faulty:
    """A WSGI application that lets another one fail."""

    def __init__(self, application: Any) -> None:
        self.application, self.lock = application, threading.Lock()
        self.fault: dict[str, Any] = {"kind": "", "match": "", "times": 0}
        self.asked: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == "/-faults":
            self.fault = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self.asked = []
            return _answer(start, "200 OK", b"")
        if path == "/-requests":
            return _answer(start, "200 OK", json.dumps(self.asked).encode())
        line = f"{environ['REQUEST_METHOD']} {path}"
        with self.lock:
            self.asked.append(line)
            hit = bool(self.fault["kind"]) and self.fault["times"] > 0 and bool(re.search(self.fault["match"], line))
            self.fault["times"] -= hit
            fault = dict(self.fault)
        return getattr(self, f"_{fault['kind']}")(fault, environ, start) if hit else self.application(environ, start)

    def _status(self, fault: dict[str, Any], environ: dict[str, Any], start: Any) -> Any:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        text = b"<Error><Code>Injected</Code><Message>with " + SECRET.encode() + b"</Message></Error>"
        return _answer(start, f"{fault['status']} Injected", text)

    def _refuse(self, fault: dict[str, Any], environ: dict[str, Any], start: Any) -> Any:
        _cut_off(environ)

    def _lost(self, fault: dict[str, Any], environ: dict[str, Any], start: Any) -> Any:
        list(self.application(environ, lambda *_: None))
        _cut_off(environ)

    def _cut(self, fault: dict[str, Any], environ: dict[str, Any], start: Any) -> Any:
        body = b"".join(self.application(environ, start))
        yield body[: len(body) // 2]
        _cut_off(environ)

    def _slow(self, fault: dict[str, Any], environ: dict[str, Any], start: Any) -> Any:
        threading.Event().wait(fault["seconds"])
        answer = self.application(environ, start)
        return _slowly(answer, fault["rate"]) if "rate" in fault else answer


def _slowly(answer: Any, rate: float) -> Iterator[bytes]:
    """A body at so many bytes a second."""
    for part in answer:
        for at in range(0, len(part), 1 << 18):
            yield part[at : at + (1 << 18)]
            threading.Event().wait((1 << 18) / rate)


def _cut_off(environ: dict[str, Any]) -> None:
    """Close the connection."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("cut")


def _answer(start: Any, status: str, text: bytes) -> list[bytes]:
    start(status, [("Content-Length", str(len(text)))])
    return [text]


def serve(address: str) -> None:
    """Serve until standard input ends."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server(address, 0, application, threaded=True)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1])
