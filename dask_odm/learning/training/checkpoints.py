"""Checkpoints that a fit writes after every step, so that a fit whose client was lost can resume.

A checkpoint is the solver's state, a frozen dataclass of arrays and JSON figures with a ``history``, beside a digest of
the data, the parameters and the seed that it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from types import UnionType
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from dask_odm.data.storage.locations import location_of
from dask_odm.data.store.records import Record
from dask_odm.data.store.schemas import LARGEST_WHOLE
from dask_odm.errors import StoreError
from dask_odm.events import CheckpointOpened, report
from dask_odm.learning.training.checkpoint_files import open_checkpoint, save_checkpoint

S = TypeVar("S")
logger = logging.getLogger("dask_odm")


class Fit(Protocol):
    """Protocol of the settings of one fit: how it runs (a `FitRun`), and what identifies it."""

    @property
    def run(self) -> Any: ...
    def identity(self) -> dict[str, Any]:
        """Return everything that identifies the fit except the seed and the data, as JSON."""
        ...


def open_steps(
    solver: str, data: Callable[[], str], fit: Fit, kind: Callable[..., S]
) -> tuple[S | None, Callable[[S], None]]:
    """Return the state from which a fit by the steps of ``solver`` resumes, or None, and a function that saves a state.

    ``kind`` is the dataclass of a state. ``data`` identifies the rows that are learned from. It may need a pass, so it
    is called only if a checkpoint is asked for. Raises StoreError if the existing checkpoint is damaged or of another
    fit: it is neither resumed nor overwritten.
    """
    path = fit.run.checkpoint
    if path is None:
        return None, lambda state: None
    told, found = _find(path, f"{solver} {data()}", fit)

    def save(state: S) -> None:
        arrays = {name: value for name, value in vars(state).items() if isinstance(value, np.ndarray)}
        figures = {name: value for name, value in vars(state).items() if name not in arrays}
        save_checkpoint(path, arrays, figures | told)

    return None if found is None else _state_of(path, kind, found, told), save


def require_state(fit: Fit, sound: bool) -> None:
    """Raise StoreError unless the state to resume from is ``sound``: of the fit's shapes and bounds."""
    if not sound:
        raise _lies(fit.run.checkpoint, "its arrays or figures are not those of a state of this fit")


def _lies(path: str, what: object) -> StoreError:
    """Build the error for a checkpoint that can be read but does not fit this fit."""
    return StoreError(
        f"checkpoint '{location_of(path)}' is not what a checkpoint is: {what}; remove it and start the fit afresh."
    )


def _state_of(path: str, kind: Callable[..., S], found: Record, told: dict[str, Any]) -> S:
    """Build the state that a checkpoint holds; raise StoreError if it is not one of ``kind``."""
    figures = {name: value for name, value in found.attributes.items() if name not in told}
    state = figures | {name: found.array(name) for name in found.arrays}
    try:
        made = kind(**state)
    except TypeError as error:
        raise StoreError(
            f"checkpoint '{path}' holds no state of this solver ({error}), perhaps that of another version of "
            "dask_odm; remove it to start afresh."
        ) from error
    for name, hint in get_type_hints(kind).items():
        if name not in state or not _is_of(vars(made)[name], hint):
            raise _lies(path, f"{name} is missing or of another type")
    if any(record.get("iteration", i) != i for i, record in enumerate(figures["history"])):
        raise _lies(path, "its history leaves out a step")
    return made


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a field of a state has its annotated type: finite floats, integers from −1 on."""
    if isinstance(value, np.ndarray) or (get_origin(hint) or hint) is np.ndarray:
        floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return (get_origin(hint) or hint) is np.ndarray and floats and bool(np.isfinite(value).all())
    if isinstance(hint, UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int and -1 <= value <= LARGEST_WHOLE
    return isinstance(value, get_origin(hint) or hint)


def _find(path: str, data: str, fit: Fit) -> tuple[dict[str, Any], Record | None]:
    """Return what identifies the fit, and the checkpoint that it resumes from or None.

    The former is the seed and a digest of ``data``, parameters and seed.
    """
    seed, resume, parameters = fit.run.seed, fit.run.resume, fit.identity()

    def digest(seed: int) -> str:
        return hashlib.sha256(json.dumps([data, seed, parameters], sort_keys=True).encode()).hexdigest()

    found = open_checkpoint(path)
    # a fit that starts afresh may have drawn another seed, and may replace its own checkpoint
    if found is not None and found.attributes["fit"] != digest(seed if resume else found.attributes["seed"]):
        raise StoreError(
            f"checkpoint '{path}' is of another fit (other data or parameters, or another version of dask_odm); remove "
            "it or choose another path."
        )
    held = 0 if found is None else len(found.attributes["history"])
    report(CheckpointOpened(path, digest(seed), seed, held if resume else 0))
    if found is not None and resume:
        logger.info("going on from checkpoint '%s', after %d steps", path, held)
    elif held:
        logger.warning(
            "checkpoint '%s' holds %d steps of this fit, which begins anew and replaces them; pass resume=True "
            "(--resume) to go on from them instead.", path, held
        )  # fmt: skip
    return {"fit": digest(seed), "seed": seed}, found if resume else None
