"""The source that cuts batches of any table into blocks of rows, as every reader returns it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse

from dask_odm.data.readers.column_values import UnfitError, numbers_in, values_by
from dask_odm.data.readers.labels import are_same
from dask_odm.data.readers.sources import (
    Columns,
    Reading,
    RoundedNumbers,
    SourceBlock,
    choose_columns,
    column_name,
    computed,
    joined,
    narrow,
    not_finite,
    require_in_range,
    shown,
)
from dask_odm.data.readers.survey import Survey
from dask_odm.data.readers.tables import (
    ArrayTable,
    PandasTable,
    Table,
    label_among,
    label_values,
    no_numbers,
    require_matrix,
    weight_values,
)
from dask_odm.data.readers.texts import count_words
from dask_odm.data.store.column_recipe import ColumnRecipe, require_columns
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError
from dask_odm.linalg.row_passes import rows_between

NUMBERS_ONLY = (
    "sparse rows, and those of a model of numbers, hold numbers alone: leave other columns out, of files by drop= "
    "(--drop)"
)
_COMMAS = re.compile(r"[+-]?[0-9][0-9.,]*,[0-9.,]*([eE][+-]?[0-9]+)?")  # a number with commas of any meaning
_COMMA = (
    "write numbers with a decimal point, or pass the frame of pandas.read_csv, to which decimal=',' or thousands=',' "
    "says what the comma is"
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of a table that are in memory together, of the file or object ``where``."""

    table: Table
    where: str
    end: int  # bytes of the source read, this batch included
    first: int = 0  # number of the first row in ``where``
    y: npt.NDArray[Any] | None = None  # of shape (rows,) or (rows, targets), if labels are not columns of the table
    weight: npt.NDArray[Any] | None = None  # as y
    line: Callable[[int], int] | None = None  # for text, returns the number of the line that holds a row
    coordinates: npt.NDArray[np.float64] | None = None  # (rows, k), of the places that rows come from


def _place(where: str, first: int, line: Callable[[int], int] | None, row: int) -> str:
    return f"{where}, row {first + row}" if line is None else f"{where}, line {line(first + row)}"


class NeedsRecipeError(Exception):
    """Columns of a batch hold more than numbers, or gaps. The survey knows the kinds of all columns read so far."""


