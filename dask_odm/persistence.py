"""Records of arrays on disk, models and checkpoints, as zarr and JSON; never pickle.

A record is a zarr v3 group that any zarr reader opens: numeric arrays in ``[bytes, crc32c]`` chunks along
their first axis, JSON attributes, and ``manifest.json``, written last, with the size and checksum of every
file. It appears whole or not at all. Nothing read from a file names a path, and every size is checked
against the files before memory is taken.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import numpy as np
import numpy.typing as npt

from dask_odm.data.chunks import damage, read_plain_chunk
from dask_odm.data.files import aside, check_output, left_aside, replace_folder, sync_folders, sync_tree, write_synced
from dask_odm.data.layout import (
    CHECKSUM_BYTES,
    CHUNK_BYTES,
    FORMAT_VERSION,
    MANIFEST,
    Array,
    ArrayLayout,
    Wording,
    chunk_entries,
    crc32c,
    file_entry,
    group_document,
    parse_body,
    seal,
    with_digest,
)
from dask_odm.errors import InputError, StoreError
from dask_odm.problems.odm import Point
from dask_odm.solvers.base import Solution

__all__ = [
    "Record", "RowSource", "load_checkpoint", "read_record", "save_checkpoint", "solution_arrays", "solution_from",
    "write_record",
]  # fmt: skip

FORMAT = "dask_odm record"
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_ROOT = "zarr.json"
_MAX_MANIFEST_BYTES = 1 << 26
_KNOWN = {
    "model": Wording("model", "restore this file or fit again", "Fit again"),
    "checkpoint": Wording("checkpoint", "remove it and start the fit afresh", "Remove it and start the fit afresh"),
}

Entry = tuple[int, int]


class RowSource(Protocol):
    """Rows that need not be in memory: an ndarray, a memmap, or whatever gives rows by slice."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Record:
    """An open record; arrays are read, and checked, when asked for.

    Small and picklable, so that workers take it and read for themselves.

    Parameters
    ----------
    path : absolute path of the folder
    kind : what the arrays mean, such as ``model``
    attributes : JSON content
    arrays : name to layout (shape, dtype, chunks)
    entries : name to (size, crc32c) of each chunk, from the manifest
    """

    path: str
    kind: str
    attributes: dict[str, Any]
    arrays: dict[str, ArrayLayout]
    entries: dict[str, list[Entry]] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks on disk."""
        return sum(size for entries in self.entries.values() for size, _ in entries)

    def array(self, name: str) -> Array:
        """Read a whole array, of any dimension.

        Raises
        ------
        StoreError
            There is no such array, or one of its chunks is missing or damaged; the message names it.
        """
        layout = self._layout(name)
        if layout.shape:
            return self.rows(name, 0, layout.shape[0])
        return self._chunk(layout, 0, None).copy()

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read rows ``start`` to ``stop`` (excluded) of the first axis; one chunk more is held meanwhile.

        Raises
        ------
        IndexError
            The rows do not lie within the array.
        StoreError
            As `array`; only chunks that hold one of the rows are read.
        """
        layout = self._layout(name)
        if not layout.shape or not 0 <= start <= stop <= layout.shape[0]:
            raise IndexError(f"rows {start} to {stop} of array '{name}' of shape {layout.shape}")
        out = np.empty((stop - start, *layout.shape[1:]), dtype=layout.dtype)
        if out.size == 0:
            return out
        size = layout.chunks[0]
        buffer = np.empty(layout.chunk_nbytes + CHECKSUM_BYTES, dtype=np.uint8)
        for i in range(start // size, -(-stop // size)):
            first, last = max(start, i * size), min(stop, (i + 1) * size)
            out[first - start : last - start] = self._chunk(layout, i, buffer)[first - i * size : last - i * size]
        return out

    def blocks(self, name: str) -> Iterator[Array]:
        """Yield an array chunk by chunk along its first axis, each a fresh array."""
        layout = self._layout(name)
        size = layout.chunks[0]
        for i in range(layout.n_chunks):
            yield self.rows(name, i * size, min((i + 1) * size, layout.shape[0]))

    def verify(self) -> int:
        """Check every chunk, and return how many bytes were read; StoreError names the first damaged one."""
        for layout in self.arrays.values():
            for i in range(layout.n_chunks):
                self._chunk(layout, i, None)
        return self.nbytes

    def _layout(self, name: str) -> ArrayLayout:
        if name not in self.arrays:
            raise StoreError(f"{self.kind} '{self.path}' has no array '{name}'; it has {', '.join(self.arrays)}.")
        return self.arrays[name]

    def _chunk(self, layout: ArrayLayout, i: int, out: npt.NDArray[np.uint8] | None) -> Array:
        """Read a chunk, padding included, and hold it against the manifest: it may be sound but another's."""
        wording = _wording(self.kind)
        data = np.empty(layout.chunk_nbytes + CHECKSUM_BYTES, dtype=np.uint8) if out is None else out
        numbers = read_plain_chunk(self.path, layout, i, data, wording=wording)
        if int.from_bytes(data[-CHECKSUM_BYTES:].tobytes(), "little") != self.entries[layout.name][i][1]:
            raise damage(self.path, layout, i, "checksum differs from the manifest's", wording)
        return numbers


def write_record(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, RowSource],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a record aside, force it to disk and rename it into place.

    Parameters
    ----------
    path : folder to make; its parent must exist
    kind : what the arrays mean; a reader has to ask for the same
    arrays : identifier to numbers (float32, float64 or signed integers) of any shape, in memory or read
        slice by slice (`RowSource`); a chunk at a time is copied
    attributes : what JSON holds: no NaN, no infinity
    overwrite : replace an existing record of the same kind, once the new one is complete

    Raises
    ------
    InputError
        The output exists (or is something else that will not be replaced), a name or a type cannot be
        stored, or ``attributes`` are not JSON.
    StoreError
        The disk is full or the folder cannot be written; nothing is left of the attempt.
    """
    target = os.path.abspath(path)
    layouts = {name: _layout_of(name, values) for name, values in arrays.items()}
    documents = _documents(kind, layouts, attributes)
    _check_target(target, kind, overwrite=overwrite)
    folder = aside(target)
    try:
        with _writing(kind, target):
            os.mkdir(folder)
            chunks = {name: _write_array(folder, layout, arrays[name]) for name, layout in layouts.items()}
            _write_manifest(folder, kind, layouts, chunks, _write_documents(folder, documents))
            replace_folder(folder, target, overwrite=overwrite)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_record(path: str | os.PathLike[str], kind: str) -> Record:
    """Open a record, checking that every file is there with its size; arrays are read later.

    Raises
    ------
    StoreError
        No record, unfinished, of another kind or version, or with files that are missing, of another size
        or at odds with the manifest. The message names path, array and chunk, and the way out.
    """
    root, wording = os.path.abspath(path), _wording(kind)
    text = _read_manifest(root, kind)
    layouts, chunks, documents = parse_body(
        text, root, lambda raw: _parse(raw, kind), format=FORMAT, wording=wording
    )  # fmt: skip
    for layout in layouts.values():
        for i, (expected, _) in enumerate(chunks[layout.name]):
            size = _file_size(root, layout.chunk_key(i))
            if size != expected:
                what = "missing" if size is None else f"truncated, {size} of {expected} bytes"
                raise damage(root, layout, i, what, wording)
    content = _read_documents(root, kind, layouts, documents)
    return Record(root, kind, content, layouts, chunks)


def solution_arrays(solution: Solution) -> dict[str, Array]:
    """Return a solution as arrays for `write_record`; `solution_from` reverses it, bit by bit."""
    return _stack([solution])


def solution_from(arrays: Mapping[str, Array]) -> Solution:
    """Return the solution that `solution_arrays` took apart; ValueError or KeyError where it is none."""
    (solution,) = _unstack(arrays)
    return solution


def save_checkpoint(path: str | os.PathLike[str], solutions: Sequence[Solution], attributes: Mapping[str, Any]) -> None:
    """Write the solutions of a tree level, replacing the checkpoint of an earlier level.

    Parameters
    ----------
    path : folder; the checkpoint there stays valid until the new one is in place
    solutions : of all partitions, in their order; ``dual`` of shape (n_machines, n_k) each
    attributes : JSON that tells whether a fit may resume from it

    Raises
    ------
    InputError, StoreError
        As `write_record`.
    """
    target = os.path.abspath(path)
    write_record(target, "checkpoint", _stack(solutions), attributes, overwrite=True)
    for folder in left_aside(target):  # of a process that was killed; a checkpoint has one writer
        shutil.rmtree(folder, ignore_errors=True)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[list[Solution], dict[str, Any]] | None:
    """Read what `save_checkpoint` wrote: solutions with the same bits, and attributes. None if there is none.

    Raises
    ------
    StoreError
        Something is there, but no sound checkpoint.
    """
    target = os.path.abspath(path)
    if not os.path.lexists(target):
        found = _interrupted(target)
        if found is None:
            return None
        target = found
    record = read_record(target, "checkpoint")
    try:
        return _unstack({name: record.array(name) for name in record.arrays}), record.attributes
    except (ValueError, KeyError) as error:
        raise StoreError(f"checkpoint '{target}' holds no solutions ({error}); remove it to start afresh.") from error


def _interrupted(target: str) -> str | None:
    """The checkpoint of a process that was killed between the two renames of `replace_folder`."""
    if not os.path.isdir(os.path.dirname(target)):
        return None
    for folder in left_aside(target):
        with suppress(StoreError):
            return read_record(folder, "checkpoint").path
    return None


# Solutions as arrays: arrays flat, one after the other, with their shapes; figures as columns. ---------------


def _stack(solutions: Sequence[Solution]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, kind in _solution_fields().items():
        values = [getattr(solution, name) for solution in solutions]
        if kind is Point:
            arrays[name] = np.array([[p.primal, p.dual, p.gap] for p in values], dtype=np.float64).reshape(-1, 3)
        elif kind in (float, int, bool):
            arrays[name] = np.array(values, dtype=np.float64 if kind is float else np.int64)
        else:
            duals = [np.asarray(value, dtype=np.float64) for value in values]
            arrays[name] = np.concatenate([dual.ravel() for dual in duals] or [np.empty(0)])
            arrays[f"{name}_shape"] = np.array([dual.shape for dual in duals], dtype=np.int64).reshape(-1, 2)
    return arrays


def _unstack(arrays: Mapping[str, Array]) -> list[Solution]:
    columns: dict[str, list[Any]] = {}
    for name, kind in _solution_fields().items():
        values = arrays[name]
        if kind is Point:
            columns[name] = [Point(*row) for row in values.tolist()]
        elif kind in (float, int, bool):
            columns[name] = [kind(value) for value in values.tolist()]
        else:
            columns[name] = _split(values, arrays[f"{name}_shape"])
    names = list(columns)
    return [Solution(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _split(flat: Array, shapes: Array) -> list[Array]:
    ends = np.cumsum([rows * columns for rows, columns in shapes.tolist()]).astype(np.int64)
    if shapes.min(initial=0) < 0 or flat.size != (ends[-1] if len(ends) else 0):
        raise ValueError("shapes do not add up")
    parts = np.split(flat, ends[:-1]) if len(ends) else []
    return [part.reshape(shape).copy() for part, shape in zip(parts, shapes.tolist(), strict=True)]


def _solution_fields() -> dict[str, Any]:
    hints = get_type_hints(Solution)
    return {each.name: hints[each.name] for each in fields(Solution)}


# Files ------------------------------------------------------------------------------------------------------


def _wording(kind: str) -> Wording:
    return _KNOWN.get(kind) or Wording(kind, "restore this file or write it again", "Write it again")


def _layout_of(name: str, values: RowSource) -> ArrayLayout:
    dtype = np.dtype(values.dtype).name
    if not _NAME.fullmatch(name) or dtype not in DTYPES:
        raise InputError(f"array {name!r} of type {dtype} cannot be stored; types are {', '.join(DTYPES)}.")
    return _layout(name, tuple(int(length) for length in values.shape), dtype)


def _layout(name: str, shape: tuple[int, ...], dtype: str, chunk_rows: int | None = None) -> ArrayLayout:
    """Chunks of at most 16 MB; a larger single row is a chunk of its own."""
    inner = tuple(max(length, 1) for length in shape[1:])
    if chunk_rows is None:
        row_nbytes = ArrayLayout(name, (1, *inner), (1, *inner), dtype, ()).chunk_nbytes
        chunk_rows = max(1, min(CHUNK_BYTES // row_nbytes, *shape[:1], CHUNK_BYTES))
    dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    return ArrayLayout(name, shape, (chunk_rows, *inner) if shape else (), dtype, dims)


def _documents(kind: str, layouts: dict[str, ArrayLayout], attributes: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the zarr documents by file name."""
    members = {name: layout.document() for name, layout in layouts.items()}
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind, "content": dict(attributes)}
    documents = {layouts[name].document_key: document for name, document in members.items()}
    documents[_ROOT] = group_document(head, members)
    try:
        return {key: json.dumps(document, indent=1, allow_nan=False).encode() for key, document in documents.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"the attributes of a {kind} must be JSON: {error}.") from error


