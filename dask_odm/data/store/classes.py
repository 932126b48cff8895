"""Classes of a store: sorting the labels that occur, recoding provisional codes, and sums of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.layout import Label
from dask_odm.errors import InputError
from dask_odm.typing import Array


def sort_classes(labels: Sequence[Label], counts: npt.ArrayLike) -> tuple[tuple[Label, ...], npt.NDArray[np.int64]]:
    """Sort the labels that occur, merging equal ones, and return them with the new code of each old one.

    Raises InputError if labels have types that do not compare, such as strings and numbers, or are NaN.
    """
    seen = np.asarray(counts)
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    present = [label for label, count in zip(plain, seen.tolist(), strict=False) if count]
    kinds = {type(label) for label in present}
    if kinds == {int, float}:
        present = [float(label) for label in present]
        kinds = {float}
    if len(kinds) > 1 or not kinds <= {int, float, str, bool} or any(label != label for label in present):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must all be numbers, all strings or all booleans, and not NaN. Got {names}.")
    kept: tuple[Any, ...] = tuple(sorted(set(present)))
    code = {label: i for i, label in enumerate(kept)}
    return kept, np.array([code.get(label, -1) for label in plain], dtype=np.int64)


def class_sums(codes: Array | None, weight: Array | None, classes: int) -> npt.NDArray[np.float64]:
    """Sum the weights of each class over rows, (classes,). Rows of code -1 belong to no class."""
    assert codes is not None
    assert weight is not None
    known = codes >= 0
    return np.bincount(codes[known], weights=weight[known], minlength=classes).astype(np.float64, copy=False)
