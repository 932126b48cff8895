"""Who reads and writes a bucket."""

from boxes import arrow, box, canvas

ax = canvas(9, 2.8)
box(ax, 1.2, 1.4, "ingest", color="C1")
arrow(ax, (2.05, 1.4), (3.15, 1.4), "chunks")
box(ax, 4.4, 1.4, "", width=2.4, height=2.4, color="C2")
ax.text(4.4, 2.3, "s3://bucket", ha="center")
for row, name in enumerate(("train.zarr", "fit.zarr", "model.zarr")):
    y = 1.9 - 0.6 * row
    box(ax, 4.4, y, name, width=1.6, height=0.45, color="C2")
for y, text, style in (
    (1.9, "rows", "->"),
    (1.3, "checkpoints", "<->"),
    (0.7, "model", "<-"),
):
    arrow(ax, (5.65, y), (7.25, y), text, style)
box(ax, 8.05, 1.3, "fit, its\nworkers", width=1.5, height=1.9)
