"""Parts of all commands: ends, warnings, output, shared options, and messages in the words of a shell.

An error or a warning is one line on stderr, never a traceback.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import field, fields
from functools import partial, wraps
from importlib import import_module
from typing import Any

import click

from dask_odm.errors import DaskODMError
from dask_odm.events import interrupt_dropped, keep_interrupt, listen
from dask_odm.printing import MESSAGE_LETTERS, printable

_HEAVY = ("evaluate", "fit", "plan", "predict", "search")  # which load scikit-learn and Dask, for seconds
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
columns_option = partial(click.option, multiple=True, metavar="COLUMN")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is there, once the new is complete.")
# parts of messages that `shell_words` translates
_BOTH = re.compile(r"\b(\w+)(=\S*)? \((--[\w-]+)((?: [^()]*)?)\)")  # overwrite=True (--overwrite)
_PARAMETER = re.compile(r"The '(\w+)' parameter of \w+ must")
# a setting, or a call of another library, whose settings are none of a command
_SETTING = re.compile(
    r"\b(?:pandas|dask|frame)\b[\w.]*\((?:[^()]|\([^()]*\))*\)"
    r"|(?<![\w.-])([a-z]\w*)=(?!=)('[^']*'|\"[^\"]*\"|[^\s'\",;:()]*[^\s'\",;:().])?"
)
_SOLVER = re.compile(r"\bsolver=(?:dask_odm\.solvers\.)?([A-Z]\w*)\(([^()]*)\)")  # solver=SODM(stop_at=4)
_FUNCTION = re.compile(r"\bdask_odm\.(ingest|demo)\b(?!\.\w)")
# commands by what others call them
_MEANT = {"score": "evaluate", "test": "evaluate", "train": "fit", "convert": "ingest", "import": "ingest"}


class Commands(click.Group):
    """Group of commands that end with one line on stderr, never a traceback, if input or the user stops them."""

    is_process = False

    def main(self, args: Sequence[str] | None = None, *others: Any, **named: Any) -> Any:
        self.is_process = args is None
        if self.is_process:
            sys.unraisablehook = keep_interrupt
            # handled as Ctrl-C, so that files are removed; a container's first process would ignore it otherwise
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            # Ctrl-C in a queue's lock breaks the callback of a task that is ending, which would be logged as well
            logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL + 1)
        return super().main(args, *others, **named)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0] not in _MEANT:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?", ctx) from error
        if self.is_process and name in _HEAVY and not {"-h", "--help"} & set(rest):
            load_libraries()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        def words(text: str) -> str:
            command = self.commands.get(ctx.invoked_subcommand or "")
            return shell_words(text, () if command is None else {str(each.name) for each in command.get_params(ctx)})

        shown = set()

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in shown:
                shown.add(str(message))
                say(words(str(message)))

        with warnings.catch_warnings(), _logged(words):
            warnings.showwarning = show
            try:
                return super().invoke(ctx)
            except DaskODMError as error:
                say(words(str(error)))
            except click.ClickException as error:
                context = getattr(error, "ctx", None)
                usage = "" if context is None else f" {context.get_usage()}; see {context.command_path} --help."
                say(f"{error.format_message()}{usage}")
            except BrokenPipeError:
                raise  # click ends quietly
            except OSError as error:
                say(f"{error.filename or 'cannot go on'}: {error.strerror or error}")
            except KeyboardInterrupt as error:
                say(str(error) or "interrupted")
                if self.is_process:
                    _end_at_once()
                ctx.exit(128 + signal.SIGINT)
            except Exception:
                if not interrupt_dropped.is_set():
                    raise
                say("interrupted")  # which caused the error, such as by a half-compiled loop
                _end_at_once()
            ctx.exit(2)


def load_libraries() -> None:
    """Import the heaviest libraries; a terminal shows a notice meanwhile."""
    shown = sys.stderr.isatty()
    if shown:
        click.echo("loading …", err=True, nl=False)
    try:
        import_module("dask_odm.estimators.base")
    finally:
        if shown:
            click.echo("\r\033[K", err=True, nl=False)


@contextmanager
def _logged(words: Callable[[str], str]) -> Iterator[None]:
    """Show warnings of the package's log like other warnings."""
    handler = logging.Handler(logging.WARNING)
    log = logging.getLogger("dask_odm")
    handler.emit = lambda record: say(words(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _end_at_once() -> None:
    """End the interrupted process, which has cleaned up, without waiting for threads that solve a partition."""
    sys.stdout.flush()
    os._exit(128 + signal.SIGINT)


def say(text: str) -> None:
    """Print one line on stderr."""
    click.echo(f"dask-odm: {printable(' '.join(text.split()), MESSAGE_LETTERS)}", err=True)


@contextmanager
def progress_shown() -> Iterator[Callable[[], float]]:
    """Draw progress bars on stderr, or a line a minute; yield a function that returns the seconds since the start."""
    from dask_odm.progress import ProgressBars, is_watched, one_a_minute

    started = time.perf_counter()
    with closing(ProgressBars()) as bars, listen(bars if is_watched() else one_a_minute(bars)):
        yield lambda: time.perf_counter() - started


def emit(as_json: bool, result: Mapping[str, Any], text: str) -> None:
    """Print the JSON object, or the text, whose lines are shown as they are printable."""
    from dask_odm.diagnostics.summaries import plain

    if as_json:
        click.echo(json.dumps(plain(result), allow_nan=False))
    elif text:
        click.echo(printable(text, kept="\n"))


class Size(click.types.IntParamType):
    """A whole number, a power such as 2^20, or one such as 1e9."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        base, power, exponent = str(value).partition("^")
        if power and base.isdecimal() and exponent.isdecimal() and len(base) < 10 and len(exponent) < 3:
            return int(base) ** int(exponent)
        digits, times, zeros = str(value).lower().partition("e")
        if times and digits.isdecimal() and zeros.isdecimal() and len(zeros) < 3:
            return int(digits) * 10 ** int(zeros)
        return super().convert(value, param, ctx)


def word_option(flag: str, *words: str, text: str = "") -> Callable[..., Any]:
    """Return an option that takes one of some words, by default the first."""
    return click.option(flag, type=click.Choice(words), default=words[0], show_default=True, help=text)


def option_field(text: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """Return a field of a record of options, with its help: the option ``--name`` or ``flags``, as `click.option`."""
    return field(default=default, metadata={"flags": flags, "help": text, "default": default, **more})


def gathered(argument: str, record: Any) -> Callable[..., Any]:
    """Return a decorator that adds a record's options to a command, which gets them as one ``argument``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in fields(record)}
            return command(*args, **{argument: record(**values)}, **given)

        found: Any = run
        for each in reversed(fields(record)):
            told = dict(each.metadata)
            found = click.option(*(told.pop("flags") or [option(each.name)]), each.name, **told)(found)
        return found

    return decorate


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
    if value == "None" and name == "scale":
        return "--scale none"  # by default a scale may be chosen
    return f"no {option(name)}" if value == "None" else f"{option(name)} {str(value).strip(chr(39) + chr(34))}"
