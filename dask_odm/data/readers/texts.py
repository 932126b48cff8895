"""Texts as rows of counts of their words, hashed as scikit-learn's `HashingVectorizer` does."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils import murmurhash3_32

from dask_odm.data.readers.sources import shown
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError

KEPT_WORDS = 1 << 18  # words whose hashes are kept, some 30 MB


class _Columns(dict[str, int]):
    """Columns of words, kept since texts repeat them: hashing a word takes ten times as long as looking it up."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self._n_features = n_features

    def __missing__(self, word: str) -> int:
        if len(self) >= KEPT_WORDS:
            self.clear()
        self[word] = column = abs(murmurhash3_32(word)) % self._n_features  # as `FeatureHasher`
        return column


class WordCounter:
    """Counter of the words of texts, the same as ``HashingVectorizer(n_features, norm=None, alternate_sign=False)``."""

    def __init__(self, n_features: int) -> None:
        self._words = HashingVectorizer().build_analyzer()
        self._columns = _Columns(n_features)
        self._n_features = n_features

    def counts(self, texts: Iterable[Any], place: Callable[[int], str]) -> Any:
        """Return the counts (n, n_features) of the words of n texts as CSR rows, float64.

        A missing text (None, NaN or NA) is a row with NaN as its only entry. Raises InputError, with its ``place``, if
        something else is no text.
        """
        columns = array("i")
        ends = [0]
        missing = []
        for i, text in enumerate(texts):
            if isinstance(text, str):
                columns.extend(map(self._columns.__getitem__, self._words(text)))
            elif pd.api.types.is_scalar(text) and pd.isna(text):
                missing.append(len(columns))
                columns.append(0)
            else:
                said = f"{shown(str(text))} ({type(text).__name__})"
                raise InputError(f"{place(i)}: {said} is no text; the column of texts holds strings.")
            ends.append(len(columns))
        ones = np.ones(len(columns))
        ones[missing] = np.nan
        # int32 as long as SciPy would have it, so that loops are not compiled for other indices
        indices = np.frombuffer(columns, np.int32) if columns else np.empty(0, np.int32)
        rows = csr_array((ones, indices, np.array(ends, np.int32)), shape=(len(ends) - 1, self._n_features))
        rows.sum_duplicates()
        return rows


def is_texts(X: Any) -> bool:
    """Return whether ``X`` is texts in memory: a list, tuple, array or Series whose first item is a string."""
    if isinstance(X, np.ndarray | pd.Series):
        return X.ndim == 1 and len(X) > 0 and isinstance(X.iloc[0] if isinstance(X, pd.Series) else X[0], str)
    return isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], str)


def rows_of_texts(texts: Iterable[Any], recipe: TextRecipe) -> Any:
    """Return texts in memory as rows (n, n_features) by a recipe, CSR; InputError if one is missing or no string."""
    rows = recipe.weighted(WordCounter(recipe.n_features).counts(texts, lambda i: f"X, text {i}"))
    missing = np.flatnonzero(np.isnan(rows.data))
    if len(missing):
        row = np.searchsorted(rows.indptr, missing[0], side="right") - 1
        raise InputError(f"X, text {row}: is missing; give the empty string if there is none.")
    return rows
