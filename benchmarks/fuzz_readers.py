"""Throws damaged LIBSVM and CSV text at the readers, and demands rows or one clear error.

    python benchmarks/fuzz_readers.py --minutes 10 [--seed N] [--keep FOLDER]
    python benchmarks/fuzz_readers.py --case NUMBER        # one case again

A case is a valid text, mutated: bytes flipped, lines cut, tokens replaced by nasty ones, streams compressed and
cut. It is read by `read_blocks`, in other blocks once more, and now and then ingested. Failures are: another
exception than `DaskODMError`, a message of more than one line or that does not name the file, a hang, memory above a
bound, rows that depend on the blocks, a store that holds other rows or was left half-written, and values other than
scikit-learn's and pandas', or than those of the plain parser below wherever that takes the text. A failing input is
saved, and the command that repeats it is shown.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from fuzz_cases import Case, make_case
from plain_parsers import plain_csv, plain_libsvm
from scipy.sparse import issparse
from sklearn.datasets import load_svmlight_file

from dask_odm.data.ingest import ingest
from dask_odm.data.readers.formats import open_source
from dask_odm.data.store.store import Store
from dask_odm.errors import DaskODMError

SECONDS = 60.0  # of a case; more is a hang
MEMORY = 512 << 20  # bytes of memory a case may add
ADDRESSES = 4 << 30  # bytes of address space it may add: a backstop, for allocators reserve more than they use
MESSAGE = 800  # characters of an error beside the file's name
WIDEST = 5_000  # features a case is ingested with: a store of more is slow, not wrong
LARGEST = 100_000  # features, and bytes of text, that references read
_TOO_LARGE = f"more than {MEMORY >> 20} MiB"


class Hang(BaseException):
    """A case that does not end."""


Outcome = tuple[np.ndarray, list[Any] | None] | DaskODMError


def read(path: str, options: dict[str, Any]) -> Outcome:
    """Rows and labels, or the error."""
    try:
        source = open_source(path, **options)
        blocks = [(_dense(block.X[:, :LARGEST]), block.y) for block in source.blocks()]
        X = np.concatenate([b[0] for b in blocks]) if blocks else np.zeros((0, 1), options["dtype"])
        labelled = options.get("label") is not False
        return X, [label for _, y in blocks for label in y.tolist()] if labelled else None
    except DaskODMError as error:
        return error


def _dense(X: Any) -> np.ndarray:
    """Return a copy as an array: wide rows of few entries are sparse."""
    return X.toarray() if issparse(X) else X.copy()


def judge(case: Case, folder: str) -> str | None:
    """What is wrong with how the readers treat the case, or None."""
    path = os.path.join(folder, f"{case.kind}{case.suffix}")
    with open(path, "wb") as file:
        file.write(case.data)
    try:
        with _limits():
            before = _peak(restart=True)
            wrong = _judge(case, path, folder)
            return wrong or (_TOO_LARGE if _peak() > before + MEMORY else None)
    except Hang:
        return f"no end within {SECONDS:.0f} s"
    except MemoryError:
        return _TOO_LARGE
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:2000]


def _judge(case: Case, path: str, folder: str) -> str | None:
    found = read(path, case.options)
    wrong = _message(found, path) or _other_blocks(case, path, found)
    if not wrong and case.ingested:
        wrong = _ingested(case, path, os.path.join(folder, "out"), found)
    if not wrong and case.text is not None and len(case.text) <= LARGEST:
        wrong = _differs(case, found)
    return wrong


def _message(found: Outcome, path: str) -> str | None:
    if not isinstance(found, DaskODMError):
        return "rows that are infinite" if np.isinf(found[0]).any() else None  # NaN is missing: ingest refuses it
    text = str(found)
    if path not in text:
        return f"an error that does not name the file: {text[:500]}"
    if not text.isprintable():
        return f"an error of several lines or with control characters: {text[:500]!r}"
    return f"an error of {len(text)} characters: {text[:200]}…" if len(text) > MESSAGE + 2 * len(path) else None


def _other_blocks(case: Case, path: str, found: Outcome) -> str | None:
    """Compare with one block of everything."""
    whole = read(path, case.options | {"block_bytes": 8_000_000})
    if isinstance(found, DaskODMError) or isinstance(whole, DaskODMError):
        return None if type(found) is type(whole) else f"depends on blocks: {_short(found)} or {_short(whole)}"
    return None if _same(found, whole) else "rows depend on blocks"


def _same(a: tuple[np.ndarray, Any], b: tuple[np.ndarray, Any]) -> bool:
    if (a[1] is None) != (b[1] is None):
        return False
    labels = [[None if value != value else value for value in found or []] for _, found in (a, b)]
    return np.array_equal(a[0], b[0], equal_nan=True) and labels[0] == labels[1]


def _short(found: Outcome) -> str:
    return f"rows {found[0].shape}" if isinstance(found, tuple) else f"{type(found).__name__}: {str(found)[:200]}"


def _ingested(case: Case, path: str, out: str, found: Outcome) -> str | None:
    os.makedirs(out, exist_ok=True)
    if isinstance(found, tuple) and found[0].shape[1] > WIDEST:
        return None
    try:
        store = ingest(path, os.path.join(out, "a.zarr"), overwrite=True, **case.options)
    except DaskODMError as error:
        names = os.listdir(out)
        for name in names:
            _remove(os.path.join(out, name))
        return f"left behind: {names}" if names else _message(error, path)
    try:
        if store.column_recipe is not None:  # reading says of words and gaps that they are no numbers
            return _other_columns(case, path, out, store)
        if isinstance(found, DaskODMError):
            return f"ingested, though reading says: {_short(found)}"
        return None if np.array_equal(_rows(store), found[0]) else "other rows"
    finally:
        _remove(store.path)


def _other_columns(case: Case, path: str, out: str, store: Store) -> str | None:
    """Compare a store of columns of any kind with that of one block of everything."""
    options = case.options | {"block_bytes": 8_000_000}
    try:
        whole = ingest(path, os.path.join(out, "b.zarr"), overwrite=True, **options)
    except DaskODMError as error:
        return f"depends on blocks: a store or {_short(error)}"
    try:
        same = whole.column_recipe == store.column_recipe and np.array_equal(_rows(whole), _rows(store))
        return None if same else "columns depend on blocks"
    finally:
        _remove(whole.path)


def _rows(store: Store) -> np.ndarray:
    return np.concatenate([block.X.copy() for block in store.blocks()])


def _remove(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _differs(case: Case, found: Outcome) -> str | None:
    """Compare with the plain parser, which takes little, and with the library, which takes much."""
    plain = plain_libsvm(case) if case.kind == "libsvm" else plain_csv(case)
    if plain is not None and isinstance(found, DaskODMError):
        return f"refused, though there is nothing wrong: {_short(found)}"
    if not isinstance(found, tuple):
        return None
    others = [plain, _scikit_learn(case, found) if case.kind == "libsvm" else _pandas(case, found)]
    for name, other in zip(("the plain parser", "the library"), others, strict=True):
        if other is not None and not _agree(found[0], other):
            return f"{name} reads {_values(other)} where the reader gives {_values(found[0])}"
    return None


def _agree(X: np.ndarray, other: np.ndarray) -> bool:
    """Whether two readings are the same to a unit in the last place, which pandas' parser may miss."""
    width = min(X.shape[1], other.shape[1])
    tolerance = 4 * np.finfo(X.dtype).eps
    return (
        len(X) == len(other)
        and np.allclose(
            X[:, :width], other[:, :width], rtol=tolerance, atol=np.finfo(X.dtype).smallest_normal, equal_nan=True
        )
        and not X[:, width:].any()
        and not other[:, width:].any()
    )


