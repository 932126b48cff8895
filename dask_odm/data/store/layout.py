"""Layout of a store or record on disk: its arrays, their files and their zarr documents.

A store is a zarr v3 group (``X``, optional ``y`` and ``weight``, coordinate ``feature``, subgroup ``statistics``), a
record one of any arrays; ``manifest.json`` beside them is written last. The X of sparse rows is a group of the arrays
``data``, ``indices`` and ``indptr``, which AnnData reads as a ``csr_matrix``. This module is arithmetic and JSON only;
no file name is ever taken from a file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import google_crc32c
import numpy as np

from dask_odm.errors import InputError
from dask_odm.typing import Array

CHECKSUM_BYTES = struct.calcsize("<I")  # of the crc32c at the end of a chunk file
STORE_CHUNK_BYTES = 16_000_000  # most bytes of a chunk by default
MAX_CHUNK_BYTES = 30_000_000  # larger chunks exceed glibc's mmap threshold and read three times slower
FLOAT_TYPES = ("float32", "float64")
CODE_TYPES = ("int8", "int16", "int32")
REAL_TYPE = "float64"  # of y for real targets
COORDINATES = "coordinates"  # name of the array with the places that rows come from
COORDINATE_KINDS = ("number", "date")  # a date is stored as seconds since 1970
STATISTICS = ("minimum", "maximum", "mean", "variance")
ROOT = "zarr.json"  # key of the group's own document
SPARSE = "X/zarr.json"  # key of the document of sparse rows

IDF = "idf"  # name of the array of the weights of words
_OPTIONAL = ("coordinates", "entries", "text", "targets")  # fields of a layout that stores without them leave out

Label = int | float | str | bool


@dataclass(frozen=True)
class ArrayLayout:
    """One zarr array chunked along its first dimension only."""

    name: str  # path below the store, such as ``X`` or ``statistics/mean``
    shape: tuple[int, ...]
    chunks: tuple[int, ...]  # as long as the shape; all but the first entries are equal
    dtype: str  # NumPy name of a number type, or ``string``
    dims: tuple[str, ...]  # names of the dimensions
    compression: str | None = None  # or ``zstd``

    @property
    def n_chunks(self) -> int:
        """Number of chunks along the first dimension: 0 if the array is empty, 1 if it has no dimension."""
        if 0 in self.shape:
            return 0
        return -(-self.shape[0] // self.chunks[0]) if self.shape else 1

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one decoded chunk, padding included. Not defined for strings."""
        return math.prod(self.chunks) * np.dtype(self.dtype).itemsize

    @property
    def is_plain(self) -> bool:
        """Whether a chunk file consists of the numbers and their crc32c only."""
        return self.compression is None and self.dtype != "string"

    def chunk_label(self, i: int) -> str:
        """Return the name of chunk ``i`` in messages, such as ``3/0``."""
        return f"{i}{'/0' * (len(self.chunks) - 1)}"

    def chunk_key(self, i: int) -> str:
        """Return the key of chunk ``i``."""
        return f"{self.name}/c/{self.chunk_label(i)}" if self.shape else f"{self.name}/c"

    @property
    def fill_value(self) -> Any:
        """The value of padding: NaN, -1 (unknown code) or the empty string."""
        if self.dtype == "string":
            return ""
        return -1 if self.dtype.startswith("int") else "NaN"

    def document(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return the array's zarr v3 metadata document."""
        is_text = self.dtype == "string"
        codecs: list[dict[str, Any]] = [{"name": "vlen-utf8" if is_text else "bytes"}]
        if self.dtype != "int8":
            codecs[0]["configuration"] = {} if is_text else {"endian": "little"}
        if self.compression == "zstd":
            codecs.append({"name": "zstd", "configuration": {"level": 0, "checksum": True}})
        return {
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill_value,
            "codecs": [*codecs, {"name": "crc32c"}],
            "attributes": attributes,
            "dimension_names": list(self.dims),
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


@dataclass(frozen=True)
class EntryLayout:
    """The number of entries that sparse rows have."""

    total: int
    chunk: int  # entries of a chunk file
    most: int  # the most entries of the rows of one chunk

    def check(self, rows: int, features: int) -> None:
        """Raise ValueError if the numbers cannot be those of so many rows."""
        if any(type(value) is not int for value in (self.total, self.chunk, self.most)):
            raise ValueError("entries are no numbers")
        held = 0 <= self.total <= rows * features and -(-self.total // max(rows, 1)) <= self.most <= self.total
        if not held or self.most >= 1 << 31 or not 1 <= self.chunk <= max(1, self.total):
            raise ValueError(f"entries are {self.total}, {self.chunk} a file, {self.most} a chunk")
        if 8 * self.chunk > MAX_CHUNK_BYTES:
            raise ValueError(f"{self.chunk} entries a file")
        if self.most > features + MAX_CHUNK_BYTES // 8:  # a single row may have one entry for each feature
            raise ValueError(f"{self.most} entries a chunk")


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
    coordinates: tuple[tuple[str, str], ...] = ()  # name and kind of each coordinate of the rows
    entries: EntryLayout | None = None  # of sparse rows; None for dense ones
    text: str | None = None  # name of the column of texts of which the rows were made
    targets: int = 0  # of each row, if y has several columns, which are real; else 0

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Layout:
        """Build a layout from its `json`; raise ValueError or TypeError if it is none."""
        optional = set(_OPTIONAL)  # which stores without them leave out
        if set(found) | optional != {field.name for field in fields(cls)}:
            raise ValueError("its layout has other fields")
        coordinates = tuple((name, kind) for name, kind in found.get("coordinates", ()))
        entries = EntryLayout(**found["entries"]) if "entries" in found else None
        layout = cls(**{**found, "coordinates": coordinates, "entries": entries})
        layout.check()
        return layout

    def json(self) -> dict[str, Any]:
        """Return the layout as the manifest has it."""
        return {name: value for name, value in asdict(self).items() if value or name not in _OPTIONAL}

    @property
    def n_chunks(self) -> int:
        """Number of row chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def X(self) -> ArrayLayout:
        """Layout of dense rows."""
        return self._along_rows("X", self.dtype, "feature", self.features)

    def _along_rows(self, name: str, dtype: str, dim: str, width: int) -> ArrayLayout:
        """Return the layout of ``width`` numbers a row, or if that is 0 of one without a dimension of its own."""
        inner = (width,) if width else ()
        dims = ("sample", dim)[: 1 + len(inner)]
        return ArrayLayout(name, (self.rows, *inner), (self.chunk_rows, *inner), dtype, dims, self.compression)

    def of_rows(self) -> dict[str, ArrayLayout]:
        """Return the arrays of the rows by name: those of X, ``y`` (codes or real targets) and ``weight``."""
        return (self.of_entries() or {"X": self.X}) | self.of_columns()

    def of_columns(self) -> dict[str, ArrayLayout]:
        """Return ``y`` (codes or real targets) and ``weight`` by name, if there are any."""
        y = {} if self.y_dtype is None else {"y": self._along_rows("y", self.y_dtype, "target", self.targets)}
        return y | ({"weight": self._along_rows("weight", "float64", "", 0)} if self.has_weight else {})

    def of_entries(self) -> dict[str, ArrayLayout]:
        """Return the arrays of sparse rows by name, none of dense ones: entries, their columns, bounds of the rows."""
        if self.entries is None:
            return {}
        of_entry = ((self.entries.total,), (self.entries.chunk,))
        shapes = {"data": (*of_entry, self.dtype), "indices": (*of_entry, "int32")}
        shapes["indptr"] = ((self.rows + 1,), (self.chunk_rows,), "int64")
        return {
            f"X/{name}": ArrayLayout(f"X/{name}", shape, chunks, dtype, (f"X_{name}",), self.compression)
            for name, (shape, chunks, dtype) in shapes.items()
        }

    @property
    def block_nbytes(self) -> int:
        """Bytes that the rows of a chunk take in memory while they are read, and it is seen which targets are known."""
        of_targets = 9 * self.targets * self.chunk_rows
        if self.entries is None:
            return self.X.chunk_nbytes + of_targets
        entry = np.dtype(self.dtype).itemsize + np.dtype(np.int32).itemsize
        return (self.entries.most + self.entries.chunk) * entry + 24 * (self.chunk_rows + 1) + of_targets

    @property
    def rows_nbytes(self) -> int:
        """Bytes of all rows in memory, several targets included."""
        of_targets = 8 * self.targets * self.rows
        if self.entries is None:
            return self.rows * self.features * np.dtype(self.dtype).itemsize + of_targets
        return self.entries.total * (np.dtype(self.dtype).itemsize + 4) + 8 * self.rows + of_targets

    def of_coordinates(self) -> dict[str, ArrayLayout]:
        """Return the array (rows, coordinates) of the places that rows come from, by name, if there is any."""
        count = len(self.coordinates)
        return {COORDINATES: self._along_rows(COORDINATES, "float64", "coordinate", count)} if count else {}

    def of_features(self) -> dict[str, ArrayLayout]:
        """Return the arrays over features by name, each a single chunk: names, weights of words, and statistics.

        There need not be names or weights.
        """
        types = {"feature": "string"} if self.has_feature_names else {}
        types |= {IDF: "float64"} if self.text is not None else {}
        types |= {f"statistics/{name}": "float64" for name in STATISTICS}
        d = (self.features,)
        return {name: ArrayLayout(name, d, d, dtype, ("feature",)) for name, dtype in types.items()}

    def arrays(self) -> tuple[ArrayLayout, ...]:
        """Return all arrays of the store, always in this order."""
        return (*self.of_rows().values(), *self.of_coordinates().values(), *self.of_features().values())

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
        if not isinstance(self.text, str | None) or self.text == "":
            raise ValueError(f"a column of texts {self.text!r}")
        several = type(self.targets) is int and self.targets > 1 and self.y_dtype == REAL_TYPE
        if self.targets != 0 and not several:
            raise ValueError(f"{self.targets!r} targets of dtype {self.y_dtype!r}")
        for name, kind in self.coordinates:
            if not isinstance(name, str) or kind not in COORDINATE_KINDS:
                raise ValueError(f"coordinate {name!r} of kind {kind!r}")
        chunk_nbytes = self.X.chunk_nbytes
        if self.entries is not None:
            self.entries.check(self.rows, self.features)
            chunk_nbytes = 8 * self.chunk_rows
        chunk_nbytes = max(chunk_nbytes, 8 * self.targets * self.chunk_rows)
        if self.chunk_rows > max(self.rows, 1) or (self.chunk_rows > 1 and chunk_nbytes > MAX_CHUNK_BYTES):
            raise ValueError(f"{self.chunk_rows} rows a chunk")


def rows_of_chunk(wanted: int | None, features: int, dtype: str, targets: int = 0) -> int:
    """Return the rows of a chunk: those ``wanted``, or as many as make 8 to 16 MB.

    A row counts as at least eight bytes, and eight for each of several ``targets``, so that the chunks of weights and
    of y keep the bounds too. A wider single row is a chunk of its own, whatever its size. Raises InputError if a chunk
    would exceed 30 MB or be empty.
    """
    row_nbytes = max(features * np.dtype(dtype).itemsize, 8, 8 * targets)
    best = max(1, STORE_CHUNK_BYTES // row_nbytes)
    rows = best if wanted is None else wanted
    if rows < 1 or (rows > 1 and rows * row_nbytes > MAX_CHUNK_BYTES):
        raise InputError(
            f"chunk_rows={rows} makes chunks of {rows * row_nbytes} bytes; between 1 row and {MAX_CHUNK_BYTES} bytes "
            f"are allowed. Leave it out for {best} rows a chunk."
        )
    return rows


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


def zarr_documents(arrays: Iterable[ArrayLayout], attributes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return all zarr v3 documents of a group by their keys, with the ``attributes`` given by key.

    The group's own document has consolidated metadata: a copy of all others.
    """
    members = {array.name: array.document(attributes.get(f"{array.name}/zarr.json", {})) for array in arrays}
    documents = {f"{name}/zarr.json": document for name, document in members.items()}
    for group in sorted({name.rpartition("/")[0] for name in members} - {""}):
        own = attributes.get(f"{group}/zarr.json", {})
        members[group] = _group_document(own, {})
        documents[f"{group}/zarr.json"] = _group_document(own)
    documents[ROOT] = _group_document(attributes.get(ROOT, {}), members)
    return documents


def _group_document(attributes: dict[str, Any], members: dict[str, Any] | None = None) -> dict[str, Any]:
    document: dict[str, Any] = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    if members is not None:
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": members}
    return document
