"""LIBSVM (SVMlight) text, plain or compressed, read block by block.

A line is ``label index:value index:value … # comment`` with indices that ascend from 1; ``qid:n`` is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.utils import format_bytes

from dask_odm.data.readers.libsvm_rows import parse_rows
from dask_odm.data.readers.lines import TextBlock, blocks_of_files, file_size, is_far_more, is_number
from dask_odm.data.readers.sources import MAX_FEATURES, Columns, Reading, describe, shown
from dask_odm.data.readers.table_source import Batch, TableSource
from dask_odm.data.readers.tables import ArrayTable
from dask_odm.errors import InputError
from dask_odm.events import Progress, report

_INDEX = re.compile(rb"[+-]?[0-9]{1,4000}")  # longer numbers are too long for Python


class LibsvmSource(TableSource):
    """Rows of one or more LIBSVM files, read one after another.

    Without ``n_features`` a first pass over the files looks for the largest index. It takes little time beside reading
    them, but a compressed file is decompressed twice. If dense rows would take far more bytes than their text, rows are
    read as sparse ones. If only one row has so large an index, which may be wrong, InputError is raised unless
    ``allow_large``. With ``label=False``, labels are
    left out, and lines may begin with their first pair.
    """

    labels_are_text = True

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        self._paths = tuple(paths)
        self._reading = reading
        self.size = sum(map(file_size, paths))
        self.description = describe(paths)
        if reading.weight is not None or not isinstance(reading.label, bool | None):
            raise InputError(f"{paths[0]}: LIBSVM text has its label first and no weights; leave label and weight out.")
        n_features = reading.n_features
        if n_features is not None and not 1 <= n_features <= MAX_FEATURES:
            raise InputError(f"n_features must be between 1 and {MAX_FEATURES}. Got {n_features} instead.")
        columns = Columns(None, n_features or self._scan(), None, None)
        super().__init__(self.description, columns, self._read_all, self._reading, size=self.size)

    def _read_all(self) -> Iterator[Batch]:
        labelled = self._reading.label is not False
        for text in blocks_of_files(self._paths, self._reading):
            if not labelled:  # lines that begin with a pair get a label
                lines = text.data.split(b"\n")
                bare = (b":" in (line.split(None, 1) or [b""])[0] for line in lines)
                lines = [b"0 " + line if is_bare else line for line, is_bare in zip(lines, bare, strict=True)]
                text = replace(text, data=b"\n".join(lines))
            rows, y = self._parse(text)
            line = partial(text.line_of, content=_content)
            table = ArrayTable(rows)
            yield Batch(table, text.path, text.position, y=y if labelled else None, line=line)
            del rows, y, table  # before the next text is parsed

    def feature(self, i: int) -> str:
        """Return the name of a feature in messages."""
        return f"index {i + 1}"

    def _scan(self) -> int:
        """Return the largest index of all files."""
        largest = 0
        second = 0  # largest last index of the other rows
        rows = 0
        nbytes = 0
        where = ""
        report(Progress("scan", 0, self.size, "bytes"))
        for text in blocks_of_files(self._paths, self._reading):
            index, other, number, filled = _largest_index(text)
            second = max(second, other, min(index, largest))
            if index > largest:
                largest = index
                where = f"{text.path}, line {number}"
            rows += filled
            nbytes += len(text.data)
            report(Progress("scan", text.position, self.size, "bytes"))
        if largest == 0:
            raise InputError(f"{self.description}: no index:value pair in any line; give n_features if that is right.")
        needed = rows * largest * np.dtype(self._reading.dtype).itemsize
        if is_far_more(needed, nbytes) and self._reading.sparse is None and second > largest // 2:
            self._reading = replace(self._reading, sparse=True)
        elif is_far_more(needed, nbytes) and not (self._reading.allow_large or self._reading.sparse):
            raise InputError(
                f"{where}: index {largest} makes {rows} rows of {largest} features, {format_bytes(needed)} as a store, "
                f"of {format_bytes(nbytes)} of text. If that is meant, make a sparse store with sparse=True "
                f"(--sparse), or give n_features={largest} (--n-features {largest}) or allow_large=True (--yes); else "
                "mend the index, or give the number of features that there are."
            )
        return largest

    def _parse(self, text: TextBlock) -> tuple[Any, npt.NDArray[Any]]:
        """Return the block as a CSR matrix, and its labels."""
        found = parse_rows(text.data, self.n_features)
        if found is None:
            raise explain(text, self.n_features)
        rows, y = found
        if np.isinf(y).any():
            row = int(np.argmax(np.isinf(y)))
            line = text.line_of(row, _content)
            raise InputError(f"{text.path}, line {line}: the label is {y[row]}; it must be a finite number.")
        return rows, _with_long_labels(text, y)


def _with_long_labels(text: TextBlock, y: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return the labels of a block, of which those are Python's whole numbers that are too long for float64."""
    long = np.abs(y) >= 2.0**53
    if not long.any():
        return y
    labels = y.astype(object)
    words = (_content(line).split(None, 1)[0] for _, line in text.lines(_content))
    for row, word in enumerate(words):
        if long[row] and _INDEX.fullmatch(word):
            labels[row] = int(word)
    return labels


