"""The interface of a model: an immutable record that gives values for raw rows and is stored without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dask_odm.typing import Array


class Model(Protocol):
    """A trained model: it gives ``outputs`` values for every raw row, tasks carry it, and `save` writes it.

    Nothing in it changes once it is made, and it does not know how it was found.
    """

    @property
    def outputs(self) -> int:
        """Values per row: one for two classes or one target, else one for each class or target."""
        ...

    @property
    def features(self) -> int:
        """Number of features of a row."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the model's arrays."""
        ...

    def values(self, X: Any, threads: int = 1) -> Array:
        """Return the values of raw rows ``X`` (n, d), dense or CSR: (n, outputs), in the rows' dtype."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of the model's record, by name."""
        ...

    def description(self) -> dict[str, Any]:
        """Return the rest of the model's record, as JSON; ``kind`` names the kind of model."""
        ...


def require_finite_parts(arrays: Mapping[str, Array]) -> None:
    """Raise ValueError unless all arrays of a model are finite floats."""
    for name, values in arrays.items():
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError(f"{name} of type {values.dtype} that are not all finite numbers")
