"""Write the tables of errors.md from errors.toml, which tests/faults reads, too: ``python docs/error_tables.py``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEAD = "| what is wrong | what you see | what to do |\n|---|---|---|\n"
WORDS = 12  # of a message, by which it is known


def read_rows() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of each section by their names."""
    return tomllib.loads((FOLDER / "errors.toml").read_text(encoding="utf-8"))


def with_tables(text: str) -> str:
    """Return a page with a table below each heading: the rows whose messages do not say what to do."""
    for section, rows in read_rows().items():
        lines = [
            f"| {name} | {seen(row['says'])} | {row['do']} |\n"
            for name, row in rows.items()
            if "do" in row
        ]
        above, rest = text.split(f"\n## {section}\n")
        prose, rest = re.fullmatch(
            r"(.*?)(?:\|.*?\n)*((?:\n## .*)?)", rest, re.DOTALL
        ).groups()
        text = f"{above}\n## {section}\n{prose.rstrip()}\n\n{HEAD}{''.join(lines)}{rest}"
    return text


def seen(texts: list[str]) -> str:
    """Return the first words of a message, in each of its wordings."""
    begun = {
        text
        if len(text.split()) <= WORDS
        else " ".join(text.split()[:WORDS]).rstrip(" …") + " …"
        for text in texts
    }
    return " or ".join(f"`{each}`" for each in sorted(begun))


if __name__ == "__main__":
    page = FOLDER / "errors.md"
    page.write_text(
        with_tables(page.read_text(encoding="utf-8")), encoding="utf-8"
    )
