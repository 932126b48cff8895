"""What a fit leaves behind after every level or epoch, so that one whose client was lost can go on from there."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dask_odm.data.files import reason
from dask_odm.errors import InputError, StoreError
from dask_odm.persistence import check_target, load_state, save_checkpoint, save_state, solutions_of
from dask_odm.solvers.base import Solution
from dask_odm.solvers.svrg import SVRGState

logger = logging.getLogger("dask_odm")


@dataclass
class Checkpoint:
    """Where a fit writes its levels, and the level it goes on from.

    Attributes
    ----------
    path : str
    fit : str
        Digest of data and parameters.
    seed : int
        Of the fit; one that goes on without a seed of its own takes it over.
    start : (level number, solutions) or None
        The last level of the fit that goes on.
    history : list of dict
        Its entries up to there.
    """

    path: str
    fit: str
    seed: int
    start: tuple[int, list[Solution]] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def save(self, number: int, fetch: Callable[[], list[Solution]], history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint by level ``number``."""
        save_checkpoint(self.path, fetch(), {"fit": self.fit, "level": number, "history": history, "seed": self.seed})


def check_checkpoint(path: str | None, *, resume: bool) -> None:
    """Raise InputError where no checkpoint could be written, before any work is done for it."""
    if path is None:
        if resume:
            raise InputError("resume=True needs the path of a checkpoint; pass checkpoint=.")
        return
    target = os.path.abspath(path)
    try:
        check_target(target, "checkpoint", overwrite=True)
    except OSError as error:
        raise InputError(f"checkpoint '{path}' cannot be read: {reason(error)}.") from error
    if not os.access(os.path.dirname(target), os.W_OK | os.X_OK):
        raise InputError(f"checkpoint '{path}' cannot be written: no permission in '{os.path.dirname(target)}'.")


def open_checkpoint(path: str, data: str, parameters: Mapping[str, Any], seed: int, *, resume: bool) -> Checkpoint:
    """The checkpoint of a fit of ``data`` with ``parameters`` (JSON) and ``seed``; one that is there is looked at.

    Raises
    ------
    StoreError
        The one that is there is damaged or of another fit: it is neither gone on from nor overwritten.
    """

    fit, found = find_checkpoint(path, data, parameters, seed, resume=resume)
    opened = Checkpoint(path, fit, seed)
    if found is not None:
        arrays, attributes = found
        opened.start = int(attributes["level"]), solutions_of(arrays, path)
        opened.history = list(attributes["history"])
    return opened


@dataclass
class EpochCheckpoint:
    """Where a fit by epochs writes its state; else as `Checkpoint`."""

    path: str
    fit: str
    seed: int
    start: SVRGState | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def save(self, state: SVRGState, history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint by that of ``state``."""
        arrays = {name: np.asarray(value).reshape(-1, state.w.size if np.ndim(value) else 1)
                  for name, value in asdict(state).items()}  # fmt: skip
        save_state(self.path, arrays, {"fit": self.fit, "history": history, "seed": self.seed})


def open_epochs(path: str, data: str, parameters: Mapping[str, Any], seed: int, *, resume: bool) -> EpochCheckpoint:
    """As `open_checkpoint`, of a fit by epochs."""
    fit, found = find_checkpoint(path, data, parameters, seed, resume=resume)
    opened = EpochCheckpoint(path, fit, seed)
    if found is not None:
        arrays, attributes = found
        figures = {name: value.item() for name, value in arrays.items() if name not in ("w", "before")}
        opened.start = SVRGState(w=arrays["w"][0], before=arrays["before"], **figures)
        opened.history = list(attributes["history"])
    return opened


def find_checkpoint(
    path: str, data: str, parameters: Mapping[str, Any], seed: int, *, resume: bool
) -> tuple[str, tuple[dict[str, Any], dict[str, Any]] | None]:
    """The digest of a fit, and the checkpoint that it goes on from."""

    def digest(seed: int) -> str:
        return hashlib.sha256(json.dumps([data, seed, dict(parameters)], sort_keys=True).encode()).hexdigest()

    found = load_state(path)
    # a fit that starts anew may draw another seed, and replaces its own
    if found is not None and found[1].get("fit") != digest(seed if resume else int(found[1].get("seed", seed))):
        raise StoreError(
            f"checkpoint '{path}' is of another fit (other data or parameters); remove it or choose another path."
        )
    if found is not None and resume:
        history = found[1]["history"]
        at = f"level {found[1]['level']}" if "level" in found[1] else f"{len(history)} steps"
        logger.info("going on from checkpoint '%s', after %s", path, at)
    return digest(seed), found if resume else None


def checkpoint_seed(path: str | None) -> int | None:
    """The seed of the fit that left a checkpoint at ``path``; None if there is none."""
    found = None if path is None else load_state(path)
    return None if found is None else int(found[1]["seed"])
