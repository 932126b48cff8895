"""Texts as rows of counts of their words, hashed as scikit-learn's `HashingVectorizer` does.

Words are found and hashed by a compiled loop over the UTF-8 bytes of many texts. The hash is MurmurHash3_x86_32 (Austin
Appleby, public domain) with seed 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import csr_array

from dask_odm.data.readers.sources import shown
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array


def count_words(texts: Iterable[Any], n_features: int, place: Callable[[int], str]) -> Any:
    """Return the counts (n, n_features) of the words of n texts as CSR rows, float64.

    They are those of ``HashingVectorizer(n_features, norm=None, alternate_sign=False)``. A missing text (None, NaN or
    NA) is a row with NaN as its only entry. Raises InputError, with its ``place``, if something else is no text.
    """
    encoded = []
    missing = []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            encoded.append(text.lower().encode(errors="replace"))  # half a surrogate is in no word, nor is "?"
        elif pd.api.types.is_scalar(text) and pd.isna(text):
            missing.append(i)
            encoded.append(b"")
        else:
            said = f"{shown(str(text))} ({type(text).__name__})"
            raise InputError(f"{place(i)}: {said} is no text; each text must be one string.")
    n = len(encoded)
    lengths = np.fromiter(map(len, encoded), np.int64, n)
    data = np.frombuffer(b" ".join([*encoded, b""]), np.uint8)
    columns = np.empty(len(data) // 3, np.int32)  # a word and what ends it take three bytes or more
    ends = np.zeros(n + 1, np.int32)  # int32 as long as SciPy would have it, so that loops are not compiled twice
    _hash_words(frozen(data), frozen(np.cumsum(lengths + 1)), frozen(_word_letters()), n_features, columns, ends)
    columns = columns[: ends[-1]]
    rows = csr_array((np.ones(len(columns)), columns, ends), shape=(n, n_features))
    rows.sum_duplicates()
    if missing:
        rows += csr_array((np.full(len(missing), np.nan), (missing, np.zeros_like(missing))), shape=rows.shape)
    return rows


@cache
def _word_letters() -> npt.NDArray[np.bool_]:
    """Return for every code point whether words are made of it: of what ``\\w`` matches."""
    found = np.fromiter(map(str.isalnum, map(chr, range(sys.maxunicode + 1))), bool, sys.maxunicode + 1)
    found[ord("_")] = True
    return found


@compiled
def _hash_words(text: Array, stops: Array, letters: Array, n_features: int, columns: Array, ends: Array) -> None:
    """Fill the columns of all words of two letters or more, in their order, and where those of each text end.

    The text is UTF-8; its texts end at ``stops``, each in a byte that is no letter of a word.
    """
    found = 0
    start = 0
    size = 0  # letters of the word so far
    row = 0
    at = 0
    while at < text.size:
        lead = np.int64(text[at])
        step = 1 if lead < 128 else 2 if lead < 224 else 3 if lead < 240 else 4
        point = lead if step == 1 else lead & (127 >> step)
        for k in range(1, step):
            point = point << 6 | text[at + k] & 63
        if letters[point]:
            start = at if size == 0 else start
            size += 1
        else:
            if size > 1:
                columns[found] = _hashed(text, start, at) % n_features
                found += 1
            size = 0
        at += step
        if at == stops[row]:
            row += 1
            ends[row] = found


@compiled
def _hashed(text: Array, start: int, stop: int) -> Any:
    """Return the absolute value of the hash, a signed number, of some bytes."""
    mask = np.uint64(0xFFFFFFFF)
    h = np.uint64(0)
    block = np.uint64(0)
    for k in range(stop - start):
        block |= np.uint64(text[start + k]) << np.uint64(8 * (k & 3))
        if k & 3 == 3:
            h ^= _mixed(block)
            h = (h << np.uint64(13) | h >> np.uint64(19)) & mask
            h = (h * np.uint64(5) + np.uint64(0xE6546B64)) & mask
            block = np.uint64(0)
    h ^= _mixed(block)
    h ^= np.uint64(stop - start)
    h ^= h >> np.uint64(16)
    h = h * np.uint64(0x85EBCA6B) & mask
    h ^= h >> np.uint64(13)
    h = h * np.uint64(0xC2B2AE35) & mask
    h ^= h >> np.uint64(16)
    return min(np.int64(h), (1 << 32) - np.int64(h))


@compiled
def _mixed(block: Any) -> Any:
    """Return a block of four bytes, or of fewer, multiplied and rotated; 0 of 0."""
    mask = np.uint64(0xFFFFFFFF)
    block = block * np.uint64(0xCC9E2D51) & mask
    block = (block << np.uint64(15) | block >> np.uint64(17)) & mask
    return block * np.uint64(0x1B873593) & mask


def is_texts(X: Any) -> bool:
    """Return whether ``X`` is meant as texts in memory: a list, tuple, array or Series that begins with no number.

    Its first item is a string, a missing value, or by mistake a list of these, which `count_words` refuses.
    """
    if not isinstance(X, list | tuple | np.ndarray | pd.Series) or len(X) == 0:
        return False
    first = X.iloc[0] if isinstance(X, pd.Series) else X[0]
    if isinstance(first, list | tuple | np.ndarray) and len(first):
        return isinstance(first[0], str) or first[0] is None
    return isinstance(first, str) or (pd.api.types.is_scalar(first) and bool(pd.isna(first)))


def rows_of_texts(texts: Iterable[Any], recipe: TextRecipe) -> Any:
    """Return texts in memory as rows (n, n_features) by a recipe, CSR; InputError if one is missing or no string."""
    rows = recipe.weighted(count_words(texts, recipe.n_features, lambda i: f"X, text {i}"))
    missing = np.flatnonzero(np.isnan(rows.data))
    if len(missing):
        row = np.searchsorted(rows.indptr, missing[0], side="right") - 1
        raise InputError(f"X, text {row}: is missing; give the empty string if there is none.")
    return rows
