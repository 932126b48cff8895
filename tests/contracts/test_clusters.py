"""Every estimator: two workers give the bits of this process, a worker killed in mid-fit too."""

from __future__ import annotations

import pytest

from contracts.cases import CASES, assert_equal, steps

pytestmark = pytest.mark.usefixtures("over_passes")


@pytest.fixture(scope="module")
def alone_of(without_workers, path_of):
    """``alone_of(case)``: the model of its store, fitted in this process."""
    kept = {}

    def fit(case):
        if case.name not in kept:
            with without_workers():
                kept[case.name] = case.fit(path_of(case))
        return kept[case.name]

    return fit


# One for each way in which work is spread: whoever spreads it brings lost workers' work back, whatever is learned.
SPREAD = ("exact", "landmark", "sodm", "dc", "newton", "dsvrg", "saddle point by clients", "kernel shards", "mixing")
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in SPREAD else pytest.mark.slow, id=case.name) for case in CASES],
)
def test_workers_give_the_same_bits(case, client, path_of, alone_of):
    case.require("cluster")
    assert_equal(case.fit(path_of(case)), alone_of(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", [BY_NAME[name] for name in SPREAD], ids=lambda case: case.name)
def test_a_worker_killed_in_mid_fit_changes_no_bit(case, client, path_of, alone_of, killer):
    case.require("cluster")
    case.require("events")
    expected = alone_of(case)
    kill = killer(client, lambda event: bool(steps([event])))
    assert_equal(case.fit(path_of(case), callbacks=[kill]), expected)
    assert kill.killed
