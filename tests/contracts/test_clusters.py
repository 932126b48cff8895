"""Every estimator: two workers give the bits of this process, though one is killed in mid-fit."""

import pytest

from contracts.cases import CASES, assert_equal, each_of, steps

pytestmark = pytest.mark.usefixtures("over_passes")

# One for each way in which work is spread: whoever spreads it brings lost workers' work back, whatever is learned.
SPREAD = (
    "exact", "landmark", "several targets", "sodm", "dc", "newton", "dsvrg", "saddle point by clients", "kernel shards",
    "mixing",
)  # fmt: skip


@pytest.mark.slow
@each_of(*(case.name for case in CASES if case.name not in SPREAD and "cluster" not in case.without))
def test_workers_give_the_same_bits(case, client, path_of, alone_of):
    assert_equal(case.fit(path_of(case)), alone_of(case)[0])


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=() if case.name in ("exact", "landmark", "newton") else pytest.mark.slow, id=case.name)
    for case in CASES
    if case.name in SPREAD
])  # fmt: skip
def test_a_worker_killed_in_mid_fit_changes_no_bit(case, client, path_of, alone_of, killer):
    kill = killer(client, lambda event: bool(steps([event])))
    assert_equal(case.fit(path_of(case), callbacks=[kill]), alone_of(case)[0])
    assert kill.killed
