"""Resuming an interrupted fit, noticing that it was finished before, and losing no checkpoint unasked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask_odm.errors import InputError
from dask_odm.events import CheckpointOpened


class FinishedError(Exception):
    """The model at the target was made by this very fit."""


@contextmanager
def resumable(checkpoint: str | None) -> Iterator[None]:
    """Tell the user how to resume if a fit is interrupted and leaves a checkpoint."""
    try:
        yield
    except KeyboardInterrupt as error:
        from dask_odm.learning.training.checkpoints import is_checkpoint_there

        if checkpoint is None or not is_checkpoint_there(checkpoint):
            raise
        raise KeyboardInterrupt("interrupted; run again with --resume to go on") from error


def refuse_to_replace(checkpoint: str | None) -> None:
    """Raise InputError if there is a checkpoint that a new fit would replace at its first step."""
    from dask_odm.learning.training.checkpoints import open_checkpoint

    found = None if checkpoint is None else open_checkpoint(checkpoint)
    if found is not None:
        raise InputError(
            f"checkpoint '{checkpoint}' holds {len(found.attributes['history'])} steps of a fit; pass --resume to go "
            "on from there, or --no-resume to begin anew and replace it."
        )


class Target:
    """Target of a fit's model. With ``resume`` the model may be there already.

    Raises InputError if something is there that may not be replaced, and that this fit cannot have made.
    """

    def __init__(self, path: str, *, overwrite: bool, resume: bool) -> None:
        from dask_odm.data.store.records import check_target

        self.path = path
        self.overwrite = overwrite
        self._made = _made_by(path) if resume and not overwrite else None
        if self._made is None:
            check_target(self.path, "model", overwrite=self.overwrite)

    def prepare(self, learner: Any) -> None:
        """Give a fit without a seed that of the existing model, which is used if no checkpoint has it."""
        if self._made is not None:
            learner._drawn = self._made[1]

    def __call__(self, event: Any) -> None:
        """Listen to the fit; raise `FinishedError` if it made the model, and InputError if another one did."""
        if self._made is not None and isinstance(event, CheckpointOpened):
            if event.fit == self._made[0]:
                raise FinishedError
            from dask_odm.data.store.records import check_target

            check_target(self.path, "model", overwrite=self.overwrite)


def _made_by(path: str) -> tuple[str, int] | None:
    """Return digest and seed of the fit that made the model at ``path``; None if nothing there says so."""
    from dask_odm.data.store.records import read_kind, read_record

    if read_kind(path) != "model":
        return None
    record = read_record(path, "model")
    record.check()
    attributes = record.attributes
    return (attributes["fit"], attributes["seed"]) if "fit" in attributes and "seed" in attributes else None
