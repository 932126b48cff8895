"""A level of a tree in a checkpoint: every bit comes back, and what is no level of the tree is refused."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dask_odm.learning.problem.losses import Point
from dask_odm.learning.solution import Solution
from dask_odm.papers.sodm.workers import LevelState


def made_up(seed: int, n: int, machines: int) -> Solution:
    rng = np.random.default_rng(seed)
    points = [Point(*rng.normal(size=3).tolist()) for _ in range(2)]
    dual = rng.normal(size=(machines, n)) * 10.0 ** rng.integers(-300, 300, (machines, n))
    counts = (int(rng.integers(100)), int(rng.integers(100)), bool(seed % 2), float(rng.uniform()))
    return Solution(dual, float(rng.uniform()), n, *points, *counts, half_norm=float(rng.uniform()))


@pytest.mark.parametrize("sizes", [[5], [4, 0, 7, 1]])
@pytest.mark.parametrize("machines", [1, 3])
def test_every_bit_comes_back(sizes, machines):
    solutions = [made_up(seed, n, machines) for seed, n in enumerate(sizes)]
    found = LevelState.of(0, solutions, [{}]).solutions()
    assert len(found) == len(solutions)
    for one, other in zip(found, solutions, strict=True):
        assert one.dual.tobytes() == other.dual.tobytes()
        assert one.dual.shape == other.dual.shape
        assert one.dual.flags.owndata
        for each in fields(Solution)[1:]:
            assert getattr(one, each.name) == getattr(other, each.name), each.name
            assert type(getattr(one, each.name)) is type(getattr(other, each.name)), each.name


SIZES = [4, 7]
LEVEL = LevelState.of(1, [made_up(seed, n, 1) for seed, n in enumerate(SIZES)], [{}, {}])


@pytest.mark.parametrize(
    "lie",
    [
        {"level": 2},
        {"level": -1},
        {"level": 0},
        {"history": [{}]},
        {"figures": LEVEL.figures[:1]},
        {"figures": LEVEL.figures[:, :9]},
        {"figures": LEVEL.figures + np.eye(1, 14, 2)},
        {"figures": LEVEL.figures - 1e3 * np.eye(1, 14, 1)},
        {"dual": LEVEL.dual[:, 1:]},
        {"dual": LEVEL.dual[0]},
    ],
)
def test_what_is_no_level_is_told(lie):
    assert LEVEL.is_level(2, lambda number: SIZES, all_rows=True)
    assert not replace(LEVEL, **lie).is_level(2, lambda number: SIZES, all_rows=True)


def test_a_cascade_has_dropped_rows():
    dropped = replace(LEVEL, figures=LEVEL.figures - np.eye(1, 14, 2))
    assert dropped.is_level(2, lambda number: SIZES, all_rows=False)
    assert not dropped.is_level(2, lambda number: SIZES, all_rows=True)
