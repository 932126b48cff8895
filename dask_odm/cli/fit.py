"""Command line, learning: ``fit`` and ``search``, and how an interrupted fit is resumed.

A fit that was finished before is noticed, and no checkpoint is lost unasked.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from secrets import randbelow
from typing import Any

import click
from click.core import ParameterSource

import dask_odm as odm
from dask_odm.cli.cluster import Place, place_options
from dask_odm.cli.cubes import CubeOptions, cube_options
from dask_odm.cli.options import SEARCHES, EstimatorCommand, parameters_of
from dask_odm.cli.shell import emit, json_option, overwrite_option, progress_shown, say
from dask_odm.errors import InputError
from dask_odm.estimators.registry import by_word
from dask_odm.events import CheckpointOpened, listen
from dask_odm.printing import printable

groups_option = click.option(
    "--groups",
    metavar="FILE",
    help="NumPy file (.npy) of a group for each row, or for each point: leave-one-out leaves out groups.",
)
blocks_option = click.option(
    "--blocks",
    metavar="NAME=LENGTH,…",
    help="Leave out blocks of places, so long along each dimension, such as y=1500,x=1500: for a cube, or a store of "
    "its pixels.",
)


def _learning(command: Any) -> Any:
    """Add the arguments and options of all commands that learn."""
    shared = click.argument("store"), click.argument("model"), groups_option, blocks_option, cube_options, place_options
    for add in reversed((*shared, overwrite_option, json_option)):
        command = add(command)
    return command


@click.command(cls=EstimatorCommand)
@_learning
@click.option("--start", metavar="MODEL", help="Start from what this model found in the rows that come first.")
def fit(**given: Any) -> None:
    """Learn from a STORE and write the MODEL.

    With --labels, STORE is a cube: zarr or NetCDF as xarray writes them. Its pixels that have a label are learned from.

    Runs in this process, on --workers of this machine, or on the cluster of a --scheduler.

    The table has a line for every step: its gap, which bounds the share of the objective that is left to gain, the
    objective, and passes over the rows and seconds so far. Of several machines, as classes have them, it has the last
    step of each.
    """
    _learn(**given)


@click.command(cls=EstimatorCommand, suffix=SEARCHES)
@_learning
def search(estimator: str, **given: Any) -> None:
    """Find settings for a STORE, and write the MODEL that was learned with the best of them.

    With --labels, STORE is a cube, as for fit.

    Settings are tried on samples of the rows, and judged by rows that were left out; see ODMClassifierCV, and for
    numbers ODMRegressorCV. Samples are drawn: with the --random-state that a run says, another finds the same.
    """
    _learn(estimator=estimator + SEARCHES, **given)


def _learn(
    store: str, model: str, estimator: str, cube: CubeOptions, runs_on: Place, overwrite: bool, as_json: bool,
    groups: str | None = None, blocks: str | None = None, start: str | None = None, **given: Any,
) -> None:  # fmt: skip
    """Fit an estimator to a store or a cube and save the model; ``given`` are the values of the estimator's options."""
    from dask_odm.data.store.records import check_target
    from dask_odm.diagnostics.summaries import model_facts, search_facts, search_text
    from dask_odm.progress import format_history

    made = _made_by(model) if given.get("resume") and not overwrite else None  # digest and seed of the fit that made it
    if made is None:
        check_target(model, "model", overwrite=overwrite)

    def heed(event: Any) -> None:
        """Raise FinishedError if this fit made the model that is there, and InputError if another one did."""
        if made is not None and isinstance(event, CheckpointOpened):
            if event.fit == made[0]:
                raise FinishedError
            check_target(model, "model", overwrite=overwrite)

    if click.get_current_context().get_parameter_source("resume") is ParameterSource.DEFAULT:
        refuse_to_replace(given.get("checkpoint"))
    source, rows, classes = _training(store, cube)
    kind = by_word(estimator).load()
    learner = kind(**parameters_of(kind, given, classes))
    if start is not None:
        learner = _started(start, learner)
    more = {} if groups is blocks is None else {"groups": _groups(groups, blocks, source, learner)}
    if made is not None:
        learner._last_seed = made[1]  # that of the existing model, which is used if no checkpoint has one
    goes_on = bool(given.get("resume")) and (made is not None or _has_checkpoint(given))
    seed = None if goes_on else _drawn_seed(learner)
    try:
        with progress_shown() as seconds, runs_on.opened(), listen(heed):
            learner.fit(*source, **more)
            taken = seconds()
            learner.save(model, overwrite=overwrite)
    except FinishedError:
        facts = {**model_facts(odm.load_model(model), model), "rows": rows, "seconds": seconds()}
        emit(as_json, facts, f"{printable(model)} is done: this very fit made it. --overwrite makes it anew.")
        return
    except KeyboardInterrupt as error:
        if not _has_checkpoint(given):
            raise
        raise KeyboardInterrupt("interrupted; run again with --resume to go on") from error
    facts = {**model_facts(learner, model), **search_facts(learner), "rows": rows, "seconds": taken}
    shown = sys.stdout.isatty() and sys.stderr.isatty()  # the levels were shown as they came
    text = f"{format_history(facts['history'])}\n\n" if facts["history"] and not shown else ""
    text += search_text(facts)
    if seed is not None:
        text += f"seed {seed}; --random-state {seed} repeats this fit\n"
    gap = facts["dual_gap"]
    if gap is not None:
        text += f"gap {f'{gap:.1e}' if math.isfinite(gap) else _unknown(facts['history'])}, "
    if facts["loo_score"] is not None:
        text += f"score of left-out rows {facts['loo_score']:.4f}, "
    if given.get("solver") == "auto" and facts["solver"] is not None:
        say(f"--solver auto took {facts['solver']}")
    emit(as_json, facts, f"{text}{taken:.2f} s, model written to {printable(model)}")


