"""Ingestion: one pass from a source to a store, or to a training and a test store, in bounded memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.arguments import FROM_0, FROM_1, checked
from dask_odm.data.readers.complete_rows import CompleteRows
from dask_odm.data.readers.file_formats import FORMATS
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.labels import LabelEncoder
from dask_odm.data.readers.lines import is_number
from dask_odm.data.readers.sources import BLOCK_BYTES, LabelColumns, Reading, SourceBlock, joined, shown
from dask_odm.data.readers.survey import MAX_LEVELS, Survey
from dask_odm.data.readers.table_source import NeedsRecipeError, TableSource
from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.kept_rows import KeptRows
from dask_odm.data.store.store import Store
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.data.store.writer import StoreWriter, publish_all
from dask_odm.errors import InputError
from dask_odm.events import Ingested, Progress, report
from dask_odm.printing import quoted
from dask_odm.progress import shown_if_long

logger = logging.getLogger("dask_odm")

Path = str | os.PathLike[str]


@overload
def ingest(source: Any, store: Path, *, test_size: None = None, **options: Any) -> Store: ...
@overload
def ingest(source: Any, store: Path, *, test_size: float, **options: Any) -> tuple[Store, Store]: ...
@shown_if_long()  # type: ignore[misc]  # the overloads leave out the options, which have no part in the type
@checked(
    drop=[Integral, Iterable], test_size=[Interval(Real, 0.0, 1.0, closed="neither"), None], seed=[FROM_0, None],
    chunk_rows=[Integral, None], block_bytes=[Interval(Real, 1, None, closed="left")], per_class=[FROM_1, None],
    fraction=[Interval(Real, 0.0, 1.0, closed="right"), None], text=[str, Integral, TextRecipe, None],
    categories=[Iterable], numbers=[Iterable], max_levels=[FROM_1],
    ids=[StrOptions({"drop", "error"})],
)  # fmt: skip
def ingest(
    source: Any,
    store: Path,
    *,
    format: str | None = None,
    n_features: int | None = None,
    label: LabelColumns = None,
    weight: Any = None,
    target: str = "auto",
    header: bool | None = None,
    drop: str | int | Sequence[str | int] = (),
    drop_missing: bool = False,
    dtype: str = "float32",
    test_size: float | None = None,
    test_store: Path | None = None,
    seed: int = 0,
    chunk_rows: int | None = None,
    compression: str | None = None,
    block_bytes: int = BLOCK_BYTES,
    allow_large: bool = False,
    per_class: int | None = None,
    fraction: float | None = None,
    sparse: bool | None = None,
    text: str | int | TextRecipe | None = None,
    columns: ColumnRecipe | None = None,
    categories: Sequence[str] = (),
    numbers: Sequence[str] = (),
    max_levels: int = MAX_LEVELS,
    ids: str = "drop",
    overwrite: bool = False,
) -> Store | tuple[Store, Store]:
    """Read a data set once and write it as a store.

    Memory does not grow with the data: only one block of the source and one chunk of each store are in memory. Columns
    of frames and files may hold words, booleans, dates and gaps. What is made of them is a recipe that the store keeps,
    as do models that learn from it. The source is then read once, or twice if its first rows do not tell what a
    column holds, and the values of its columns are kept in Dask's ``temporary-directory`` meanwhile.

    Parameters
    ----------
    source : the rows in any of these forms; feature names are kept if there are any

        - a path, a list of paths of one format, a folder, a glob pattern, or ``-`` for text on standard input, which
          is saved in Dask's ``temporary-directory`` first.
          Files are read in the order of their names; hidden ones, ``_SUCCESS`` and the like are left out.
          Names of folders such as ``year=2024`` tell columns, which come last.
          Texts may be .gz, .bz2, .xz or .zst (needs pyarrow), or one file in .zip or .tar. All but NumPy files may be
          objects, ``s3://BUCKET/NAME``: one, or those directly below a name
        - X of shape (rows, d), or (X, y): NumPy array, SciPy sparse matrix or array (filled block by block),
          dask array, zarr array (chunk by chunk)
        - DataFrame of pandas, Dask or polars, pyarrow Table, RecordBatchReader or any object with an Arrow stream, or
          (DataFrame, Series)
        - xarray Dataset with X, y and weight as from `open_store`, or DataArray X or (X, y). Samples are along the
          dimension of y, else the dimension named ``sample``, else the first
        - a cube, (DataArray or Dataset, DataArray of labels or frame of points), or a Dataset whose ``label`` is a
          variable: rows that have a label and all features, as `fit` takes them. The coordinates of every row are
          kept, see `open_store`
        - a store, by path or open

        Lazy objects are computed one partition at a time, on the active client if there is one
    store : folder to write, or an address such as ``s3://BUCKET/NAME``; the store appears only when it is complete
    format : {formats}; by default told by name or content
    n_features : number of features to which the words of texts are hashed, see ``text``. For LIBSVM text, the number of
        its features, without which a first pass looks for the largest index. It must be given if another file (a test
        set) has larger indices
    label : column of a file of columns or a frame by name or number (default: label, y, target or class, else the
        last), array of an archive, column number of an array, variable of a Dataset, or False for none. A list of
        columns with numbers are several targets of a row, or labels if all are 0 or 1
    weight : column by name or number, array of an archive, variable of a Dataset, or for rows in memory the
        weights
        Labels in CSV are numbers if all are, and strings as they are spelled if one has leading zeros, if one number is
        spelled in two ways, or if one has too many digits to be kept
    target : ``classes`` reads labels as classes, and ``real`` reads them as numbers for regression. ``auto`` reads them
        as classes, unless there are more than 100 different labels, all numbers and some of them not whole. If the
        source is a store, its y does not change
    header : whether CSV text begins with column names; by default found out from its first line
    drop : names or numbers of columns of files that are left out, such as an identifier
    drop_missing : leave out rows with a missing feature, label or weight, and log their number; by default such rows
        are an error
    dtype : ``float32`` or ``float64``
    test_size : share of the rows, in (0, 1), drawn at random into a second store. Exactly this share of each 100
        consecutive rows is drawn, so the total is exact to a few rows. The draw depends only on ``seed`` and the order
        of rows
    test_store : folder of the second store; by default ``store`` with ``-test`` before its suffix
    seed : seed of the split, and of the rows that ``per_class`` or ``fraction`` draws
    chunk_rows : number of rows of a chunk; by default as many as make 8 to 16 MB
    compression : None, or ``zstd``
    block_bytes : bytes of the source held at a time
    allow_large : read LIBSVM text even if one row alone has so large an index that dense rows take more than 256 MiB
        and 200 times the size of the text, or a compressed file that unpacks to as much. The index may be wrong;
        ``n_features`` tells, too. If other rows have such indices, rows are sparse
    per_class : maximum number of rows of each class that are drawn from a cube, and held in memory. Which rows are
        drawn depends only on their places in the cube and on ``seed``, not on chunks or workers
    fraction : share of the labelled rows of a cube that is drawn, in (0, 1]
    sparse : whether the store only has the entries of the rows that are not zero, as AnnData does. This is the default
        if the source is sparse (LIBSVM text, SciPy), has more than 2,048 features, and at most one number in twenty of
        its first rows is not zero, and for LIBSVM text of which dense rows are far larger. A large store of sparse rows
        is for linear models only
    text : column of texts, by name or number, of a file of columns or a frame. Its words are hashed and
        counted as scikit-learn's ``HashingVectorizer(n_features, norm=None, alternate_sign=False)`` does, by default to
        2²⁰ features, and weighted as its ``TfidfTransformer()`` does; with ``test_size`` the weights are those of the
        training rows. Counts are kept in Dask's ``temporary-directory`` meanwhile. All columns except label and weight
        are left out. The store keeps this recipe, and so do models that learn from it: they can predict texts. Pass the
        recipe, ``store.text_recipe`` or ``model.text_recipe_``, to turn other texts into rows in the same way
    columns : recipe of a store or a model, ``store.column_recipe`` or ``model.column_recipe_``, to turn the columns of
        other rows into features in the same way. By default the rows tell it; with ``test_size``, the training rows

        - numbers stay. Gaps among them become the median (of evenly spaced values, if all columns have more than eight
          million), and have a feature if more than a hundredth of the rows do
        - words become one feature a level, which is 1 in its rows. Rarer ones than the ``max_levels`` most frequent
          share a feature, and gaps have one. Words not seen before count as these rarer ones
        - dates, and times of day, become days since the earliest, and sine and cosine of hour, weekday and month, if
          these vary. With a time zone, they are of UTC
        - spans of time are days, booleans 0 and 1
        - words that differ in nearly every row, or are texts, and columns without values are left out, with a warning

    categories : names of columns that hold words, even if these look like numbers or dates
    numbers : names of columns that hold numbers. Other words in them are gaps
    max_levels : number of words of a column that get a feature each
    ids : ``drop``, or ``error`` to refuse columns that differ in nearly every row
    overwrite : replace existing stores, once the new ones are complete

    Returns
    -------
    Store, or with ``test_size`` a pair (training, test)

    Raises
    ------
    InputError
        The source has content that cannot be learned from (the message names file and line), an option does not
        fit, or the output exists.
    StoreError
        The output cannot be written.
    """
    targets = _stores(store, test_size, test_store)
    split = None if test_size is None else partial(RandomSplit, test_size, seed)
    weigh_words = text is not None and not isinstance(text, TextRecipe)
    with ExitStack() as stack:
        opened = partial(StoreWriter, dtype=dtype, chunk_rows=chunk_rows, compression=compression, overwrite=overwrite)
        writers = [stack.enter_context(opened(path)) for path in targets]
        rows = open_source(
            source, format=format, n_features=n_features, label=label, weight=weight,
            header=header, drop=drop, dtype=dtype, block_bytes=block_bytes, allow_large=allow_large,
            per_class=per_class, fraction=fraction, seed=seed, text=text, columns=columns,
            sparse=weigh_words or sparse,
        )  # fmt: skip
        survey = None
        if rows.is_table and text is None and columns is None and not sparse:
            names = rows.feature_names or list(map(str, rows.called))
            survey = Survey(names, words=categories, numbers=numbers, max_levels=max_levels, ids=ids)
        if survey is None and (categories or numbers):
            raise InputError("categories and numbers name columns of tables, without text, columns or sparse.")
        reading = Reading(block_bytes=block_bytes, sparse=sparse)
        filling = _Filling(writers, rows, target, split, drop_missing, reading, dtype)
        complete = filling.weigh() if weigh_words else filling.survey(survey, is_plain=not categories)
        _say_what_was_rounded(rows)
        stores = publish_all(writers)
    report(Ingested(sum(each.rows for each in stores), complete.dropped, rows.label_name, stores[0].y_kind))
    return stores[0] if test_size is None else (stores[0], stores[1])


ingest.__doc__ = (ingest.__doc__ or "").replace(
    "{formats}", ", ".join(f"``{word}`` ({', '.join(each.suffixes)})" for word, each in FORMATS.items())
)


def write_rows(rows: TableSource, store: str, *, target: str, dtype: str) -> Store:
    """Write the rows of an open source, none of which may miss a value, as a store."""
    with StoreWriter(store, dtype=dtype) as writer:
        _Filling([writer], rows, target, None, None, Reading(), dtype).fill()
        return publish_all([writer])[0]


def write_table(rows: TableSource, store: str, *, target: str, dtype: str | None) -> Store:
    """Write the rows of an open source of columns as `ingest` does. Without ``dtype``, rows choose, see `Survey`."""
    with StoreWriter(store, dtype=dtype or "float64") as writer:
        filling = _Filling([writer], rows, target, None, None, Reading(), dtype)
        filling.survey(Survey(rows.feature_names or list(map(str, rows.called))), is_plain=True)
        return publish_all([writer])[0]


@dataclass(frozen=True)
class _Filling:
    """Filling of stores with the rows of a source, which may be kept aside until a recipe is known."""

    writers: Sequence[StoreWriter]
    rows: TableSource
    target: str
    split: Callable[[], RandomSplit] | None
    drop: bool | None  # as of `CompleteRows`
    reading: Reading
    dtype: str | None  # of features

    def fill(self) -> CompleteRows:
        """Fill the stores with the complete rows, and return how these were read."""
        complete, encoder = self._into(self.writers)
        self._prepare(encoder)
        return complete

    def weigh(self) -> CompleteRows:
        """Fill the stores with counts of words, weighted by how many of the training texts hold them."""
        rows = self.rows
        with self._kept() as kept:
            complete, encoder = self._into(kept)
            documents = np.zeros(rows.n_features, np.int64)
            for X in kept[0].rows_alone():
                documents += np.bincount(X.indices, minlength=len(documents))
            recipe = TextRecipe.of_frequencies(rows.texts_from or "", documents, kept[0].rows)
            rows.text = recipe
            if self.reading.reads_sparsely(next(kept[0].rows_alone())):
                self._write(kept, recipe.weighted, 0, "weigh")
            else:
                self._write(kept, lambda X: recipe.weighted(X).toarray(), rows.n_features, "weigh")
        self._prepare(encoder)
        return complete

    def survey(self, survey: Survey | None, *, is_plain: bool) -> CompleteRows:
        """Fill the stores with the features of columns by a recipe, or with the columns themselves if all are numbers.

        ``is_plain`` says that they may be.
        """
        rows = self.rows
        if survey is None:
            return self.fill()
        rows.survey = survey
        rows.drops_gaps = bool(self.drop)
        rows.tries_numbers = is_plain and not rows.is_read_once
        if rows.tries_numbers:
            try:
                return self.fill()
            except NeedsRecipeError:
                for writer in self.writers:
                    writer.restart()
        rows.tries_numbers = False
        while True:
            survey.restart()
            with self._kept() as kept:
                complete, encoder = self._into(kept)
                if survey.wrong is None:
                    self._encode(survey, kept)
                    self._prepare(encoder)
                    return complete
                if rows.is_read_once:
                    raise InputError(
                        f"{rows.description}: column {quoted(survey.wrong)} holds other than it began with, and a "
                        "stream is read only once; say that it holds words by categories= (--category), or read a file."
                    )

    def _encode(self, survey: Survey, kept: Sequence[KeptRows]) -> None:
        """Fill the stores with the features that the values of columns become by the recipe of the first ones."""
        rows = self.rows
        recipe, encode = survey.recipe(kept[0].rows_alone, self.dtype, rows.description)
        if recipe.dtype == "float32":
            rows.rounded.found, rows.rounded.lost = survey.rounded, {}
        for writer in self.writers:
            writer.dtype = recipe.dtype
        is_needed = not recipe.is_plain or not rows.is_read_once  # else they were read as numbers at once
        rows.columns = recipe if is_needed else None
        rows.feature_names = recipe.feature_names
        self._write(kept, encode, recipe.n_features, "encode")

    def _into(self, sinks: Sequence[StoreWriter | KeptRows]) -> tuple[CompleteRows, LabelEncoder]:
        """Append the complete rows to the first sink, or by the split to two; return how labels were encoded, too."""
        rows = self.rows
        complete = CompleteRows(rows, drop=self.drop)
        split = None if self.split is None else self.split()
        kind = rows.y_kind if self.target == "auto" and rows.y_kind is not None else self.target
        encoder = LabelEncoder(text=rows.labels_are_text, target=kind)
        position = 0
        report(Progress("ingest", position, rows.size or None, "bytes"))
        for block in complete.blocks():
            _append(block, encoder, sinks, split)
            position = block.position
            report(Progress("ingest", position, rows.size or None, "bytes"))
        if position < rows.size:  # rows of a cube that were not drawn, or miss a feature, are in no block
            report(Progress("ingest", rows.size, rows.size, "bytes"))
        written = [sink.rows for sink in sinks]
        if not any(written):
            why = f" left; all {complete.dropped} miss a value" if complete.dropped else ""
            raise InputError(f"{rows.description}: no rows{why}.")
        if not all(written):
            raise InputError(f"the split of {sum(written)} rows leaves one side without any; change test_size.")
        _say_what_y_is(rows, encoder, self.target)
        return complete, encoder

    def _prepare(self, encoder: LabelEncoder) -> None:
        """Complete the stores but for their publication."""
        rows = self.rows
        for writer in self.writers:
            writer.prepare(
                encoder.classes() or None, feature_names=rows.feature_names, source=rows.description,
                coordinates=rows.coordinates, text=rows.text, columns=rows.columns,
            )  # fmt: skip

    @contextmanager
    def _kept(self) -> Iterator[list[KeptRows]]:
        """Provide a place to keep the rows of each store."""
        with ExitStack() as stack, scratch_folder() as folder:
            paths = [os.path.join(folder, str(i)) for i in range(len(self.writers))]
            yield [KeptRows(stack.enter_context(open(path, "w+b"))) for path in paths]

    def _write(self, kept: Sequence[KeptRows], made: Callable[[Any], Any], features: int, task: str) -> None:
        """Append to the stores what is ``made`` of their kept rows: so many dense ``features`` a row."""
        total = sum(each.rows for each in kept)
        done = 0
        step = self.reading.block_rows(features)
        report(Progress(task, done, total, "rows"))
        for writer, held in zip(self.writers, kept, strict=True):
            for X, *beside in (block.values() for block in held):
                for start in range(0, X.shape[0], step):
                    rows = slice(start, start + step)
                    writer.append(made(X[rows]), *(None if each is None else each[rows] for each in beside))
                done += X.shape[0]
                report(Progress(task, done, total, "rows"))


def _stores(store: Path, test_size: float | None, test_store: Path | None) -> list[str]:
    """Return where to write the store, or the training and the test store."""
    if not isinstance(store, str | os.PathLike):
        kind = type(store).__name__
        raise InputError(f"store must be a path. Got {kind} instead; rows and labels go together, as (X, y).")
    path = location_of(store)
    if test_size is None:
        if test_store is not None:
            raise InputError("test_store is given without test_size.")
        return [path]
    stem, suffix = os.path.splitext(path)
    test_path = location_of(test_store or f"{stem}-test{suffix}")
    if path == test_path:
        raise InputError("store and test_store are the same folder.")
    return [path, test_path]


class RandomSplit:
    """Random split of a stream of rows of unknown length into training and test rows.

    ``test_size`` is the share of test rows, in (0, 1). The same ``seed`` gives the same split, however the stream is
    cut into blocks.
    """

    group = 100  # consecutive rows of which the split takes exactly its share, up to rounding
    batch = 64  # groups drawn at a time

    def __init__(self, test_size: float, seed: int) -> None:
        self._size = test_size
        self._random = np.random.default_rng(seed)
        self._drawn = 0  # groups
        self._ready = np.zeros(0, dtype=bool)

    def take(self, rows: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the test rows among the next ``rows`` rows."""
        while len(self._ready) < rows:
            self._ready = np.concatenate([self._ready, self._draw()])
        mask = self._ready[:rows]
        self._ready = self._ready[rows:]
        return mask

    def _draw(self) -> npt.NDArray[np.bool_]:
        """Draw the mask of the next groups of rows. Rounding is carried over, so that the total share stays exact."""
        order = self._random.random((self.batch, self.group)).argsort(axis=1, kind="stable").argsort(axis=1)
        bounds = np.rint(np.arange(self._drawn, self._drawn + self.batch + 1) * self.group * self._size)
        self._drawn += self.batch
        mask: npt.NDArray[np.bool_] = order < np.diff(bounds)[:, None]
        return mask.ravel()


