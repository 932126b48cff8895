"""From a source to a model: once into a store, then chunk by chunk."""

from boxes import arrow, box, canvas

ax = canvas(9, 3)
box(ax, 1.1, 1.5, "CSV, Parquet,\nNumPy, text,\nDask, xarray", height=1.4)
arrow(ax, (1.95, 1.5), (3.05, 1.5), "ingest\nonce")
box(ax, 4, 1.5, "", width=1.8, height=2.4, color="C2")
ax.text(4, 2.45, "store on disk", ha="center")
for row in range(4):
    text = f"chunk {row + 1}"
    box(ax, 4, 2.1 - 0.48 * row, text, width=1.4, height=0.38, color="C2")
arrow(ax, (4.95, 1.5), (6.05, 1.5), "one chunk\nat a time")
box(ax, 7, 1.5, "fit, within\nits memory", color="C1")
arrow(ax, (7.85, 1.5), (8.3, 1.5))
ax.text(8.35, 1.5, "model", va="center")
