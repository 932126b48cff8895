"""The way of a fit through the house, and which error ends it where."""

from boxes import arrow, box, canvas

rooms = {
    "resolve": ("rows, a store,\na cube", "InputError\nStoreError"),
    "check": ("parameters,\nlabels", "InputError"),
    "choose": ("solver,\nmemory", "MemoryLimitError"),
    "train": ("in memory\nor by workers", "ClusterError\nObjectStoreError"),
    "publish": ("model and\ncertificate", "StoreError\n(of save)"),
}
ax = canvas(10.5, 2.8)
for place, (name, (what, error)) in enumerate(rooms.items()):
    x = 1.05 + 2.1 * place
    box(ax, x, 1.9, f"{name}\n{what}", width=1.6, height=1.1)
    ax.text(x, 0.4, error, ha="center", va="center", color="C3")
    arrow(ax, (x, 1.3), (x, 0.75))
    if place:
        arrow(ax, (x - 1.25, 1.9), (x - 0.85, 1.9))