def _append(
    block: SourceBlock, encoder: LabelEncoder, sinks: Sequence[StoreWriter | KeptRows], split: RandomSplit | None
) -> None:
    """Append a block to the only sink, or split it between that of training and that of test rows."""
    rows = block.X.shape[0]
    if rows == 0:
        return
    were_codes = not encoder.is_real
    y = None if block.y is None else encoder.encode(block.y, block.label_place)
    if were_codes and encoder.is_real:
        for sink in sinks:
            sink.make_real(encoder.values)
    if split is None:
        sinks[0].append(block.X, y, block.weight, block.coordinates)
        return
    test = split.take(rows)
    for sink, chosen in zip(sinks, (~test, test), strict=True):
        columns = (None if each is None else each[chosen] for each in (y, block.weight, block.coordinates))
        sink.append(block.X[chosen], *columns)


def _say_what_y_is(source: TableSource, encoder: LabelEncoder, target: str) -> None:
    """Log what was decided about labels by default: that they are real, or that they are the last column.

    A last column of two values is most likely the labels, unless it seems to be one of several that encode another.
    """
    if encoder.is_real and encoder.values:
        logger.info(
            "%s: more than %d different labels, numbers and not whole, are real targets; target='classes' (--target "
            "classes) makes classes of them.", source.description, encoder.most_real_classes
        )  # fmt: skip
    classes = encoder.classes()
    _say_which_look_alike(source, classes)
    found = len(set(classes))
    if target == "auto" and found > encoder.most_real_classes and not any(isinstance(each, str) for each in classes):
        logger.warning(
            "%s: the labels are %d different numbers, of which each becomes a class; if they are measured, take "
            "target='real' (--target real).", source.description, found
        )  # fmt: skip
    twins = source.label_twins if source.label_is_guessed else []
    if source.label_is_guessed and source.label_name is not None and (encoder.is_real or found != 2 or twins):
        what = "targets" if encoder.is_real else "labels"
        held = "" if encoder.is_real else f", which holds {found} different value{'s' * (found != 1)}"
        held += f", and {twins[0][:60]!r} is a feature" if twins else ""
        logger.warning(
            "%s: the %s are the last column, %s%s; if it is another, name that by label= (--label).",
            source.description, what, source.label_name, held
        )  # fmt: skip


