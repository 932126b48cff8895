"""Plans of `dask-odm plan` beside fits that were measured: seconds, and the memory of workers and client.

    python benchmarks/planned.py [--repeats 3]

Costs are measured here, for each solver and number of features, as the command does it; with repeats, the middle of
each is taken. The points are those of MEASURED.md, which one machine of two cores made on different days: fits
of stores by one and two workers (`landmark_store.py`, `linear_store.py`, `cells_store.py`), and passes of the engine on
100 and 1,000 workers whose tasks sleep (`scale.py`). Of the latter a row costs what the sleep says.

The second table is that of docs/scale.md: as many workers as compute for 80 % of the time.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import astuple, dataclass, replace

from dask_odm.diagnostics.planning import (
    NUMBERS,
    Asked,
    Costs,
    Machine,
    Plan,
    measured_costs,
    measured_machine,
    planned,
)
from dask_odm.engine.limits import USABLE

SCALE_FEATURES = 20  # of the rows of docs/scale.md
SLEEPING = 300_000_000  # bytes of a process of scale.py that has done nothing yet, which loads dask.array


@dataclass(frozen=True)
class Point:
    """A fit that was measured: seconds, and bytes of the largest worker, client and scheduler where they are known."""

    solver: str
    rows: int
    features: int
    workers: int
    seconds: float
    worker: float | None = None
    client: float | None = None
    scheduler: float | None = None
    row: float | None = None  # seconds that a row was given, in the one pass of scale.py


POINTS = (
    Point("newton", 50_000_000, 18, 2, 5.1, 230e6),
    Point("landmark", 500_000, 18, 2, 7.2),
    Point("landmark", 1_000_000, 18, 2, 13.0),
    Point("landmark", 2_000_000, 18, 2, 19.0),
    Point("landmark", 5_000_000, 18, 2, 50.9, 390e6),  # bytes of a run before, which took more: now 293e6
    Point("cells", 5_000_000, 20, 1, 164.6, 499e6, 949e6),
    Point("cells", 5_000_000, 20, 2, 88.4, 448e6, 949e6),
    Point("cells", 10_000_000, 20, 2, 174.8, 521e6, 1488e6),
    Point("cells", 20_000_000, 20, 2, 366.1, 514e6, 2635e6),
    # seconds are the 10 of sleep, of cells 30.4, over the efficiency "alone"
    Point("newton", 100_000_000, 50, 100, 10 / 0.98, None, 302e6, 305e6, 1e-5),
    Point("newton", 1_000_000_000, 50, 1000, 10 / 0.90, None, 324e6, 358e6, 1e-5),
    Point("landmark", 100_000_000, 50, 100, 10 / 0.97, None, 315e6, 315e6, 1e-5),
    Point("landmark", 1_000_000_000, 50, 1000, 10 / 0.89, None, 342e6, 375e6, 1e-5),
    Point("cells", 100_000_000, 50, 100, 30.4 / 0.98, None, 337e6, 310e6, 3.04e-5),
    Point("cells", 1_000_000_000, 50, 1000, 30.4 / 0.81, None, 696e6, 386e6, 3.04e-5),
)


def plan_of(point: Point, costs: dict[tuple[str, int], Costs], machine: Machine) -> Plan:
    """Return the plan of what a point measured."""
    memory = 10**9
    if point.row is None:
        own = costs[point.solver, point.features]
    else:  # the bins of scale.py have four support rows in 4,096, and its workers 2 GiB for tasks
        own = Costs(0.0, point.row, 1.0, 4 / 4096)
        machine = replace(machine, worker=SLEEPING, client=SLEEPING)
        memory = int(((2 << 30) + machine.worker) / USABLE)
    return planned(point.solver, own, machine, Asked(point.rows, point.features, point.workers, memory))


def middle(found: list[Costs]) -> Costs:
    """Return the middle of each figure."""
    return Costs(*map(statistics.median, zip(*map(astuple, found), strict=True)))


def scale_table(costs: dict[tuple[str, int], Costs], machine: Machine) -> list[str]:
    """Return a line for each solver and number of rows: workers, time, cost, and memory of a worker and the client."""
    lines = ["| solver | rows | workers | time | cost | a worker | the client |", f"|{'---|' * 7}"]
    for solver in NUMBERS:
        own = costs[solver, SCALE_FEATURES]
        for rows in (10**6, 10**7, 10**8, 10**9):
            asked = Asked(rows, SCALE_FEATURES, 1, 8 * 10**9)
            plan = planned(solver, own, machine, asked)
            plan = planned(solver, own, machine, replace(asked, workers=plan.enough))
            told = f"{plan.enough} | {plan.seconds:.3g} s | ${0.05 * plan.core_hours:.2f}"
            worker, client = plan.worker_bytes / 1e6, plan.client_bytes / 1e9
            lines.append(f'| `"{solver}"` | {rows:,} | {told} | {worker:.0f} MB | {client:.2g} GB |')
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each solver's costs")
    options = parser.parse_args(arguments)
    costs = {}
    shown = {(solver, SCALE_FEATURES) for solver in NUMBERS}
    for key in sorted(shown | {(each.solver, each.features) for each in POINTS if each.row is None}):
        costs[key] = middle([measured_costs(*key) for _ in range(options.repeats)])
        print(key, costs[key], flush=True)
    machine = measured_machine()
    print(machine)
    head = ("solver", "rows", "workers", "seconds", "planned", "ratio", "worker, MB", "planned", "client", "planned",
            "scheduler", "planned")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for point in POINTS:
        plan = plan_of(point, costs, machine)
        known = []
        for process in ("worker", "client", "scheduler"):
            own = getattr(point, process)
            told = getattr(plan, f"{process}_bytes")
            known += ["", ""] if own is None else [f"{nbytes / 1e6:,.0f}" for nbytes in (own, told)]
        seconds = f"{point.seconds:.3g} | {plan.seconds:.3g} | {plan.seconds / point.seconds:.2f}"
        print(f"| {point.solver} | {point.rows:,} | {point.workers} | {seconds} | {' | '.join(known)} |")
    print("\n".join(scale_table(costs, machine)))


if __name__ == "__main__":
    main()
