"""The rows that ``predict``, ``evaluate`` and others read: a store, or files, which first become a scratch store.

If file and model have names, the model tells the label column of a file: it is the one that is not a feature.
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

from dask_odm.cli.cluster import Place, place_options
from dask_odm.cli.shell import gathered, option_field, say
from dask_odm.data.readers.file_formats import FORMATS
from dask_odm.errors import InputError, StoreError

_OPTIONS = "--format, --label, --no-label, --drop, --weight, --header and --text"
_GROUPS = ("manifest.json", "zarr.json", ".zgroup", ".zarray")  # a folder with one of these has no data files


@dataclass(frozen=True)
class RowOptions:
    """Options for reading files, as `dask_odm.data.ingest.ingest` takes them. They do not apply to stores."""

    format: str | None = option_field("Format of files; by default told by the file.", type=click.Choice(list(FORMATS)))
    label: str | None = option_field("Label column by name or number, or array of an archive.", metavar="COLUMN")
    no_label: bool = option_field("The data have no labels.", default=False, is_flag=True)
    weight: str | None = option_field("Column of row weights, or array of an archive.", metavar="COLUMN")
    header: bool | None = option_field("Whether CSV text begins with names; by default told.", "--header/--no-header")
    drop: tuple[str, ...] = option_field(
        "Column to leave out, such as an identifier; repeatable.", default=(), multiple=True, metavar="COLUMN"
    )
    text: str | None = option_field(
        "Column of texts, whose hashed words are the features.  [default for a model of texts: as learned]",
        metavar="COLUMN",
    )

    def __post_init__(self) -> None:
        if self.no_label and self.label is not None:
            raise click.UsageError("--label and --no-label exclude each other.")

    def refuse_for_cubes(self) -> None:
        """Raise UsageError if any of these options was given."""
        if self != RowOptions():
            raise click.UsageError(f"{_OPTIONS} are for files of rows.")

    @contextmanager
    def store_of(self, source: str, model: Any, *, labels: bool) -> Iterator[Any]:
        """Yield the rows of a source as a store, which lasts as long as the context.

        ``labels`` says whether labels are read or left out. Raises the errors of `dask_odm.data.ingest.ingest` and
        `dask_odm.data.store.store.Store.open`.
        """
        from dask_odm.data.store.store import Store

        if not is_files(source):
            if self != RowOptions():
                raise click.UsageError(f"{_OPTIONS} are for files, not stores.")
            require_there(source)
            yield Store.open(source)
            return
        from dask_odm.data.storage.scratch import scratch_folder

        with scratch_folder() as folder:
            store = self._ingested(source, os.path.join(folder, "rows.zarr"), model, labels)
            yield replace(store, title="standard input" if source == "-" else f"'{source}'")

    def _ingested(self, source: str, store: str, model: Any, labels: bool) -> Any:
        from dask_odm.data.ingest import write_rows
        from dask_odm.data.readers.formats import detect_format, find_files, open_source

        files: Any = find_files(source)
        kind = self.format or detect_format(files[0])
        known = model._schema
        names = list(map(str, known.inputs))
        reading = self._reading(files, kind, "model", known, labels)
        support = getattr(model._model, "support", None)
        dtype = "float64" if support is not None and support.dtype.name == "float64" else "float32"
        dtype = dtype if known.columns is None else known.columns.dtype
        rows = open_source(
            files, **reading, dtype=dtype, allow_large=True,
            n_features=known.n_inputs if "n_features" in FORMATS[kind].options else None,
        )  # fmt: skip
        if names and rows.feature_names is not None and rows.text is None and rows.columns is None:
            rows.pick(names)
        return write_rows(rows, store, target="classes" if hasattr(model, "classes_") else "real", dtype=dtype)

    def like(self, sources: list[str], path: str) -> tuple[Any, dict[str, Any]]:
        """Return files, and the options of `ingest` that read them as the rows of a store or model at ``path``."""
        from dask_odm.data.readers.formats import detect_format, find_files

        what, known = _learned(path)
        if not all(map(is_files, sources)):
            raise click.UsageError("--like is for files.")
        files = find_files(sources)
        reading = self._reading(files, self.format or detect_format(files[0]), what, known, labels=True)
        return files, reading if known.columns is None else {"dtype": known.columns.dtype, **reading}

    def _reading(self, files: Any, kind: str, what: str, known: Any, labels: bool) -> dict[str, Any]:
        """Return how to read files as rows with the schema of a model or a store, with ``labels`` or without."""
        reading: dict[str, Any] = {"format": kind, "header": self.header, "weight": self.weight}
        recipe = self._recipe(kind, what, known)
        if recipe is not None:
            reading["text"] = recipe
        label, dropped = self._columns(files, reading, what, known, labels)
        return {**reading, "columns": known.columns, "label": label, "drop": dropped}

    def _recipe(self, kind: str, what: str, known: Any) -> Any:
        """Return the recipe that makes rows of the texts of files; None if they hold rows of a table."""
        recipe = known.text
        if recipe is None and self.text is not None:
            others = "rows of numbers" if known.columns is None else "the columns of a table"
            raise InputError(f"--text: this {what} did not learn from texts, but from {others}.")
        if recipe is None or "text" not in FORMATS[kind].options:
            return None
        return recipe if self.text is None else replace(recipe, column=self.text)

    def _columns(
        self, files: Any, reading: dict[str, Any], what: str, schema: Any, wanted: bool
    ) -> tuple[Any, list[str]]:
        """Return the label column (False for none) and the columns to leave out, with it unless it is ``wanted``."""
        named = False if self.no_label else self.label
        features = list(map(str, schema.inputs))
        known = set(features)
        taken = next((name for name in (self.label, self.weight, *self.drop) if name in known), None)
        if taken is not None:
            raise InputError(
                f"column {taken!r} is a feature of the model: --label, --weight and --drop are for other columns."
            )
        if "label" not in FORMATS[reading["format"]].options:
            return (named if wanted else False), list(self.drop)
        if named is None and wanted and str(files[0]).endswith(".npz"):
            return None, list(self.drop)  # labels are an array beside X
        from dask_odm.data.readers.formats import open_source
        from dask_odm.data.readers.sources import LABEL_NAMES

        whole = open_source(files, **reading, label=named or False, drop=self.drop)
        others = [name for name in whole.feature_names or () if known and name not in known]
        if others and len(others) == whole.n_features:
            whole.pick(features)  # says which are missing, where all columns would be left out
        if "text" in reading:
            beside = [name for name in whole.left_out if name not in self.drop]
            if wanted and beside and named is None:
                named = _label_among(beside, whole.description, what)
            return named or False, []
        if wanted and named is None and others:
            named = _label_among(others, whole.description, what)
            others.remove(named)
        told = [name for name in others if name.lower() not in LABEL_NAMES]
        if told:
            called = "column {} is" if len(told) == 1 else "columns {} are"
            say(f"{whole.description}: {called.format(_some(told))} left out: the {what} knows no such feature.")
        if named is None and wanted and whole.n_features != schema.n_inputs:
            return None, [*self.drop, *others]  # `ingest` takes its default
        return named or False, [*self.drop, *others]


row_options = gathered("rows", RowOptions)


@dataclass(frozen=True)
class Judged:
    """A model, and rows to predict or to compare it with, with the options of reading them."""

    model: str
    source: str
    rows: RowOptions
    runs_on: Place

    def load(self) -> Any:
        """Return the model."""
        import dask_odm as odm

        return odm.load_model(self.model)

    @contextmanager
    def beside(self, model: Any, *, labels: bool = True) -> Iterator[Any]:
        """Yield the rows as a store, with ``labels`` or without; work runs at the place that was asked for."""
        with self.runs_on.opened(), self.rows.store_of(self.source, model, labels=labels) as store:
            yield store


def judged(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add MODEL, SRC and the options of reading it to a command, which gets them as one argument ``given``."""

    @wraps(command)
    def run(*args: Any, model: str, source: str, rows: RowOptions, runs_on: Place, **others: Any) -> Any:
        return command(*args, given=Judged(model, source, rows, runs_on), **others)

    found: Any = row_options(place_options(run))
    return click.argument("model")(click.argument("source", metavar="SRC")(found))


