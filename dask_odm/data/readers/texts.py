"""Texts as rows of counts of their words, hashed as scikit-learn's `HashingVectorizer` does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.feature_extraction import FeatureHasher

from dask_odm.data.readers.sources import shown
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError

_WORD = re.compile(r"\w\w+")


def count_words(texts: Iterable[Any], n_features: int, place: Callable[[int], str]) -> Any:
    """Return the counts (n, n_features) of the words of n texts as CSR rows, float64.

    They are those of ``HashingVectorizer(n_features, norm=None, alternate_sign=False)``. A missing text (None, NaN or
    NA) is a row with NaN as its only entry. Raises InputError, with its ``place``, if something else is no text.
    """
    missing: list[int] = []

    def words() -> Iterator[list[str]]:
        for i, text in enumerate(texts):
            if isinstance(text, str):
                yield _WORD.findall(text.lower())
            elif pd.api.types.is_scalar(text) and pd.isna(text):
                missing.append(i)
                yield []
            else:
                said = f"{shown(str(text))} ({type(text).__name__})"
                raise InputError(f"{place(i)}: {said} is no text; each text must be one string.")
        yield []  # the hasher refuses to hash nothing

    hasher = FeatureHasher(n_features, input_type="string", alternate_sign=False)
    rows = csr_array(hasher.transform(words()))[:-1]
    if missing:
        rows += csr_array((np.full(len(missing), np.nan), (missing, np.zeros_like(missing))), shape=rows.shape)
    return rows


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
