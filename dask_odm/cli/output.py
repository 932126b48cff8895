"""Output that all commands share: one JSON object with ``--json``, or a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
