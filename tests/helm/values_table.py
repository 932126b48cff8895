"""Makes helm/dask-odm/README.md of values.yaml: every value, its default and the comment above it.

``python tests/helm/values_table.py`` writes the page.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent.parent.parent / "helm" / "dask-odm"
PAGE = CHART / "README.md"
HEAD = """# Values of the dask-odm chart

Made of `values.yaml` by `python tests/helm/values_table.py`. How to use the chart is in [../README.md](../README.md).

| value | default | what it is |
|---|---|---|
"""


@dataclass(frozen=True)
class Value:
    """One value: its dotted path, its default, and what its comment, or that above it, says."""

    path: str
    default: Any
    text: str


def values_of(text: str) -> list[Value]:
    """All values of a YAML text, those that hold others left out."""
    tree = yaml.safe_load(text)
    found = []
    for keys, comment, is_leaf in _entries(text):
        if is_leaf:
            node = tree
            for key in keys:
                node = node[key]
            found.append(Value(".".join(keys), node, comment))
    return found


def _entries(text: str) -> Iterator[tuple[list[str], str, bool]]:
    """Keys from the top, comment, and whether a value stands behind the key, of every line that has one."""
    above: list[tuple[str, str]] = []
    comment = ""
    for line in text.splitlines():
        indent, said, key, rest = re.fullmatch(r"( *)(?:# ?(.*)|([\w-]+):(.*))?", line).groups()  # type: ignore[union-attr]
        if said is not None:
            comment = f"{comment} {said}".strip()
        elif key is None:
            comment = ""
        else:
            depth = len(indent) // 2
            comment = comment or (above[depth - 1][1] if depth else "")
            above = [*above[:depth], (key, comment)]
            yield [name for name, _ in above], comment, bool(rest.strip())
            comment = ""


def page() -> str:
    """The whole page."""
    rows = values_of((CHART / "values.yaml").read_text("utf-8"))
    return HEAD + "".join(
        f"| `{row.path}` | `{json.dumps(row.default, ensure_ascii=False)}` | {row.text.replace('|', '&#124;')} |\n"
        for row in rows
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