class TableSource:
    """Rows that can be read once, in order, in bounded memory. Every reader returns them so: ``batches`` yields tables.

    ``size`` is in the unit of the batches' ends, 0 if unknown. ``label_name`` names labels that are not a column, and
    ``namesake`` is the column of the same name, if there is one: labels that also are a feature are refused. Messages
    about labels name ``labels_in`` in place of where the rows are.
    ``reading.n_features`` is only checked. One block is held at a time, besides the batch itself.
    """

    y_kind: str | None = None  # "classes" or "real" if the source says what its labels are
    labels_are_text = False  # the type of labels is inferred from all of them
    coordinates: Sequence[tuple[str, str]] = ()  # name and kind of each coordinate that batches have
    text: TextRecipe | None = None  # the recipe by which texts became the rows
    columns: ColumnRecipe | None = None  # the recipe by which the columns of a table become the rows, or became them
    is_table = False  # whether rows have columns of any kind, of which a survey can find the recipe
    is_read_once = False  # whether the source is a stream
    survey: Survey | None = None  # reads the columns, if they may be of any kind: blocks have their values, in float64
    # Whether rows are taken for numbers in spite of a survey, until one is none, or a gap unless such rows are left out
    tries_numbers = False
    drops_gaps = False

    def __init__(
        self,
        description: str,
        columns: Columns,
        batches: Callable[[], Iterator[Batch]],
        reading: Reading,
        *,
        size: int = 0,
        label_name: str | None = None,
        namesake: int | None = None,
        labels_in: str | None = None,
    ) -> None:
        self.description = description
        self.size = size
        self.rounded = RoundedNumbers()  # by feature
        self.roles = columns
        self._batches = batches
        self._reading = reading
        self._features: Sequence[int] = columns.features
        self.feature_names = columns.feature_names
        self._called = columns.called
        self._namesake = namesake
        self._labels_in = labels_in
        if reading.text is not None:
            if columns.text is None:
                raise InputError(f"{description}: text names a column of texts, and these rows have numbers only.")
            self._features = range(reading.hash_size)
            self.feature_names = None
            self.text = reading.text if isinstance(reading.text, TextRecipe) else None
        self.n_features = len(self._features)
        if reading.columns is not None:
            self._by_recipe(reading.columns)
        if isinstance(reading.label, list | tuple) and not columns.targets:
            raise InputError(f"{description}: label names several columns, as of tables; pass (X, y).")
        own = columns.targets if columns.label is None else [columns.label]
        self.label_name = joined([columns.name(i) for i in own]) if own else label_name
        self.label_is_guessed = columns.guessed  # the last column was taken, without a name that says so
        if reading.n_features not in (None, self.n_features):
            raise InputError(f"{description}: {self.n_features} features, but n_features is {reading.n_features}.")

    def _by_recipe(self, recipe: ColumnRecipe) -> None:
        """Yield the features that a recipe makes of the columns; InputError if some of these are missing."""
        if not self.is_table:
            raise InputError(f"{self.description}: a recipe of columns is for frames and files of columns.")
        if self.feature_names is not None or self.n_features != len(recipe.names):
            places = recipe.places(list(self.feature_names or ()), self.description)
            self._features = [self._features[at] if at >= 0 else at for at in places]
        self.columns = recipe
        self._called = self.feature_names = recipe.feature_names
        self.n_features = recipe.n_features

    @property
    def called(self) -> Sequence[str | int]:
        """Names of the features, or the numbers of their columns."""
        return range(self.n_features) if self._called is None else self._called

    @property
    def _codes(self) -> bool:
        """Whether blocks have values of columns of any kind, or features made of such."""
        return self._reading.columns is not None or (self.survey is not None and not self.tries_numbers)

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows; InputError names file and line of what is wrong."""
        batches = self._batches()
        begun = False
        try:
            for block in self._blocks(batches):
                yield block
                begun = True
        except NeedsRecipeError as error:
            # all rows if some were taken, so that the survey knows all columns when these are read again
            for batch in chain(error.args, batches if begun else ()):
                self._values(batch, 0, batch.table.rows)
            raise

    def _blocks(self, batches: Iterator[Batch]) -> Iterator[SourceBlock]:
        columns = self.roles
        wanted = columns.features if columns.text is None and not self._codes else []
        wanted = wanted if self.is_table else wanted[:1]  # of an array, all are of one type
        wanted = [*wanted, *([] if columns.weight is None else [columns.weight]), *columns.targets]
        begin = 0
        sparsely: bool | None = None
        namesake = self._namesake
        is_copy = namesake is not None
        for batch in batches:
            others = [i for i in wanted if batch.table.other_type(i) is not None]
            if others and self.tries_numbers:
                raise NeedsRecipeError(batch)
            if others:
                raise self._no_numbers(batch, others)
            for what, column in (("y", batch.y), ("weight", batch.weight)):
                if column is not None and len(column) != batch.table.rows:
                    raise InputError(f"{batch.where}: {what} has {len(column)} rows where X has {batch.table.rows}.")
            y = batch.y if columns.label is None else batch.table.labels(columns.label)
            if columns.targets:
                y = batch.table.numbers(columns.targets, 0, batch.table.rows)
            if is_copy and namesake is not None and y is not None:
                is_copy = are_same(batch.table.labels(namesake), y)
            weight = batch.weight
            if columns.weight is not None:
                weight = batch.table.numbers([columns.weight], 0, batch.table.rows)[:, 0]
            if columns.text is not None:
                batch = replace(batch, table=self._counted(batch, columns.text))
            if sparsely is None:
                sparsely = self._reading.reads_sparsely(batch.table.csr)
            yield from self._cut(batch, y, weight, begin, sparsely)
            begin = batch.end
            del batch, y, weight  # before the next ones are read
        if is_copy and namesake is not None and begin:
            raise InputError(label_among(self.description, self.roles.name(namesake)))

    def _no_numbers(self, batch: Batch, others: Sequence[int]) -> InputError:
        """Return the error that says which columns of a batch hold ``others`` than numbers."""
        table, columns = batch.table, self.roles
        if not self.is_table:
            held = f"features must be integers or floats. Got {table.other_type(others[0])} instead"
            hint = "convert it with astype(float), or make a frame of it, whose columns may hold words"
            return InputError(f"{batch.where}: {held}; {hint}.")
        found = []
        values = []
        for i in others:
            kind = str(table.other_type(i))
            try:
                numbers_in(table.column(i, 0, table.rows))
            except UnfitError as error:
                values.append(str(error.value))
                if batch.line is not None:
                    kind = f"{shown(values[-1])} in line {batch.line(batch.first + error.row)}"
            found.append((columns.name(i), kind))
        way_out = f"{NUMBERS_ONLY}{columns.other_label}"
        return no_numbers(batch.where, found, _COMMA if all(map(_COMMAS.fullmatch, values or [""])) else way_out)

    def feature(self, i: int) -> str:
        """Return the name of a feature in messages."""
        at = self.roles.text
        return column_name(i, self._called) if at is None else self.roles.name(at)

    def pick(self, names: Sequence[str]) -> None:
        """Yield the features in the order of ``names``, which are theirs; InputError if some are missing."""
        place = {name: i for i, name in enumerate(self.feature_names or ())}
        require_columns(names, place, self.description)
        order = [place[name] for name in names]
        self._features = [self._features[i] for i in order]
        self._called = self.feature_names = tuple(names)

    @property
    def label_twins(self) -> list[str]:
        """Names of features that equal the label's up to its last underscore, as if one column was encoded as all."""
        names, label = self.roles.names, self.roles.label
        stem, underscore, _ = ("", "", "") if names is None or label is None else names[label].rpartition("_")
        return [name for name in self.feature_names or () if underscore and name.startswith(f"{stem}_")]

    @property
    def left_out(self) -> list[str]:
        """Names of the columns that are left out, if columns have names."""
        return [] if self.roles.names is None else [self.roles.names[i] for i in self.roles.dropped]

    @property
    def texts_from(self) -> str | None:
        """Name or number of the column of texts; None without one."""
        at = self.roles.text
        return None if at is None else str(at) if self.roles.names is None else self.roles.names[at]

    def _counted(self, batch: Batch, column: int) -> Table:
        """Return the table of the counts of the words in a column of texts, weighted if there is a recipe."""
        texts = batch.table.labels(column)

        def place(row: int) -> str:
            return f"{_place(batch.where, batch.first, batch.line, row)}, {self.feature(0)}"

        rows = count_words(texts, self.n_features, place)
        return ArrayTable(rows if self.text is None else self.text.weighted(rows))

    def _cut(self, batch: Batch, y: Any, weight: Any, begin: int, sparsely: bool) -> Iterator[SourceBlock]:
        """Yield the rows of a batch, a few at a time. What was read before it ended at byte ``begin``."""
        rows = batch.table.rows
        held = batch.table.csr if sparsely else None  # entries take two numbers each, and a row some for itself
        step = self._reading.block_rows(self.n_features if held is None else 2 * held.nnz / max(1, rows) + 4)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            place = partial(_place, batch.where, batch.first + start, batch.line)  # without the table, blocks keep it
            if sparsely:
                X = self._sparse(batch, start, stop, place)
            else:
                X = self._dense(batch, start, stop, place)
            labels = None if y is None else y[start:stop]
            weights = None if weight is None else np.asarray(weight[start:stop], dtype=np.float64)
            if weights is not None:
                _check_weight(weights, place)
            position = begin + (batch.end - begin) * stop // rows
            coordinates = None if batch.coordinates is None else batch.coordinates[start:stop]
            of_label = place if self._labels_in is None else partial(_place, self._labels_in, batch.first + start, None)
            yield SourceBlock(X, labels, weights, place, of_label, position, coordinates)

    def _dense(self, batch: Batch, start: int, stop: int, place: Callable[[int], str]) -> npt.NDArray[Any]:
        """Return the features of rows of a batch, or their values if a survey reads the columns."""
        recipe = self._reading.columns
        if self._codes:
            values = self._values(batch, start, stop)
            dtype = self._reading.dtype if recipe is None else recipe.dtype
            names = self.roles.feature_names if recipe is None else recipe.names
            require_in_range(values, dtype, partial(column_name, names=names), place)
            return values if recipe is None else recipe.encode(values)
        numbers = batch.table.numbers(self._features, start, stop)
        X = narrow(numbers, self._reading.dtype)
        self.rounded.note(numbers, X)
        require_in_range(numbers, self._reading.dtype, self.feature, place)
        if self.survey is not None:
            if not self.drops_gaps and np.isnan(X).any():
                raise NeedsRecipeError(batch)
            self.survey.add_numbers(stop - start)
        return X

    def _values(self, batch: Batch, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the values of the columns in rows of a batch, by the survey or by the recipe."""
        held = (None if at < 0 else batch.table.column(at, start, stop) for at in self._features)
        place = partial(_place, batch.where, batch.first + start, batch.line)
        if self.survey is not None:
            return self.survey.add(held, stop - start, place, spells_all=self.labels_are_text)
        assert self._reading.columns is not None
        return values_by(self._reading.columns, held, stop - start, place)

    def _sparse(self, batch: Batch, start: int, stop: int, place: Callable[[int], str]) -> Any:
        """Return rows of a batch as CSR rows."""
        wanted = self._features
        if batch.table.csr is None:
            rows = scipy.sparse.csr_array(batch.table.numbers(wanted, start, stop))
        else:
            rows = rows_between(batch.table.csr, start, stop)
            rows = rows if wanted == range(rows.shape[1]) else rows[:, list(wanted)]
        values = narrow(rows.data, self._reading.dtype)
        self.rounded.note(rows.data, values, rows.indices)
        if np.isinf(values).any():
            at = int(np.argmax(np.isinf(values)))
            row = int(np.searchsorted(rows.indptr, at, side="right")) - 1
            raise not_finite(place(row), self.feature(int(rows.indices[at])), rows.data[at], values.dtype.name)
        return scipy.sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)


class FrameSource(TableSource):
    """Rows of a table whose columns may be of any kind."""

    is_table = True


def _check_weight(weight: npt.NDArray[np.float64], place: Callable[[int], str]) -> None:
    """Raise InputError at the first weight that is negative or infinite. NaN (missing) is allowed."""
    bad = (weight < 0) | np.isinf(weight)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{place(row)}: weight {weight[row]}; weights must be finite and not negative.")


def table_of(
    where: str,
    names: Sequence[Any] | None,
    count: int,
    batches: Callable[[Any, Any], Iterator[Batch]],
    y: Any,
    reading: Reading,
    *,
    guess: bool = True,
    label_name: str | None = None,
    size: int = 0,
    labels: Any = None,
) -> TableSource:
    """Return a source of rows whose labels and weights are columns of them, or are given beside them.

    ``batches(y, weight)`` yields the rows, with those labels and weights that are beside them, in memory or of Dask.
    With ``y`` no column is taken for the labels; ``labels`` is its name if ``y`` has lost it.
    """
    label = reading.label
    weight = reading.weight
    beside = not isinstance(weight, str | int | None)
    y = None if label is False else y
    at_weight = None if beside else weight
    columns = choose_columns(
        where, names, count, label if y is None else False, at_weight, guess=guess,
        recipe=reading.columns, text=reading.text_column if guess else None,
    )  # fmt: skip
    name = label_name or (None if y is None else _beside_name(y))
    plain = label_values(y) if y is not None and not hasattr(y, "dask") else y
    weights = weight if hasattr(weight, "dask") else weight_values(weight) if beside else None
    called = getattr(y, "name", None) if labels is None else labels
    held = [] if called is None else list(names or ())
    namesake = held.index(called) if called in held else None
    kind = FrameSource if guess else TableSource
    return kind(
        where, columns, partial(batches, plain, weights), reading, label_name=name, size=size, namesake=namesake,
        labels_in="y" if y is not None and label_name is None else None,
    )  # fmt: skip


def in_memory(y: Any, reading: Reading) -> tuple[Any, Reading]:
    """Return labels, and the options with their weights, computed if they are Dask's."""
    y, weight = computed(y, reading.weight, traverse=False)
    return y, replace(reading, weight=weight)


def held_source(X: Any, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a pandas frame or of an array in memory, dense, masked or sparse, as a source."""
    y, reading = in_memory(y, reading)
    frame = isinstance(X, pd.DataFrame)
    where = "the DataFrame" if frame else "X"
    if not frame:
        require_matrix(where, X.shape)
    size = 8 * X.shape[0] * X.shape[1] if frame else math.prod(X.shape) * X.dtype.itemsize

    def batches(labels: Any, weights: Any) -> Iterator[Batch]:
        if X.shape[0]:
            table: Table = PandasTable(X) if frame else ArrayTable(X)
            yield Batch(table, where, size, y=labels, weight=weights)

    names = list(X.columns) if frame else None
    return table_of(where, names, X.shape[1], batches, y, reading, guess=frame, size=size)


def _beside_name(y: Any) -> str:
    """Return the name, for messages, of labels that are given beside the rows."""
    name = getattr(y, "name", None)
    return f"'{name}'" if isinstance(name, str) and name and not hasattr(y, "dask") else "y"
