"""LIBSVM (SVMlight) text, plain or compressed, read block by block by scikit-learn.

A line is ``label index:value index:value … # comment`` with indices that ascend from 1; ``qid:n`` is skipped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.utils import format_bytes
from sklearn.datasets import load_svmlight_file

from dask_odm.data.readers.lines import LARGE_BYTES, LARGE_TIMES, PipedText, TextBlock, file_size, shown, text_blocks
from dask_odm.data.readers.sources import (
    BLOCK_BYTES,
    MAX_FEATURES,
    Source,
    SourceBlock,
    block_rows,
    describe,
    narrow,
    not_finite,
)
from dask_odm.errors import InputError
from dask_odm.events import Progress, report

LONG_LINE_BYTES = 1 << 24  # bytes of a line beyond which its pairs are counted before it is parsed


class LibsvmSource(Source):
    """Rows of one or more LIBSVM files.

    Parameters
    ----------
    paths : the files, read one after another
    n_features : number of features; without it a first pass over the files looks for the largest index
        (a tenth of the time of reading them, but a compressed file is decompressed twice)
    label : False to leave the labels out; then lines may begin with their first pair
    dtype : ``float32`` or ``float64``
    block_bytes : bytes of text, and of dense rows, held at a time
    allow_large : whether the rows may take far more bytes than their text without ``n_features``

    Raises
    ------
    InputError
        The rows would take more than `LARGE_TIMES` the text and more than `LARGE_BYTES`, perhaps because of one wrong
        index.
    """

    labels_are_text = True

    def __init__(
        self,
        paths: Sequence[str],
        *,
        n_features: int | None = None,
        label: bool = True,
        dtype: str = "float32",
        block_bytes: int = BLOCK_BYTES,
        allow_large: bool = False,
    ) -> None:
        self._paths = tuple(paths)
        self._label = label
        self._dtype = dtype
        self._block_bytes = block_bytes
        self._allow_large = allow_large
        self._sizes = [file_size(path) for path in self._paths]
        self.size = sum(self._sizes)
        self.description = describe(self._paths)
        if n_features is not None and not 1 <= n_features <= MAX_FEATURES:
            raise InputError(f"n_features must be between 1 and {MAX_FEATURES}. Got {n_features} instead.")
        if n_features is None and any(isinstance(path, PipedText) for path in self._paths):
            raise InputError(
                f"{self.description}: LIBSVM text through a pipe cannot be read twice to count its features; "
                "give n_features (--n-features)."
            )
        self.n_features = self._scan() if n_features is None else n_features

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows as dense blocks."""
        for path, text, before in self._text():
            yield from self._dense(path, text, before + text.position)

    def feature(self, i: int) -> str:
        """Return the name of a feature in messages."""
        return f"index {i + 1}"

    def _text(self) -> Iterator[tuple[str, TextBlock, int]]:
        before = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            for text in text_blocks(path, self._block_bytes, allow_large=self._allow_large):
                yield path, text, before
            before += size

    def _scan(self) -> int:
        """Return the largest index of all files."""
        largest = 0
        rows = 0
        nbytes = 0
        where = ""
        report(Progress("scan", 0, self.size, "bytes"))
        for path, text, before in self._text():
            index, number, filled = _largest_index(path, text)
            if index > largest:
                largest = index
                where = f"{path}, line {number}"
            rows = rows + filled
            nbytes = nbytes + len(text.data)
            report(Progress("scan", before + text.position, self.size, "bytes"))
        if largest == 0:
            raise InputError(f"{self.description}: no index:value pair in any line; give n_features if that is right.")
        self._check_size(rows, largest, nbytes, where)
        return largest

    def _check_size(self, rows: int, features: int, text: int, where: str) -> None:
        """Raise InputError if rows of so many features take far more than their bytes of text can mean."""
        needed = rows * features * np.dtype(self._dtype).itemsize
        if self._allow_large or needed <= max(LARGE_BYTES, LARGE_TIMES * text):
            return
        raise InputError(
            f"{where}: index {features} makes {rows} rows of {features} features, {format_bytes(needed)} as a store, "
            f"of {format_bytes(text)} of text. If that is meant, give n_features={features} (--n-features {features}) "
            "or allow_large=True (--yes); else mend the index, or give the number of features that there are."
        )

    def _dense(self, path: str, text: TextBlock, position: int) -> Iterator[SourceBlock]:
        text = text if self._label else _labelled(text)
        rows, y = self._parse(path, text)
        step = block_rows(self.n_features, self._dtype, self._block_bytes)
        for start in range(0, rows.shape[0], step):
            part = rows[start : start + step]
            labels = y[start : start + step] if self._label else None
            place = partial(_place, path, text, start)
            yield SourceBlock(part.toarray(), labels, None, place, position)

    def _parse(self, path: str, text: TextBlock) -> tuple[Any, npt.NDArray[np.float64]]:
        """Return the block as a CSR matrix of the requested type, and its labels."""
        if _has_too_many_pairs(text, self.n_features):  # scikit-learn's reader would take 20 times a line's bytes
            raise _explain(path, text, self.n_features, ValueError("more pairs than features"))
        try:
            rows, y = load_svmlight_file(io.BytesIO(text.data), n_features=self.n_features, zero_based=False)
        except (ValueError, OverflowError, IndexError) as error:
            raise _explain(path, text, self.n_features, error) from error
        if b"_" in text.data and any(b"_" in line.partition(b"#")[0] for _, line in text.lines()):
            raise _explain(path, text, self.n_features, ValueError("an underscore"))  # Python's 1_000 is no number here
        if np.isinf(y).any():
            row = int(np.argmax(np.isinf(y)))
            raise InputError(f"{_place(path, text, 0, row)}: the label is {y[row]}; it must be a finite number.")
        values = narrow(rows.data, self._dtype)
        if np.isinf(values).any():
            at = int(np.argmax(np.isinf(values)))
            row = int(np.searchsorted(rows.indptr, at, side="right")) - 1
            column = f"index {rows.indices[at] + 1}"
            raise not_finite(_place(path, text, 0, row), column, rows.data[at], self._dtype)
        rows.data = values
        return rows, y


