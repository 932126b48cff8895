"""Translation of the package's messages for a shell: options and commands in place of parameters and functions."""

from __future__ import annotations

import re
from collections.abc import Collection

import click

_BOTH = re.compile(r"\b(\w+)(=\S*)? \((--[\w-]+)((?: [^()]*)?)\)")  # overwrite=True (--overwrite)
_PARAMETER = re.compile(r"The '(\w+)' parameter of \w+ must")
_SETTING = re.compile(r"(?<![\w.-])([a-z]\w*)=(?!=)('[^']*'|\"[^\"]*\"|[^\s'\",;:()]*[^\s'\",;:().])?")
_SOLVER = re.compile(r"\bsolver=(?:dask_odm\.solvers\.)?([A-Z]\w*)\(([^()]*)\)")  # solver=SODM(stop_at=4)
_FUNCTION = re.compile(r"\bdask_odm\.(ingest|demo)\b(?!\.\w)")


def shell_words(text: str, options: Collection[str]) -> str:
    """Return a message of the package in the words of a shell.

    ``options`` are the names of the command's parameters, with underscores; other names stay as they are. So "pass
    overwrite=True (--overwrite)" becomes "pass --overwrite".
    """
    text = _BOTH.sub(_sole, text)
    text = _SOLVER.sub(_solver, text)
    text = text.replace("an instance of 'dict'", "LABEL=NUMBER")
    text = _PARAMETER.sub(lambda found: f"{option(found[1])} must" if found[1] in options else found[0], text)
    text = _SETTING.sub(lambda found: _given(found[1], found[2]) if found[1] in options else found[0], text)
    return _FUNCTION.sub(r"'dask-odm \1'", text)


def option(name: str) -> str:
    """Return the option of a parameter."""
    return f"--{name.replace('_', '-')}"


def _sole(found: re.Match[str]) -> str:
    """Return the option alone if its parameter stands before it."""
    named = found[2] is not None or option(found[1]) == found[3]
    return f"{found[3]}{found[4]}" if named else found[0]


def _solver(found: re.Match[str]) -> str:
    """Return the options of a solver object."""
    own = (each.partition("=") for each in found[2].split(", ") if each)
    return " ".join([f"--solver {found[1].lower()}", *(_given(name, value) for name, _, value in own)])


def _given(name: str, value: str | None) -> str:
    if value in (None, "True"):
        return option(name)
    return f"no {option(name)}" if value == "None" else f"{option(name)} {str(value).strip(chr(39) + chr(34))}"


def option_names(group: click.Group, ctx: click.Context) -> set[str]:
    """Return the names of the parameters of the command that runs; empty before there is one."""
    command = group.commands.get(ctx.invoked_subcommand or "")
    return set() if command is None else {str(each.name) for each in command.get_params(ctx)}
