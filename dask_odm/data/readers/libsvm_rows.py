"""Parser of LIBSVM text: lines ``label index:value index:value … # comment`` become labels and CSR rows.

A number whose digits and power of ten are both exact in float64 is their product or quotient, which is the nearest
float64 (Clinger 1990, "How to read floating point numbers accurately", PLDI). The others are left to Python's `float`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dask_odm.linalg.jit import compiled_in_order, frozen
from dask_odm.typing import Array

_POWERS = 10.0 ** np.arange(23)  # the powers of ten that float64 has exactly


def parse_rows(text: bytes, n_features: int) -> tuple[Any, Array] | None:
    """Return the rows (n, n_features) of whole lines, CSR in float64, and their labels (n,).

    Lines of blanks and comments have no row. Returns None if another line is no row. Its caller finds out why.
    """
    text = text if text.endswith(b"\n") else text + b"\n"
    lines = text.count(b"\n")
    pairs = min(text.count(b":"), lines * n_features)  # those of a line ascend
    kind = np.int32 if pairs < 1 << 31 else np.int64
    numbers = np.empty(lines + pairs)  # labels, then values
    ends = np.zeros(lines + 1, kind)
    columns = np.empty(pairs, kind)
    others = np.empty((lines + pairs, 3), np.int64)  # of most texts few are written to, so the rest takes no memory
    data = frozen(np.frombuffer(text, np.uint8))
    rows, entries, left = _parse(data, n_features, lines, numbers, ends, columns, others)
    if rows < 0:
        return None
    if not _read_others(text, others[:left], numbers):
        return None
    values = numbers[lines : lines + entries]
    return csr_array((values, columns[:entries], ends[: rows + 1]), shape=(rows, n_features)), numbers[:rows]


def _read_others(text: bytes, others: Array, numbers: Array, step: int = 1 << 12) -> bool:
    """Read the numbers that are left to Python, few at a time; return False if a word is no number."""
    for first in range(0, len(others), step):
        part = others[first : first + step]
        words = [text[start:stop] for start, stop, _ in part.tolist()]
        if any(b"_" in word for word in words):  # Python's 1_000 is no number here
            return False
        try:
            numbers[part[:, 2]] = list(map(float, words))
        except ValueError:
            return False
    return True


@compiled_in_order
def _parse(
    text: Array, n_features: int, lines: int, numbers: Array, ends: Array, columns: Array, others: Array
) -> tuple[int, int, int]:
    """Fill labels and, from ``lines`` on, values, and columns and ends of rows from text that ends in a line feed.

    ``others`` gets start, stop and place of every number that is left to Python. Returns how many rows, entries and
    others there are; −1 rows if a line is no row.
    """
    row = 0
    entry = 0
    other = 0
    at = 0
    while at < text.size:
        at = _next_word(text, at)
        if text[at] == 10:
            at += 1
            continue
        start = at
        at, numbers[row], exact = _number(text, start)
        if not exact:
            others[other] = start, at, row
            other += 1
        at = _after_query(text, _next_word(text, at))
        before = 0
        while text[at] != 10:
            at, index = _index(text, at, n_features)
            if not before < index <= n_features:
                return -1, 0, 0
            before = index
            columns[entry] = index - 1
            start = at
            at, numbers[lines + entry], exact = _number(text, start)
            if not exact:
                others[other] = start, at, lines + entry
                other += 1
            entry += 1
            at = _next_word(text, at)
        at += 1
        row += 1
        ends[row] = entry
    return row, entry, other


@compiled_in_order
def _next_word(text: Array, at: int) -> int:
    """Return where the next word of the line begins, or else where the line ends."""
    while _is_blank(text[at]):
        at += 1
    if text[at] == 35:  # "#", a comment
        while text[at] != 10:
            at += 1
    return at


@compiled_in_order
def _is_blank(byte: int) -> bool:
    """Return whether a byte is what separates words: a space, tab, carriage return or the like."""
    return byte == 32 or byte == 9 or 11 <= byte <= 13


@compiled_in_order
def _ends_word(byte: int) -> bool:
    return byte == 10 or byte == 35 or _is_blank(byte)


@compiled_in_order
def _after_query(text: Array, at: int) -> int:
    """Return where the word after ``qid:n`` begins, or ``at`` if there is none such."""
    if text[at] != 113 or text[at + 1] != 105 or text[at + 2] != 100:  # "qid"; a shorter text ends in a line feed
        return at
    stop = at + 3
    colons = 0
    while not _ends_word(text[stop]):
        colons += text[stop] == 58
        stop += 1
    return _next_word(text, stop) if colons else at


@compiled_in_order
def _index(text: Array, at: int, most: int) -> tuple[int, int]:
    """Return where the value of a pair begins, and its index: 0 if it has none, ``most`` + 1 if that is larger."""
    at += text[at] == 43  # "+"
    index = 0
    while 48 <= text[at] <= 57:
        index = min(10 * index + (text[at] - 48), most + 1)
        at += 1
    return at + 1, index if text[at] == 58 else 0


@compiled_in_order
def _number(text: Array, at: int) -> tuple[int, float, bool]:
    """Return where a word ends, the number that it is, and whether that is exact; if not, it is left to Python."""
    negative = text[at] == 45
    at += negative or text[at] == 43
    start = at
    digits = 0
    power = 0
    while 48 <= text[at] <= 57:
        digits = 10 * digits + (text[at] - 48)
        at += 1
    found = at - start
    if text[at] == 46:  # "."
        at += 1
        start = at
        while 48 <= text[at] <= 57:
            digits = 10 * digits + (text[at] - 48)
            at += 1
        power = start - at
        found += at - start
    if text[at] | 32 == 101 and not _ends_word(text[at + 1]):  # "e" or "E"
        at += 1
        below = text[at] == 45
        at += below or text[at] == 43
        start = at
        exponent = 0
        while 48 <= text[at] <= 57 and exponent < 10_000:
            exponent = 10 * exponent + (text[at] - 48)
            at += 1
        found = found if at > start else 0
        power += -exponent if below else exponent
    # any number of 18 digits fits int64
    exact = 0 < found <= 18 and digits <= 1 << 53 and -23 < power < 23 and _ends_word(text[at])
    while not _ends_word(text[at]):
        at += 1
    if not exact:
        return at, 0.0, False
    value = digits / _POWERS[-power] if power < 0 else digits * _POWERS[power]
    return at, -value if negative else value, True
