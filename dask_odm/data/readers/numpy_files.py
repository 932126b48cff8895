"""``.npy`` files and ``.npz`` archives of NumPy arrays, read block by block."""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from tokenize import TokenError
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from dask_odm.data.readers.lines import file_size
from dask_odm.data.readers.sources import LabelColumns, Reading, choose_columns, describe, explained
from dask_odm.data.readers.table_source import Batch, TableSource
from dask_odm.data.readers.tables import ArrayTable, label_values, require_matrix, weight_values
from dask_odm.data.storage.files import open_whole, read_array_header
from dask_odm.data.storage.locations import is_address
from dask_odm.errors import InputError

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NO_HEADER = (ValueError, SyntaxError, TokenError)  # errors of NumPy for a bad header
# errors of zipfile for an archive that is damaged, encrypted (RuntimeError) or packed in an unknown way
_DAMAGED = (EOFError, OSError, RuntimeError, struct.error, BadZipFile, zlib.error)
_WRONG = "the file is damaged, or no .npy file of numbers or strings"
_explained = partial(explained, what=_WRONG, errors=(*_NO_HEADER, *_DAMAGED))


class _ArrayRows:
    """An array in ``.npy`` form, in a file or in an archive, of which rows are read in order.

    ``open`` opens its bytes.
    """

    def __init__(self, what: str, open: Callable[[], IO[bytes]]) -> None:
        self._what = what
        self._open = open
        with _explained(what), open() as stream:
            self.shape, fortran, self.dtype = read_array_header(stream)
        if self.dtype.hasobject:
            raise InputError(f"{what}: Python objects; save numbers, or strings as a NumPy string array.")
        self._by_columns = fortran and len(self.shape) > 1

    def slices(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield all rows, ``step`` at a time. A member of an archive that is stored by columns is unpacked before."""
        count, *width = self.shape
        with _explained(self._what), ExitStack() as stack:
            stream = stack.enter_context(self._open())
            read_array_header(stream)
            begin = stream.tell()
            if self._by_columns and isinstance(stream, zipfile.ZipExtFile):
                copy = stack.enter_context(tempfile.TemporaryFile(prefix="dask-odm-", buffering=0))
                shutil.copyfileobj(stream, copy, 1 << 20)
                stream = copy
                begin = 0
            for start in range(0, count, step):
                shape = (min(step, count - start), *width)
                rows = self._gathered(stream, begin, start, shape) if self._by_columns else self._read(stream, shape)
                if start + step >= count:
                    stream.read(1)  # at the end of a member zipfile compares checksums
                yield rows
                del rows  # before the next ones are read

    def _gathered(self, stream: IO[bytes], begin: int, start: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return rows that are stored by columns from byte ``begin`` on. They are read, as a map keeps more pages."""
        rows = np.empty(shape, self.dtype)
        for j in range(shape[1]):
            stream.seek(begin + (j * self.shape[0] + start) * self.dtype.itemsize)
            rows[:, j] = self._read(stream, shape[:1])
        return rows

    def _read(self, stream: IO[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        size = math.prod(shape) * self.dtype.itemsize
        data = stream.read(size)
        if len(data) != size:
            raise InputError(f"{self._what}: the file is cut off.")
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


@dataclass(frozen=True)
class _Part:
    """The arrays of one file. Labels and weights are columns of X by number, or arrays of their own."""

    path: str
    X: _ArrayRows
    label: int | _ArrayRows | None
    weight: int | _ArrayRows | None
    label_name: str

    def __post_init__(self) -> None:
        require_matrix(self.path, self.X.shape)
        for what, rows in (("y", self.label), ("weight", self.weight)):
            if isinstance(rows, _ArrayRows) and rows.shape not in ((self.rows,), (self.rows, 1)):
                raise InputError(f"{self.path}: {what} has shape {rows.shape}, but there are {self.rows} rows.")

    @property
    def rows(self) -> int:
        return self.X.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.X.shape) * self.X.dtype.itemsize

    def batches(self, step: int, before: int) -> Iterator[Batch]:
        """Yield ``step`` rows at a time. ``before`` are the bytes of the files that were read before."""
        label, weight = (each if isinstance(each, _ArrayRows) else None for each in (self.label, self.weight))
        labels: Iterator[Any] = repeat(None) if label is None else map(label_values, label.slices(step))
        weights: Iterator[Any] = repeat(None) if weight is None else map(weight_values, weight.slices(step))
        start = 0
        for X, y, w in zip(self.X.slices(step), labels, weights, strict=False):  # without end if there are none
            stop = start + len(X)
            yield Batch(ArrayTable(X), self.path, before + self.nbytes * stop // self.rows, start, y, w)
            start = stop
            del X, y, w  # before the next ones are read


def numpy_source(paths: Sequence[str], reading: Reading) -> TableSource:
    """Return the rows of ``.npy`` and ``.npz`` files as a source.

    In an archive, X is the array of that name or the only one, and y and weight are the arrays of those names. Label
    and weight may name another array of the archive, a ``.npy`` file beside a ``.npy`` file, or a column of X by
    number.
    """
    parts = []
    for path in paths:
        if is_address(path):
            raise InputError(f"{path}: NumPy files are read from this machine only; copy it here, or use Parquet.")
        file_size(path)
        parts.append(_part(path, reading.label, reading.weight))
    first = parts[0]
    width = first.X.shape[1]
    for part in parts:
        if part.X.shape[1] != width:
            raise InputError(f"{part.path}: {part.X.shape[1]} columns, but {first.path} has {width}.")
    at_label, at_weight = (each if isinstance(each, int) else None for each in (first.label, first.weight))
    columns = choose_columns(first.path, None, width, at_label, at_weight, guess=False)

    def batches() -> Iterator[Batch]:
        before = 0
        for part in parts:
            yield from part.batches(reading.block_rows(width), before)
            before += part.nbytes

    label_name = None if first.label is None else first.label_name
    size = sum(part.nbytes for part in parts)
    return TableSource(describe(paths), columns, batches, reading, size=size, label_name=label_name)


def _part(path: str, label: LabelColumns, weight: str | int | None) -> _Part:
    """Return the arrays of a file: an archive, or one array, beside which files may be named."""
    with _explained(path), ExitStack() as opened:
        file = opened.enter_context(open_whole(path))
        if not zipfile.is_zipfile(file):
            found: Any = (None if each is False else _number(each, os.path.exists) for each in (label, weight))
            y, w = (_ArrayRows(each, partial(open_whole, each)) if isinstance(each, str) else each for each in found)
            return _Part(path, _ArrayRows(path, partial(open_whole, path)), y, w, str(label))
        archive = zipfile.ZipFile(file)
        weakref.finalize(archive, opened.pop_all().close)  # when its last reader is gone
    names = [os.path.splitext(name)[0] for name in archive.namelist() if name.endswith(".npy")]
    if {"indices", "indptr"} <= set(names):
        raise InputError(f"{path}: a sparse matrix; write it as LIBSVM text (sklearn.datasets.dump_svmlight_file).")
    if "X" not in names and len(names) != 1:
        raise InputError(f"{path}: no array 'X' among {', '.join(names) or 'its members'}.")

    def member(wanted: Any, default: str) -> Any:
        """Return the array or the number that a user wants, or the array of the default name if there is one."""
        wanted = _number(wanted, names.__contains__)
        if isinstance(wanted, int):
            return None if wanted is False else wanted
        name = wanted or default
        if name in names:
            return _ArrayRows(f"{path}, array '{name}'", partial(archive.open, f"{name}.npy"))
        if wanted is not None:
            raise InputError(f"{path}: no array '{name}' among {', '.join(names)}.")
        return None

    X = member(None, "X" if "X" in names else names[0])
    return _Part(path, X, member(label, "y"), member(weight, "weight"), f"array '{label or 'y'}'")


def _number(column: Any, is_name: Callable[[Any], bool]) -> Any:
    """Return a column number given as text as an int, unless something has that name."""
    return int(column) if isinstance(column, str) and _WHOLE.fullmatch(column) and not is_name(column) else column
