"""The objects below an address as a `Storage`, and what is being written there until it is current.

A store or record at ``s3://bucket/x.zarr`` lies below ``s3://bucket/x.zarr/GENERATION/``, where GENERATION is 32 random
hex digits that only its writer uses, so that two writers never mix. The object ``current.json`` names the generation to
read. A folder that was copied to ``s3://bucket/x.zarr`` as it is, with its manifest at the top, is read as well.
Objects of a generation are never replaced, so a location that a reader resolved keeps its content, or disappears.

When a writer's objects are all there, the manifest last, ``current.json`` is put: with if-none-match if nothing was
there when the writer began, else with if-match of the version that it found. So one of two racing writers is refused,
and a reader sees either the old or the new content, whole. Then the former content is removed, and what writers left
that were killed more than a day ago.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dask_odm.data.storage.locations import MANIFEST, NotAsExpectedError, client_of, explained, name_of, status_of
from dask_odm.errors import InputError, ObjectStoreError, StoreError

CURRENT = "current.json"
_FORMAT = "dask_odm.current"
_GENERATION = re.compile(r"[0-9a-f]{32}")
_PARTS = ThreadPoolExecutor(8, "dask-odm-objects")  # threads that read parts, besides the one that asks
_CLAIMED: dict[str, Current | None] = {}  # what is current at addresses that only this process may replace
logger = logging.getLogger("dask_odm")


@dataclass(frozen=True)
class Current:
    """Generation that ``current.json`` names."""

    generation: str
    condition: dict[str, str]  # of a put that replaces this version of the object and no other


class ObjectStorage:
    """Storage of the objects below an address, spelled by `location_of`, with the methods of `LocalStorage`.

    Keys are what follows the address.
    """

    # bytes of a request; a chunk is read by several at once, as a connection gives some 90 MB/s
    # (benchmarks/object_reads.py)
    part_bytes = 8 << 20

    def __init__(self, location: str) -> None:
        self.location = location

    def read(self, key: str, limit: int) -> bytes:
        with self._asking("read", key) as client:
            found = client.get(self._path(key))
            size = found.meta["size"]
            if size <= limit:
                return bytes(found.bytes())
        raise OSError(errno.EFBIG, f"{size} bytes, more than {limit}")

    def read_into(self, key: str, target: memoryview) -> int:
        with self._asking("read", key) as client:
            starts = range(self.part_bytes, len(target), self.part_bytes)
            others = [_PARTS.submit(self._read_part, client, key, target, start) for start in starts]
            try:
                size = self._read_part(client, key, target, 0)
            finally:
                wait(others)  # even after an error, so that nobody writes to the buffer later
            for each in others:
                each.result()
            return min(size, len(target) + 1)

    def _read_part(self, client: Any, key: str, target: memoryview, start: int) -> int:
        """Fill the part of ``target`` that begins at ``start``; return the size of the object, at least ``start``."""
        at = start
        stop = min(start + self.part_bytes, len(target))
        try:
            found = client.get(self._path(key), options={"range": (start, stop)})
        except Exception as error:
            if status_of(error) == 416:  # the object ends before this part
                return start
            raise
        for piece in found.stream(min_chunk_size=1 << 20):  # bytes that are held besides the filled buffer
            target[at : at + len(piece)] = memoryview(piece)
            at += len(piece)
        return int(found.meta["size"])

    def sizes(self) -> dict[str, int]:
        return {key: each["size"] for key, each in self.listed()}

    def listed(self) -> Iterator[tuple[str, Any]]:
        """Yield all keys, each with size and time from the object store."""
        start = len(self._path(""))
        with self._asking("list") as client:
            for page in client.list(self._path(""), chunk_size=1000):
                for each in page:
                    yield each["path"][start:], each

    def write(self, key: str, data: bytes | memoryview) -> None:
        with self._asking("write", key) as client:
            client.put(self._path(key), memoryview(data).cast("B"), use_multipart=False)

    def remove_all(self, keys: list[str]) -> None:
        """Remove keys. Keys that do not exist are ignored."""
        with self._asking("remove") as client:
            if keys:
                client.delete([self._path(key) for key in keys])

    def complete(self, key: str, data: bytes) -> None:
        self.write(key, data)  # an object is durable once it was put

    def has(self, key: str) -> bool:
        return self._head(key) is not None

    def exists(self) -> bool:
        with self._asking("list") as client:
            found = client.list_with_delimiter(self._path(""))
        names = (each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])
        return bool(found["objects"]) or any(not is_generation(name) for name in names)

    def version(self) -> object:
        current = self.current()
        return self._head(MANIFEST) if current is None else current

    def is_being_replaced(self) -> bool:
        parent, _, name = self.location.rpartition("/")
        if not is_generation(name):
            return self.current() is not None
        current = ObjectStorage(parent).current()
        return current is not None and current.generation != name

    def resolved(self) -> str:
        """Return the address of the current bytes: that of the current generation, or this one."""
        if is_generation(self.location.rpartition("/")[2]):
            return self.location
        current = self.current()
        return self.location if current is None else f"{self.location}/{current.generation}"

    def current(self) -> Current | None:
        """Return the current generation, None if none is named; raise StoreError if ``current.json`` is damaged."""
        with self._asking("read", CURRENT) as client:
            try:
                found = client.get(self._path(CURRENT))
            except FileNotFoundError:
                return None
            text = b"" if found.meta["size"] > 4096 else bytes(found.bytes())
        try:
            said = json.loads(text)
            if said["format"] != _FORMAT or not is_generation(said["generation"]):
                raise ValueError("no generation is named")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"'{self.location}/{CURRENT}' is damaged ({error}); restore or remove it.") from error
        condition = {name: found.meta[name] for name in ("e_tag", "version")}  # an object store has one or both
        return Current(said["generation"], {name: value for name, value in condition.items() if value is not None})

    def make_current(self, generation: str, before: Current | None) -> None:
        """Name the current generation; raise NotAsExpectedError if the current one is no longer ``before``."""
        text = json.dumps({"format": _FORMAT, "format_version": 1, "generation": generation}).encode()
        with self._asking("write", CURRENT) as client:
            mode = "create" if before is None else before.condition
            client.put(self._path(CURRENT), text, mode=mode, use_multipart=False)

    def _head(self, key: str) -> str | None:
        with self._asking("read", key) as client:
            try:
                return str(client.head(self._path(key))["e_tag"])
            except FileNotFoundError:
                return None

    def _path(self, key: str) -> str:
        return f"{name_of(self.location)}/{key}"

    @contextmanager
    def _asking(self, doing: str, key: str = "") -> Iterator[Any]:
        with explained(f"{self.location}/{key}".rstrip("/"), doing):
            yield client_of(self.location)


def is_generation(name: object) -> bool:
    """Return whether a name is that of a generation."""
    return isinstance(name, str) and _GENERATION.fullmatch(name) is not None


class NewObjects(ObjectStorage):
    """Generation of keys below an address, spelled by `location_of`, with the methods of `NewFolder`.

    Nothing of it is visible there before `publish`.
    """

    scratch = None
    kept = timedelta(days=1)  # age up to which a generation that is not current is kept: it may be being written

    def __init__(self, target: str) -> None:
        self.generation = uuid.uuid4().hex
        super().__init__(f"{target}/{self.generation}")
        self.target = ObjectStorage(target)
        self._before: Current | None = None
        self._begun = self._tried = False

    def check(self, *, overwrite: bool) -> bool:
        return self._look(overwrite)[0]

    def begin(self, *, overwrite: bool) -> None:
        self._before = self._look(overwrite)[1]
        if _CLAIMED.get(self.target.location, self._before) != self._before:
            raise self._refusal()
        self._begun = True

    def publish(self, *, overwrite: bool) -> None:
        self._tried = True
        try:
            self.target.make_current(self.generation, self._before)
        except (ObjectStoreError, NotAsExpectedError) as error:
            if not self._is_current():  # else the answer was lost, not the request
                if isinstance(error, NotAsExpectedError):
                    raise self._refusal() from None
                raise
        if self.target.location in _CLAIMED:
            _CLAIMED[self.target.location] = self.target.current()
        try:
            self.target.remove_all(list(self._obsolete()))
        except ObjectStoreError as error:
            logger.warning("what was at '%s' before is not removed: %s", self.target.location, error)

    def discard(self) -> None:
        if not self._begun:
            return
        try:
            if not (self._tried and self._is_current()):
                self.remove_all(list(self.sizes()))
        except ObjectStoreError as error:
            logger.warning("what was written below '%s' is left there: %s", self.location, error)

    def retract(self) -> None:
        if self._is_current():
            self.target.remove_all([CURRENT])
            self.remove_all(list(self.sizes()))

    def _look(self, overwrite: bool) -> tuple[bool, Current | None]:
        """Return whether something is at the address, and what is current; raise InputError if writing is refused."""
        there = self.target.exists()
        where = self.target.location
        if there and not overwrite:
            raise InputError(f"'{where}' exists; pass overwrite=True (--overwrite) to replace it.")
        current = self.target.current() if there else None
        if there and current is None and not self.target.has("zarr.json"):
            raise InputError(f"'{where}' exists and is not a zarr store; remove it yourself or choose another name.")
        return there, current

    def _is_current(self) -> bool:
        current = self.target.current()
        return current is not None and current.generation == self.generation

    def _refusal(self) -> StoreError:
        return StoreError(
            f"'{self.target.location}' was written by another process meanwhile, and stays as that left it; see who "
            "writes it, and run this again or choose another name."
        )

    def _obsolete(self) -> Iterator[str]:
        """Yield keys of the generation that this one replaced, and of generations that were given up."""
        found = list(self.target.listed())
        newest: dict[str, Any] = {}
        for key, each in found:
            owner = _owner(key)
            newest[owner] = max(newest.get(owner, each["last_modified"]), each["last_modified"])
        now: Any = max(newest.values(), default=None)  # by the clock of the object store
        replaced = "" if self._before is None else self._before.generation
        for key, _ in found:
            owner = _owner(key)
            given_up = owner != "" and newest[owner] < now - self.kept
            if key != CURRENT and owner != self.generation and (owner == replaced or given_up):
                yield key


def _owner(key: str) -> str:
    """Return the generation that a key belongs to; an empty string for keys of a copied folder."""
    name = key.partition("/")[0]
    return name if is_generation(name) else ""


@contextmanager
def claimed(location: str) -> Iterator[None]:
    """Let only this process replace the content at an address. If another process wrote meanwhile, that is an error."""
    _CLAIMED[location] = ObjectStorage(location).current()
    try:
        yield
    finally:
        _CLAIMED.pop(location, None)
