"""Plots of a benchmark's records, as the SODM paper's four figures: one panel a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.matrix import Results
from benchmarks.papers.methods import INGREDIENTS
from benchmarks.papers.report import Record, average, grouped

Draw = Callable[[Any, list[Record]], None]


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Draw what there are records for; the files. Nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    done = [r for r in results.done if r["cell"]["seed"] == 0 and r["cell"]["method"] not in INGREDIENTS]
    whole = [r for r in done if r["cell"]["cores"] is None]
    drawn: dict[str, tuple[Draw, list[Record]]] = {}
    for kernel in ("rbf", "linear"):
        own = [r for r in whole if r["cell"]["kernel"] == kernel]
        drawn[f"levels-{kernel}"] = draw_levels, [r for r in own if r.get("level_accuracy")]
        drawn[f"gaps-{kernel}"] = draw_gaps, [r for r in own if len(r["steps"]) > 1 or len(r["levels"]) > 1]
    drawn["speed-up"] = draw_speed_up, [r for r in results.done if r["cell"]["cores"] is not None]
    return [panels(Figure, folder / f"{name}.png", *asked) for name, asked in drawn.items() if asked[1]]


def panels(figure: Callable[..., Any], path: Path, draw: Draw, records: list[Record]) -> Path:
    """One panel for every data set, and one legend."""
    sets = grouped(records, "data")
    columns = min(3, len(sets))
    rows = -(-len(sets) // columns)
    whole = figure(figsize=(4.6 * columns + 2.2, 3.4 * rows), layout="constrained")
    axes = whole.subplots(rows, columns, squeeze=False).ravel()
    for ax, ((data,), own) in zip(axes, sets, strict=False):
        draw(ax, own)
        ax.set_title(data)
    for ax in axes[len(sets) :]:
        ax.set_axis_off()
    lines = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    whole.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize="small")
    whole.savefig(path, dpi=120)
    return path


def draw_levels(ax: Any, records: list[Record]) -> None:
    """Test accuracy over seconds, a point a level: figures 1 and 3."""
    for record in records:
        seconds = [level["ended"] for level in record["levels"]]
        ax.plot(seconds, record["level_accuracy"], "o-", label=record["cell"]["method"], markersize=4)
    ax.set(xscale="log", xlabel="seconds", ylabel="test accuracy")


def draw_speed_up(ax: Any, records: list[Record]) -> None:
    """Times as fast over cores: figure 2."""
    for (kernel,), own in grouped(records, "kernel"):
        seconds = {cores: average(some, lambda r: r["fit"]) or 0.0 for (cores,), some in grouped(own, "cores")}
        cores = sorted(seconds)
        ax.plot(cores, [seconds[cores[0]] / seconds[c] for c in cores], "o-", label=f"sodm, {kernel}")
    ax.set(xlabel="cores", ylabel="times as fast")


def draw_gaps(ax: Any, records: Sequence[Record]) -> None:
    """Relative gap over seconds, a point a step, an epoch or a level: figure 4."""
    for record in records:
        steps = record["steps"] or [(level["ended"], level["gap"]) for level in record["levels"]]
        points = [(seconds, gap) for seconds, gap, *_ in steps if gap]
        if points:
            ax.plot(*zip(*points, strict=True), ".-", label=record["cell"]["method"], markersize=5)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative gap")
