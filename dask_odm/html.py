"""Headings, tables and cards of HTML. Whatever comes from data is printable and escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from numbers import Integral, Real
from typing import Any

from dask_odm.printing import printable

MOST_LINES = 60  # of a table
MOST_LETTERS = 500  # of a cell


def safe(text: str) -> str:
    """Return text from data for a page: printable, not too long, and escaped."""
    return escape(printable(text, MOST_LETTERS))


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h2>{safe(text)}</h2>"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of up to `MOST_LINES` rows; it says how many more there are."""
    lines = ["<table>"]
    if head:
        lines.append(f"<tr>{''.join(f'<th>{safe(each)}</th>' for each in head)}</tr>")
    lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_LINES]]
    if len(rows) > MOST_LINES:
        lines.append(f"<tr><td>… and {len(rows) - MOST_LINES} more</td></tr>")
    return "\n".join([*lines, "</table>"])


def _cell(value: Any) -> str:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f'<td class="number">{int(value):,}</td>'
    if isinstance(value, Real) and not isinstance(value, bool):
        return f'<td class="number">{float(value):.4g}</td>'
    return f"<td>{safe('–' if value is None else str(value))}</td>"


def card(title: str, facts: Sequence[tuple[str, Any]], *more: str) -> str:
    """Return the HTML of an object for a notebook: a title, its facts that are not None, and other tables."""
    known = table([], [fact for fact in facts if fact[1] is not None])
    style = "<style>div.odm-card td { padding-right: 1em; text-align: left; vertical-align: top; }</style>"
    return "\n".join(['<div class="odm-card">', style, f"<strong>{safe(title)}</strong>", known, *more, "</div>"])


def folded(title: str, inner: str) -> str:
    """Return HTML that unfolds once a reader clicks on its title."""
    return f"<details><summary>{safe(title)}</summary>{inner}</details>"
