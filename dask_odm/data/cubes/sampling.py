"""A sample of the labelled rows of a cube, drawn while it is read once.

A draw depends on a row's place in the cube and on the seed alone, so chunks and workers do not change the sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dask_odm.data.cubes.reading import LabelledRows
from dask_odm.linalg.rows import uniforms_of
from dask_odm.typing import Array


def share_of_rows(batches: Iterator[LabelledRows], fraction: float, seed: int) -> Iterator[LabelledRows]:
    """Yield the rows whose draw, a number in [0, 1), is below ``fraction``."""
    for batch in batches:
        yield batch.taken(uniforms_of(batch.numbers, seed) < fraction)


def rows_per_class(batches: Iterator[LabelledRows], count: int, seed: int) -> Iterator[LabelledRows]:
    """Yield once the ``count`` rows of each class with the smallest draws, in the cube's order.

    All rows of a class that has fewer are taken. At most these and one batch are in memory.
    """
    kept: list[LabelledRows] = []
    for batch in batches:
        both = LabelledRows.joined([*kept, batch])
        kept = [both.taken(_smallest(both.y, uniforms_of(both.numbers, seed), count))]
    for each in kept:
        yield each.taken(np.argsort(each.numbers, kind="stable"))


def _smallest(y: Array, draws: Array, count: int) -> Array:
    """Return the positions of the ``count`` smallest draws of each class."""
    codes = pd.factorize(y)[0]
    order = np.lexsort((draws, codes))
    found = codes[order]
    rank = np.arange(len(found)) - np.searchsorted(found, found)
    positions: Array = order[rank < count]
    return positions
