"""Planned seconds of a fit over its rows, as in the table of the page."""

import matplotlib.pyplot as plt

rows = [1e6, 1e7, 1e8, 1e9]
plans = {  # seconds, and workers
    "newton": ([0.381, 0.838, 1.54, 3.51], [1, 4, 22, 98]),
    "landmark": ([11.4, 19, 16.7, 42.1], [2, 12, 138, 546]),
    "cells": ([1.47, 13.8, 75.9, 754], [33, 35, 64, 64]),
}

figure, ax = plt.subplots()
for name, (seconds, workers) in plans.items():
    (line,) = ax.loglog(rows, seconds, "o-", label=name)
    for x, y, count in zip(rows, seconds, workers, strict=True):
        ax.annotate(
            f"{count}",
            (x, y),
            xytext=(0, -14 if name == "cells" else 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
ax.set(xlabel="rows", ylabel="seconds; workers at the points")
ax.set_ylim(0.2, 3000)
ax.legend(title="solver")
