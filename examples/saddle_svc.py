r"""SaddleSVC as its paper measures it
==================================

SaddleSVC in memory, as the paper measures it: beside NuSVC (its figures 1 and 2) and Gilbert's algorithm (table 1).

Run it by::

    DASK_ODM_DATA=folder python examples/saddle_svc.py figure1 --full --most 5 \
      --keep f1.json --output figure1.png
    python examples/saddle_svc.py figure2 --full --most 60 \
      --keep f2.json --output figure2.png
    DASK_ODM_DATA=folder python examples/saddle_svc.py table1 --full --most 60 \
      --keep t1.json --output table1.png

- figure1: objective and accuracy on test rows over seconds, of the ν-SVM for alpha = 0.85. Every point is a fit of its
  own that was stopped after so many iterations, NuSVC's too; the legend says where NuSVC's first took too long.
- figure2: seconds over the number of rows, of rows in 512 features that no plane separates; NuSVC by its default
  tolerance, the others to a certified gap of 1e-3.
- table1: the hard margin of separable rows; all to a certified gap of 1e-3, or as far as they get in `--most` seconds.

A fit of NuSVC is ended after ``--limit`` seconds, of figure 2 too. With ``--keep`` the same command, given again, goes
on where it was interrupted. Without ``--full`` the rows are few and generated, which takes seconds. Needs Matplotlib
(``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from saddle_data import Kept, Rows, available, published, split, synthetic
from sklearn.svm import NuSVC

from dask_odm import SaddleSVC

ALPHA, TOL, FOREVER = 0.85, 1e-3, 1_000_000
SETS = ("a7a", "phishing", "ijcnn1", "skin-nonskin")
# Seconds of the paper's table 1: its own machine, its stopping rule (two
# objectives that differ by less than 1e-3).
PAPER = {
    "iris": (0.152, 0.0005),
    "mushrooms": (11.2, 12.5),
    "8": (9.33, 1.52),
    "32": (28.8, 10.1),
    "128": (64.0, 152.0),
    "512": (189.0, 2327.0),
}


class Point(NamedTuple):
    """A fit: seconds, half the squared distance of its points of the hulls,
    accuracy, and whether it had ended.
    """

    seconds: float
    objective: float
    accuracy: float
    ended: bool


class TimeUpError(Exception):
    pass


def timed(model: Any, rows: Rows) -> tuple[Any, float]:
    began = time.perf_counter()
    model.fit(*rows[:2])
    return model, time.perf_counter() - began


def of_saddle(solver: str, rows: Rows, steps: int) -> Point:
    """A fit of at most ``steps`` iterations, or sweeps."""
    model, seconds = timed(
        SaddleSVC(
            ALPHA, solver=solver, tol=TOL, max_iter=steps, random_state=0
        ),
        rows,
    )
    last = model.history_[-1]
    return Point(
        seconds,
        last["objective"],
        model.score(*rows[2:]),
        model.n_iter_ < steps or last["gap"] <= TOL,
    )


def compile_loops(width: int) -> None:
    """So that no fit that is timed waits for it."""
    for solver in ("saddle", "mnp"):
        of_saddle(solver, split(*synthetic(100, width, separable=False)), 16)


def of_nu_svc(rows: Rows, steps: int) -> Point:
    """As `of_saddle`; the objective is that of its own dual variables."""
    y = rows[1]
    least = min(np.sum(y == y.max()), np.sum(y == y.min()))
    nu = 2 * ALPHA * least / len(y) * (1 - 1e-9)
    model, seconds = timed(
        NuSVC(kernel="linear", nu=nu, cache_size=1000, max_iter=steps), rows
    )
    # both classes' dual variables sum to as much
    half = float(np.abs(model.dual_coef_).sum()) / 2
    objective = 0.5 * float(np.sum((model.coef_ / half) ** 2))
    return Point(
        seconds,
        objective,
        model.score(*rows[2:]),
        steps < 0 or int(model.n_iter_[0]) < steps,
    )


def within(limit: float, fit: Callable[[], Point]) -> Point | None:
    """A fit in a process of its own, which is ended after ``limit`` seconds:
    then there is none.
    """
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: send.send(fit())
    )
    process.start()
    found: Point | None = receive.recv() if receive.poll(limit) else None
    process.terminate()
    process.join()
    return found


def growing(
    fit: Callable[[int], Point | None], first: int, most: float
) -> Iterator[Point]:
    """Fits of more and more iterations, until one has ended, took more than
    ``most`` seconds or is none.
    """
    steps = first
    while (point := fit(steps)) is not None:
        yield point
        if point.ended or point.seconds > most:
            return
        steps *= 2


def curve(
    solver: str, rows: Rows, options: argparse.Namespace
) -> list[Point]:
    """Points of a solver for figure 1."""
    fits: dict[str, tuple[Callable[[int], Point | None], int]] = {
        "saddle": (lambda steps: of_saddle("saddle", rows, steps), 16),
        "mnp": (lambda steps: of_saddle("mnp", rows, steps), 1),
        "NuSVC": (
            lambda steps: within(
                options.limit, lambda: of_nu_svc(rows, steps)
            ),
            100,
        ),
    }
    return list(growing(*fits[solver], options.most))


def figure1(options: argparse.Namespace) -> Figure:
    names = available(SETS, options.data) if options.full else []
    sets = {name: published(name, options.data) for name in names}
    if not sets:
        sets["synthetic"] = split(*synthetic(1000, 16, separable=False))
    figure = Figure(figsize=(7, 3.4 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), 2, squeeze=False)
    compile_loops(8)
    for (name, rows), (left, right) in zip(sets.items(), axes, strict=True):
        for solver in ("saddle", "mnp", "NuSVC"):
            measured = options.kept(
                f"{name} {solver}",
                lambda rows=rows, solver=solver: curve(solver, rows, options),
            )
            points = [Point(*each) for each in measured]
            seconds, shown = (
                [point.seconds for point in points],
                label(solver, points, options.limit),
            )
            left.loglog(
                seconds,
                [max(point.objective, 1e-12) for point in points],
                "o-",
                markersize=3,
                label=shown,
            )
            right.semilogx(
                seconds,
                [point.accuracy for point in points],
                "o-",
                markersize=3,
            )
            print(
                f"{name:13} {len(rows[1]):7} rows  "
                f"{described(shown, points)}",
                flush=True,
            )
        left.set(ylabel=f"{name}\nobjective", xlabel="seconds")
        right.set(ylabel="accuracy", xlabel="seconds")
        for ax in (left, right):
            ax.tick_params(axis="x", which="minor", labelbottom=False)
        left.legend()
    return figure


def label(solver: str, points: list[Point], limit: float) -> str:
    """What the legend says of a solver."""
    if not points:
        return f"{solver}: none within {limit:g} s"
    return solver if points[-1].ended else f"{solver}: not ended"


def described(shown: str, points: list[Point]) -> str:
    """Where a curve ends."""
    if not points:
        return shown
    last = points[-1]
    return (
        f"{shown:18} {last.seconds:9.3f} s  "
        f"objective {last.objective:.3e}  accuracy {last.accuracy:.4f}"
    )


def figure2(options: argparse.Namespace) -> Figure:
    sizes, d = (
        ((5000, 20_000, 50_000), 512)
        if options.full
        else ((300, 600, 1200), 16)
    )
    found: dict[str, list[float]] = {"saddle": [], "mnp": [], "NuSVC": []}
    compile_loops(d)
    for n in sizes:
        rows = split(*synthetic(n * 10 // 9, d, separable=False))
        for solver, seconds in found.items():
            if len(seconds) < sizes.index(n) or (
                seconds and seconds[-1] > options.most
            ):
                continue  # more rows take longer still
            measured = options.kept(
                f"{n} {solver}",
                lambda rows=rows, solver=solver: whole(solver, rows, options),
            )
            points = [Point(*measured)] if measured else []
            print(
                f"{n:7} rows  "
                f"{described(label(solver, points, options.limit), points)}",
                flush=True,
            )
            seconds += [measured[0]] if measured else []
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for solver, seconds in found.items():
        more = (
            ""
            if len(seconds) == len(sizes)
            else f": more rows not within {options.limit:g} s, or not tried"
        )
        axes.loglog(sizes[: len(seconds)], seconds, "o-", label=solver + more)
    axes.set(xlabel="rows", ylabel="seconds", title=f"d = {d}, α = {ALPHA}")
    figure.legend(loc="outside lower center")
    return figure


def whole(
    solver: str, rows: Rows, options: argparse.Namespace
) -> Point | None:
    """A fit to its end, for figure 2."""
    if solver == "NuSVC":
        return within(options.limit, lambda: of_nu_svc(rows, -1))
    return of_saddle(solver, rows, 10_000)


def hard_margin(
    solver: str, rows: Rows, most: float
) -> tuple[float, float, float, int]:
    """Seconds, half the squared distance, gap and iterations of a fit that is
    stopped after ``most`` seconds.
    """
    heard: list[Any] = []
    began = time.perf_counter()

    def listen(event: Any) -> None:
        if hasattr(event, "gap"):
            heard.append(event)
        if time.perf_counter() - began > most:
            raise TimeUpError

    model = SaddleSVC(
        None,
        solver=solver,
        tol=TOL,
        max_iter=FOREVER,
        random_state=0,
        callbacks=[listen],
    )
    with contextlib.suppress(TimeUpError):
        model.fit(*rows[:2])
    seconds, last = time.perf_counter() - began, heard[-1]
    steps = model.n_iter_ if hasattr(model, "n_iter_") else round(last.passes)
    return seconds, last.objective, last.gap, steps


def table1(options: argparse.Namespace) -> Figure:
    sets: dict[str, Rows] = {}
    for name in (
        available(("iris", "mushrooms"), options.data) if options.full else ()
    ):
        sets[name] = published(name, options.data)
    n, sizes = (10_000, (8, 32, 128, 512)) if options.full else (500, (4, 8))
    sets |= {str(d): (*synthetic(n, d), None, None) for d in sizes}
    hard_margin("saddle", (*synthetic(100, 8), None, None), 1.0)  # compiles
    print(
        "data set   solver        s    ½‖z‖²     gap  steps   the paper's s"
    )
    found: dict[str, list[float]] = {}
    for name, rows in sets.items():
        for solver in ("mnp", "saddle", "gilbert"):
            measured = options.kept(
                f"{name} {solver}",
                lambda rows=rows, solver=solver: hard_margin(
                    solver, rows, options.most
                ),
            )
            seconds, objective, gap, steps = measured
            paper = dict(
                zip(("saddle", "gilbert"), PAPER.get(name, ()), strict=False)
            ).get(solver, "")
            print(
                f"{name:10} {solver:8} {seconds:6.2f} {objective:8.5f} "
                f"{gap:.1e} {steps:6}   {paper}",
                flush=True,
            )
            if name.isdigit():
                found.setdefault(solver, []).append(
                    seconds if gap <= TOL else np.nan
                )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for solver, times in found.items():
        axes.loglog(sizes, times, "o-", label=solver)
    for at, solver in enumerate(
        ("saddle", "gilbert") if options.full else ()
    ):
        axes.loglog(
            sizes,
            [PAPER[str(d)][at] for d in sizes],
            ":",
            label=f"{solver}, the paper's",
        )
    axes.set(
        xlabel="features",
        ylabel="seconds",
        title=f"hard margin, n = {n:,}, gap of {TOL:g}",
    )
    axes.legend()
    return figure


FIGURES = {"figure1": figure1, "figure2": figure2, "table1": table1}


def main(arguments: list[str] | None = None) -> None:
    """Make one of the figures, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "figure",
        nargs="?",
        choices=list(FIGURES),
        help="Without it all of them, one after the other.",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="The paper's sizes, and published data where they are.",
    )
    parser.add_argument(
        "--most",
        type=float,
        default=1.0,
        help="Seconds after which nothing longer is tried.",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="Seconds after which a fit of NuSVC is ended.",
    )
    parser.add_argument(
        "--keep",
        help="JSON file of what was measured; what is there is kept.",
    )
    parser.add_argument(
        "--data",
        default=os.environ.get("DASK_ODM_DATA"),
        help="Folder of published data sets.",
    )
    parser.add_argument(
        "--output",
        help="File for the figure, such as figure1.png; else none.",
    )
    options = parser.parse_args(arguments)
    options.kept = Kept(options.keep)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits are stopped early on purpose
        for name in [options.figure] if options.figure else FIGURES:
            FIGURES[name](options).savefig(
                options.output or io.BytesIO(), dpi=120
            )


if __name__ == "__main__":
    main()
