"""What the chart starts, and what each part reaches."""

from boxes import arrow, box, canvas

ax = canvas(9, 3.2)
box(ax, 1.2, 2.4, "job\ndask-odm fit", color="C1")
box(ax, 4.4, 2.4, "scheduler", color="C4")
box(ax, 7.5, 2.4, "workers", width=2.0)
box(ax, 7.6, 2.3, "", width=2.0)
arrow(ax, (2.05, 2.4), (3.55, 2.4), "tasks")
arrow(ax, (5.25, 2.4), (6.45, 2.4), "tasks")
box(ax, 4.4, 0.7, "volume or bucket: stores, models, checkpoints",
    width=5.0, color="C2")  # fmt: skip
arrow(ax, (1.8, 1.95), (3.2, 1.15), style="<->")
arrow(ax, (7.0, 1.85), (5.6, 1.15), style="<->")
