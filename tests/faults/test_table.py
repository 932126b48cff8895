"""docs/errors.toml, the tests of its rows and docs/errors.md: none may have what another lacks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_tables import read_rows, with_tables

from faults.table import TABLE, check, pattern

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
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


def test_the_page_has_the_rows_that_say_more_than_the_message():
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run python docs/error_tables.py"
    told = re.findall(r"^\| (?!what is wrong)(.*?) \|", text, re.MULTILINE)
    assert told == [name for name, row in TABLE.items() if "do" in row]
    assert len(told) > 30


def test_names_are_the_rows_of_one_section():
    assert sum(map(len, read_rows().values())) == len(TABLE)


@pytest.mark.parametrize("row", TABLE)
def test_a_row_is_complete(row):
    assert TABLE[row].get("do", ".").endswith(".")
    assert TABLE[row]["says"]
    for text in pattern(row).pattern.split("|"):
        assert len(text.replace(".*", "")) >= 8  # what anything would match proves nothing


def test_another_message_does_not_pass():
    check("Empty file", "train.csv: the file is empty.")
    for other in ("train.csv: no rows.", "train.csv: the file is empty. Or is it?"):
        with pytest.raises(AssertionError, match="is documented as"):
            check("Empty file", other)
