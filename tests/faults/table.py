"""The table of docs/errors.toml as the tests use it: a row's name is what is wrong, its pattern the message."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dask
import pytest
from error_tables import read_rows

from cli.running import refused as refused_line
from cli.running import run
from dask_odm.cli import main
from dask_odm.cli.options import options_of
from dask_odm.cli.shell import shell_words
from dask_odm.errors import DaskODMError
from dask_odm.estimators.registry import ESTIMATORS


def pattern(row: str, command: str | None = None) -> re.Pattern[str]:
    """What a message of the row must be from end to end, one text or another; ``…`` stands for anything.

    A ``command`` says it in the words of a shell.
    """
    texts = TABLE[row]["says"]
    if command is not None:
        texts = [shell_words(text, options(command)) for text in texts]
    return re.compile("|".join(".*".join(map(re.escape, text.split("…"))) for text in texts))


@cache
def options(command: str) -> set[str]:
    """Names of the parameters of a command, of every estimator's for a fit."""
    estimators = [entry.load() for entry in ESTIMATORS.values()] if command == "fit" else []
    found = [*main.commands[command].params, *(each for estimator in estimators for each in options_of(estimator))]
    return {str(each.name) for each in found}


TABLE = {name: row for rows in read_rows().values() for name, row in rows.items()}


def check(row: str, message: str, command: str | None = None) -> None:
    """Fail unless ``message`` is what the table says."""
    line, wanted = " ".join(message.split()), pattern(row, command)
    assert wanted.fullmatch(line), f"{row!r} is documented as {wanted.pattern!r}, seen was: {line}"


def raises(row: str, call: Callable[[], Any]) -> DaskODMError:
    """Run ``call``, which has to raise an error of the package with the message of the row."""
    with pytest.raises(DaskODMError) as caught:
        call()
    check(row, str(caught.value))
    return caught.value


def refused(row: str, *arguments: object) -> None:
    """Run a command that ends with status 2, the row's message as the one line on stderr, and nothing on stdout."""
    check(row, refused_line(*arguments).removeprefix("dask-odm: "), str(arguments[0]))


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: files with their content, links with their targets, folders."""

    def content(path: Path) -> Any:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, in a folder of its own.

    Parameters
    ----------
    row : name of the row in the table
    cause, cure : put the bad thing into the folder, and put it right
    python : what a program does with it
    command : what somebody at a shell does with it, the command's arguments
    """

    row: str
    cause: Callable[[Path], Any]
    cure: Callable[[Path], Any]
    python: Callable[[Path], Any] | None = None
    command: Callable[[Path], list[object]] | None = None
    note: str = ""

    def __str__(self) -> str:
        return f"{self.row}{self.note and f' ({self.note})'}"


def check_fault(fault: Fault, folder: Path, way: str) -> None:
    """The message is the table's, nothing was written or changed, and a second try without the cause succeeds."""
    fault.cause(folder)
    before = tree(folder)
    if way == "python":
        assert fault.python is not None
        raises(fault.row, lambda: fault.python(folder))
        assert tree(folder) == before
        fault.cure(folder)
        fault.python(folder)
    else:
        assert fault.command is not None
        refused(fault.row, *fault.command(folder))
        assert tree(folder) == before
        fault.cure(folder)
        run(*fault.command(folder))


def each_way(faults: list[Fault]) -> Any:
    """Parametrise a test with every fault, from Python and from the command line."""
    ways = [(fault, way) for fault in faults for way in ("python", "command") if getattr(fault, way) is not None]
    return pytest.mark.parametrize(("fault", "way"), ways, ids=[f"{fault}-{way}" for fault, way in ways])


def fit_in(folder: Path, model: Any, store: Path) -> Any:
    """Fit, with temporary data in ``folder``."""
    with dask.config.set({"temporary-directory": str(folder)}):
        return model.fit(str(store))
