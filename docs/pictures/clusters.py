"""Who talks to whom during a fit on a cluster."""

from boxes import arrow, box, canvas

ax = canvas(9, 4)
box(ax, 1, 3.2, "your process\nfit(…)", color="C1")
box(ax, 4.4, 3.2, "scheduler", color="C4")
arrow(ax, (1.85, 3.3), (3.55, 3.3), "what to compute")
arrow(ax, (3.55, 3.05), (1.85, 3.05))
ax.text(2.7, 2.98, "sums, model", ha="center", va="top", fontsize=9)
for worker in range(3):
    x = 6.2 + 1.1 * (worker - 1)
    box(ax, x, 1.9, f"worker {worker + 1}", width=1.0, height=0.6)
    arrow(ax, (4.9, 2.78), (x, 2.22), style="<->")
    arrow(ax, (x, 0.95), (x, 1.58))
box(ax, 6.2, 0.6, "store: a folder or a bucket that all see", width=3.6,
    height=0.6, color="C2")  # fmt: skip
ax.text(8, 1.25, "chunks of rows", fontsize=9, va="center")
