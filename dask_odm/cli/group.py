"""How commands end and show warnings: one line on stderr, never a traceback."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from dask_odm.cli.words import option_names, shell_words
from dask_odm.errors import DaskODMError
from dask_odm.events import interrupt_dropped, keep_interrupt

_HEAVY = ("evaluate", "fit", "predict", "search")  # commands that import scikit-learn and Dask, which takes seconds


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
        name, command, rest = super().resolve_command(ctx, args)
        if self.is_process and name in _HEAVY and not {"-h", "--help"} & set(rest):
            load_libraries()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        def words(text: str) -> str:
            return shell_words(_one_line(text), option_names(self, ctx))

        with warnings.catch_warnings(), _logged(words):
            warnings.showwarning = lambda message, *_, **__: click.echo(f"dask-odm: {words(str(message))}", err=True)
            try:
                return super().invoke(ctx)
            except DaskODMError as error:
                _stop(ctx, words(str(error)), 2)
            except OSError as error:
                if isinstance(error, BrokenPipeError):
                    raise  # click ends quietly
                _stop(ctx, f"{error.filename or 'cannot go on'}: {error.strerror or error}", 2)
            except KeyboardInterrupt as error:
                message = str(error) or "interrupted"
                if self.is_process:
                    _end_at_once(message, 130)
                _stop(ctx, message, 130)
            except Exception:
                if interrupt_dropped.is_set():  # caused by the interrupt, such as a half-compiled loop
                    _end_at_once("interrupted", 130)
                raise


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
    handler.emit = lambda record: click.echo(f"dask-odm: {words(record.getMessage())}", err=True)  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _stop(ctx: click.Context, message: str, status: int) -> None:
    click.echo(f"dask-odm: {_one_line(message)}", err=True)
    ctx.exit(status)


def _end_at_once(message: str, status: int) -> None:
    """End the process without waiting for threads that solve a partition.

    Everything was cleaned up and closed before.
    """
    click.echo(f"dask-odm: {message}", err=True)
    sys.stdout.flush()
    os._exit(status)


def _one_line(text: str) -> str:
    return " ".join(text.split())