def _has_too_many_pairs(text: TextBlock, n_features: int) -> bool:
    """Return whether a long line has more pairs than there are features, so that indices cannot ascend."""
    if len(text.data) <= LONG_LINE_BYTES:
        return False
    lines = (line.partition(b"#")[0] for _, line in text.lines() if len(line) > LONG_LINE_BYTES)
    return any(line.count(b":") > n_features + 1 for line in lines)  # one more for qid:n


def _labelled(text: TextBlock) -> TextBlock:
    """Return the block with a label in front of each line that has none."""
    lines = [b"0 " + line if b":" in (line.split(None, 1) or [b""])[0] else line for line in text.data.split(b"\n")]
    return replace(text, data=b"\n".join(lines))


def _largest_index(path: str, text: TextBlock) -> tuple[int, int, int]:
    """Return the largest last index of all lines, its line, and the number of rows.

    Indices are taken to ascend, which the reading pass will check.
    """
    largest = 0
    where = text.first_line
    rows = 0
    for number, line in text.lines():
        if b"#" in line:
            line = line.partition(b"#")[0]
        head, colon, _ = line.rpartition(b":")
        rows += bool(colon or line.strip())
        if not colon:
            continue
        try:
            index = int(head.rsplit(None, 1)[-1])
        except (ValueError, IndexError):
            continue
        if index > MAX_FEATURES:
            raise InputError(
                f"{path}, line {number}: index {_digits(index)}; at most {MAX_FEATURES} features can be stored."
            )
        if index > largest:
            largest = index
            where = number
    return largest, where, rows


def _place(path: str, text: TextBlock, start: int, row: int) -> str:
    """Return the place of row ``start + row`` of the block, by its line."""
    filled = (number for number, line in text.lines() if line.partition(b"#")[0].strip())
    number = next(number for i, number in enumerate(filled) if i == start + row)
    return f"{path}, line {number}"


def _explain(path: str, text: TextBlock, n_features: int, error: Exception) -> InputError:
    """Find the first bad line, and return the error that says what is wrong with it."""
    for number, line in text.lines():
        complaint = _complaint(line.partition(b"#")[0], n_features)
        if complaint:
            return InputError(f"{path}, line {number}: {complaint}")
    return InputError(f"{path}, from line {text.first_line}: not LIBSVM text ({error}).")


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
    if not _is_number(label):
        return f"label {shown(label)} is not a number."
    last = 0
    for i, pair in enumerate(pairs):
        if i == 0 and pair.startswith(b"qid"):
            if b":" not in pair:
                return f"{shown(pair)} is not qid:number."
            continue
        index, colon, value = pair.partition(b":")
        number = _whole(index)
        if not colon or number is None:
            return f"{shown(pair)} is not index:value."
        if number < 1:
            return f"index {_digits(number)}; LIBSVM indices begin at 1."
        if number <= last:
            return f"index {_digits(number)} after {_digits(last)}; indices must ascend."
        if number > n_features:
            return f"index {_digits(number)}, but n_features is {n_features}; give a larger n_features (--n-features)."
        if not _is_number(value):
            return f"value {shown(value)} of index {_digits(number)} is not a number."
        last = number
    return None


def _is_number(token: bytes) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return b"_" not in token


def _whole(token: bytes) -> int | None:
    try:
        return None if b"_" in token else int(token)
    except ValueError:
        return None


def _digits(number: int) -> str:
    """Return a whole number for a message, cut if it is absurdly long."""
    text = str(number)
    return text if len(text) <= 30 else f"{text[:30]}…"
