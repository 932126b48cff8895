"""Boxes and arrows, for pictures of what talks to what."""

from __future__ import annotations

from typing import Any

INK = "#333333"


def box(
    ax: Any,
    x: float,
    y: float,
    text: str,
    *,
    width: float = 1.6,
    height: float = 0.8,
    color: str = "C0",
) -> None:
    """Draw a box around its middle, with text inside."""
    from matplotlib.patches import FancyBboxPatch

    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.1"
    ax.add_patch(
        FancyBboxPatch(
            corner,
            width,
            height,
            boxstyle=style,
            facecolor=color,
            alpha=0.25,
            linewidth=0,
        )
    )
    ax.add_patch(
        FancyBboxPatch(
            corner,
            width,
            height,
            boxstyle=style,
            facecolor="none",
            edgecolor=color,
        )
    )
    ax.text(x, y, text, ha="center", va="center", linespacing=1.4)


def arrow(
    ax: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    style: str = "->",
) -> None:
    """Draw an arrow, with text over its middle."""
    ax.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": style, "color": INK, "linewidth": 1.5},
    )
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.08)
    ax.text(*middle, text, ha="center", va="bottom", fontsize=9)


def canvas(width: float, height: float) -> Any:
    """Return axes without marks, an inch a unit."""
    from matplotlib import pyplot as plt

    ax = plt.figure(figsize=(width, height)).subplots()
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.axis("off")
    return ax
