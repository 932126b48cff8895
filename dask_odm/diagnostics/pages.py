"""Pages of HTML that hold all that they show, with pictures as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any

from dask_odm.diagnostics.plotting import COLOURS
from dask_odm.errors import InputError
from dask_odm.html import safe

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 88rem; margin: 2rem auto; padding: 0 1rem; }
.first, main { display: grid; gap: 1rem 2rem; align-items: start; }
.first > *, main > * { min-width: 0; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
.figures strong { display: block; font-size: 2.2rem; line-height: 1.2; }
.figures small { display: block; opacity: .75; }
details { border-top: 1px solid #8886; padding: .3rem 0; }
summary { cursor: pointer; }
summary h2 { display: inline; font-size: 1.15rem; }
@media (min-width: 70rem) { .first, main { grid-template-columns: 1fr 1fr; } }
@media print {
  body { font-size: 11px; margin: 0; max-width: none; }
  main { display: block; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  summary { break-after: avoid; }
  figure, table { break-inside: avoid; }
}
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; text-align: center; }
figure svg { max-width: 100%; height: auto; }
figure svg [id^=text] { fill: currentColor; }
"""


def page(title: str, first: Iterable[str], parts: Iterable[str]) -> str:
    """Return a page that may load nothing; of ``parts``, those of a heading are folded below it."""
    folds: list[list[str]] = []
    for part in parts:
        folds += [[]] if part.startswith("<h2>") else []
        folds[-1].append(part)
    folded = [f"<details><summary>{head}</summary>{''.join(rest)}</details>" for head, *rest in folds]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{safe(title)}</title><style>{STYLE}</style>"
    body = "\n".join([f"<h1>{safe(title)}</h1>", *first, "<main>", *folded, "</main>"])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def picture(plot: Callable[[], Any]) -> str:
    """Return a picture as SVG, or "" if there is nothing to draw, or no Matplotlib to draw with."""
    try:
        from matplotlib import rc_context
        from matplotlib.rcsetup import cycler
    except ImportError:
        return ""
    out = StringIO()
    # labels with a dollar are no formulas, the same picture has the same bytes, and the page's colours are behind it
    with rc_context(
        {
            "text.parse_math": False,
            "svg.hashsalt": "dask_odm",
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "axes.prop_cycle": cycler(color=COLOURS),
        }
    ):
        try:
            figure = plot().figure
        except InputError:  # there is nothing to draw
            return ""
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = out.getvalue().replace("stroke: #000000", "stroke: currentColor")  # black letters name no colour
    return f"<figure>{text[text.index('<svg') :]}</figure>"
