"""Going on with a fit that was interrupted, noticing that it was finished before, and losing none unasked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask_odm.errors import InputError


class FinishedError(Exception):
    """The model at the target is of this very fit."""


@contextmanager
def resumable(checkpoint: str | None) -> Iterator[None]:
    """Say of an interrupted fit that left a checkpoint how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        from dask_odm.learning.solution_records import is_checkpoint_there

        if checkpoint is None or not is_checkpoint_there(checkpoint):
            raise
        raise KeyboardInterrupt("interrupted; run again with --resume to go on") from error


def refuse_to_replace(checkpoint: str | None) -> None:
    """Raise InputError where a checkpoint is there, which a fit that begins anew would replace by its first step."""
    from dask_odm.learning.solution_records import open_checkpoint

    found = None if checkpoint is None else open_checkpoint(checkpoint)
    if found is not None:
        found.check()
        raise InputError(
            f"checkpoint '{checkpoint}' holds {len(found.attributes['history'])} steps of a fit; pass --resume to go "
            "on from there, or --no-resume to begin anew and replace it."
        )


class Target:
    """Where a fit's model goes; with ``--resume`` it may be there already.

    Parameters
    ----------
    path : str
    overwrite, resume : bool

    Raises
    ------
    InputError
        It exists and is not to be replaced, and cannot be this fit's: it says of none, or the fit does not go on.
    """

    def __init__(self, path: str, *, overwrite: bool, resume: bool) -> None:
        self.path = path
        self.overwrite = overwrite
        self._made = _made_by(path) if resume and not overwrite else None
        if self._made is None:
            self._check()

    def _check(self) -> None:
        from dask_odm.data.store.records import check_target

        check_target(self.path, "model", overwrite=self.overwrite)

    def prepare(self, learner: Any) -> None:
        """Tell a fit that draws its seed that of the model, which counts where no checkpoint holds it."""
        if self._made is not None:
            learner._drawn = self._made[1]

    def __call__(self, event: Any) -> None:
        """Listen to the fit: raises `FinishedError` where it made the model, InputError where another one did."""
        from dask_odm.events import CheckpointOpened

        if self._made is not None and isinstance(event, CheckpointOpened):
            if event.fit == self._made[0]:
                raise FinishedError
            self._check()


def _made_by(path: str) -> tuple[str, int] | None:
    """Digest and seed of the fit that made the model at ``path``; None where nothing there says so."""
    from dask_odm.data.store.records import read_kind, read_record

    if read_kind(path) != "model":
        return None
    record = read_record(path, "model")
    record.check()
    attributes = record.attributes
    return (attributes["fit"], attributes["seed"]) if "fit" in attributes and "seed" in attributes else None
