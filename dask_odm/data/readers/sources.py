"""Reading of sources: options, roles of columns, the blocks of rows that they yield, and words for messages."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from dask.base import compute, get_scheduler, is_dask_collection

from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.layout import STORE_CHUNK_BYTES
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import ASYNCHRONOUS, ClusterError, InputError
from dask_odm.printing import printable, quoted

BLOCK_BYTES = STORE_CHUNK_BYTES // 2
MAX_FEATURES = 10_000_000

LabelColumns = str | int | bool | list[str | int] | tuple[str | int, ...] | None


@dataclass(frozen=True)
class Reading:
    """Options of `ingest` by which a source is read. Every reader takes those that apply to it."""

    format: str | None = None
    n_features: int | None = None
    label: LabelColumns = None  # None means that the reader finds it, False that there is none
    weight: Any = None
    header: bool | None = None
    drop: tuple[str | int, ...] = ()
    dtype: str = "float32"
    block_bytes: int = BLOCK_BYTES
    allow_large: bool = False
    per_class: int | None = None
    fraction: float | None = None
    seed: int = 0  # of the draws of these two
    sparse: bool | None = None  # whether rows are read as CSR; None leaves it to their share of zeros
    # column of texts, whose words become counted features; with a recipe they are weighted, too
    text: str | int | TextRecipe | None = None
    columns: ColumnRecipe | None = None  # by which the columns of a table become features

    # Sparse rows become a sparse store by default beyond so many features, of which a linear solver forms no Hessian,
    # if at most this share of them is not zero: a dense store of float32 then takes ten times the bytes. With fewer
    # features, rows are as well served by the kernels that learn from dense stores alone.
    sparse_features: ClassVar[int] = 2048
    sparse_share: ClassVar[float] = 0.05

    @property
    def text_column(self) -> str | int | None:
        """The column of texts."""
        return self.text.column if isinstance(self.text, TextRecipe) else self.text

    @property
    def asked(self) -> tuple[Any, ...]:
        """The columns that the user names, whatever for."""
        labels = self.label if isinstance(self.label, list | tuple) else [self.label]
        return *labels, self.weight, self.text_column, *self.drop

    @property
    def hash_size(self) -> int:
        """Number of features to which the words of texts are hashed."""
        if isinstance(self.text, TextRecipe):
            return self.text.n_features
        return 1 << 20 if self.n_features is None else self.n_features  # as many by default as in scikit-learn

    def block_rows(self, features: float) -> int:
        """Return the rows of a dense float64 block of about ``block_bytes``, at least one."""
        return max(1, int(self.block_bytes // (8 * max(1, features))))

    def reads_sparsely(self, X: Any) -> bool:
        """Return whether rows are read as CSR, by the first of them: CSR rows, or None if these are dense."""
        if self.sparse is not None or X is None:
            return bool(self.sparse)
        rows, features = X.shape
        return bool(features > self.sparse_features and X.nnz <= self.sparse_share * rows * features)


@dataclass(frozen=True, eq=False)
class SourceBlock:
    """Consecutive rows of a source."""

    X: Any  # numbers of shape (rows, d), in the requested type, an array or CSR; finite, or NaN for missing values
    y: npt.NDArray[Any] | None  # labels of shape (rows,), as the source has them: numbers or strings
    weight: npt.NDArray[np.float64] | None  # shape (rows,), NaN if missing
    place: Callable[[int], str]  # returns the place of a row of the block, such as ``train.csv, line 17``
    label_place: Callable[[int], str]  # the same of its label, such as ``y, row 17``
    position: int  # bytes of the source read so far
    coordinates: npt.NDArray[np.float64] | None = None  # (rows, k), of the places that rows come from


def is_of(value: Any, library: str, *classes: str) -> bool:
    """Return whether ``value`` is of one of a library's classes, without importing the library if nobody uses it."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in classes))


def computed(*lazy: Any, **options: Any) -> tuple[Any, ...]:
    """Compute lazy values as Dask does, on the active client's workers if there is one.

    Raises ClusterError if the client is asynchronous, where Dask says no more than that.
    """
    if any(map(is_dask_collection, lazy)):
        try:
            get_scheduler()
        except RuntimeError as error:
            raise ClusterError(ASYNCHRONOUS) from error
    return compute(*lazy, **options)


