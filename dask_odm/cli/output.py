"""What all commands share: output as a text or one JSON object, and options that become one argument."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def emit(as_json: bool, result: Mapping[str, Any], text: str) -> None:
    """Print the JSON object, or the text."""
    from dask_odm.diagnostics.summaries import plain

    if as_json:
        click.echo(json.dumps(plain(result), allow_nan=False))
    elif text:
        click.echo(text)


def gathered(argument: str, record: Any, options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a decorator that adds options to a command, which gets them as one ``argument``, a ``record`` of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in fields(record)}
            return command(*args, **{argument: record(**values)}, **given)

        found: Any = run
        for option in reversed(options):
            found = option(found)
        return found

    return decorate
