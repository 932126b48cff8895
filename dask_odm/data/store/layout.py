"""Layout of a store on disk: its arrays, their files, their zarr documents, and the manifest.

A store is a zarr v3 group (``X``, optional ``y`` and ``weight``, coordinate ``feature``, subgroup ``statistics``) plus
``manifest.json``, which is written last and names the size and checksum of every file. This module is arithmetic and
JSON only; no file name is ever taken from a file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import google_crc32c
import numpy as np

from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array

FORMAT = "dask_odm store"
RECORD_FORMAT = "dask_odm record"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CHECKSUM_BYTES = 4
CHUNK_BYTES = 16_000_000
MAX_CHUNK_BYTES = 30_000_000  # larger chunks exceed glibc's mmap threshold and read three times slower
FLOAT_TYPES = ("float32", "float64")
CODE_TYPES = ("int8", "int16", "int32")
REAL_TYPE = "float64"  # of y for real targets
STATISTICS = ("minimum", "maximum", "mean", "variance")

T = TypeVar("T")
Label = int | float | str | bool


@dataclass(frozen=True)
class Wording:
    """Words of messages for a folder of arrays: its name, what to do about damage, and about another version."""

    noun: str
    repair: str
    renew: str


STORE = Wording("store", "re-ingest or restore this file", "Ingest the data again")
READERS = {
    "store": "dask_odm.open_store",
    "model": "dask_odm.load_model",
    "checkpoint": "fit with resume=True (--resume)",
    "prediction": "zarr.open_group",
}


@dataclass(frozen=True)
class ArrayLayout:
    """One zarr array chunked along its first dimension only.

    Parameters
    ----------
    name : path below the store, such as ``X`` or ``statistics/mean``
    shape, chunks : tuples of the same length; all but the first entries are equal
    dtype : NumPy name of a number type, or ``string``
    dims : dimension names
    compression : None or ``zstd``
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...]
    compression: str | None = None

    @property
    def n_chunks(self) -> int:
        """Number of chunks along the first dimension: 0 if the array is empty, 1 if it has no dimension."""
        if 0 in self.shape:
            return 0
        return -(-self.shape[0] // self.chunks[0]) if self.shape else 1

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one decoded chunk, padding included. Not defined for strings."""
        count = 1
        for length in self.chunks:
            count *= length
        return count * np.dtype(self.dtype).itemsize

    @property
    def is_plain(self) -> bool:
        """Whether a chunk file consists of the numbers and their crc32c only."""
        return self.compression is None and self.dtype != "string"

    @property
    def document_key(self) -> str:
        """Key of the array's zarr document."""
        return f"{self.name}/zarr.json"

    def chunk_label(self, i: int) -> str:
        """Return the name of chunk ``i`` in messages, such as ``3/0``."""
        return "/".join([str(i)] + ["0"] * (len(self.chunks) - 1))

    def chunk_key(self, i: int) -> str:
        """Return the key of chunk ``i``."""
        return f"{self.name}/c/{self.chunk_label(i)}" if self.shape else f"{self.name}/c"

    @property
    def fill_value(self) -> Any:
        """The value of padding: NaN, -1 (unknown code) or the empty string."""
        if self.dtype == "string":
            return ""
        return -1 if self.dtype.startswith("int") else "NaN"

    def document(self, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the array's zarr v3 metadata document."""
        if self.dtype == "string":
            serializer: dict[str, Any] = {"name": "vlen-utf8", "configuration": {}}
        elif self.dtype == "int8":
            serializer = {"name": "bytes"}
        else:
            serializer = {"name": "bytes", "configuration": {"endian": "little"}}
        codecs = [serializer]
        if self.compression == "zstd":
            codecs.append({"name": "zstd", "configuration": {"level": 0, "checksum": True}})
        return {
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill_value,
            "codecs": [*codecs, {"name": "crc32c"}],
            "attributes": attributes or {},
            "dimension_names": list(self.dims),
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


@dataclass(frozen=True)
class Layout:
    """The shape and types of a store, from which every array, file name and plain file size follows."""

    rows: int
    features: int
    chunk_rows: int
    dtype: str
    y_dtype: str | None = None
    has_weight: bool = False
    has_feature_names: bool = False
    compression: str | None = None

    @property
    def n_chunks(self) -> int:
        """Number of row chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def X(self) -> ArrayLayout:
        """Layout of the rows."""
        d = self.features
        dims = ("sample", "feature")
        return ArrayLayout("X", (self.rows, d), (self.chunk_rows, d), self.dtype, dims, self.compression)

    @property
    def y(self) -> ArrayLayout | None:
        """Layout of the label codes, or of real targets."""
        return None if self.y_dtype is None else self._column("y", self.y_dtype)

    @property
    def weight(self) -> ArrayLayout | None:
        """Layout of the weights."""
        return self._column("weight", "float64") if self.has_weight else None

    @property
    def feature(self) -> ArrayLayout | None:
        """Layout of the feature names, a single chunk."""
        return self.per_feature("feature", "string") if self.has_feature_names else None

    def per_feature(self, name: str, dtype: str = "float64") -> ArrayLayout:
        """Return the layout of an array over features, a single chunk."""
        return ArrayLayout(name, (self.features,), (self.features,), dtype, ("feature",))

    def _column(self, name: str, dtype: str) -> ArrayLayout:
        return ArrayLayout(name, (self.rows,), (self.chunk_rows,), dtype, ("sample",), self.compression)

    def arrays(self) -> tuple[ArrayLayout, ...]:
        """Return all arrays of the store, always in this order."""
        of_rows = (self.X, self.y, self.weight)
        return (*(array for array in of_rows if array is not None), *self.of_features())

    def of_features(self) -> tuple[ArrayLayout, ...]:
        """Return the arrays over features: their names, if there are any, and their statistics."""
        statistics = tuple(self.per_feature(f"statistics/{name}") for name in STATISTICS)
        return statistics if self.feature is None else (self.feature, *statistics)

    def documents(self) -> tuple[str, ...]:
        """Return the keys of all zarr documents."""
        return ("zarr.json", "statistics/zarr.json", *(array.document_key for array in self.arrays()))

    def check(self) -> None:
        """Raise ValueError, with the reason, if the numbers cannot be those of a store."""
        for name in ("rows", "features", "chunk_rows"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}")
        if self.dtype not in FLOAT_TYPES or self.y_dtype not in (None, REAL_TYPE, *CODE_TYPES):
            raise ValueError(f"dtype {self.dtype!r}, y dtype {self.y_dtype!r}")
        if self.compression not in (None, "zstd"):
            raise ValueError(f"compression {self.compression!r}")
        if self.chunk_rows > max(self.rows, 1) or (self.chunk_rows > 1 and self.X.chunk_nbytes > MAX_CHUNK_BYTES):
            raise ValueError(f"{self.chunk_rows} rows a chunk")


def default_chunk_rows(features: int, dtype: str) -> int:
    """Return the rows of a chunk of 8 to 16 MB. A wider single row is a chunk of its own, whatever its size.

    A row counts as at least eight bytes, so that the chunks of weights keep the bound too.
    """
    return max(1, CHUNK_BYTES // max(features * np.dtype(dtype).itemsize, 8))


def check_chunk_rows(chunk_rows: int, features: int, dtype: str) -> None:
    """Raise InputError if a chunk would exceed 30 MB or be empty."""
    nbytes = chunk_rows * max(features * np.dtype(dtype).itemsize, 8)
    if chunk_rows < 1 or (chunk_rows > 1 and nbytes > MAX_CHUNK_BYTES):
        best = default_chunk_rows(features, dtype)
        raise InputError(
            f"chunk_rows={chunk_rows} makes chunks of {nbytes} bytes; between 1 row and {MAX_CHUNK_BYTES} bytes "
            f"are allowed. Leave it out for {best} rows a chunk."
        )


def crc32c(data: bytes | Array, before: int = 0) -> int:
    """Return the checksum of bytes or a contiguous uint8 array, continued from the checksum of the bytes ``before``."""
    return int(google_crc32c.extend(before, data))


def seal(payload: bytes) -> bytes:
    """Append the checksum, as zarr's crc32c codec does."""
    return payload + struct.pack("<I", crc32c(payload))


def encode_strings(values: Iterable[str]) -> bytes:
    """Encode as zarr's vlen-utf8 codec does: a count, then each length and its bytes."""
    encoded = [value.encode("utf-8") for value in values]
    parts = [struct.pack("<I", len(encoded))]
    for item in encoded:
        parts += [struct.pack("<I", len(item)), item]
    return b"".join(parts)


def decode_strings(data: bytes) -> tuple[str, ...]:
    """Undo `encode_strings`; raise ValueError or struct.error if lengths do not add up."""
    (count,) = struct.unpack_from("<I", data)
    values = []
    at = 4
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        if at + 4 + length > len(data):
            raise ValueError("string runs over the end")
        values.append(data[at + 4 : at + 4 + length].decode("utf-8"))
        at += 4 + length
    return tuple(values)


def group_document(attributes: dict[str, Any], members: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a zarr v3 group document; ``members`` (path to document) become its consolidated metadata."""
    document: dict[str, Any] = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    if members is not None:
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": members}
    return document


@dataclass(frozen=True)
class Manifest:
    """Manifest of a finished store.

    Parameters
    ----------
    layout : the arrays and hence all file names
    chunks : array name to ``(bytes, crc32c)`` per chunk. The checksum is of the file without its last four bytes, since
        with them every sealed file has the same checksum
    documents : key to ``(bytes, crc32c)`` of each zarr document
    """

    layout: Layout
    chunks: dict[str, list[tuple[int, int]]]
    documents: dict[str, tuple[int, int]]

    def body(self) -> dict[str, Any]:
        """Return the JSON content without the digest."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "layout": asdict(self.layout),
            "chunks": {name: [list(entry) for entry in entries] for name, entries in self.chunks.items()},
            "documents": {name: list(entry) for name, entry in self.documents.items()},
        }

    @property
    def digest(self) -> str:
        """SHA-256 over the layout and the (place, size, checksum) of every file."""
        return _digest(self.body())

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file by its key. Keys come from the layout."""
        sizes = {name: self.documents[name][0] for name in self.layout.documents()}
        for array in self.layout.arrays():
            sizes.update((array.chunk_key(i), entry[0]) for i, entry in enumerate(self.chunks[array.name]))
        return sizes

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return with_digest(self.body())


def parse_body(text: bytes, path: str, build: Callable[[dict[str, Any]], T], wording: Wording = STORE) -> T:
    """Check kind, version and digest of a manifest, and return what ``build`` makes of its content.

    Raises StoreError if the manifest is damaged, of another kind or version, or if ``build`` finds it impossible
    (ValueError, KeyError, TypeError).
    """
    place = f"{wording.noun} '{path}'"
    try:
        raw = json.loads(text)
        kind = kind_of(raw)
        if kind is None:
            raise ValueError("not a dask_odm manifest")
        version = raw["format_version"]
    except (ValueError, KeyError, RecursionError) as error:
        raise StoreError(f"{place}: {MANIFEST} is damaged ({error}); {wording.repair}.") from error
    if kind != wording.noun:
        reader = READERS.get(kind, "another version of dask_odm")
        raise StoreError(f"'{path}' is a {kind:.40}, not a {wording.noun}; check the path ({reader} reads it).")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{place} has format version {version!r}; this dask_odm reads {FORMAT_VERSION}. "
            f"{wording.renew} or use the dask_odm that wrote it."
        )
    try:
        if raw.pop("digest") != _digest(raw):
            raise ValueError("its digest does not match")
        return build(raw)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{place}: {MANIFEST} is damaged ({error}); {wording.repair}.") from error


def kind_of(manifest: Any) -> str | None:
    """Return what a manifest describes: ``store``, or a kind of record such as ``model``; None if it is no manifest."""
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, RECORD_FORMAT):
        return None
    kind = "store" if manifest["format"] == FORMAT else manifest.get("kind")
    return kind if isinstance(kind, str) else None


def with_digest(body: dict[str, Any]) -> str:
    """Return the text of a manifest: its content and the SHA-256 over it."""
    return json.dumps({**body, "digest": _digest(body)}, separators=(",", ":"), allow_nan=False)


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def manifest_of(raw: dict[str, Any]) -> Manifest:
    """Build a store's manifest from its content; raise ValueError, KeyError or TypeError if it is impossible."""
    if set(raw["layout"]) != {field.name for field in fields(Layout)}:
        raise ValueError("its layout has other fields")
    layout = Layout(**raw["layout"])
    layout.check()
    arrays = layout.arrays()
    if set(raw["chunks"]) != {array.name for array in arrays} or set(raw["documents"]) != set(layout.documents()):
        raise ValueError("it lists other files than its layout has")
    chunks = {array.name: chunk_entries(array, raw["chunks"][array.name]) for array in arrays}
    return Manifest(layout, chunks, {name: file_entry(item) for name, item in raw["documents"].items()})


def chunk_entries(array: ArrayLayout, items: list[Any]) -> list[tuple[int, int]]:
    """Read (size, checksum) of all chunks of an array; raise ValueError if they cannot belong to it."""
    entries = [file_entry(item) for item in items]
    if len(entries) != array.n_chunks:
        raise ValueError(f"it lists {len(entries)} chunks of '{array.name}', not {array.n_chunks}")
    expected = array.chunk_nbytes + CHECKSUM_BYTES if array.is_plain else None
    if any(size < CHECKSUM_BYTES or expected not in (None, size) for size, _ in entries):
        raise ValueError(f"a chunk of '{array.name}' has an impossible size")
    return entries


def file_entry(item: Any) -> tuple[int, int]:
    """Read the (size, checksum) of a file; raise ValueError or TypeError if it is none."""
    size, checksum = item
    if type(size) is not int or type(checksum) is not int or size < 0:
        raise ValueError("it holds something that is no size or checksum")
    return size, checksum
