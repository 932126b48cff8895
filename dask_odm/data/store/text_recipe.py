"""The recipe by which texts became the rows of a store. Store and models keep it, and apply it to new texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class TextRecipe:
    """Recipe by which texts become rows of unit length: counts of hashed words, times the weights of the words.

    The counts are those of scikit-learn's ``HashingVectorizer(n_features, norm=None, alternate_sign=False)``, and the
    weights those of its ``TfidfTransformer()``.

    Parameters
    ----------
    column : str
        Name of the column that held the texts.
    idf : ndarray of shape (n_features,), float64
        Inverse document frequency of every hashed word, ``1 + log((1 + n) / (1 + documents with it))`` of n documents.
    """

    column: str
    idf: Array

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError unless column and weights can be those of texts."""
        if not isinstance(self.column, str) or not self.column:
            raise TypeError("a column of texts without a name")
        if self.idf.ndim != 1 or self.idf.dtype != np.float64 or not len(self.idf):
            raise ValueError(f"weights of words of shape {self.idf.shape} and type {self.idf.dtype}")
        if not (np.isfinite(self.idf) & (self.idf >= 1.0)).all():
            raise ValueError("a weight of a word that is below 1 or not finite")

    @classmethod
    def of_frequencies(cls, column: str, documents: Array, rows: int) -> TextRecipe:
        """Return the recipe of ``rows`` texts, of which ``documents`` (n_features,) hold each hashed word."""
        return cls(column, 1.0 + np.log((1.0 + rows) / (1.0 + documents)))

    @property
    def n_features(self) -> int:
        """Number of features to which words are hashed."""
        return len(self.idf)

    def weighted(self, counts: Any) -> Any:
        """Return the rows (n, n_features), CSR in float64, of the counts of hashed words. Texts without words are 0."""
        from scipy.sparse import csr_array  # not at the top: who reads dense rows needs no SciPy

        rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        values = counts.data * self.idf[counts.indices]
        lengths = np.sqrt(np.bincount(rows, values * values, minlength=counts.shape[0]))
        return csr_array((values / lengths[rows], counts.indices, counts.indptr), shape=counts.shape)