def _check_target(target: str, kind: str, *, overwrite: bool) -> None:
    """Raise InputError where there is anything but what may be replaced: a record of the same kind."""
    check_output(target, overwrite=overwrite)
    if not os.path.lexists(target) or not os.listdir(target):
        return
    try:
        head = json.loads(Path(target, _ROOT).read_bytes())["attributes"]
        same = head["format"] == FORMAT and head["kind"] == kind
    except (OSError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise InputError(f"'{target}' exists and is not a {kind}; remove it yourself or choose another name.")


@contextmanager
def _writing(kind: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {kind} '{path}': {error.strerror}.") from error


def _write_array(folder: str, layout: ArrayLayout, values: RowSource) -> list[Entry]:
    """Write the chunks of an array, the last one padded, and return their sizes and checksums."""
    entries = []
    os.makedirs(os.path.join(folder, layout.name))
    dtype = np.dtype(layout.dtype).newbyteorder("<")
    for i in range(layout.n_chunks):
        path = Path(folder, layout.chunk_key(i))
        path.parent.mkdir(parents=True, exist_ok=True)
        if layout.shape:
            rows = np.asarray(values[i * layout.chunks[0] : (i + 1) * layout.chunks[0]])
            chunk = np.full(layout.chunks, float("nan") if layout.fill_value == "NaN" else layout.fill_value, dtype)
            chunk[: len(rows)] = rows
        else:
            chunk = np.asarray(values, dtype=dtype)
        data = seal(chunk.tobytes())
        path.write_bytes(data)
        entries.append((len(data), int.from_bytes(data[-CHECKSUM_BYTES:], "little")))
    return entries


def _write_documents(folder: str, documents: dict[str, bytes]) -> dict[str, Entry]:
    for key, text in documents.items():
        Path(folder, key).write_bytes(text)
    return {key: (len(text), crc32c(text)) for key, text in documents.items()}


def _write_manifest(
    folder: str,
    kind: str,
    layouts: dict[str, ArrayLayout],
    chunks: dict[str, list[Entry]],
    documents: dict[str, Entry],
) -> None:
    """Write the manifest, with everything else on disk before it."""
    body = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "arrays": {
            name: {"shape": list(layout.shape), "dtype": layout.dtype, "chunk_rows": (layout.chunks or (1,))[0]}
            for name, layout in layouts.items()
        },
        "chunks": chunks,
        "documents": documents,
    }
    sync_tree(folder)
    write_synced(os.path.join(folder, MANIFEST), with_digest(body).encode())
    sync_folders(folder)


def _read_manifest(root: str, kind: str) -> bytes:
    path, noun = os.path.join(root, MANIFEST), _wording(kind).noun
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_MANIFEST_BYTES:
            raise StoreError(f"{noun} '{root}': {MANIFEST} is not a {noun}'s; {_wording(kind).repair}.")
        text = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not os.path.lexists(root):
            raise StoreError(f"{noun} '{root}' does not exist; check the path.") from error
        raise StoreError(f"'{root}' has no manifest: it is unfinished or no {noun} of dask_odm.") from error
    except OSError as error:
        raise StoreError(f"{noun} '{root}' cannot be read: {error.strerror}.") from error
    _check_kind(text, root, kind)
    return text


def _check_kind(text: bytes, root: str, kind: str) -> None:
    """Raise StoreError where the manifest is a sound one of something else; damage is found later."""
    with suppress(ValueError, RecursionError):
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("format") in (None, FORMAT) and raw.get("kind") in (None, kind):
            return
        found = raw["kind"] if raw["format"] == FORMAT and isinstance(raw["kind"], str) else raw["format"]
        raise StoreError(f"'{root}' is a {found!s:.40}, not a {kind}; check the path.")


def _parse(raw: dict[str, Any], kind: str) -> tuple[dict[str, ArrayLayout], dict[str, list[Entry]], dict[str, Entry]]:
    if raw["kind"] != kind:
        raise ValueError(f"it is of kind {raw['kind']!r}")
    layouts = {name: _parse_layout(name, item) for name, item in raw["arrays"].items()}
    keys = {_ROOT, *(layout.document_key for layout in layouts.values())}
    if set(raw["chunks"]) != set(layouts) or set(raw["documents"]) != keys:
        raise ValueError("it lists other files than it has arrays")
    chunks = {name: chunk_entries(layout, raw["chunks"][name]) for name, layout in layouts.items()}
    return layouts, chunks, {key: file_entry(item) for key, item in raw["documents"].items()}


def _parse_layout(name: str, item: dict[str, Any]) -> ArrayLayout:
    shape, dtype, rows = tuple(item["shape"]), item["dtype"], item["chunk_rows"]
    whole = all(type(length) is int and length >= 0 for length in shape) and type(rows) is int
    if not _NAME.fullmatch(name) or dtype not in DTYPES or not whole or not 1 <= rows <= max(1, *shape[:1], 1):
        raise ValueError("an array of it is impossible")
    return _layout(name, shape, dtype, rows)


def _file_size(root: str, key: str) -> int | None:
    """Size of a regular file; None where there is none, or a link."""
    try:
        found = os.lstat(os.path.join(root, key))
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _read_documents(root: str, kind: str, layouts: dict[str, ArrayLayout], entries: dict[str, Entry]) -> dict[str, Any]:
    """Check the zarr documents against the manifest, and return the record's attributes."""
    documents: dict[str, Any] = {}
    for key, entry in entries.items():
        try:
            text = Path(root, key).read_bytes() if _file_size(root, key) == entry[0] else b""
            if (len(text), crc32c(text)) != entry:
                raise ValueError("missing, truncated or damaged")
            documents[key] = json.loads(text)
        except (OSError, ValueError) as error:
            raise StoreError(f"{kind} '{root}', file '{key}': {error}; {_wording(kind).repair}.") from error
    expected = {layout.document_key: layout.document() for layout in layouts.values()}
    head = documents[_ROOT].get("attributes", {})
    if any(documents[key] != document for key, document in expected.items()) or head.get("kind") != kind:
        raise StoreError(f"{kind} '{root}': its zarr documents are not those of its manifest; {_wording(kind).repair}.")
    return dict(head["content"])
