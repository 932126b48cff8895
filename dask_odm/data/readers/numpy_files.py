"""NumPy arrays in memory, ``.npy`` files and ``.npz`` archives, read block by block."""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
import tempfile
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dask_odm.data.readers.lines import file_size
from dask_odm.data.readers.matrices import MatrixRows, dense
from dask_odm.data.readers.sources import (
    BLOCK_BYTES,
    MAX_FEATURES,
    Source,
    SourceBlock,
    block_rows,
    check_count,
    check_finite,
    check_weight,
    column_name,
    describe,
    narrow,
)
from dask_odm.data.readers.tables import label_values
from dask_odm.data.storage.checked_writes import map_array, open_whole, read_array_header
from dask_odm.data.storage.locations import is_address
from dask_odm.errors import InputError

_WHOLE = re.compile(r"[+-]?[0-9]+")
# errors of zipfile for an archive that is damaged, encrypted (RuntimeError) or packed in an unknown way
_DAMAGED = (EOFError, OSError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
_NO_HEADER = (ValueError, SyntaxError, tokenize.TokenError)  # errors of NumPy for a bad array header


class _FileRows(Protocol):
    """An array whose rows are taken in order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def take(self, start: int, stop: int) -> npt.NDArray[Any]: ...


class _Held:
    """An array in memory, which may be masked."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def take(self, start: int, stop: int) -> npt.NDArray[Any]:
        return dense(self._array[start:stop])


class _Mapped:
    """A ``.npy`` file, mapped for each block, so that the process does not keep its pages."""

    def __init__(self, path: str) -> None:
        self._path = path
        array = self._map()
        self.shape = array.shape
        self.dtype = array.dtype

    def take(self, start: int, stop: int) -> npt.NDArray[Any]:
        return np.array(self._map()[start:stop])

    def _map(self) -> npt.NDArray[Any]:
        try:
            return map_array(self._path)
        except (OSError, EOFError, *_NO_HEADER) as error:
            raise InputError(f"{self._path}: not a .npy file of numbers or strings ({error}).") from error


class _Member:
    """An array of a ``.npz`` archive, which is decompressed as it is read."""

    def __init__(self, path: str, archive: zipfile.ZipFile, name: str) -> None:
        self._what = f"{path}, array '{name}'"
        self._archive = archive
        self._name = name
        with self._open() as stream:
            self.shape, fortran, self.dtype = self._header(stream)
        if self.dtype.hasobject:
            raise InputError(f"{self._what}: Python objects; save numbers, or strings as a NumPy string array.")
        self._by_columns = fortran and len(self.shape) > 1
        self._stream: IO[bytes] | None = None
        self._copy: IO[bytes] | None = None

    def take(self, start: int, stop: int) -> npt.NDArray[Any]:
        if self._by_columns:
            return self._gathered(start, stop)
        if self._stream is None or start == 0:
            self._stream = self._open()
            self._header(self._stream)
        return self._next(start, stop)

    def _gathered(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of an array that is stored column by column, from its copy in a temporary file."""
        self._copy = self._copy or self._unpacked()
        rows = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for j in range(self.shape[1]):  # read, not mapped, since a map keeps far more pages
            self._copy.seek((j * self.shape[0] + start) * self.dtype.itemsize)
            rows[:, j] = np.frombuffer(self._copy.read((stop - start) * self.dtype.itemsize), dtype=self.dtype)
        return rows

    def _unpacked(self) -> IO[bytes]:
        copy = tempfile.TemporaryFile(prefix="dask-odm-", buffering=0)  # noqa: SIM115 — closed with this object
        weakref.finalize(self, copy.close)
        with self._damage(), self._open() as stream:
            self._header(stream)
            shutil.copyfileobj(stream, copy, 1 << 20)
        if copy.tell() != math.prod(self.shape) * self.dtype.itemsize:
            raise InputError(f"{self._what}: the file is cut off.")
        return copy

    def _next(self, start: int, stop: int) -> npt.NDArray[Any]:
        assert self._stream is not None
        rows = (stop - start, *self.shape[1:])
        expected = math.prod(rows) * self.dtype.itemsize
        with self._damage():
            data = self._stream.read(expected)
            if stop == self.shape[0] and len(data) == expected:
                self._stream.read(1)  # at the end of the member zipfile compares checksums
        if len(data) != expected:
            raise InputError(f"{self._what}: the file is cut off.")
        return np.frombuffer(data, dtype=self.dtype).reshape(rows)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise InputError(f"{self._what}: the file is damaged, or cannot be unpacked ({error}).") from error

    def _open(self) -> IO[bytes]:
        with self._damage():
            return self._archive.open(f"{self._name}.npy")

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        try:
            return read_array_header(stream)
        except (*_NO_HEADER, *_DAMAGED) as error:
            raise InputError(f"{self._what}: not an array ({error}).") from error


@dataclass(frozen=True)
class _Part:
    """One table of rows with labels and weights; ``label_column`` and ``weight_column`` are columns of X."""

    name: str
    X: _FileRows
    y: _FileRows | None = None
    y_name: str = "y"
    weight: _FileRows | None = None
    label_column: int | None = None
    weight_column: int | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.X.shape) * self.X.dtype.itemsize

    def place(self, start: int, row: int) -> str:
        return f"{self.name}, row {start + row}"


class NumpySource(Source):
    """Rows of arrays, made by `from_arrays` or `from_files`."""

    def __init__(self, parts: Sequence[_Part], n_features: int | None, dtype: str, block_bytes: int) -> None:
        self._parts = list(parts)
        self._dtype = dtype
        self._block_bytes = block_bytes
        for part in parts:
            _check_part(part)
        self.n_features = len(_feature_columns(parts[0]))
        check_count(parts[0].name, self.n_features, n_features)
        self.label_name = None if parts[0].y is None else parts[0].y_name
        if parts[0].label_column is not None:
            self.label_name = column_name(parts[0].label_column % parts[0].X.shape[1], None)
        self.size = sum(part.nbytes for part in parts)
        self.description = describe([part.name for part in parts])

    @classmethod
    def from_arrays(
        cls,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | int | None = None,
        *,
        label: int | bool | None = None,
        n_features: int | None = None,
        dtype: str = "float32",
        block_bytes: int = BLOCK_BYTES,
    ) -> NumpySource:
        """Make a source of arrays: X (rows, d), dense, masked or sparse, y (rows,), weight (rows,) or a column of X."""
        rows = MatrixRows(X) if scipy.sparse.issparse(X) else _Held(np.asanyarray(X))
        part = _Part("X", rows, None if y is None or label is False else _Held(label_values(y)))
        if weight is not None and not isinstance(weight, int):
            part = replace(part, weight=_Held(np.asanyarray(weight)))
        elif weight is not None:
            part = replace(part, weight_column=weight)
        if y is None and label is not None and not isinstance(label, bool):
            part = replace(part, label_column=label)
        return cls([part], n_features, dtype, block_bytes)

    @classmethod
    def from_files(
        cls,
        paths: Sequence[str],
        *,
        label: str | int | bool | None = None,
        weight: str | int | None = None,
        n_features: int | None = None,
        dtype: str = "float32",
        block_bytes: int = BLOCK_BYTES,
    ) -> NumpySource:
        """Make a source of ``.npy`` and ``.npz`` files.

        In an archive, X is the array of that name or the only one, and y and weight are the arrays of those names.
        ``label`` and ``weight`` name another array of the archive, a ``.npy`` file beside a ``.npy`` file, or a column
        of X by number.
        """
        parts = []
        for path in paths:
            if is_address(path):
                raise InputError(f"{path}: NumPy files are read from this machine only; copy it here, or use Parquet.")
            file_size(path)
            read = _npz_part if _is_archive(path) else _npy_part
            parts.append(read(path, label, weight))
        return cls(parts, n_features, dtype, block_bytes)

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows."""
        before = 0
        for part in self._parts:
            columns = _feature_columns(part)
            if len(columns) != self.n_features:
                raise InputError(f"{part.name}: {len(columns)} features, but {self._parts[0].name} has others.")
            whole = len(columns) == part.X.shape[1]
            step = block_rows(part.X.shape[1], "float64", self._block_bytes)
            for start in range(0, part.X.shape[0], step):
                stop = min(start + step, part.X.shape[0])
                values = part.X.take(start, stop)
                place = partial(part.place, start)
                numbers = values if whole else values[:, columns]
                X = narrow(numbers, self._dtype)
                check_finite(X, numbers, place)
                weight = _column(part.weight, part.weight_column, values, start, stop)
                if weight is not None:
                    weight = weight.astype(np.float64)
                    check_weight(weight, place)
                y = _column(part.y, part.label_column, values, start, stop)
                position = before + part.nbytes * stop // part.X.shape[0]
                yield SourceBlock(X, y, weight, place, position)
            before += part.nbytes


def _column(
    rows: _FileRows | None, column: int | None, X: npt.NDArray[Any], start: int, stop: int
) -> npt.NDArray[Any] | None:
    if column is not None:
        return X[:, column]
    return None if rows is None else rows.take(start, stop).reshape(stop - start)


def _feature_columns(part: _Part) -> list[int]:
    taken = {column % part.X.shape[1] for column in (part.label_column, part.weight_column) if column is not None}
    return [i for i in range(part.X.shape[1]) if i not in taken]


def _check_part(part: _Part) -> None:
    """Raise InputError if shapes or types cannot be those of rows."""
    shape = part.X.shape
    kind = part.X.dtype.kind
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(f"{part.name}: rows must have two dimensions and a feature. Got shape {shape} instead.")
    if kind not in "iuf":
        hint = "convert it with astype(float), or encode text as numbers"
        raise InputError(f"{part.name}: features must be integers or floats. Got {part.X.dtype} instead; {hint}.")
    if shape[0] == 0:
        raise InputError(f"{part.name}: no rows.")
    for what, column in (("label", part.label_column), ("weight", part.weight_column)):
        if column is not None and not -shape[1] <= column < shape[1]:
            raise InputError(f"{part.name}: no {what} column {column}; there are {shape[1]} columns.")
    if not 1 <= len(_feature_columns(part)) <= MAX_FEATURES:
        raise InputError(f"{part.name}: {len(_feature_columns(part))} features beside label and weight.")
    for what, rows in (("y", part.y), ("weight", part.weight)):
        if rows is not None and rows.shape not in ((shape[0],), (shape[0], 1)):
            raise InputError(f"{part.name}: {what} has shape {rows.shape}, but there are {shape[0]} rows.")
    if part.weight is not None and part.weight.dtype.kind not in "iuf":
        raise InputError(f"{part.name}: weight must be numbers. Got {part.weight.dtype} instead.")


def _npy_part(path: str, label: str | int | bool | None, weight: str | int | None) -> _Part:
    part = _Part(path, _Mapped(path))
    label, weight = (_number(each, os.path.exists) for each in (label, weight))
    if isinstance(label, str):
        part = replace(part, y=_Mapped(label), y_name=label)
    elif label is not None and not isinstance(label, bool):
        part = replace(part, label_column=label)
    if isinstance(weight, str):
        return replace(part, weight=_Mapped(weight))
    return part if weight is None else replace(part, weight_column=weight)


def _is_archive(path: str) -> bool:
    try:
        with open_whole(path) as file:
            return zipfile.is_zipfile(file)
    except OSError:  # the reader will raise a proper error
        return False


def _npz_part(path: str, label: str | int | bool | None, weight: str | int | None) -> _Part:
    file = open_whole(path)  # closed with the archive, when its last reader is gone
    try:
        archive = zipfile.ZipFile(file)
    except _DAMAGED as error:
        file.close()
        raise InputError(f"{path}: the file is damaged ({error}).") from error
    weakref.finalize(archive, file.close)
    names = [os.path.splitext(name)[0] for name in archive.namelist() if name.endswith(".npy")]
    if {"indices", "indptr"} <= set(names):
        raise InputError(f"{path}: a sparse matrix; write it as LIBSVM text (sklearn.datasets.dump_svmlight_file).")
    if "X" not in names and len(names) != 1:
        raise InputError(f"{path}: no array 'X' among {', '.join(names) or 'its members'}.")
    part = _Part(path, _Member(path, archive, "X" if "X" in names else names[0]))
    label, weight = (_number(each, names.__contains__) for each in (label, weight))
    members = {name: partial(_Member, path, archive, name) for name in names}
    if isinstance(label, int) and not isinstance(label, bool):
        part = replace(part, label_column=label)
    elif label is not False:
        name = label if isinstance(label, str) else "y"
        part = replace(part, y=_member(path, members, "y", label), y_name=f"array '{name}'")
    if isinstance(weight, int):
        return replace(part, weight_column=weight)
    return replace(part, weight=_member(path, members, "weight", weight))


def _number(column: Any, is_name: Callable[[Any], bool]) -> Any:
    """Return a column number given as text as an int, unless something has that name."""
    return int(column) if isinstance(column, str) and _WHOLE.fullmatch(column) and not is_name(column) else column


def _member(
    path: str, members: Mapping[str, Callable[[], _Member]], default: str, wanted: str | bool | None
) -> _Member | None:
    """Open the array of a name, or the one of the default name if there is one."""
    name = wanted if isinstance(wanted, str) else default
    if name in members:
        return members[name]()
    if isinstance(wanted, str):
        raise InputError(f"{path}: no array '{name}' among {', '.join(members)}.")
    return None
