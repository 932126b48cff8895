"""Trees of cells: sizes, medians, equal rows, and looking rows up."""

import numpy as np
import pytest

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.methods.cells.growing import grow, levels_of
from dask_odm.models.cell_model import CellTree
from traced import traced


def walked(tree: CellTree, x: np.ndarray) -> int:
    """The cell of one row, from the definition."""
    node = 0 if len(tree.thresholds) else -1
    while node >= 0:
        node = int(tree.children[node, int(sum(tree.planes[node] * x) > tree.thresholds[node])])
    return -1 - node


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cells_have_between_half_and_all_of_the_rows_that_are_allowed(dtype):
    X = np.random.default_rng(0).normal(size=(3000, 4)).astype(dtype)
    tree, _, _ = grow(X, 500, 1)
    tree.require_sound()
    cells = tree(X)
    sizes = np.bincount(cells, minlength=tree.count)
    assert tree.count == 8
    assert 250 <= sizes.min() <= sizes.max() <= 500
    np.testing.assert_array_equal(cells[:50], [walked(tree, x) for x in X[:50].astype(np.float64)])


def test_the_first_plane_is_across_the_longest_direction():
    rng = np.random.default_rng(0)
    direction = np.array([3.0, 4.0, 0.0]) / 5.0
    X = rng.normal(size=(1000, 1)) * direction + 0.05 * rng.normal(size=(1000, 3))
    tree, widths, _ = grow(X, 500, 0)
    assert abs(tree.planes[0] @ direction) > 0.999
    along = X @ tree.planes[0]
    assert abs(tree.thresholds[0] - np.median(along)) < 0.01
    np.testing.assert_allclose(widths, along.std())
    rows, cells = tree.pairs(X, 0.3 * widths).T
    for cell, side in enumerate(
        (along <= tree.thresholds[0] + 0.3 * widths, along > tree.thresholds[0] - 0.3 * widths)
    ):
        np.testing.assert_array_equal(rows[cells == cell], np.flatnonzero(side))
    tree = CellTree(np.eye(1, 3), X[:1, 0], tree.children)
    rows, cells = tree.pairs(X, 0.0 * widths).T
    np.testing.assert_array_equal(rows, np.arange(1000), "a row on the plane itself is in one cell")
    np.testing.assert_array_equal(cells, tree(X))


def test_equal_rows_stay_together_and_other_directions_are_tried():
    rng = np.random.default_rng(0)
    same = np.repeat(rng.normal(size=(3, 2)), [700, 200, 100], axis=0)
    tree, _, _ = grow(same, 250, 0)
    cells = tree(same)
    assert all(len(set(cells[rows].tolist())) == 1 for rows in (slice(700), slice(700, 900), slice(900, 1000)))
    assert tree.count >= 2
    assert grow(np.ones((1000, 2)), 10, 0)[0].count == 1, "nothing divides rows that are all equal"
    for n in range(11, 20):  # products by BLAS differ where rows are the rest of a block
        assert grow(np.repeat(rng.normal(size=(1, 54)), n, axis=0), 10, 0)[0].count == 1
    # 97 % of the rows have the same value along the longest direction
    X = np.column_stack([np.where(np.arange(1000) % 40 == 0, 1e3, 0.0), rng.normal(size=1000)])
    sizes = np.bincount(grow(X, 600, 0)[0](X))
    assert sizes.min() > 300


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_rows_that_differ_are_divided_off_many_equal_ones(mean):
    X = np.zeros((10_000, 5))
    X[:400] = np.random.default_rng(0).normal(mean, size=(400, 5))
    cells = grow(X, 50, 0)[0](X)
    sizes = np.bincount(cells)
    assert np.count_nonzero(cells[:400] == cells[-1]) < 50, "few learn with the equal rows"
    assert np.sort(sizes)[-2] <= 50
    assert sizes.min() >= 12


def test_a_tree_depends_on_rows_and_seed_alone():
    X = np.random.default_rng(0).normal(size=(9000, 3))
    one, again, other = (grow(X, 1000, seed)[0] for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.planes, again.planes)
    np.testing.assert_array_equal(one.thresholds, again.thresholds)
    assert not np.array_equal(one.planes, other.planes), "rows are drawn by the seed"


def test_directions_of_wide_rows_are_found_from_few_of_them():
    X = np.random.default_rng(0).normal(size=(300, 50_000)).astype(np.float32)
    (tree, *_), peak = traced(grow, X, 200, 0)
    assert tree.count == 2
    assert peak < 2.5 * COPIED_BYTES, "rows in float64, and centred"


def test_grafted_trees_divide_cells():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    top, _, _ = grow(X, 500, 0)
    cells = top(X)
    below = [CellTree.single(2) if k == 1 else grow(X[cells == k], 100, k)[0] for k in range(top.count)]
    tree = top.grafted(below)
    tree.require_sound()
    starts = np.cumsum([0, *(each.count for each in below)])
    expected = [starts[k] + walked(below[k], x) for k, x in zip(cells, X, strict=True)]
    np.testing.assert_array_equal(tree(X), expected)
    assert CellTree.single(2).grafted([top]).count == top.count


def test_levels_count_the_rows_on_the_ways_to_the_cells():
    X = np.random.default_rng(0).normal(size=(1001, 3)) ** 3
    tree, _, seconds = grow(X, 120, 0)
    met: dict[tuple[int, int], int] = {}  # rows that come through each node or cell, by its depth
    for x in X:
        node, depth = 0, 0
        met[depth, node] = met.get((depth, node), 0) + 1
        while node >= 0:
            node, depth = int(tree.children[node, int(tree.planes[node] @ x > tree.thresholds[node])]), depth + 1
            met[depth, node] = met.get((depth, node), 0) + 1
    levels = levels_of(tree, np.bincount(tree(X)), seconds)
    assert [record["level"] for record in levels] == list(range(max(met)[0] + 1))
    for record in levels:
        here = {node: rows for (depth, node), rows in met.items() if depth == record["level"]}
        assert record["nodes"] == sum(node >= 0 for node in here)
        assert record["cells"] == sum(node < 0 for node in here)
        assert (record["least_rows"], record["most_rows"]) == (min(here.values()), max(here.values()))
    assert sum(record["seconds"] for record in levels) == pytest.approx(seconds.sum())
    alone = levels_of(CellTree.single(3), np.array([7]), np.empty(0))
    assert [(each["nodes"], each["cells"], each["least_rows"]) for each in alone] == [(0, 1, 7)]


@pytest.mark.parametrize(
    "children", [[[0, -1]], [[-1, -1]], [[-1, -3]], [[1, -1], [0, -2]], [[1, -1], [-2, -2]], [[-1, -2], [-3, -4]]]
)
def test_what_is_no_tree_is_refused(children):
    count = len(children)
    with pytest.raises(ValueError, match="no tree"):
        CellTree(np.zeros((count, 2)), np.zeros(count), np.array(children, np.int64)).require_sound()
