"""Parquet and Arrow IPC (Feather) files and Arrow streams, read batch by batch; needs pyarrow.

Of a Parquet file, one page and the dictionary of each column are held, usually 1 or 2 MB a column. Of an Arrow file,
one or two record batches are held, mapped if they are not compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.readers.columns import choose_columns
from dask_odm.data.readers.lines import file_size
from dask_odm.data.readers.sources import BLOCK_BYTES, block_rows, describe
from dask_odm.data.readers.tables import Batch, TableSource, beside_name, beside_rows, label_values, numbered
from dask_odm.data.storage.locations import is_address
from dask_odm.data.storage.object_files import open_source
from dask_odm.errors import InputError

_MAX_BATCH = 1 << 16  # rows
_END_OF_STREAM = 8  # bytes after the last batch of a stream
_PAGES = 1 << 14  # bytes of a Parquet column read at a time
_PARTS = 1 << 20  # the same in an object store, where a request takes as long as transferring a megabyte


class ArrowTable:
    """Rows of a record batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.rows = batch.num_rows

    def kind(self, column: int) -> tuple[str, str]:
        """See `Table`."""
        return _kind(self._batch.schema.field(column).type)

    def numbers(self, columns: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """See `Table`."""
        import pyarrow

        numbers = np.empty((stop - start, len(columns)), dtype=np.float64)
        for k, column in enumerate(columns):
            part = self._batch.column(column).slice(start, stop - start).cast(pyarrow.float64(), safe=False)
            numbers[:, k] = part.to_numpy(zero_copy_only=False)
        return numbers

    def labels(self, column: int) -> npt.NDArray[Any]:
        """See `Table`."""
        labels = self._batch.column(column)
        encoded = labels if hasattr(labels, "dictionary") else labels.dictionary_encode()
        values: npt.NDArray[Any] = np.empty(len(encoded.dictionary) + 1, dtype=object)
        values[:-1], values[-1] = encoded.dictionary.to_pylist(), None
        return values[encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]


class ArrowFiles(TableSource):
    """Rows of Parquet or Arrow files (``kind``) with the same columns.

    Options are those of `CsvSource` and `TableSource`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        kind: str,
        *,
        label: str | int | bool | None = None,
        weight: str | int | None = None,
        drop: Sequence[str | int] = (),
        block_bytes: int = BLOCK_BYTES,
        **options: Any,
    ) -> None:
        require_pyarrow(f"{paths[0]}: {'a Parquet' if kind == 'parquet' else 'an Arrow'} file")
        self._read = _parquet_batches if kind == "parquet" else _ipc_batches
        self._paths, self._bytes = tuple(paths), [file_size(path) for path in paths]
        names = next(self._read(paths[0], 1))
        columns = choose_columns(paths[0], names, len(names), label, weight, drop=drop)
        self._names = names
        rows = min(_MAX_BATCH, block_rows(len(names), "float64", block_bytes))
        super().__init__(describe(paths), columns, partial(self._all, rows), size=sum(self._bytes),
                         block_bytes=block_bytes, **options)  # fmt: skip

    def _all(self, rows: int) -> Iterator[Batch]:
        for path, begin, end in zip(self._paths, [0, *accumulate(self._bytes)], accumulate(self._bytes), strict=False):
            found = self._read(path, rows)
            if next(found) != self._names:
                raise InputError(f"{path}: the columns are not those of {self._paths[0]}.")
            first = 0
            position = begin
            for batch, share in found:
                following = begin + int((end - begin) * share)
                yield Batch(ArrowTable(batch), partial(_row, path, first), position, following)
                first = first + batch.num_rows
                position = following


def arrow_source(
    source: Any, y: Any = None, weight: Any = None, *, label: str | int | bool | None = None, **options: Any
) -> TableSource:
    """Return the rows of a pyarrow Table, a RecordBatchReader or any Arrow stream as a source, read once.

    With ``y``, no column is taken for the labels. ``weight`` is a column's name or number, or an array.
    """
    require_pyarrow("an Arrow table")
    import pyarrow

    reader = pyarrow.RecordBatchReader.from_stream(source)
    where = f"the {type(source).__name__}"
    names = list(reader.schema.names)
    beside = not isinstance(weight, str | int | None)
    columns = choose_columns(
        where, names, len(names), False if y is not None else label, None if beside else weight
    )  # fmt: skip
    labels = None if y is None or label is False else label_values(y)
    weights = beside_rows(weight) if beside else None
    name = None if labels is None else beside_name(y)
    return TableSource(
        where, columns, partial(_stream, where, reader, labels, weights), size=0, label_name=name, **options
    )


def _stream(where: str, reader: Any, y: Any, weight: Any) -> Iterator[Batch]:
    first = 0
    position = 0
    with _explained(where):
        for batch in reader:
            rows = slice(first, first + batch.num_rows)
            following = position + batch.nbytes
            beside = [None if each is None else each[rows] for each in (y, weight)]
            yield Batch(ArrowTable(batch), partial(_row, where, first), position, following, *beside)
            first = rows.stop
            position = following
    for what, column in (("y", y), ("weight", weight)):
        if column is not None and len(column) != first:
            raise InputError(f"{where}: {what} has {len(column)} rows where X has {first}.")


def _parquet_batches(path: str, rows: int) -> Iterator[Any]:
    """Yield the names of the columns, then (batch, share of the file read so far)."""
    from pyarrow import parquet

    with (
        _explained(path),
        _opened(path) as source,
        parquet.ParquetFile(source, pre_buffer=False, buffer_size=_PARTS if is_address(path) else _PAGES) as file,
    ):
        yield list(file.schema_arrow.names)
        done = 0
        total = max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            done += batch.num_rows
            yield batch, done / total


def _ipc_batches(path: str, rows: int) -> Iterator[Any]:
    """Yield the names of the columns, then (batch, share of the file read so far)."""
    import pyarrow

    with _explained(path), _opened(path) as file:
        if file.read(6) == b"ARROW1":
            file.seek(0)
            reader = pyarrow.ipc.open_file(file)
            yield list(reader.schema.names)
            count = reader.num_record_batches
            for i in range(count):
                yield _batch(path, reader, i), (i + 1) / count
        else:
            file.seek(0)
            reader = pyarrow.ipc.open_stream(file)
            yield list(reader.schema.names)
            for batch in reader:
                yield batch, min(1.0, (file.tell() + _END_OF_STREAM) / file.size())


def _opened(path: str) -> Any:
    """Open a file, or an object that is read a few megabytes at a time."""
    import pyarrow

    return pyarrow.PythonFile(open_source(path), mode="r") if is_address(path) else pyarrow.OSFile(path)


def _batch(path: str, reader: Any, i: int) -> Any:
    import pyarrow

    if is_address(path):
        return reader.get_batch(i)
    with pyarrow.memory_map(path) as mapped:  # mapped each time, so that the process does not keep its pages
        return pyarrow.ipc.open_file(mapped).get_batch(i)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise pyarrow's errors about an unreadable file as InputError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read; the file is damaged or of another format ({reason}).") from error


def require_pyarrow(what: str) -> None:
    """Raise InputError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow; pip install pyarrow, or dask-odm[parquet].") from error


def _kind(dtype: Any) -> tuple[str, str]:
    from pyarrow import types

    if types.is_boolean(dtype):
        return "boolean", str(dtype)
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype) or types.is_null(dtype):
        return "number", str(dtype)
    if types.is_temporal(dtype):
        return "date", str(dtype)
    if types.is_dictionary(dtype):
        return "string", "dictionary, that is categorical"
    text = types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)
    return ("string" if text else "other"), str(dtype)


def _row(path: str, first: int, row: int) -> str:
    return numbered(path, first + row)
