"""Plans: within what was measured, monotone, with the memory that fits themselves ask for."""

from itertools import pairwise
from typing import Any

import dask
import planned as points
import pytest
from planned import POINTS, Point, plan_of

from dask_odm.diagnostics import planning
from dask_odm.diagnostics.planning import ENOUGH, Asked, Costs, Machine, Plan, measured_costs, planned
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.limits import USABLE

# Measured by `python benchmarks/planned.py` on the machine of benchmarks/MEASURED.md; but a row of "landmark", which
# took 2.3e-6 s, is that of the fit of 5 million rows there.
MACHINE = Machine(0.00076, 220_000_000, 387_000_000)
COSTS = {
    ("cells", 20): Costs(0.003, 3.89e-5, 1.0, 0.907),
    ("landmark", 18): Costs(0.356, 1.66e-6, 12.0, 0.00333),
    ("newton", 18): Costs(0.128, 4.34e-8, 6.0, 0.0),
}
SOLVERS = [solver for solver, _ in COSTS]


def plan(solver: str, rows: int, workers: int, features: int = 50, memory: int = 8 * 10**9) -> Plan:
    costs = next(costs for (name, _), costs in COSTS.items() if name == solver)
    return planned(solver, costs, MACHINE, Asked(rows, features, workers, memory))


@pytest.mark.parametrize("point", POINTS, ids=lambda each: f"{each.solver}-{each.rows}-{each.workers}")
def test_plans_are_near_what_was_measured(point: Point) -> None:
    found = plan_of(point, COSTS, MACHINE)
    assert 1 / 1.5 < found.seconds / point.seconds < 1.5
    if point.worker is not None:
        assert point.worker < found.worker_bytes < 2 * point.worker
    for process in ("client", "scheduler"):
        if (own := getattr(point, process)) is not None:
            assert 1 / 1.5 < getattr(found, f"{process}_bytes") / own < 1.5


def test_the_benchmark_prints_every_point(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(points, "measured_machine", lambda: MACHINE)
    costs = {solver: costs for (solver, _), costs in COSTS.items()}
    monkeypatch.setattr(points, "measured_costs", lambda solver, features: costs[solver])
    points.main(["--repeats", "2"])
    table = [line.count("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert table == [13] * (2 + len(POINTS)) + [8] * (2 + 4 * len(costs)), "points, and the table of docs/scale.md"


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_rows_take_more_of_everything(solver: str) -> None:
    plans = [plan(solver, 10**6 * 4**i, 64) for i in range(7)]
    for less, more in pairwise(plans):
        assert less.seconds < more.seconds
        for name in ("enough", "tasks", "worker_bytes"):
            assert getattr(less, name) <= getattr(more, name), name
    assert plans[0].client_bytes <= plans[-1].client_bytes


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_workers_take_less_time_and_more_of_it_is_lost(solver: str) -> None:
    enough = plan(solver, 10**9, 1).enough
    plans = [plan(solver, 10**9, max(1, enough * share // 64)) for share in (1, 4, 16, 64, 256, 1024)]
    for fewer, more in pairwise(plans):
        assert fewer.efficiency > more.efficiency
        assert fewer.core_hours < more.core_hours
    for fewer, more in pairwise(plans[:4]):
        assert fewer.seconds > more.seconds
    assert plans[3].efficiency >= ENOUGH > plans[4].efficiency
    assert plan(solver, 10**9, enough + 1).efficiency < ENOUGH


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_memory_is_what_a_fit_asks_for(solver: str, real: bool, client: Any, tmp_path: Any, monkeypatch: Any) -> None:
    asked = []
    require = Cluster.require

    def record(self: Cluster, nbytes: int, *others: Any) -> None:
        if self.client is not None:
            asked.append(nbytes)
        require(self, nbytes, *others)

    monkeypatch.setattr(Cluster, "require", record)
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        planning._fitted(solver, 3000, 7, str(tmp_path), real)
    found = planned(solver, Costs(0.0, 1e-6, 1.0, 1.0), MACHINE, Asked(3000, 7, 2, 10**9, real))
    assert found.worker_bytes == int((MACHINE.worker + max(asked)) / USABLE)
    assert found.fits


def test_what_does_not_fit_says_so() -> None:
    assert plan("landmark", 10**9, 200).fits
    assert not plan("landmark", 10**9, 200, memory=4 * 10**8).fits


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_costs_are_of_this_machine(solver: str, real: bool, monkeypatch: Any) -> None:
    monkeypatch.setitem(planning.NUMBERS, solver, (40_000, 8_000))
    found = measured_costs(solver, 4, real=real)
    assert found.row > 0
    assert found.passes >= 1
    assert found.fixed >= 0
    assert (found.support > 0) == (solver != "newton")