def _drawn_seed(learner: Any) -> int | None:
    """Give a learner that lacks a seed one, for the fit to be repeated, and return it; None if it does not need one."""
    if learner.get_params(deep=False).get("random_state", 0) is not None:
        return None
    seed = randbelow(1_000_000)
    learner.set_params(random_state=seed)
    return seed


def _has_checkpoint(given: Mapping[str, Any]) -> bool:
    """Return whether the options of a fit name a checkpoint that is there."""
    from dask_odm.learning.training.checkpoints import is_checkpoint_there

    return bool(given.get("checkpoint")) and is_checkpoint_there(given["checkpoint"])


def _unknown(history: Sequence[Mapping[str, Any]]) -> str:
    """Return why the gap of a model is not known, by the ``history`` of its fit."""
    if not history:
        return "unknown"
    if history[0].get("solver") == "landmark":
        return "unknown without --certify"
    return "unknown, as the tree ended above one partition" if "partitions" in history[-1] else "unknown"


def _groups(path: str | None, blocks: str | None, source: tuple[Any, ...], learner: Any) -> Any:
    """Return the group of each row, from a NumPy file or by ``blocks`` of places."""
    import numpy as np

    if "groups" not in signature(learner.fit).parameters:
        raise InputError(f"--groups, --blocks: a {type(learner).__name__} leaves out no groups.")
    if blocks is not None:
        if path is not None:
            raise click.UsageError("--groups and --blocks exclude each other.")
        return _blocks(blocks, *source)
    assert path is not None
    if len(source) > 1 and hasattr(source[1], "dims"):
        raise click.UsageError("--groups is for rows of a store, or points; for an image of labels, give --blocks.")
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"--groups: '{path}' is not a NumPy file of one entry for each row: {error}") from error


def _blocks(text: str, X: Any, y: Any = None) -> Any:
    """Return the block of each row of a cube with an image of labels or points, or of a store with places."""
    import pandas as pd

    try:
        sizes = {name: float(length) for name, length in (each.split("=") for each in text.split(","))}
    except ValueError as error:
        raise click.UsageError("--blocks takes lengths along dimensions, such as y=1500,x=1500.") from error
    if hasattr(y, "dims"):
        return odm.spatial_blocks(X, sizes)
    if y is None:
        at = odm.open_store(X).coords
        y = pd.DataFrame({name: at[f"at_{name}"].to_numpy() for name in sizes if f"at_{name}" in at})
    missing = [name for name in sizes if name not in y]
    if missing:
        raise InputError(f"--blocks: there are no places of the rows along {', '.join(missing)}.")
    return odm.spatial_blocks(y[list(sizes)], list(sizes.values()))


def _started(path: str, learner: Any) -> Any:
    """Return the model at ``path`` with the parameters of ``learner``, to start from what it found."""
    last = odm.load_model(path)
    if type(last) is not type(learner) or "warm_start" not in learner.get_params():
        name = type(learner).__name__
        raise InputError(f"--start: '{path}' is of {type(last).__name__}, and {name} does not start from it.")
    return last.set_params(**learner.get_params() | {"warm_start": True})


def _training(store: str, cube: CubeOptions) -> tuple[tuple[Any, ...], int | None, Callable[[], Sequence[Any]]]:
    """Return the arguments of a fit, the number of rows if it is known, and a function that returns their labels."""
    if cube.labels is None:
        source = odm.Store.open(store)
        return (source.path,), source.rows, lambda: source.classes or ()
    X, y = cube.opened(store)

    def labels() -> list[Any]:
        return [each for each in set(y.values.ravel().tolist()) if each == each and each is not None]

    return (X, y), None, labels


class FinishedError(Exception):
    """The model at the target was made by this very fit."""


def refuse_to_replace(checkpoint: str | None) -> None:
    """Raise InputError if there is a checkpoint that a new fit would replace at its first step."""
    from dask_odm.learning.training.checkpoints import open_checkpoint

    found = None if checkpoint is None else open_checkpoint(checkpoint)
    if found is not None:
        raise InputError(
            f"checkpoint '{checkpoint}' holds {len(found.attributes['history'])} steps of a fit; pass --resume to go "
            "on from there, or --no-resume to begin anew and replace it."
        )


def _made_by(path: str) -> tuple[str, int] | None:
    """Return digest and seed of the fit that made the model at ``path``; None if nothing there says so."""
    from dask_odm.data.store.records import read_kind, read_record

    if read_kind(path) != "model":
        return None
    record = read_record(path, "model")
    record.check()
    attributes = record.attributes
    return (attributes["fit"], attributes["seed"]) if "fit" in attributes and "seed" in attributes else None
