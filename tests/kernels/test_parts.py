"""Parts of a Gram matrix, as tasks on other machines hold them: together they are the whole, to the bit."""

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian, Polynomial, blocks
from dask_odm.kernels.blocks import Gram, Tiling
from dask_odm.linalg.row_passes import tree_sum
from dask_odm.linalg.rows import ArrayRows
from dask_odm.linalg.threads import single_threaded_blas
from small_problems import matrix

PLENTY = 1 << 30


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TILE_ROWS", 24)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "n"),
    [(RBF(1.0, 0.3), 24 * 6), (Laplacian(0.0, 0.3), 24 * 37 + 5), (Polynomial(), 24 * 64 + 1)],
    ids=lambda each: getattr(each, "name", None),
)
def test_parts_add_up_to_the_bits_of_the_whole(n, dtype, kernel):
    rng = np.random.default_rng(n)
    X, v = ArrayRows(rng.normal(size=(n, 3)).astype(dtype)), rng.normal(size=n)
    with single_threaded_blas:
        whole = Gram(kernel, X, PLENTY).matvec(v)
        K = matrix(kernel, X.X)
        assert np.abs(whole - K @ v).max() <= {"float32": 1e-5, "float64": 1e-12}[dtype] * (np.abs(K) @ np.abs(v)).max()
        for of, threads, budget in ((1, 2, 0), (2, 1, PLENTY), (4, 2, PLENTY), (8, 1, 0), (8, 2, 0)):
            parts = (Gram(kernel, X, budget, threads, (i, of)).matvec(v) for i in range(of))
            assert tree_sum(parts).tobytes() == whole.tobytes()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("of", [1, 8])
def test_a_part_keeps_only_its_tiles(of):
    n = 24 * 40
    X = ArrayRows(np.random.default_rng(0).normal(size=(n, 3)))
    bytes_of = [Tiling(n, 3, 8).kept_bytes((i, of)) for i in range(of)]
    assert sum(bytes_of) == Tiling(n, 3, 8).kept_bytes()
    assert max(bytes_of) <= 1.15 * min(bytes_of), "parts are the same work"
    for i, needed in enumerate(bytes_of):
        kept = Gram(RBF(), X, needed, part=(i, of))
        assert kept.keeps
        assert kept._tiles is not None
        assert kept._tiles.nbytes == needed
        assert not Gram(RBF(), X, needed - 1, part=(i, of)).keeps


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("count", [*range(1, 12), 31, 32, 33, 100])
def test_every_pair_of_blocks_has_one_tile_and_every_row_the_same_work(count):
    tiling = Tiling(24 * count, 1, 8)
    assert tiling.count == count
    pairs = [(i, j) for g in range(tiling.groups) for i in tiling.rows((g, tiling.groups)) for j in tiling.row(i)]
    assert [tiling.index(i, j) for i, j in pairs] == list(range(count * (count + 1) // 2))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == tiling.tiles()
    assert {(i, j) for i in range(count) for j in range(count) if tiling.owns(i, j)} == set(pairs)
    lengths = {len(tiling.row(i)) for i in range(count)}
    assert max(lengths) - min(lengths) <= 1
