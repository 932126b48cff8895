"""`dask-odm plan`: what a fit takes on a cluster that is not there yet."""

from __future__ import annotations

from typing import Any

import click

from dask_odm.cli.shell import Size, emit, json_option, progress_shown, word_option

SOLVERS = ("newton", "landmark", "cells")  # those that learn from any number of rows


@click.command()
@click.option("--rows", type=Size(), required=True, metavar="COUNT", help="Rows to learn from, such as 1e9.")
@click.option("--features", type=click.IntRange(1, 10_000), required=True, help="Features of a row, which is dense.")
@click.option(
    "--workers", type=click.IntRange(1), required=True, help="Workers of one thread; one of 8 threads counts as eight."
)
@click.option("--memory", default="4GB", show_default=True, metavar="LIMIT", help="Memory of each worker.")
@word_option("--estimator", "odm", "regressor", text="What is learned.")
@click.option("--solver", type=click.Choice(SOLVERS), help="Plan for this one alone.  [default: all three]")
@click.option("--price", type=click.FloatRange(0.0), metavar="DOLLARS", help="What a core costs for an hour.")
@json_option
def plan(
    rows: int, features: int, workers: int, memory: str, estimator: str, solver: str | None, price: float | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Say what a fit takes: time, memory of each process, tasks, cost, and how many workers are worth it.

    Short fits of made-up rows are measured on this machine, in some ten seconds; how the engine spends its time on
    many workers was measured before. Workers are taken for as fast as this machine, and their storage as well; data
    that need more passes than the made-up rows take longer.
    """
    from dask_odm.diagnostics.planning import Asked, measured_costs, measured_machine, planned
    from dask_odm.engine.limits import parse_limit

    if rows < 1:
        raise click.UsageError("--rows must be positive.")
    real = estimator == "regressor"
    asked = Asked(rows, features, workers, parse_limit(memory), real)
    with progress_shown() as seconds:
        costs = {name: measured_costs(name, features, real=real) for name in (SOLVERS if solver is None else (solver,))}
        machine = measured_machine()
        found = [planned(name, own, machine, asked) for name, own in costs.items()]
        taken = seconds()
    plans = [vars(each) | ({} if price is None else {"cost": price * each.core_hours}) for each in found]
    emit(as_json, {"plans": plans, "machine": vars(machine), "seconds": taken}, _table(plans))


def _table(plans: list[dict[str, Any]]) -> str:
    """Return a line for each solver."""
    import pandas as pd
    from dask.utils import format_bytes, format_time

    def cells(plan: dict[str, Any]) -> dict[str, str]:
        found = {"solver": plan["solver"], "time": format_time(plan["seconds"])}
        if "cost" in plan:
            found["cost"] = f"${plan['cost']:,.2f}"
        found |= {"efficiency": f"{plan['efficiency']:.0%}", "80 % up to": f"{plan['enough']:,} workers"}
        found |= {"passes": f"{plan['passes']:.0f}", "tasks": f"{plan['tasks']:,}"}
        found |= {name: format_bytes(plan[f"{name}_bytes"]) for name in ("worker", "client", "scheduler")}
        return found | {"fits": "yes" if plan["fits"] else "no"}

    return pd.DataFrame(map(cells, plans)).to_string(index=False)
