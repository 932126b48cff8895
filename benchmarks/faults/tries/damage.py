"""Stores, models, checkpoints and predictions that are damaged, and documents that lie with the right digests."""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.storage.locations import MANIFEST
from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, crc32c, seal
from dask_odm.data.store.manifest import with_digest
from dask_odm.data.store.store import Store
from dask_odm.solvers import SODM
from tries.base import Kind, parts, pick
from tries.outcomes import Outcome, digest_of, digest_store, judge, left_in, with_leftovers
from tries.processes import run
from tries.things import (
    ALL_FAMILIES,
    BY_NAME,
    FAMILIES,
    FILE_ENTRIES,
    ROWS,
    Family,
    Things,
    checkpointed,
    digest_model,
    fitted,
    fresh,
)

LIMIT_SECONDS = 60.0
ADDRESSES = 3 << 30  # bytes that reading may take beyond what the process has


def limited() -> None:
    """Bound what this process may take."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES, resource.RLIM_INFINITY))


class Readings:
    """Reads a copy of each thing, whole or damaged."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self.read: dict[str, Callable[[Path], str]] = {
            "store.zarr": digest_store,
            "zstd.zarr": digest_store,
            "sparse.zarr": digest_store,
            "model.zarr": digest_model,
            "checkpoint.zarr": self._resume,
            "prediction.zarr": digest_of,
        }

    def _resume(self, path: Path) -> str:
        """Of the model that a fit makes which goes on from a checkpoint."""
        more = {"solver": SODM(8, fan_in=2, stop_at=2), "checkpoint": str(path), "resume": True}
        family = checkpointed()
        model = family.make(**family.parameters | more).fit(str(self.things.store))
        fresh(self.folder / "out")
        model.save(self.folder / "out" / "o.zarr")
        return digest_of(self.folder / "out" / "o.zarr")

    def copied(self, name: str) -> Path:
        """A copy to damage, in a folder of its own."""
        place = fresh(self.folder / "damaged")
        shutil.copytree(self.things.path(name), place / name)
        return place / name

    def outcome(self, name: str, path: Path, fault: str, *, expected: bool, fitting: Family | None = None) -> Outcome:
        """What becomes of who reads it, or fits on it."""
        read = (lambda path: fitted(fitting, path, self.folder / "out")) if fitting else self.read[name]
        what = f"{name}, fitted by {fitting.name}" if fitting else name
        whole = self.things.undisturbed(what, lambda: read(self.things.path(name))) if expected else None
        answer = run(lambda: read(path), self.folder, LIMIT_SECONDS, limited)
        return with_leftovers(judge(answer, whole, f"{what}: {fault}"), left_in(path.parent, name, "elsewhere"))


def learner(name: str, turn: int) -> Family:
    """Who fits on a damaged store: one of the families that were chosen, else of the linear ones, which are quick."""
    found = [each for each in FAMILIES if each.store == name and (SOME or each.parameters.get("kernel") == "linear")]
    return found[turn % len(found)] if found else BY_NAME["newton"]


SOME = len(FAMILIES) < len(ALL_FAMILIES)
NAMES = ("store.zarr", "model.zarr", "checkpoint.zarr", "prediction.zarr", "zstd.zarr", "sparse.zarr")
if SOME:  # what they learn from
    NAMES = tuple(name for name in NAMES if any(each.store == name for each in FAMILIES))


def files_of(path: Path) -> list[Path]:
    """All files of a folder, in a fixed order."""
    return sorted(each for each in path.rglob("*") if each.is_file())


def flip(path: Path, older: Path, rng: np.random.Generator) -> str:
    data = bytearray(path.read_bytes())
    at, bit = int(rng.integers(len(data))), int(rng.integers(8))
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at}"


def truncate(path: Path, older: Path, rng: np.random.Generator) -> str:
    size = int(rng.integers(path.stat().st_size))
    os.truncate(path, size)
    return f"cut to {size} bytes"


def extend(path: Path, older: Path, rng: np.random.Generator) -> str:
    with path.open("ab") as file:
        file.write(rng.bytes(int(rng.integers(1, 100))))
    return "longer"


def swap(path: Path, older: Path, rng: np.random.Generator) -> str:
    """With another file, of its folder if there is one."""
    near = [each for each in files_of(path.parent) if each != path] or [path]
    other = pick(rng, near)
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)
    return f"swapped with {other.name}"


