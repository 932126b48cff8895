"""Questions that lead to an estimator and to a solver."""

from boxes import arrow, box, canvas

ax = canvas(10, 6.2)


def ask(x: float, y: float, text: str, width: float = 2.4) -> None:
    box(ax, x, y, text, width=width, height=0.5)


def answer(x: float, y: float, text: str, width: float = 2.1) -> None:
    box(ax, x, y, text, width=width, height=0.5, color="C2")


def way(
    start: tuple[float, float], end: tuple[float, float], text: str
) -> None:
    """An arrow with a word beside its middle, above it if it is slanted."""
    arrow(ax, start, end)
    left = end[0] < start[0]
    x = (start[0] + end[0]) / 2 + (-0.2 if left else 0.1)
    y = (start[1] + end[1]) / 2 + 0.05 * (start[0] != end[0])
    side = "right" if left else "left"
    ax.text(x, y, text, fontsize=9, ha=side, va="center")


ask(5, 5.9, "What do you want to learn?", 3.4)
found = {
    "numbers": "ODMRegressor",
    "one kind of rows": "OneClassODM",
    "labels from\nmany senders": "MixingClassifier",
}
for x, (what, name) in zip((1.15, 3.5, 5.85), found.items(), strict=True):
    way((min(max(x, 3.5), 6), 5.65), (x, 4.75), what)
    answer(x, 4.5, name)
way((6.5, 5.65), (8.5, 4.75), "classes")
ask(8.5, 4.5, "Must it be a ν-SVM?")
way((7.6, 4.25), (5.85, 3.65), "yes")
answer(5.85, 3.4, "SaddleSVC")
way((8.5, 4.25), (8.5, 3.65), "no")
ask(8.5, 3.4, "Do you know settings?")
way((8, 3.15), (6.6, 2.55), "yes")
answer(6.3, 2.3, "ODMClassifier")
way((8.7, 3.15), (8.7, 2.55), "no")
answer(8.75, 2.3, "ODMClassifierCV")

ax.text(0.1, 1.8, 'The solver (solver="auto" goes this way by itself):')
ask(1.3, 1.4, "Which kernel?", 2.0)
ask(4.9, 1.4, "How many rows?", 2.0)
ask(8.5, 1.4, "Is the kernel narrow?")
arrow(ax, (2.3, 1.4), (3.9, 1.4), "any but linear")
arrow(ax, (5.9, 1.4), (7.3, 1.4), "more")
solvers = {
    "newton": (1.3, "linear"),
    "exact": (4.9, "up to some 15,000"),
    "cells": (7.7, "yes"),
    "landmark": (9.2, "no"),
}
for name, (x, when) in solvers.items():
    way((x, 1.15), (x, 0.55), when)
    box(ax, x, 0.3, name, width=1.3, height=0.5, color="C1")
