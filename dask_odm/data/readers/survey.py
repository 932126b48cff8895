"""The survey of a table that finds the recipe of its columns.

It reads every column once. A column of numbers or dates stays one, until a value is neither. Of all others, the
words are listed, and at the end the list tells whether they are numbers, booleans, dates or words. So the recipe
depends on the rows, and neither on their file nor on how this was cut.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from dask_odm.data.readers.column_values import UnfitError, kind_in, mapped, moment_in, read_as, word_in
from dask_odm.data.readers.lines import number_in
from dask_odm.data.readers.sources import RoundedNumbers, joined, narrow, not_finite, shown
from dask_odm.data.store.column_recipe import CYCLES, LEFT_OUT, Column, ColumnRecipe
from dask_odm.errors import InputError
from dask_odm.printing import quoted
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")

MAX_LEVELS = 256  # levels of words that get a feature each (benchmarks/MEASURED.md)
MOST_WORDS = 1 << 18  # different words of a column that are told apart
GAP_SHARE = 0.01  # of the rows, above which a feature says where gaps are
ID_SHARE = 0.9  # of the rows with different words, from which a column tells rows apart, and nothing else
ID_ROWS = 50  # the fewest rows of which that can be said
TEXT_BLANKS = 4.0  # blanks of such a word on average, from which it is a text
NUMBER_SHARE = 0.9  # of the rows with numbers, from which other words among many numbers are gaps
MANY_NUMBERS = 20
MEDIAN_VALUES = 1 << 23  # values of all columns, evenly spaced, of which medians are found, in 64 MB

_OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}.*")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class _ColumnSurvey:
    """What a column holds, as far as it was read. ``as_told`` is the kind that the user named."""

    def __init__(self, name: str, as_told: str | None) -> None:
        self.name = name
        self.as_told = as_told
        self.kind = "words" if as_told == "words" else None
        self.is_category = False  # words by the type of the column
        self.zoned = False
        self.restart()

    def restart(self) -> None:
        """Forget the rows, but not the kind that they have."""
        self.is_wrong = False  # values so far were read as a kind that later ones are not
        self.words: dict[str, int] = {}
        self.listed: int | None = None  # rows after which the list was full
        self.rows = 0

    def values(self, column: pd.Series, *, spells_all: bool) -> Array:
        """Return the values of further rows, (n,); of words, their places in the list, −1 if it is full.

        ``spells_all`` says that all values were read from text, so that their type tells nothing.
        """
        is_text = spells_all and len(column) > 0 and isinstance(column.iat[0], str)
        kind = "words" if is_text else kind_in(column)
        if kind is None:
            return np.full(len(column), np.nan)
        self.is_category = self.is_category or (isinstance(column.dtype, pd.CategoricalDtype) and not spells_all)
        if self.kind is None:
            self.kind = self._guess(column, kind, spells_all)
        if self.kind != "words" and not self.is_category:
            with suppress(UnfitError):
                return read_as(self.kind, column, zoned=self.zoned)
        if self.kind != "words":
            self.kind = "words"
            self.is_wrong = self.rows > 0
        values = mapped(column, self._listed)
        if self.listed is None and len(self.words) >= MOST_WORDS and (values == -1.0).any():
            self.listed = self.rows + int(np.argmax(values == -1.0))
        return values

    def _guess(self, column: pd.Series, kind: str, spells_all: bool) -> str:
        """Return the kind by the first rows with a value; of words, only if they are so many that a list is long."""
        row = int(np.argmax(column.notna()))
        first = column.iloc[row]
        if kind == "date":
            self.zoned = getattr(first, "tzinfo", None) is not None
        if kind != "words" or self.is_category:
            return kind
        word = word_in(first, row)
        if word is None or (spells_all and number_in(word) is not None):
            return kind if word is None else "number"
        found = moment_in(word)
        if found is None:
            return kind
        self.zoned = found[1]
        return "date"

    def _listed(self, word: str) -> float:
        if word not in self.words and len(self.words) >= MOST_WORDS:
            return -1.0
        return float(self.words.setdefault(word, len(self.words)))


class Survey:
    """What the columns of a table hold, as far as it was read.

    ``words`` and ``numbers`` are names of columns to be read as such. At most ``max_levels`` words of a column get a
    feature. ``ids`` says what becomes of columns that differ in nearly every row: "drop", or "error".
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        words: Sequence[str] = (),
        numbers: Sequence[str] = (),
        max_levels: int = MAX_LEVELS,
        ids: str = "drop",
    ) -> None:
        told: dict[str, str] = {}
        for kind, called in (("number", numbers), ("words", words)):
            told |= dict.fromkeys([called] if isinstance(called, str) else called, kind)
        for name in told:
            if name not in names:
                raise InputError(f"no column {quoted(name)}; the columns are {', '.join(map(shown, names[:20]))}.")
        self.columns = [_ColumnSurvey(name, told.get(name)) for name in names]
        self.rounded: dict[int, tuple[float, float]] = {}  # columns that float32 rounds too much
        self._max_levels = max_levels
        self._ids = ids

    @property
    def wrong(self) -> str | None:
        """Name of a column of which earlier rows were read as a kind that it is not; None without one."""
        return next((column.name for column in self.columns if column.is_wrong), None)

    def restart(self) -> None:
        """Forget all rows, but not of which kind the columns are."""
        for column in self.columns:
            column.restart()

    def add(self, held: Iterable[pd.Series], rows: int, place: Callable[[int], str], *, spells_all: bool) -> Array:
        """Return the values (rows, columns) of further rows, whose columns are ``held``.

        Raises InputError, with the ``place`` of the row, for a value that can be no word.
        """
        values = np.empty((rows, len(self.columns)), order="F")
        for j, (column, series) in enumerate(zip(self.columns, held, strict=True)):
            try:
                values[:, j] = column.values(series, spells_all=spells_all)
            except UnfitError as error:
                kind = type(error.value).__name__
                raise InputError(
                    f"{place(error.row)}, column {quoted(column.name)}: a value of type {kind} is no number, word or "
                    "date; leave the column out, of files by drop= (--drop)."
                ) from None
            column.rows += rows
        return values

    def add_numbers(self, rows: int) -> None:
        """Note further rows, of numbers in all columns."""
        for column in self.columns:
            column.kind = column.kind or "number"
            column.rows += rows

    def recipe(
        self, blocks: Callable[[], Iterable[Array]], dtype: str | None, where: str
    ) -> tuple[ColumnRecipe, Callable[[Array], Array]]:
        """Return the recipe by the training rows, whose values ``blocks`` yields again and again.

        Without ``dtype`` features are float32, unless a column of numbers is lost by that, see `RoundedNumbers`. The
        function beside it makes features of such values, which it may change. Raises InputError if no column is left,
        or one differs in nearly every row and must not be left out.
        """
        most = max(1 << 7, MEDIAN_VALUES // len(self.columns))
        facts = [_Facts(column, where, dtype, most) for column in self.columns]
        for values in blocks():
            for fact, held in zip(facts, values.T, strict=True):
                fact.add(held)
        columns = tuple(fact.settled(self._max_levels) for fact in facts)
        self._say(where, columns)
        if all(column.kind in LEFT_OUT for column in columns):
            raise InputError(f"{where}: no column is left to learn from.")
        rounded = [list((fact.rounded.lost | fact.rounded.found).values()) for fact in facts]
        self.rounded = {j: pairs[0] for j, pairs in enumerate(rounded) if pairs}
        found = ColumnRecipe(columns, dtype or ("float64" if any(fact.rounded.lost for fact in facts) else "float32"))
        return found, partial(_encoded, found, [fact.table for fact in facts])

    def _say(self, where: str, columns: Sequence[Column]) -> None:
        """Log which columns are left out, or refuse them."""
        for kind, why in LEFT_OUT.items():
            names = [quoted(column.name) for column in columns if column.kind == kind]
            if not names:
                continue
            what = f"{where}: column{'s' * (len(names) > 1)} {joined(names)} hold{'s' * (len(names) == 1)} {why}"
            if kind == "id" and self._ids == "error":
                raise InputError(
                    f"{what}; leave it out by drop= (--drop), or take it for words by categories= (--category)."
                )
            way_out = {"texts": "; to learn from texts alone, ingest them by text= (--text)"}.get(kind, "")
            logger.warning("%s; left out%s.", what, way_out)


def _encoded(recipe: ColumnRecipe, tables: Sequence[Array | None], values: Array) -> Array:
    """Return the features (n, d) of the values that a survey returned, with a table of those of the words it listed."""
    for held, table in zip(values.T, tables, strict=True):
        if table is not None:
            gaps = np.isnan(held)
            held[:] = np.where(gaps, np.nan, table[np.where(gaps, -1.0, held).astype(np.intp)])
    return recipe.encode(values)


class _Facts:
    """Facts of the values of one column in the training rows."""

    def __init__(self, survey: _ColumnSurvey, where: str, dtype: str | None, most: int) -> None:
        self.survey = survey
        self.rounded = RoundedNumbers()
        self.kind = survey.kind
        self._where = where
        self._dtype = dtype or "float64"  # of the features
        self.rows = self.gaps = 0
        self.table: Array | None = None  # the value of each listed word, and of those beyond the list
        self._least, self._largest = np.inf, -np.inf
        self._turns: dict[str, tuple[float, float]] = {}
        self._counts = np.zeros(len(survey.words) + 1, np.int64)  # the last one is of words beyond the list
        self._most = most  # values that are kept for the median
        self._step = 1  # of each so many values, one is kept
        self._kept: list[Array] = []
        self._held = 0  # values in these

    def add(self, values: Array) -> None:
        """Add further values (n,)."""
        gaps = np.isnan(values)
        known = values[~gaps] if gaps.any() else values
        self.rows += len(values)
        self.gaps += len(values) - len(known)
        if not len(known):
            return
        if self.kind == "words":
            self._counts += np.bincount(known.astype(np.intp) % len(self._counts), minlength=len(self._counts))
            return
        self._span(known)
        before = self.rows - self.gaps - len(known)
        self._kept.append(known[-before % self._step :: self._step].copy())
        self._held += len(self._kept[-1])
        while self._held > self._most:
            self._kept = [np.concatenate(self._kept)[::2].copy()]
            self._held = len(self._kept[0])
            self._step *= 2

    def _span(self, known: Array) -> None:
        self._least, self._largest = min(self._least, known.min()), max(self._largest, known.max())
        if self.kind in ("number", "span"):
            self.rounded.note(known[:, None], narrow(known[:, None], "float32"))
        if self.kind == "date":
            for cycle, turn in CYCLES.items():
                shares = turn(known)
                least, most = self._turns.get(cycle, (np.inf, -np.inf))
                self._turns[cycle] = min(least, shares.min()), max(most, shares.max())

    def settled(self, max_levels: int) -> Column:
        """Return the recipe of the column; words that were listed have a table then."""
        plain = Column(self.survey.name, "empty", gaps=self.gaps)
        if self.gaps == self.rows:
            return plain
        if self.kind != "words":
            known = np.sort(np.concatenate(self._kept))
            return self._of_values(plain, known[(len(known) - 1) // 2])
        words = list(self.survey.words)
        read = self._read_list(words)
        return self._of_levels(plain, words, max_levels) if read is None else self._of_list(plain, *read)

    def _of_values(self, plain: Column, median: float) -> Column:
        return replace(
            plain, kind=str(self.kind), gaps=self.gaps, tells_gaps=self.gaps > GAP_SHARE * self.rows,
            fill=float(median), least=float(self._least), most=float(self._largest),
            cycles=tuple(cycle for cycle, (least, most) in self._turns.items() if most > least),
            zoned=self.kind == "date" and self.survey.zoned,
        )  # fmt: skip

    def _read_list(self, words: list[str]) -> tuple[str, Sequence[float | None], tuple[str, ...]] | None:
        """Return which kind of values the listed words are, these, and the words that count as gaps; None of words."""
        survey = self.survey
        if survey.as_told == "words" or survey.is_category or survey.listed is not None:
            return None
        if {word.lower() for word in words} <= {"true", "false"}:
            return "boolean", [float(word.lower() == "true") for word in words], ()
        numbers = [number_in(word) for word in words]
        odd = [word for word, number in zip(words, numbers, strict=True) if number is None]
        if not odd:
            return "number", numbers, ()
        counts = self._counts[:-1]
        is_number = np.array([number is not None for number in numbers])
        mostly = counts[is_number].sum() >= NUMBER_SHARE * counts.sum() and is_number.sum() > MANY_NUMBERS
        if mostly or survey.as_told == "number":
            logger.warning(
                "%s: column %s holds numbers, and %s, read as gaps; for words, ingest by categories= (--category).",
                self._where, quoted(survey.name), joined([shown(word) for word in odd[:5]])
            )  # fmt: skip
            return "number", numbers, tuple(odd)
        moments = [moment_in(word) for word in words]
        zones = {moment[1] for moment in moments if moment is not None}
        if None not in moments and len(zones) == 1:
            survey.zoned = zones.pop()
            return "date", [moment[0] for moment in moments if moment is not None], ()
        commas = [word for word in words if _DECIMAL_COMMA.fullmatch(word)]
        if commas and len(commas) + is_number.sum() >= NUMBER_SHARE * len(words):
            raise InputError(
                f"{self._where}: column {quoted(survey.name)} holds numbers with a comma, such as "
                f"{shown(commas[0])}; write a decimal point, or nothing between thousands, or ingest them as words "
                "by categories= (--category)."
            )
        if all(map(_OTHER_DATE.fullmatch, words)):
            logger.warning(
                "%s: column %s holds words that look like dates, such as %s; write dates as 2023-08-01.",
                self._where, quoted(survey.name), shown(words[0])
            )  # fmt: skip
        return None

    def _of_list(self, plain: Column, kind: str, values: Sequence[float | None], gap_words: tuple[str, ...]) -> Column:
        """Settle a column whose listed words are ``values``, None for those that count as gaps."""
        self.kind = kind
        self.table = np.array([*values, None], np.float64)  # None becomes NaN
        large = self.table[np.abs(self.table) > np.finfo(self._dtype).max]
        if len(large):
            raise not_finite(self._where, f"column {quoted(plain.name)}", large[0], self._dtype)
        self.gaps += int(self._counts[np.isnan(self.table)].sum())
        there = np.flatnonzero((self._counts > 0) & ~np.isnan(self.table))
        if not len(there):
            return replace(plain, gaps=self.gaps)
        there = there[np.argsort(self.table[there], kind="stable")]
        known = self.table[there]
        self._span(known)
        upto = np.cumsum(self._counts[there])
        median = known[np.searchsorted(upto, (upto[-1] - 1) // 2, side="right")]
        return self._of_values(replace(plain, gap_words=gap_words), median)

    def _of_levels(self, plain: Column, words: list[str], max_levels: int) -> Column:
        """Settle a column of words: the most frequent are levels, equally frequent ones by name."""
        survey = self.survey
        there = np.flatnonzero(self._counts[:-1])
        rows = self.rows - self.gaps
        many = len(there) >= ID_SHARE * rows or (survey.listed is not None and len(words) >= ID_SHARE * survey.listed)
        if many and rows >= ID_ROWS and survey.as_told is None and not survey.is_category:
            blanks = sum(words[i].count(" ") for i in there[:1000]) / len(there[:1000])
            return replace(plain, kind="texts" if blanks >= TEXT_BLANKS else "id")
        ranked = sorted(there.tolist(), key=lambda i: (-self._counts[i], words[i]))
        kept = ranked[:max_levels]
        self.table = np.full(len(self._counts), -1.0)
        self.table[kept] = np.arange(len(kept))
        more = len(ranked) - len(kept) + int(self._counts[-1] > 0)
        levels = tuple(words[i] for i in kept)
        return replace(plain, kind="words", tells_gaps=self.gaps > 0, levels=levels, more_levels=more)
