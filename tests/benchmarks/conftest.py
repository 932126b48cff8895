"""What a benchmark prints, run in this process."""

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from inspect import getsource
from io import StringIO
from types import ModuleType
from typing import Any

import dask
import pytest


def printed(module: ModuleType, words: str, *more: object) -> list[str]:
    """Return the lines that a benchmark prints on stdout for these words of a shell."""
    with redirect_stdout(StringIO()) as out:
        assert not module.main([*words.split(), *map(str, more)])
    return out.getvalue().splitlines()


@pytest.fixture
def run(monkeypatch) -> Callable[..., list[str]]:
    """``run(module, "words of a shell", more, …)``: the lines printed; what it configures is put back afterwards."""
    monkeypatch.setitem(dask.config.config, "dask_odm", {})
    monkeypatch.setitem(dask.config.config, "temporary-directory", None)
    return printed


@pytest.fixture
def run_json(run, quick_workers) -> Callable[..., list[dict[str, Any]]]:
    """``run_json(module, "words", more, …)``: the objects that a benchmark prints as JSON, a line each."""

    def objects(module: ModuleType, words: str, *more: object) -> list[dict[str, Any]]:
        option = ["--json"] if '"--json"' in getsource(module) else []
        lines = run(module, words, *more, *option)
        return [json.loads(line) for line in lines if line.startswith(("{", "["))]

    return objects


@pytest.fixture
def run_table(run, quick_workers, monkeypatch) -> Callable[..., list[list[str]]]:
    """``run_table(module, "words", more, …)``: the cells of tables, whose rows are measured in this process."""

    def table(module: ModuleType, words: str, *more: object) -> list[list[str]]:
        if hasattr(module, "own_process"):
            monkeypatch.setattr(
                module, "own_process", lambda arguments, _: json.loads("".join(printed(module, "", *arguments[1:])))
            )
        lines = run(module, words, *more)
        return [line.strip("| ").split(" | ") for line in lines if "|" in line and not line.startswith("|--")]

    return table