def _content(line: bytes) -> bytes:
    """Return a line without its comment and the blanks around it."""
    return line.partition(b"#")[0].strip()


def _largest_index(text: TextBlock) -> tuple[int, int, int, int]:
    """Return the largest last index of all lines, that of the other lines, the number of its line, and of rows."""
    data = re.sub(rb"#[^\n]*", b"", text.data) if b"#" in text.data else text.data
    letters = np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)
    stops = np.flatnonzero(letters == ord("\n"))
    starts = np.append(0, stops[:-1] + 1)
    rows = np.count_nonzero(np.logical_or.reduceat(letters > ord(" "), starts))
    colons = np.append(-1, np.flatnonzero(letters == ord(":")))
    last = colons[np.searchsorted(colons, stops) - 1]  # of each line, or of one before it
    index = np.zeros(len(stops))
    lines = np.flatnonzero(last > starts)
    digits = 0
    while len(lines):
        digits += 1
        digit = letters[last[lines] - digits] - ord("0")  # what is below "0" wraps
        lines, digit = lines[digit < 10], digit[digit < 10]
        index[lines] += digit * 10.0 ** min(digits - 1, 99)  # more of them are far too many features, too
        lines = lines[last[lines] - digits > starts[lines]]
    line = int(index.argmax())
    largest = index[line]
    if largest > MAX_FEATURES:
        found = data[: last[line]].split()[-1].lstrip(b"+0").decode()
        raise InputError(
            f"{text.path}, line {text.first_line + line}: index {_digits(found)}; at most {MAX_FEATURES} features can "
            "be stored."
        )
    index[line] = 0.0
    return int(largest), int(index.max()), text.first_line + line, int(rows)


def explain(text: TextBlock, n_features: int) -> InputError:
    """Find the first line that is no row, and return the error that says why."""
    for number, line in text.lines():
        complaint = _complaint(_content(line), n_features)
        if complaint:
            return InputError(f"{text.path}, line {number}: {complaint}")
    return InputError(f"{text.path}, from line {text.first_line}: not LIBSVM text.")


def _complaint(line: bytes, n_features: int) -> str | None:
    """Return what is wrong with a line, or None.

    Pairs are looked at one by one, since a list of them may take 20 times the line's bytes.
    """
    pairs = (found.group() for found in re.finditer(rb"\S+", line))
    label = next(pairs, None)
    if label is None:
        return None
    if b":" in label:
        return f"the label is missing; the line begins with {shown(label)} (label=False, --no-label, if none has one)."
    if not is_number(label):
        return f"label {shown(label)} is not a number."
    last = 0
    for i, pair in enumerate(pairs):
        if i == 0 and pair.startswith(b"qid"):
            if b":" not in pair:
                return f"{shown(pair)} is not qid:number."
            continue
        index, colon, value = pair.partition(b":")
        if not colon or not _INDEX.fullmatch(index):
            return f"{shown(pair)} is not index:value."
        number = int(index)
        if number < 1:
            return f"index {_digits(number)}; LIBSVM indices begin at 1."
        if number <= last:
            return f"index {_digits(number)} after {_digits(last)}; indices must ascend."
        if number > n_features:
            return (
                f"index {_digits(number)} is beyond the {n_features} features of n_features (--n-features) or of the "
                "model; mend it, or ingest with more features."
            )
        if not is_number(value):
            return f"value {shown(value)} of index {_digits(number)} is not a number."
        last = number
    return None


def _digits(number: int | str) -> str:
    """Return a whole number for a message, cut if it is absurdly long."""
    text = str(number)
    return text if len(text) <= 30 else f"{text[:30]}…"