def _say_which_look_alike(source: TableSource, classes: Sequence[Any]) -> None:
    """Log two labels, if there are such, that differ in blanks around them or are one number."""
    seen: dict[Any, str] = {}
    for label in classes:
        if not isinstance(label, str):
            return
        word = label.strip()
        digits = word[:1] in "+-0123456789" and word.lstrip("+-").isdecimal() and len(word) < 40
        other = seen.setdefault(int(word) if digits else float(word) if is_number(word) else word, label)
        if other != label:
            logger.warning(
                "%s: the labels %s and %s are two classes, as they are spelled differently.", source.description,
                shown(other), shown(label)
            )  # fmt: skip
            return


def _say_what_was_rounded(source: TableSource, most: int = 5) -> None:
    """Log which features are numbers that were rounded too much, such as identifiers."""
    found = source.rounded.lost | source.rounded.found
    if not found:
        return
    names = joined([source.feature(column) for column in sorted(found)[:most]])
    others = f" and {len(found) - most} more columns" if len(found) > most else ""
    number, became = found[min(found)]
    example = f"{number} to {became}" if number != became else f"one to {became}"  # text is read as floats
    way_out = "; dtype='float64' (--dtype float64) keeps 15 digits" if abs(became) < 2**53 else ""
    logger.warning(
        "%s: %s%s: numbers are rounded, such as %s; leave an identifier out, of files by drop= (--drop)%s.",
        source.description, names, others, example, way_out
    )  # fmt: skip
