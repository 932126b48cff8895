"""The command line, called within this process."""

import json
from typing import Any

from click.testing import CliRunner, Result

from dask_odm.cli import main


def run(*arguments: object, status: int = 0, text: str | None = None) -> Result:
    """The result of a command, which must end with ``status``."""
    result = CliRunner().invoke(main, [str(each) for each in arguments], input=text, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def refused(*arguments: object) -> str:
    """Run what cannot work, and return the one line that says why."""
    result = run(*arguments, status=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("dask-odm: ")
    return line


def run_json(*arguments: object) -> dict[str, Any]:
    """The one line on stdout of a command with ``--json``."""
    result = run(*arguments, "--json")
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)
