"""What a model is: an immutable record that gives values for raw rows, and that a file holds without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dask_odm.typing import Array


class Model(Protocol):
    """Gives ``outputs`` values for every raw row; what a task carries and `save` writes.

    Nothing in it is changed once it is made, and it does not know how it was found.
    """

    @property
    def outputs(self) -> int:
        """Values a row: one for two classes or one target, else one a class or target."""
        ...

    @property
    def features(self) -> int:
        """Features of a row."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        ...

    def values(self, X: Any, threads: int = 1) -> Array:
        """Values of raw rows ``X`` (n, d), dense or CSR: (n, outputs), in the rows' dtype."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Arrays of its record, by name."""
        ...

    def description(self) -> dict[str, Any]:
        """The rest of its record, as JSON; ``kind`` names the model."""
        ...


def require_finite_parts(arrays: Mapping[str, Array]) -> None:
    """Raise ValueError unless a model's arrays are finite floats."""
    for name, values in arrays.items():
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError(f"{name} of type {values.dtype} that are not all finite numbers")
