"""Passes over rows in memory: every row once, in order, whatever the threads."""

from collections.abc import Iterable

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.linalg.row_passes import RowBlock, ThreadPasses


class Listing:
    """Asks for what blocks hold, as a list, so that the order of adding up shows."""

    def rows(self, blocks: Iterable[RowBlock], offset: int = 0) -> list[tuple[int, float, float]]:
        return [
            (block.first + i + offset, float(block.y[i]), float(np.sum(block.X[[i]])))
            for block in blocks
            for i in range(len(block.y))
        ]

    def labelled(self, blocks: Iterable[RowBlock], offset: int, name: str) -> list[tuple[str, int]]:
        return [(name, offset + len(block.y)) for block in blocks]


@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("step", "most", "groups"), [(10, 4, 4), (10, 99, 11), (1000, 4, 1)])
def test_every_row_once_in_order(form, threads, step, most, groups):
    X, y = np.arange(210.0).reshape(105, 2), np.arange(105.0) / 7
    passes = ThreadPasses.cut(form(X), y, np.empty(0), step, most, threads)
    assert (passes.rows, passes.groups, passes.streamed) == (105, groups, False)
    expected = [(i + 3, y[i], X[i].sum()) for i in range(105)]
    assert passes.run(Listing(), Listing.rows, 3) == expected


def test_groups_have_arguments_of_their_own():
    passes = ThreadPasses.cut(np.zeros((40, 1)), np.zeros(40), np.empty(0), 10, 2)
    assert passes.run(Listing(), Listing.labelled, 5, of_groups=["a", "b"]) == [("a", 15)] * 2 + [("b", 15)] * 2
    with pytest.raises(ValueError, match="zip"):
        passes.run(Listing(), Listing.labelled, 5, of_groups=["a"])
