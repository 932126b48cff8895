"""Rows on disk beside the memory of a worker that learned from them."""

import numpy as np
from matplotlib import pyplot as plt

fits = {  # measured with two workers: GB of rows, GB at the peak
    "50 million\nrows": (3.6, 0.23),
    "100 million\npixels": (4.0, 0.554),
    "2 million\nsparse rows": (1.6, 0.485),
}

figure, ax = plt.subplots(figsize=(3.2, 2.6))
places = np.arange(len(fits))
for shift, column, label in (
    (-0.2, 0, "rows on disk"),
    (0.2, 1, "memory of a worker"),
):
    sizes = [sizes[column] for sizes in fits.values()]
    bars = ax.barh(places + shift, sizes, 0.4, label=label)
    ax.bar_label(bars, padding=3, fmt="%.3g")
ax.set_yticks(places, fits)
ax.set(title="Rows need not fit in memory", xlabel="GB", xlim=(0, 4.6))
ax.invert_yaxis()
figure.legend(loc="outside lower center", ncols=2, handlelength=1)
