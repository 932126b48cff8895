"""What `rivals.py` measured: a table of all methods, one of the strongest rivals, and error against time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cells import NONE, table_head
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

AS_ACCURATE = 0.002  # accuracy by which a rival that is called as accurate may be behind
COSTS = ("fit", "predict", "memory")
FIGURES = ("rows", "accuracy", "balanced", "AUC", "log loss", *COSTS)
HEAD = ("data", "method", *FIGURES[:-3], "fit, s", "predict, s", "memory, MB")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means over seeds, with standard errors of the figures that are no costs, as Markdown."""
    groups = _groups(rows)
    means, errors = groups[list(FIGURES)].mean(), groups[list(FIGURES)].sem()
    failed = groups["failed"].first()
    lines = [table_head(HEAD)]
    for (data, method, size), row in means.iterrows():
        key = data, method, size
        cells = [_shown(name, mean, errors.loc[key, name]) for name, mean in row.items()]
        if isinstance(failed[key], str):
            cells[1] = failed[key].replace("|", "/")
        lines.append(f"| {' | '.join([data, f'{method}, {size:,}' if size else method, *cells])} |")
    return "\n".join(lines)


def strongest(rows: list[dict[str, Any]]) -> str:
    """Return ODM by default beside the most accurate rival and the quickest one as accurate, as Markdown.

    Of each: accuracy, seconds of the fit and of prediction; those of rivals are in times ODM's.
    """
    means = _groups(rows)[list(FIGURES)].mean().dropna(subset="accuracy").droplevel("size")
    lines = [table_head(("data", "ODM", "most accurate rival", "quickest rival as accurate"))]
    for data in means.index.unique("data"):
        found = means.loc[data]
        if "ODM" not in found.index:
            continue
        ours = found.loc["ODM"]
        cells = [f"{ours['accuracy']:.4f}, {ours['fit']:.3g} s, {ours['predict']:.3g} s", NONE, NONE]
        rivals = found[~found.index.str.startswith("ODM")]
        as_accurate = rivals[rivals["accuracy"] >= ours["accuracy"] - AS_ACCURATE]
        named = [*rivals.nlargest(1, "accuracy").iterrows(), *as_accurate.nsmallest(1, "fit").iterrows()]
        for i, (name, row) in enumerate(named, 1):
            times = row / ours
            cells[i] = f"{name} {row['accuracy']:.4f}, × {times['fit']:.3g}, × {times['predict']:.3g}"
        lines.append(f"| {' | '.join([data, *cells])} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], image: Path) -> None:
    """Draw the first seed's error against the seconds of its fit, both on logarithmic scales, a panel for each set."""
    frame = pd.DataFrame([row for row in rows if row.get("seed") == 0])
    sets = frame["data"].unique()
    height = -(-len(sets) // 2)
    figure = Figure((11, 3.6 * height + 0.6))
    panels = figure.subplots(height, 2, squeeze=False)
    for panel in panels.flat[len(sets) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, sets, strict=False):
        for i, method in enumerate(sorted(frame["method"].unique(), key=lambda name: not name.startswith("ODM"))):
            points = frame[(frame["data"] == name) & (frame["method"] == method)].sort_values("fit")
            style = "o-" if method.startswith("ODM") else "s--"  # colours repeat after ten methods
            error = 100.0 * (1.0 - points["accuracy"])
            panel.plot(points["fit"], error, style, color=f"C{i % 10}", label=method, markersize=4)
        panel.set(xscale="log", yscale="log", title=name, xlabel="seconds of the fit", ylabel="error, %")
        seconds, errors = (_ticks(*limits) for limits in (panel.get_xlim(), panel.get_ylim()))
        panel.set_xticks(seconds, [f"{each:g}" for each in seconds])
        panel.set_yticks(errors, [f"{each:g}" for each in errors])
        panel.minorticks_off()
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 1.1 / figure.get_figheight(), 1, 1))
    figure.savefig(image, dpi=90, metadata={"Date": None} if image.suffix == ".svg" else None)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers within limits: 1, 2 and 5 times powers of ten, or equally spaced ones if these are few."""
    powers = [float(f"{digit}e{power}") for power in range(-5, 5) for digit in (1, 2, 5)]
    found = [each for each in powers if low <= each <= high]
    return found if len(found) > 2 else [each for each in MaxNLocator(5).tick_values(low, high) if low <= each <= high]


def _groups(rows: list[dict[str, Any]]) -> Any:
    """Return rows grouped over their seeds."""
    frame = pd.DataFrame(rows, columns=["data", "method", "size", "failed", *FIGURES])
    return frame.groupby(["data", "method", "size"], sort=False)


def _shown(figure: str, mean: float, error: float) -> str:
    """Return a figure as the table has it."""
    if np.isnan(mean):
        return NONE
    if figure == "rows":
        return f"{mean:,.0f}"
    if figure in COSTS:
        return f"{mean:.3g}"
    return f"{mean:.4f}" if np.isnan(error) else f"{mean:.4f} ± {error:.4f}"
