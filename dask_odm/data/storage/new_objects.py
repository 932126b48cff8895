"""Stores and records being written to an object store, under their own names, and made current by a conditional put.

Every writer has its own generation of keys (`objects`), so two never mix. When all objects are there, the manifest
last, ``current.json`` is put: with if-none-match if nothing was there when the writer began, else with if-match of the
version that it found. So one of two racing writers is refused, and a reader sees either the old or the new content,
whole. Then the former content is removed, and what writers left that were killed more than a day ago.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dask_odm.data.storage.object_client import NotAsExpectedError
from dask_odm.data.storage.objects import CURRENT, Current, ObjectStorage, is_generation
from dask_odm.errors import InputError, ObjectStoreError, StoreError

logger = logging.getLogger("dask_odm")
_CLAIMED: dict[str, Current | None] = {}  # what is current at addresses that only this process may replace


class NewObjects(ObjectStorage):
    """Generation of keys below an address, spelled by `location_of`, with the methods of `NewFolder`.

    Nothing of it is visible there before `publish`.
    """

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
        self._remove_obsolete()

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

    def _remove_obsolete(self) -> None:
        try:
            self.target.remove_all(list(self._obsolete()))
        except ObjectStoreError as error:
            logger.warning("what was at '%s' before is not removed: %s", self.target.location, error)

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
