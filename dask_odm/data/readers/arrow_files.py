"""Parquet and Arrow IPC (Feather) files and Arrow streams, read batch by batch; needs pyarrow.

Of a Parquet file, one page and the dictionary of each column are held, usually 1 or 2 MB a column. Of an Arrow file,
one or two record batches are held.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import parquet, types

from dask_odm.data.readers.lines import file_size
from dask_odm.data.readers.partitions import FolderColumns
from dask_odm.data.readers.sources import Columns, Reading, columns_of_file, describe, explained
from dask_odm.data.readers.table_source import Batch, FrameSource, TableSource, in_memory, table_of
from dask_odm.data.readers.tables import PandasTable
from dask_odm.data.storage.locations import is_address, open_buffered
from dask_odm.errors import InputError

_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")  # an index without a name, as pandas or Dask writes it
_WRONG = "cannot be read; the file is damaged or of another format"
_explained = partial(explained, what=_WRONG, errors=(pyarrow.ArrowException, OSError))


def _frame(batch: Any, columns: Columns) -> pd.DataFrame:
    """Return a record batch as a frame; columns that are dropped are empty.

    Integers with gaps keep their digits, and booleans, dates and lists their type.
    """
    count = batch.num_columns
    dropped = set(columns.dropped)
    kept = [i for i in range(count) if i not in dropped]
    batch = batch.select(kept)
    for k, held in enumerate(batch.columns):
        if types.is_dictionary(held.type) and isinstance(held.type.value_type, pyarrow.BaseExtensionType):
            held = held.dictionary_decode()  # pandas makes no categories of intervals
        elif types.is_null(held.type) or (types.is_decimal(held.type) and kept[k] != columns.label):
            held = held.cast(pyarrow.float64())
        else:
            continue
        batch = batch.set_column(k, batch.schema.names[k], held)
    gaps = {held.type for held in batch.columns if held.null_count and types.is_integer(held.type)}

    def kept_type(dtype: Any) -> Any:
        is_typed = types.is_boolean(dtype) or types.is_temporal(dtype) or types.is_nested(dtype) or dtype in gaps
        return pd.ArrowDtype(dtype) if is_typed else None

    frame = batch.to_pandas(types_mapper=kept_type, ignore_metadata=True, use_threads=False)
    frame.columns = kept
    return frame if len(kept) == count else frame.reindex(columns=range(count))


def _files(
    read: Callable[..., Any], row_bytes: Callable[[str], float] | None, paths: Sequence[str], reading: Reading
) -> TableSource:
    """Return the rows of files with the same columns as a source.

    ``read`` yields the batches of a file. ``row_bytes`` returns what a row with texts takes, or None if the batches are
    as long as they were written.
    """
    sizes = [file_size(path) for path in paths]
    held = _columns_of(next(read(paths[0], 1)), reading)
    folders = FolderColumns(paths, held)
    names = [*held, *folders.names]
    columns = columns_of_file(paths[0], names, len(names), reading)
    width = len(names) if columns.text is None or row_bytes is None else row_bytes(paths[0]) / 8
    rows = min(1 << 16, reading.block_rows(width))

    def batches() -> Iterator[Batch]:
        begin = 0
        for path, size in zip(paths, sizes, strict=True):
            found = read(path, rows)
            if _columns_of(next(found), reading) != held:
                raise InputError(f"{path}: the columns are not those of {paths[0]}.")
            first = 0
            for batch, share in found:
                table = folders.beside(_frame(batch.select(held), columns), path)
                yield Batch(table, path, begin + int(size * share), first)
                first += batch.num_rows
            begin += size

    source = FrameSource(describe(paths), columns, batches, reading, size=sum(sizes))
    source.labels_are_text = folders.has(columns.label)
    return source


def _columns_of(schema: Any, reading: Reading) -> list[str]:
    """Return the names of the columns but those of a stored index, as `pandas.read_parquet` has them.

    pandas and Dask write an index beside the columns, and its names into the metadata. It is a column if the user
    names it as one.
    """
    index = set(filter(_INDEX.fullmatch, schema.names))
    with suppress(ValueError, KeyError, TypeError):  # no metadata, or such as another program wrote
        index.update(each for each in schema.pandas_metadata["index_columns"] if isinstance(each, str))
    index.difference_update(each for each in reading.asked if isinstance(each, str))
    return [name for name in schema.names if name not in index]


def arrow_source(source: Any, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a pyarrow Table, a RecordBatchReader or any Arrow stream as a source, read once."""
    y, reading = in_memory(y, reading)
    stream = pyarrow.RecordBatchReader.from_stream(source)
    where = f"the {type(source).__name__}"
    names = _columns_of(stream.schema, reading)

    def batches(y: Any, weight: Any) -> Iterator[Batch]:
        first = 0
        end = 0
        with _explained(where):
            for batch in stream:
                rows = slice(first, first + batch.num_rows)
                end += batch.nbytes
                labels, weights = (None if each is None else each[rows] for each in (y, weight))
                yield Batch(PandasTable(_frame(batch.select(names), found.roles)), where, end, first, labels, weights)
                first = rows.stop
        for what, column in (("y", y), ("weight", weight)):
            if column is not None and len(column) != first:
                raise InputError(f"{where}: {what} has {len(column)} rows where X has {first}.")

    found = table_of(where, names, len(names), batches, y, reading)
    found.is_read_once = True
    return found


def _row_bytes(path: str) -> float:
    """Return the bytes of a row of a Parquet file on average, before compression."""
    with _explained(path), _opened(path) as source, parquet.ParquetFile(source) as file:
        found = file.metadata
        groups = range(found.num_row_groups)
        return sum(found.row_group(i).total_byte_size for i in groups) / max(1, found.num_rows)


def _parquet_batches(path: str, rows: int) -> Iterator[Any]:
    """Yield the schema, then (batch, share of the file read so far)."""
    part = 1 << 20 if is_address(path) else 1 << 14  # bytes; a request to an object store takes as long as a megabyte
    with (
        _explained(path),
        _opened(path) as source,
        parquet.ParquetFile(source, pre_buffer=False, buffer_size=part) as file,
    ):
        yield file.schema_arrow
        done = 0
        total = max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            done += batch.num_rows
            yield batch, done / total


def _ipc_batches(path: str, rows: int) -> Iterator[Any]:
    """Yield the schema, then (batch, share of the file read so far)."""
    with _explained(path), _opened(path) as file:
        if file.read(6) == b"ARROW1":
            file.seek(0)
            reader = pyarrow.ipc.open_file(file)
            yield reader.schema
            count = reader.num_record_batches
            for i in range(count):
                yield reader.get_batch(i), (i + 1) / count
        else:
            file.seek(0)
            reader = pyarrow.ipc.open_stream(file)
            yield reader.schema
            for batch in reader:
                yield batch, min(1.0, (file.tell() + 8) / file.size())  # 8 bytes end the stream


parquet_files = partial(_files, _parquet_batches, _row_bytes)
ipc_files = partial(_files, _ipc_batches, None)


def _opened(path: str) -> Any:
    """Open a file, or an object that is read a few megabytes at a time."""
    return pyarrow.PythonFile(open_buffered(path), mode="r") if is_address(path) else pyarrow.OSFile(path)