def _label_among(columns: list[str], where: str, what: str) -> str:
    """Return the column with the labels among those that are no features: one with a usual name, else the only one."""
    from dask_odm.data.readers.sources import LABEL_NAMES

    found = next((name for wanted in LABEL_NAMES for name in columns if name.lower() == wanted), None)
    if found is None and len(columns) > 1:
        raise InputError(
            f"{where} has several columns that are no features of the {what}: {_some(columns)}; name that of the "
            "labels by --label."
        )
    if found is None:
        say(
            f"{where}: column {columns[0]!r} is taken for the labels: the {what} knows no such feature; --label names "
            "another."
        )
    return found or columns[0]


def _some(columns: list[str], most: int = 5) -> str:
    return ", ".join(map(repr, columns[:most])) + (" …" if len(columns) > most else "")


def _learned(path: str) -> tuple[str, Any]:
    """Return what is at a path, a model or a store, and the schema of its rows; raise InputError without a recipe."""
    import dask_odm as odm
    from dask_odm.data.store.records import read_kind
    from dask_odm.learning.training.recipe import Schema

    require_there(path)
    what = "model" if read_kind(path) == "model" else "store"
    if what == "model":
        found = odm.load_model(path)._schema
    else:
        store = odm.Store.open(path)
        found = Schema(store.features, store.feature_names, text=store.text_recipe, columns=store.column_recipe)
    if found.columns is None and found.text is None:
        raise InputError(f"--like: '{path}' has no recipe, as its rows are numbers; leave --like out.")
    return what, found


def require_there(path: str) -> None:
    """Raise StoreError if nothing is at a path of this machine."""
    from dask_odm.data.storage.locations import is_address

    if not is_address(path) and not os.path.exists(path):
        raise StoreError(f"'{path}' does not exist; check the path.")


def is_files(source: str) -> bool:
    """Return whether a source is files to ingest: standard input, a file, a folder of files, or a pattern."""
    from dask_odm.data.storage.locations import is_address

    if is_address(source):
        from dask_odm.data.store.records import read_kind

        return not source.rstrip("/").endswith(".zarr") and read_kind(source) is None
    if source == "-" or os.path.isfile(source):
        return True
    if os.path.isdir(source):
        return not any(os.path.exists(os.path.join(source, name)) for name in _GROUPS) and bool(os.listdir(source))
    return has_magic(source) and not os.path.exists(source)
