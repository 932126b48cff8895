"""LIBSVM and CSV text read by the letter of the formats, slowly: what `fuzz_readers` holds the readers against.

Anything that is not plainly a row gives None; the readers may take it or refuse it.
"""

from __future__ import annotations

import csv
import math
import re

import numpy as np
from fuzz_cases import Case

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def _plain_lines(case: Case) -> list[str] | None:
    """Lines of printable ASCII, or None where the text is anything else."""
    text = (case.text or b"").removeprefix(b"\xef\xbb\xbf")
    if not text.isascii() or re.search(rb"[^\x20-\x7e\t\r\n]", text) or re.search(rb"\r(?!\n)", text):
        return None
    return [line.removesuffix("\r") for line in text.decode().split("\n")]


def _finite(word: str, dtype: str) -> float | None:
    """The number, where the word is plainly one and it fits."""
    if not NUMBER.fullmatch(word):
        return None
    with np.errstate(over="ignore"):
        return float(word) if math.isfinite(np.dtype(dtype).type(float(word))) else None


def plain_libsvm(case: Case) -> np.ndarray | None:
    """Rows by the letter of the format; None where the text has anything else in it."""
    rows, widest = [], case.options.get("n_features", 0)
    for line in _plain_lines(case) or []:
        label, *pairs = line.partition("#")[0].split() or [""]
        if not label:
            continue
        row: dict[int, float] = {}
        if _finite(label, "float64") is None:
            return None
        for pair in pairs:
            index, _, word = pair.partition(":")
            value = _finite(word, case.options["dtype"])
            if not re.fullmatch("[1-9][0-9]{0,4}", index) or value is None or int(index) <= max(row, default=0):
                return None
            row[int(index)] = value
        rows.append(row)
    largest = max((max(row, default=0) for row in rows), default=0)
    if not rows or largest == 0 or (widest and largest > widest):
        return None
    X = np.zeros((len(rows), max(widest, largest)))
    for i, row in enumerate(rows):
        X[i, [index - 1 for index in row]] = list(row.values())
    return X


def plain_csv(case: Case) -> np.ndarray | None:
    """Features by Python's own CSV reader; None where a line is anything but numbers and a label."""
    lines = [line for line in _plain_lines(case) or [] if line.strip(" \t")]
    if len(lines) < 2 or any(line.count('"') for line in lines[:1]):
        return None
    counts = {mark: lines[0].count(mark) for mark in ",;\t|"}
    if sum(map(bool, counts.values())) != 1:
        return None
    separator = max(counts, key=lambda mark: counts[mark])
    try:
        rows = [next(csv.reader([line], delimiter=separator, strict=True)) for line in lines]
    except csv.Error:
        return None
    names = rows[0] == [*(f"f{i}" for i in range(len(rows[0]) - 1)), "label"]
    numbers = all(_finite(field, "float64") is not None for field in rows[0])
    if not (names or numbers) or case.options["header"] not in (None, names):
        return None
    return None if any(len(row) != len(rows[0]) for row in rows) else _plain_features(case, rows[1:] if names else rows)


def _plain_features(case: Case, rows: list[list[str]]) -> np.ndarray | None:
    width, label = len(rows[0]), case.options["label"]
    at = None if label is False else width - 1 if label is None else label
    columns = [i for i in range(width) if i != at]
    if not columns:
        return None
    if at is not None and not all(re.fullmatch("[a-z0-9.]+", row[at]) for row in rows):
        return None
    X = [[_finite(row[i], case.options["dtype"]) for i in columns] for row in rows]
    return None if any(value is None for row in X for value in row) else np.array(X, dtype=np.float64)
