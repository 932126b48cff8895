"""What became of a try, and the digests by which results are compared."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.store.records import read_kind, read_record
from dask_odm.data.store.store import Store
from dask_odm.errors import DaskODMError

SAME, NAMED, ACCEPTED, BREAK = "same bits", "named error", "accepted", "break"


@dataclass(frozen=True)
class Outcome:
    """How a try ended.

    Parameters
    ----------
    what : {"same bits", "named error", "accepted", "break"}
        "accepted": what was read is whole, and what its digests say, though a liar wrote it.
    fault : str
        What was done, and when.
    detail : str
        The error, or what broke.
    """

    what: str
    fault: str
    detail: str = ""


def judge(answer: dict[str, Any], expected: str | None, fault: str) -> Outcome:
    """The outcome of what a process answered, see `processes.answer_of`; ``expected`` None takes any digest."""
    if "digest" in answer:
        if expected is None:
            return Outcome(ACCEPTED, fault)
        same = answer["digest"] == expected
        return Outcome(SAME if same else BREAK, fault, "" if same else "wrong bits")
    if "named" in answer:
        return Outcome(NAMED, fault, answer["named"])
    return Outcome(BREAK, fault, answer["broken"])


def with_leftovers(outcome: Outcome, left: list[str]) -> Outcome:
    """The outcome, or a break where something was left behind."""
    if not left or outcome.what == BREAK:
        return outcome
    return Outcome(BREAK, outcome.fault, f"left behind: {', '.join(left)}, after {outcome.what} {outcome.detail}")


def describe(error: BaseException) -> dict[str, str]:
    """An exception as an answer."""
    text = f"{type(error).__name__}: {error}"
    return {"named" if isinstance(error, DaskODMError) else "broken": text[:600]}


def digest_arrays(arrays: dict[str, Any], *more: object) -> str:
    """SHA-256 of arrays with their names, types and shapes, and of what else has a stable text."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    digest.update(repr(more).encode())
    return digest.hexdigest()


def digest_store(path: Path) -> str:
    """Of all rows, labels, weights and statistics of a store; SciPy looks at every bound and column of sparse rows."""
    store = Store.open(path)
    blocks = [replace(block, X=block.X.copy()) for block in store.blocks()]
    rows = [block.X for block in blocks]
    if store.is_sparse:
        for X in rows:
            X.check_format(full_check=True)
        arrays = {name: np.concatenate([getattr(X, name) for X in rows]) for name in ("data", "indices")}
        arrays["counts"] = np.concatenate([np.diff(X.indptr) for X in rows])
    else:
        arrays = {"X": np.concatenate(rows)}
    for name in ("y", "weight"):
        parts = [getattr(block, name) for block in blocks]
        if parts[0] is not None:
            arrays[name] = np.concatenate(parts)
    found = store.statistics
    arrays |= {name: value for name, value in vars(found).items() if isinstance(value, np.ndarray)}
    return digest_arrays(arrays, store.classes, store.feature_names)


def digest_of(path: Path) -> str:
    """Of the arrays of whatever lies there: a store, a record, a file."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    kind = read_kind(path)
    if kind in (None, "store"):
        return digest_store(path)
    record = read_record(path, kind)
    return digest_arrays({name: record.array(name) for name in record.arrays})


def left_in(folder: Path, *allowed: str) -> list[str]:
    """Names in a folder that should not be there any more."""
    return sorted(set(os.listdir(folder)) - set(allowed))