def age(path: Path, older: Path, rng: np.random.Generator) -> str:
    if older.is_file():
        shutil.copyfile(older, path)
    return "of an older generation"


def age_folder(path: Path, older: Path, rng: np.random.Generator) -> str:
    if path.parent.suffix == ".zarr":  # all of it would be another, and whole
        return age(path, older, rng)
    if older.parent.is_dir():
        shutil.rmtree(path.parent)
        shutil.copytree(older.parent, path.parent)
    return "its folder of an older generation"


def delete(path: Path, older: Path, rng: np.random.Generator) -> str:
    path.unlink()
    return "deleted"


def delete_folder(path: Path, older: Path, rng: np.random.Generator) -> str:
    shutil.rmtree(path.parent)
    return "its folder deleted"


def link(path: Path, older: Path, rng: np.random.Generator) -> str:
    """To itself, nowhere, a folder, a device, the older one, or the same bytes elsewhere."""
    root = next(each for each in path.parents if each.suffix == ".zarr")
    elsewhere = root.parent / "elsewhere"
    shutil.copyfile(path, elsewhere)
    target = pick(rng, [path, Path("/no/such"), root, Path("/dev/zero"), older, elsewhere])
    path.unlink()
    path.symlink_to(target)
    return f"a link to {target.name}"


def replace(path: Path, older: Path, rng: np.random.Generator) -> str:
    """By a folder, a pipe, zeros or noise."""
    size = path.stat().st_size
    path.unlink()
    how = pick(rng, ["folder", "pipe", "zeros", "noise", "nothing"])
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"zeros": bytes(size), "noise": rng.bytes(size), "nothing": b""}[how])
    return f"{how} in its place"


DAMAGES = (flip, truncate, swap, age, delete, link, flip, extend, age_folder, replace, delete_folder)


