"""The rows that ``predict`` and ``evaluate`` read: a store, or files, which become a store in a scratch folder first.

Which column of a file holds the labels is told by the model where it can: they are in the one that is no feature of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from glob import has_magic
from typing import Any

import click

from dask_odm.data.store.locations import is_address
from dask_odm.errors import InputError, StoreError

FORMATS = ("libsvm", "csv", "numpy", "parquet", "arrow")
_SHOWN = 5  # columns in a message
_GROUPS = ("manifest.json", "zarr.json", ".zgroup", ".zarray")  # a folder with one of these is no folder of data files
_OPTIONS = (
    click.option("--format", type=click.Choice(FORMATS), help="Format of files; by default told by the file."),
    click.option(
        "--label",
        metavar="COLUMN",
        help="Label column of files, by name or number, or array of an archive.  [default: the one that is no feature "
        "of the model]",
    ),
    click.option("--no-label", is_flag=True, help="Files have no labels."),
    click.option("--weight", metavar="COLUMN", help="Column of row weights of files, or array of an archive."),
    click.option("--header/--no-header", default=None, help="Whether CSV text begins with names; by default told."),
    click.option("--scratch", type=click.Path(), help="Folder for the rows of files meanwhile; workers must see it."),
)


def row_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say how files are read; the command gets them as one argument, ``rows``."""

    @wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        options = {name: given.pop(name) for name in ("format", "label", "no_label", "weight", "header", "scratch")}
        if options["no_label"] and options["label"] is not None:
            raise click.UsageError("--label and --no-label exclude each other.")
        return command(*args, rows=RowOptions(**options), **given)

    found: Any = run
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


@dataclass(frozen=True)
class RowOptions:
    """How files are read where no store is given.

    Parameters
    ----------
    format, label, weight, scratch : str or None
    no_label : bool
    header : bool or None
        As `dask_odm.data.readers.ingest.ingest` takes them; None tells by the file.
    """

    format: str | None = None
    label: str | None = None
    no_label: bool = False
    weight: str | None = None
    header: bool | None = None
    scratch: str | None = None

    @contextmanager
    def store_of(self, source: str, model: Any, *, labels: bool) -> Iterator[Any]:
        """The rows of a source as a store while the context lasts.

        Parameters
        ----------
        source : str
        model : fitted estimator
        labels : bool
            Whether labels are read, or left out.

        Raises
        ------
        InputError, StoreError
            As `dask_odm.data.readers.ingest.ingest` and `dask_odm.data.store.store.Store.open` do.
        """
        from dask_odm.data.store.store import Store

        if not is_files(source):
            if self != RowOptions(scratch=self.scratch):
                raise click.UsageError(
                    "--format, --label, --no-label, --weight and --header are for files, not stores."
                )
            if not is_address(source) and not os.path.exists(source):
                raise StoreError(f"'{source}' does not exist; check the path.")
            yield Store.open(source)
            return
        from dask_odm.data.readers.missing import MissingValuesError
        from dask_odm.estimators.fitting.scratch import scratch_folder

        with scratch_folder(self.scratch) as folder:
            try:
                store = self._ingested(source, os.path.join(folder, "rows.zarr"), model, labels)
            except MissingValuesError as error:  # the commands lack --drop-missing
                raise InputError(f"{error.found}; fill them in, or leave those rows out.") from error
            yield replace(store, title="standard input" if source == "-" else f"'{source}'")

    def _ingested(self, source: str, store: str, model: Any, labels: bool) -> Any:
        from dask_odm.data.readers.ingest import ingest
        from dask_odm.data.readers.paths import detect_format, find_files

        files: Any = find_files(source)
        kind = self.format or detect_format(files[0])
        column = self._label(files, kind, model, labels)
        if not labels and (kind == "libsvm" or column is None):
            column = False
        return ingest(
            files, store, **self._reading(kind), label=column, weight=self.weight, dtype=_dtype_of(model),
            n_features=model.n_features_in_ if kind == "libsvm" else None,
            target="classes" if hasattr(model, "classes_") else "real", allow_large=True,
        )  # fmt: skip

    def _reading(self, kind: str) -> dict[str, Any]:
        return {"format": kind, "header": self.header}

    def _label(self, files: Any, kind: str, model: Any, wanted: bool) -> Any:
        """The column of the labels: the one named, the one that is no feature of the model, False for none."""
        named = False if self.no_label else self.label
        known = set(map(str, getattr(model, "feature_names_in_", ())))
        if kind == "libsvm" or (named is not None and not known):
            return named
        from dask_odm.data.readers.formats import open_source

        whole = open_source(files, **self._reading(kind), label=named or False, weight=self.weight)
        others = [name for name in whole.feature_names or () if name not in known] if known else []
        if len(others) > (named is None):
            shown = ", ".join(map(repr, others[:_SHOWN])) + (" …" if len(others) > _SHOWN else "")
            raise InputError(
                f"{whole.description} has columns that are no features of the model: {shown}; name that of the labels "
                "by --label, and leave the others out."
            )
        if named is not None or whole.n_features == model.n_features_in_:
            return named or False
        if others:
            _say(whole.description, others[0], wanted)
        return others[0] if others else None


def _say(where: str, column: str, wanted: bool) -> None:
    """Say of the one column that is no feature of the model what is made of it, unless its name does."""
    from dask_odm.data.readers.columns import LABEL_NAMES

    if column.lower() not in LABEL_NAMES:
        made = "taken for the labels; --label names another" if wanted else "left out"
        click.echo(f"dask-odm: {where}: column '{column}', which is no feature of the model, is {made}.", err=True)


def is_files(source: str) -> bool:
    """Whether a source stands for files to ingest: standard input, a file, a folder of such, or a pattern."""
    if is_address(source):
        from dask_odm.data.store.records import read_kind

        return not source.rstrip("/").endswith(".zarr") and read_kind(source) is None
    if source == "-" or os.path.isfile(source):
        return True
    if os.path.isdir(source):
        return not any(os.path.exists(os.path.join(source, name)) for name in _GROUPS) and bool(os.listdir(source))
    return has_magic(source) and not os.path.exists(source)


def _dtype_of(model: Any) -> str:
    """Number type of the rows of files: float64 for a kernel model of such rows, else that of `ingest`."""
    support = getattr(model._model, "support", None)
    return "float64" if support is not None and support.dtype.name == "float64" else "float32"