def _values(X: np.ndarray) -> str:
    return f"{X.shape} {X[:3].tolist()}"[:300]


def _scikit_learn(case: Case, found: tuple[np.ndarray, Any]) -> np.ndarray | None:
    try:
        text = (case.text or b"").removeprefix(b"\xef\xbb\xbf")
        if b"\n" not in text:  # lines may end in CR alone, which scikit-learn does not take for an end
            text = text.replace(b"\r", b"\n")
        X, _ = load_svmlight_file(io.BytesIO(text), zero_based=False)
    except Exception:
        return None
    return X.toarray() if X.shape[1] <= LARGEST else None


def _pandas(case: Case, found: tuple[np.ndarray, Any]) -> np.ndarray | None:
    """The columns that pandas reads as numbers, if there are as many as there should be."""
    text = (case.text or b"").removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    first = next((line for line in text.split("\n") if line.strip()), "")
    separator = max(",;\t|", key=first.count)
    rows = len(found[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = pd.read_csv(
                io.StringIO(text), sep=separator, header=None, dtype=str, na_filter=False, index_col=False
            )
        width = frame.shape[1]
        label = case.options["label"]
        if len(frame) not in (rows, rows + 1) or label is None:
            return None
        columns = [i for i in range(width) if label is False or i != label]
        return frame[columns].iloc[len(frame) - rows :].map(float).to_numpy(dtype=np.float64)
    except Exception:
        return None


def _peak(*, restart: bool = False) -> int:
    """Largest resident size of this process so far, or since the last restart (Linux)."""
    if restart:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


@contextmanager
def _limits() -> Iterator[None]:
    """Within, time and memory are limited; a hang in C is noticed once it returns."""

    def stop(*_: Any) -> None:
        raise Hang

    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0]) * resource.getpagesize()
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages + ADDRESSES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def run(first: int, *, cases: int | None, minutes: float, keep: str) -> Counter[str]:
    """Judge cases until their number or the time is reached; count them, and print the failures."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        number = first
        while (cases is None or number < first + cases) and time.monotonic() < end:
            case = make_case(number)
            complaint = judge(case, folder)
            counts["failures" if complaint else "passed"] += 1
            counts[case.kind] += 1
            if complaint:
                _show(case, complaint, keep)
            number += 1
    return counts


def _show(case: Case, complaint: str, keep: str) -> None:
    os.makedirs(keep, exist_ok=True)
    path = os.path.join(keep, f"{case.number}.{case.kind}{case.suffix}")
    with open(path, "wb") as file:
        file.write(case.data)
    print(f"case {case.number}: {complaint}\n  {case.data[:120]!r}\n  input: {path}, options: {case.options}")
    print(f"  again: python {sys.argv[0]} --case {case.number}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Print failures and figures; 1 where there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, help="end after so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this case")
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "fuzz-failures"))
    options = parser.parse_args(arguments)
    first = options.seed << 32 if options.case is None else options.case
    cases = options.cases if options.case is None else 1
    began = time.monotonic()
    counts = run(first, cases=cases, minutes=options.minutes, keep=options.keep)
    seconds = time.monotonic() - began
    print(
        f"{counts['passed'] + counts['failures']} cases ({counts['libsvm']} LIBSVM, {counts['csv']} CSV) "
        f"in {seconds:.0f} s: {counts['failures']} failures"
    )
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    faulthandler.enable()  # a crash in C shows where
    sys.exit(main())