@contextmanager
def explained(where: str, what: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise errors of a file that cannot be read as InputError, which says ``where``, and ``what`` may be wrong."""
    try:
        yield
    except InputError:
        raise
    except errors as error:
        raise InputError(f"{where}: {what} ({' '.join(str(error).split())[:200]}).") from error


def narrow(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return ``values`` as ``dtype``. Numbers that are too large become infinite, which readers look for."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=dtype)


class RoundedNumbers:
    """Columns of numbers that a type rounds too much, with one of each: by column, a number and what it became.

    Those ``found`` are whole numbers, such as identifiers, of which some are rounded. Those that are ``lost`` lie so
    close to each other that rounding moves one by more than ``share`` of the column's range.
    """

    share: ClassVar[float] = 2.0**-15  # about 1e-4 of the standard deviation of evenly spread numbers

    def __init__(self) -> None:
        self.found: dict[int, tuple[float, float]] = {}
        self.lost: dict[int, tuple[float, float]] = {}
        self._close: npt.NDArray[Any] | None = None  # columns that may be lost, by their rows so far
        self._ends = np.empty((3, 0))  # by column: −least, most, and how far rounding moved a number

    def note(self, numbers: npt.NDArray[Any], kept: npt.NDArray[Any], columns: npt.NDArray[Any] | None = None) -> None:
        """Look at numbers and at what is ``kept`` of them: rows (n, d), or entries (n,) of these ``columns``."""
        exact = 2.0 ** (np.finfo(kept.dtype).nmant + 1)  # whole numbers up to here are kept as they are
        is_small = bool(kept.max(initial=0.0) <= exact and kept.min(initial=0.0) >= -exact)
        if columns is None and len(numbers) and numbers.dtype != kept.dtype:
            self._note_range(numbers, kept, is_small)
        if is_small and not self.found:
            return
        size = np.abs(kept)
        if columns is None:
            large = np.fmax.reduce(size, axis=0, initial=0.0) > exact
            large[list(self.found)] = True
            columns = np.flatnonzero(large)
            numbers, kept, size = numbers[:, columns], kept[:, columns], size[:, columns]
            columns = np.broadcast_to(columns, numbers.shape)
        fractions = np.isfinite(numbers) & (numbers != np.floor(numbers))
        rounded = (size > exact) & (size < 2.0**64) & ((kept != numbers) | (size > 2.0**53))
        others = set(columns[fractions].tolist())  # measurements, which have fewer digits than float32 keeps
        places = np.flatnonzero(rounded)
        _, first = np.unique(columns.flat[places], return_index=True)
        for at in places[first].tolist():
            self.found.setdefault(int(columns.flat[at]), (int(numbers.flat[at]), int(kept.flat[at])))
        self.found = {column: pair for column, pair in self.found.items() if column not in others}

    @np.errstate(invalid="ignore")  # infinity is refused elsewhere
    def _note_range(self, numbers: npt.NDArray[Any], kept: npt.NDArray[Any], is_small: bool) -> None:
        if self._close is None:
            self._close, self._ends = np.arange(numbers.shape[1]), np.full((3, numbers.shape[1]), -np.inf)
        # a number may be too large, whatever came before
        seen = self._close if is_small else np.union1d(self._close, np.flatnonzero(np.isinf(kept).any(axis=0)))
        if not len(seen):
            return
        held = numbers[:, seen].astype(np.float64)
        moved = np.abs(held - kept[:, seen])
        ends = np.fmax(self._ends[:, seen], [np.fmax.reduce(each, axis=0) for each in (-held, held, moved)])
        self._ends[:, seen] = ends
        reach = self.share * (ends[0] + ends[1])
        size = ends[:2].max(axis=0)
        most = np.finfo(kept.dtype)
        close = (size > most.max) | (reach < size * most.eps)
        lost = close & (ends[2] > reach) & (reach > size * np.finfo(np.float64).eps)  # else of float64, too
        at = np.fmax(moved, 0.0).argmax(axis=0)
        self.lost = {
            column: self.lost.get(column, (float(held[at[k], k]), float(kept[at[k], column])))
            for k, column in enumerate(seen.tolist())
            if lost[k]
        }
        self._close = seen[close]


def not_finite(place: str, column: str, value: Any, dtype: str) -> InputError:
    """Return the error for a number that cannot be stored."""
    if np.isinf(value):
        return InputError(f"{place}, {column}: infinity; only finite numbers can be learned from.")
    return InputError(f"{place}, {column}: {value} is too large for {dtype}; set dtype='float64' (--dtype float64).")


def require_in_range(
    values: npt.NDArray[Any], dtype: str, name: Callable[[int], str], place: Callable[[int], str]
) -> None:
    """Raise InputError at the first of the ``values`` (n, d) that is infinite in a type; NaN is allowed.

    The message has the ``place`` of the row and the ``name`` of the column.
    """
    large = np.abs(values) > np.finfo(dtype).max
    if large.any():
        row, column = np.argwhere(large)[0].tolist()
        raise not_finite(place(row), name(column), values[row, column], dtype)


def column_name(column: int, names: Sequence[str | int] | None) -> str:
    """Return a column's name in messages, or its number, from 0 as parameters take it."""
    return f"column {column}" if names is None else f"column {quoted(names[column])}"


def shown(text: str | bytes, most: int = 60) -> str:
    """Quote text for a message of one line, and shorten it if it is long."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    kept = words[: most if words[:most].isprintable() else most // 4]  # an escape such as \x00 takes four characters
    return repr(kept) if len(kept) == len(words) else f"{kept!r}… ({len(words)} characters)"


def describe(paths: Sequence[str], most: int = 3) -> str:
    """Return the names of files for messages and the store: all of a few, or the first of many and how many more."""
    first = ", ".join(map(printable, paths[:most]))
    more = len(paths) - most
    return first if more <= 0 else f"{first} and {more} more file{'s' if more > 1 else ''}"


def joined(words: Sequence[str]) -> str:
    """Join words as in ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


LABEL_NAMES = ("label", "y", "target", "class")


@dataclass(frozen=True)
class Columns:
    """Positions of label, weight and dropped columns among ``count`` columns, with all names if there are any."""

    names: tuple[str, ...] | None
    count: int
    label: int | None
    weight: int | None
    guessed: bool = False  # the label is the last column, since no name tells it
    dropped: tuple[int, ...] = ()
    text: int | None = None  # of texts, which become all the features; all columns without a role are dropped
    numbers: tuple[int, ...] | None = None  # names of a frame's columns if all are numbers, which a store does not keep
    label_is_open: bool = False  # the user has not said which column has the labels, or that there are none
    targets: tuple[int, ...] = ()  # in place of a label, if there are several

    @property
    def features(self) -> Sequence[int]:
        """Positions of the features; of all columns without a list, since there may be millions."""
        others = {self.label, self.weight, *self.dropped, *self.targets} - {None}
        if not others:
            return range(self.count)
        return [i for i in range(self.count) if i not in others]

    @cached_property
    def texts(self) -> frozenset[int]:
        """Positions of columns that need not have numbers: the label, texts and the dropped ones."""
        beside = (self.label, self.text, *self.dropped)
        return frozenset(i for i in beside if i is not None)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features."""
        return None if self.names is None else tuple(self.names[i] for i in self.features)

    @property
    def called(self) -> Sequence[str | int] | None:
        """Names of the features, or the numbers of their columns, for messages; None if all columns are features."""
        names = self.names or self.numbers
        if names is None:
            return None if len(self.features) == self.count else self.features
        return [names[i] for i in self.features]

    def name(self, i: int) -> str:
        """Return a column's name in messages."""
        return column_name(i, self.names or self.numbers)

    @property
    def other_label(self) -> str:
        """The end of a message on columns without numbers: how to choose the label, unless the user did."""
        if not self.label_is_open:
            return ""
        taken = "" if self.label is None else f", which now are those of {self.name(self.label)}"
        return f"; or choose the labels by label= (--label){taken}"


def choose_columns(
    where: str,
    names: Sequence[Any] | None,
    count: int,
    label: LabelColumns,
    weight: str | int | None,
    *,
    guess: bool = True,
    drop: Sequence[str | int] = (),
    text: str | int | None = None,
    recipe: ColumnRecipe | None = None,
) -> Columns:
    """Find the columns of labels, weights and texts among ``count`` columns, and those that ``drop`` leaves out.

    Columns are given by name or number (from 0; negative from the end). Several labels are targets, which are numbers.
    A ``label`` of False means none, and None means none unless ``guess``: then it is the column named label, y, target
    or class (in any case), else the last, or with a ``recipe`` none, since its rows may have no labels. ``where`` is
    the file or object in messages. Raises InputError if there is no such column or no feature beside label and
    weight, or if two columns have one name.
    """
    texts = _texts(where, names)
    at = {name: i for each in (texts, names) for i, name in enumerate(each or ())}

    def position(what: str, column: str | int) -> int:
        if column in at:
            return at[column]
        try:
            number = int(column)
        except ValueError:
            some = ", ".join((texts or ())[:20]) + (" …" if count > 20 else "")
            known = "the columns have no names" if texts is None else f"the columns are {some}"
            codes = [name for name in texts or () if name.startswith(f"{column}_")]
            if codes:
                known += f"; {shown(codes[0])} seems to encode it: leave the labels as they are"
            raise InputError(f"{where}: no {what} column '{column}'; {known}.") from None
        if not -count <= number < count:
            raise InputError(f"{where}: no {what} column {number}; there are {count} columns.")
        return number % count

    at_weight = None if weight is None else position("weight", weight)
    at_text = None if text is None else position("text", text)
    dropped = tuple(position("dropped", each) for each in drop)
    at_label = None
    guessed = False
    targets = tuple(position("label", each) for each in (label if isinstance(label, list | tuple) else ()))
    if label is None and guess:
        among = [i for i in Columns(texts, count, None, at_weight, dropped=dropped).features if i != at_text]
        usual = [i for name in LABEL_NAMES if texts is not None for i in among if texts[i].lower() == name]
        if recipe is not None:
            usual = [i for i in usual if texts is not None and texts[i] not in recipe.names]
        guessed = not usual and recipe is None
        at_label = usual[0] if usual else among[-1] if among and guessed else None
    elif isinstance(label, str | int) and label is not False:
        at_label = position("label", label)
    if at_text is not None:
        if at_text in (at_label, at_weight, *dropped):
            raise InputError(f"{where}: the column of texts cannot be that of the labels or weights, or be dropped.")
        dropped = tuple(i for i in range(count) if i not in (at_label, at_weight, at_text, *targets))
    numbers = None if texts is not None or names is None else tuple(map(index, names))
    columns = Columns(texts, count, at_label, at_weight, guessed, dropped, at_text, numbers, label is None, targets)
    _check(where, columns)
    return columns


def columns_of_file(where: str, names: Sequence[str] | None, count: int, reading: Reading) -> Columns:
    """Find the columns of a file as its options tell them, see `choose_columns`."""
    return choose_columns(
        where, names, count, reading.label, reading.weight, drop=reading.drop, recipe=reading.columns,
        text=reading.text_column,
    )  # fmt: skip


def _check(where: str, columns: Columns) -> None:
    """Raise InputError if there are no features or too many, or if a column has two roles or no name."""
    if columns.names is not None and "" in columns.names and columns.names.index("") not in columns.dropped:
        at = columns.names.index("")
        raise InputError(
            f"{where}: column {at} has no name; if it is a row number, leave it out with drop={at} (--drop {at})."
        )
    roles = [each for each in (columns.label, columns.weight, *columns.targets) if each is not None]
    if set(roles) & set(columns.dropped):
        raise InputError(f"{where}: a column that is dropped cannot be that of the labels or weights.")
    same = len(set(roles)) < len(roles)
    if not 1 <= len(columns.features) <= MAX_FEATURES or same:
        raise InputError(f"{where}: no feature columns beside label and weight, or too many.")


def _texts(where: str, names: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return names as strings; None if columns are only numbered."""
    if names is None or all(not isinstance(name, str) and hasattr(name, "__index__") for name in names):
        return None
    texts = tuple(map(str, names))
    if len(set(texts)) < len(texts):
        twice = next(name for name, times in Counter(texts).items() if times > 1)
        raise InputError(f"{where}: two columns are named {twice[:60]!r}; give each a name of its own.")
    return texts
