"""Pages of HTML that hold all that they show: headings, tables, pictures as SVG. What comes from data is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from typing import Any

import numpy as np

from dask_odm.errors import InputError

MOST_LINES = 60  # of a table
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; background: #fff; }
figure svg { max-width: 100%; height: auto; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page that may load nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h2>{escape(text)}</h2>"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of up to `MOST_LINES` rows; it says how many more there are."""
    lines = ["<table>"]
    if head:
        lines.append(f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>")
    lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_LINES]]
    if len(rows) > MOST_LINES:
        lines.append(f"<tr><td>… and {len(rows) - MOST_LINES} more</td></tr>")
    return "\n".join([*lines, "</table>"])


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f'<td class="number">{value:.4g}</td>'
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('–' if value is None else str(value))}</td>"


def picture(plot: Callable[[], Any]) -> str:
    """Return a picture as SVG; none if there is nothing to draw, or nothing to draw with."""
    try:
        from matplotlib import rc_context
    except ImportError:
        return ""
    out = StringIO()
    # labels with a dollar are no formulas, and the same picture has the same bytes
    with rc_context({"text.parse_math": False, "svg.hashsalt": "dask_odm"}):
        try:
            figure = plot().figure
        except InputError:  # there is nothing to draw
            return ""
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return f"<figure>{text[text.index('<svg') :]}</figure>"