def corrupt(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """One file damaged; every fourth store is fitted on."""
    readings = Readings(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        name, damage = parts(number, NAMES, DAMAGES)
        path = readings.copied(name)
        hit = pick(rng, files_of(path))
        key = hit.relative_to(path)
        what = damage(hit, readings.things.older / name / key, rng)
        turn, rest = divmod(number // len(NAMES), 4)
        fitting = learner(name, turn) if name in ("store.zarr", "sparse.zarr") and not rest else None
        return readings.outcome(name, path, f"{key}, {what}", expected=True, fitting=fitting)

    return try_once


# Documents that lie -----------------------------------------------------------------------------------------

DEEP = "[" * 200_000 + "]" * 200_000
LIES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 99, 10**9, 10**18, 10**400, 0.5, -0.0, 1e308, "", "x", "../../etc/passwd",
    "<U250000000", "float16", "object", "nan", [], {}, [[]], [None], [0], [-1], [10**18, 10**18], {"x": 1},
    {"float": "nan"}, {"pairs": 1}, {"pairs": [[[], 1]]}, "\u0000", "é" * 1000, list(range(1000)), "__class__", "fit",
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in items for place in places(each, (*at, key)))]


def lie(document: Any, rng: np.random.Generator) -> tuple[Any, str]:
    """The document with one thing changed, and what."""
    document = copy.deepcopy(document)
    place = pick(rng, places(document)[1:])
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    how = pick(rng, ["value", "value", "value", "value", "without", "more", "another's"])
    where = "/".join(map(str, place))
    if how == "without":
        del holder[place[-1]]
        return document, f"without {where}"
    if how == "more" and isinstance(holder, dict):
        holder[pick(rng, ["x", "__class__", "fit", "predict", "_model", "../x"])] = pick(rng, LIES)
        return document, f"more beside {where}"
    if how == "another's":
        other = pick(rng, places(document))
        found = document
        for key in other:
            found = found[key]
        holder[place[-1]] = copy.deepcopy(found)
        return document, f"{where} as {'/'.join(map(str, other))}"
    holder[place[-1]] = pick(rng, LIES)
    return document, f"{where} = {str(holder[place[-1]])[:40]}"


def seal_again(path: Path, manifest: dict[str, Any]) -> None:
    """Put sizes, checksums and the digest right, so that only what is said can tell."""
    del manifest["digest"]
    for key in manifest["documents"]:
        text = (path / key).read_bytes()
        manifest["documents"][key] = [len(text), crc32c(text)]
    (path / MANIFEST).write_text(with_digest(manifest))


def lying(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """One document lies; a liar who knows the digests is taken at his word, or refused, and nothing else."""
    readings = Readings(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        name, which = parts(number, NAMES, ("document", "content", "manifest", "content"))
        path = readings.copied(name)
        manifest = json.loads((path / MANIFEST).read_text())
        if which == "manifest":
            hit, (manifest, what) = path / MANIFEST, lie({k: v for k, v in manifest.items() if k != "digest"}, rng)
            hit.write_text(with_digest(manifest))
        else:
            hit = pick(rng, [each for each in files_of(path) if each.name == "zarr.json"])
            hit = path / "zarr.json" if which == "content" else hit
            what = lie_in(hit, rng, deep=number % 29 == 0)
            seal_again(path, manifest)
        return readings.outcome(name, path, f"{hit.relative_to(path)}: {what}", expected=False)

    return try_once


def lie_in(path: Path, rng: np.random.Generator, *, deep: bool) -> str:
    """Change one thing in a zarr document: of what this package put there, where there is such."""
    if deep:
        path.write_text(f'{{"attributes": {DEEP}}}')
        return "200,000 brackets"
    document = json.loads(path.read_text())
    attributes = document.get("attributes", {})
    content = attributes.get("content") or attributes
    if content:
        changed, what = lie({"content": content}, rng)
        ours = changed.get("content")
        document["attributes"] = attributes | {"content": ours} if "content" in attributes else ours
    else:
        document, what = lie(document, rng)
    path.write_text(json.dumps(document))
    return what


# Entries that lie --------------------------------------------------------------------------------------------

NASTY = [-1, 0, 1, FILE_ENTRIES, ROWS, 2**31 - 1, 2**31, 2**63 - 1, -(2**31), -(2**63)]


def lying_entries(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Bounds, columns or values of sparse rows lie, with right checksums: refused, or read and fitted within bounds."""
    readings = Readings(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        which, third = parts(number, ("indptr", "indices", "data"), (0, 1, 2))
        path = readings.copied("sparse.zarr")
        array = Store.open(path).layout.of_entries()[f"X/{which}"]
        i = int(rng.integers(array.n_chunks))
        what = forge_chunk(path, array, i, lambda values: change_numbers(values, rng))
        fault = f"{array.chunk_key(i)}: {what}"
        fitting = learner("sparse.zarr", number // 9) if third == 2 else None
        return readings.outcome("sparse.zarr", path, fault, expected=False, fitting=fitting)

    return try_once


def change_numbers(values: np.ndarray, rng: np.random.Generator) -> str:
    """Change some numbers of a chunk: a few bits, a run of bytes, an order, or to nasty ones."""
    data = values.view(np.uint8)
    how = pick(rng, ["bits", "bytes", "order", "nasty", "nasty", "shift"])
    at, size = int(rng.integers(len(values))), int(rng.integers(1, 1 + len(values)))
    if how == "bits":
        data[rng.integers(len(data), size=3)] ^= np.uint8(1 << int(rng.integers(8)))
    elif how == "bytes":
        data[at : at + size] = np.frombuffer(rng.bytes(len(data[at : at + size])), np.uint8)
    elif how == "order":
        values[at : at + size] = values[at : at + size][::-1].copy()
    elif how == "nasty":
        with np.errstate(over="ignore"):
            values[at : at + int(rng.integers(1, 4))] = np.array(pick(rng, NASTY)).astype(values.dtype)
    else:
        values[at:] = np.roll(values[at:], int(rng.integers(1, 10)))
    return f"{how} from {at}"


def forge_chunk(path: Path, array: ArrayLayout, i: int, change: Callable[[np.ndarray], str]) -> str:
    """Change the numbers of a chunk, and put its checksum and those of the manifest right."""
    manifest = json.loads((path / MANIFEST).read_text())
    file = path / array.chunk_key(i)
    values = np.frombuffer(file.read_bytes()[:-CHECKSUM_BYTES], array.dtype).copy()
    what = change(values)
    file.write_bytes(seal(values.tobytes()))
    manifest["chunks"][array.name][i][1] = crc32c(values.tobytes())
    seal_again(path, manifest)
    return what


KINDS = [
    Kind("corruptions", 300.0, corrupt),
    Kind("lying entries", 300.0, lying_entries),
    Kind("lying documents", 300.0, lying),
]
