"""docs/errors.md and the tests of its rows: neither may have what the other lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.table import TABLE, check, pattern

TAKES_A_ROW = {"Fault", "raises", "refused", "check"}


def nodes() -> Iterator[ast.AST]:
    """The syntax of every test of this folder but this one."""
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name != Path(__file__).name:
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_every_row_has_its_test():
    """Rows are named by literals, here and there by way of a list of parameters."""
    named = {node.value for node in nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert set(TABLE) - named == set()


def test_every_test_has_its_row():
    calls = [node for node in nodes() if isinstance(node, ast.Call) and getattr(node.func, "id", "") in TAKES_A_ROW]
    named = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert len(named) > 30
    assert named - set(TABLE) == set()


@pytest.mark.parametrize("row", TABLE)
def test_a_row_is_complete(row):
    where, seen, way_out = TABLE[row]
    assert where
    assert seen.startswith("`")
    assert way_out.endswith(".")
    for text in pattern(row).pattern.split("|"):
        assert len(text.replace(".*", "")) >= 8  # what anything would match proves nothing


def test_another_message_does_not_pass():
    check("Empty file", "train.csv: the file is empty.")
    for other in ("train.csv: no rows.", "train.csv: the file is empty. Or is it?"):
        with pytest.raises(AssertionError, match="is documented as"):
            check("Empty file", other)
