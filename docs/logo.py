"""Draw the logo, margins of rows in a band, and the picture that a link to the project is shown with.

Run it by ``python docs/logo.py``; it writes ``docs/logo.svg`` and ``docs/social.png``.
"""

from __future__ import annotations

from pathlib import Path

HEIGHTS = (
    7,
    15,
    31,
    46,
    40,
    24,
    10,
)  # of bars of margins; the three in the middle are in the band
BAR, STEP = 5, 8


def logo() -> str:
    """Return the logo as SVG of 64 pixels a side."""
    left, width = 3.5 + 2 * STEP, 2 * STEP + BAR + 4
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">',
        "<title>dask_odm: margins in a band</title>",
        f'<rect x="{left}" y="4" width="{width}" height="56" rx="5" fill="#009E73" opacity=".3"/>',
    ]
    for place, height in enumerate(HEIGHTS):
        color = (
            "#009E73"
            if 2 <= place <= 4
            else "#E69F00"
            if place < 2
            else "#0072B2"
        )
        x, y = 5.5 + STEP * place, 56 - height
        lines.append(
            f'<rect x="{x}" y="{y}" width="{BAR}" height="{height}" rx="1.5" fill="{color}"/>'
        )
    return "\n".join([*lines, "</svg>\n"])


def social(path: Path) -> None:
    """Write a picture of 1280 × 640 pixels: the bars of the logo, the name, and what it does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.8, 6.4), dpi=100, facecolor="white")
    ax = figure.add_axes((0.06, 0.2, 0.28, 0.6))
    colors = [
        "#009E73"
        if 2 <= place <= 4
        else "#E69F00"
        if place < 2
        else "#0072B2"
        for place in range(7)
    ]
    ax.axvspan(1.5, 4.5, color="#009E73", alpha=0.25, linewidth=0)
    ax.bar(range(7), HEIGHTS, 0.65, color=colors)
    ax.axis("off")
    figure.text(
        0.4, 0.58, "dask_odm", size=58, weight="bold", color="#222222"
    )
    figure.text(
        0.4,
        0.46,
        "Kernel machines larger than memory,",
        size=25,
        color="#444444",
    )
    figure.text(
        0.4,
        0.38,
        "with a bound on how far they are",
        size=25,
        color="#444444",
    )
    figure.text(0.4, 0.30, "from the best possible", size=25, color="#444444")
    figure.savefig(path)


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "logo.svg").write_text(logo(), encoding="utf-8")
    social(folder / "social.png")
