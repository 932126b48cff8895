"""The command line ``dask-odm``: ingest, info, verify, fit, search, predict, evaluate, cluster, retire, warmup,
demo.

Results go to stdout, with ``--json`` as one object and nothing else; progress, warnings and errors go to stderr. A
command that fails says why in one line and exits with 2. One that is interrupted by Ctrl-C or SIGTERM exits with 130.
Heavy imports are made by the command that needs them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

import dask_odm as odm
from dask_odm.cli.cluster import Place, cluster, place_options, retire
from dask_odm.cli.group import Commands
from dask_odm.cli.options import SEARCHER, EstimatorCommand, parameters_of
from dask_odm.cli.output import emit as _emit
from dask_odm.cli.output import json_option
from dask_odm.cli.resume import FinishedError, Target, refuse_to_replace, resumable
from dask_odm.cli.rows import RowOptions, row_options
from dask_odm.data.storage.locations import location_of
from dask_odm.estimators.registry import by_word
from dask_odm.events import Ingested, listen

_IN_TABLE = ("classes", "confusion", "other_labels")  # results of an evaluation that its table shows


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="dask-odm")
def main() -> None:
    """Large-margin classification and ridge regression, kernel and linear, for data that does not fit in memory."""


main.add_command(cluster)
main.add_command(retire)


overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is there, once the new is complete.")


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("store")
@row_options
@click.option("--n-features", type=int, help="Number of features of LIBSVM text; spares a first pass.")
@click.option(
    "--target",
    type=click.Choice(["auto", "classes", "real"]),
    default="auto",
    show_default=True,
    help="Labels are classes, or real values to regress on.",
)
@click.option("--drop-missing", is_flag=True, help="Leave out rows with a missing value, and say how many.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@click.option("--test-size", type=float, metavar="SHARE", help="Share of the rows, drawn into a second store.")
@click.option("--test-store", metavar="STORE", help="The second store.  [default: STORE with -test]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the split.")
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: 8 to 16 MB]")
@click.option("--compression", type=click.Choice(["zstd"]), help="Compress chunks, as for an object store.")
@click.option("--yes", "allow_large", is_flag=True, help="Write a store far larger than the text it is made of.")
@overwrite_option
@json_option
def ingest(sources: tuple[str, ...], store: str, rows: RowOptions, as_json: bool, **options: Any) -> None:
    """Read data files once and write them as a STORE.

    SRC are files of one format, one after another, a folder or quoted patterns of such, a store, or - for text on
    standard input: LIBSVM or CSV text, plain, .gz, .bz2 or .xz, NumPy .npy or .npz, Parquet, Arrow (Feather).
    """
    from dask_odm.diagnostics.summaries import listing, store_facts

    reading = {name: value for name, value in vars(rows).items() if name != "no_label"}
    reading["label"] = False if rows.no_label else rows.label
    started = time.perf_counter()
    heard: list[Any] = []
    with _progress(), listen(heard.append):
        done: Any = odm.ingest(sources[0] if len(sources) == 1 else list(sources), store, **reading, **options)
    found = next(each for each in heard if isinstance(each, Ingested))
    facts = [store_facts(each) for each in (done if isinstance(done, tuple) else (done,))]
    source = {"labels_from": found.label, "target": found.target, "dropped": found.dropped}
    result = {"store": facts[0], "test_store": facts[1] if len(facts) > 1 else None, **source}
    said = listing({"labels_from": found.label, "rows_dropped": found.dropped or None})
    text = "\n\n".join([*map(listing, facts), *([said] if said else [])])
    _emit(as_json, {**result, "seconds": time.perf_counter() - started}, text)


@main.command()
@click.argument("path", metavar="PATH")
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what a store, a model or a checkpoint holds."""
    from dask_odm.data.store.records import read_kind, read_record
    from dask_odm.diagnostics.summaries import checkpoint_facts, listing, model_facts, search_facts, store_facts

    kind = read_kind(path)
    if kind == "model":
        model = odm.load_model(path)
        facts = {**model_facts(model, path), **search_facts(model)}
    else:
        facts = checkpoint_facts(read_record(path, kind)) if kind == "checkpoint" else store_facts(odm.Store.open(path))
    levels = f"\n\n{_levels(facts['history'])}" if facts.get("history") else ""
    _emit(as_json, facts, f"{listing(facts)}{levels}")


@main.command()
@click.argument("path", metavar="STORE")
@json_option
def verify(path: str, as_json: bool) -> None:
    """Check every file of a store, model, checkpoint or prediction against its checksum."""
    from dask_odm.data.store.records import read_kind, read_record
    from dask_odm.diagnostics.summaries import size_text

    started = time.perf_counter()
    with _progress():
        kind = read_kind(path)
        found: Any = odm.Store.open(path) if kind in (None, "store") else read_record(path, kind)
        nbytes = found.verify()
    result = {"path": found.path, "sound": True, "bytes": nbytes, "seconds": time.perf_counter() - started}
    _emit(as_json, result, f"{path}: sound, {size_text(nbytes)} read.")


@main.command(cls=EstimatorCommand)
@click.argument("store")
@click.argument("model")
@place_options
@overwrite_option
@json_option
def fit(store: str, model: str, estimator: str, runs_on: Place, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Learn from a STORE and write the MODEL.

    Runs in this process, on --workers of this machine, or on the cluster of a --scheduler.

    The table has a line for every step: its gap, which bounds the share of the objective that is left to gain, the
    objective, and passes over the rows and seconds so far. Of several machines, as classes have them, it has the last
    step of each.
    """
    _learn(store, model, estimator, runs_on, overwrite, as_json, given)


@main.command(cls=EstimatorCommand)
@click.argument("store")
@click.argument("model")
@place_options
@overwrite_option
@json_option
def search(store: str, model: str, runs_on: Place, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Find settings for a STORE, and write the MODEL that was learned with the best of them.

    Settings are tried on samples of the rows, and judged by rows that were left out; see ODMClassifierCV. Samples are
    drawn: with --random-state every run finds the same.
    """
    _learn(store, model, SEARCHER, runs_on, overwrite, as_json, given)


def _learn(
    store: str, model: str, estimator: str, runs_on: Place, overwrite: bool, as_json: bool, given: dict[str, Any]
) -> None:
    """Fit an estimator to a store and save the model, for the commands `fit` and `search`."""
    from dask_odm.diagnostics.summaries import model_facts, search_facts, search_text

    target = Target(model, overwrite=overwrite, resume=bool(given.get("resume")))
    if not _is_given("resume"):
        refuse_to_replace(given.get("checkpoint"))
    source = odm.Store.open(store)
    started = time.perf_counter()
    kind = by_word(estimator).load()
    learner = kind(**parameters_of(kind, given, lambda: source.classes or ()))
    target.prepare(learner)
    try:
        with resumable(getattr(learner, "checkpoint", None)), runs_on.opened(), _progress(), listen(target):
            learner.fit(source.path)
            seconds = time.perf_counter() - started
            learner.save(model, overwrite=overwrite)
    except FinishedError:
        facts = {**model_facts(odm.load_model(model), model), "rows": source.rows}
        facts["seconds"] = time.perf_counter() - started
        _emit(as_json, facts, f"{model} is done: this very fit made it. --overwrite makes it anew.")
        return
    facts = {**model_facts(learner, model), **search_facts(learner), "rows": source.rows, "seconds": seconds}
    shown = sys.stdout.isatty() and sys.stderr.isatty()  # the levels were shown as they came
    text = f"{_levels(facts['history'])}\n\n" if facts["history"] and not shown else ""
    text += search_text(facts, drawn=bool(given.get("random_state") is None))
    gap = "" if facts["dual_gap"] is None else f"gap {_gap(facts['dual_gap'])}, "
    _emit(as_json, facts, f"{text}{gap}{seconds:.2f} s, model written to {model}")


@main.command()
@click.argument("model")
@click.argument("source", metavar="SRC")
@click.argument("out")
@row_options
@place_options
@click.option(
    "--proba", is_flag=True, help="Write the probability of every class; of models that were fitted with --loo."
)
@click.option("--decision-function", "scores", is_flag=True, help="Write scores instead of labels; of classifiers.")
@overwrite_option
@json_option
def predict(model: str, source: str, out: str, rows: RowOptions, runs_on: Place, proba: bool, scores: bool,
            overwrite: bool, as_json: bool) -> None:  # fmt: skip
    """Predict the rows of SRC and write them, in order, to OUT: a .csv file, a .zarr folder, or - for CSV on stdout.

    SRC is a store, or what ingest reads: files, a folder, a quoted pattern, or - for text on standard input. Labels
    in it, and other columns that are no features of the model, are left out.
    """
    from dask_odm.diagnostics.predictions import STDOUT, check_predictions, require_method, write_predictions

    if proba and scores:
        raise click.UsageError("--proba and --decision-function exclude each other.")
    if out == STDOUT and as_json:
        raise click.UsageError("--json and - as OUT exclude each other: both write to stdout.")
    check_predictions(out, overwrite=overwrite)
    started = time.perf_counter()
    what = "probabilities" if proba else "scores" if scores else "labels"
    with _progress():
        loaded = odm.load_model(model)
        require_method(loaded, what)  # before files are read
        with runs_on.opened(), rows.store_of(source, loaded, labels=False) as store:
            count = write_predictions(loaded, store, out, what=what, overwrite=overwrite)
    if out == STDOUT:
        return
    result = {"path": location_of(out), "rows": count, "seconds": time.perf_counter() - started}
    said = {"probabilities": "rows of probabilities"}.get(what, what) if hasattr(loaded, "classes_") else "predictions"
    _emit(as_json, result, f"{out}: {count} {said}, {result['seconds']:.2f} s")


@main.command()
@click.argument("model")
@click.argument("source", metavar="SRC")
@row_options
@place_options
@click.option(
    "--pictures", metavar="FOLDER", help="Draw confusion, ROC and reliability into the folder, as far as there are any."
)
@json_option
def evaluate(model: str, source: str, rows: RowOptions, runs_on: Place, pictures: str | None, as_json: bool) -> None:
    """Compare predictions with the labels or targets of SRC: accuracy, confusion, margins; or R² and errors.

    Also precision and recall class by class, the area under the ROC and, of models that have probabilities, log loss,
    Brier score and calibration error.

    SRC is a store, or what ingest reads: files, a folder, a quoted pattern, or - for text on standard input. By default
    its labels are the column that is no feature of the model, and other columns that are none are left out.
    """
    from dask_odm.diagnostics.evaluation import compare
    from dask_odm.diagnostics.plotting import draw
    from dask_odm.diagnostics.summaries import listing

    started = time.perf_counter()
    with _progress():
        loaded = odm.load_model(model)
        with runs_on.opened(), rows.store_of(source, loaded, labels=True) as store:
            found = compare(loaded, store)
    drawn = {} if pictures is None else {"pictures": draw(found, pictures)}
    if drawn == {"pictures": []}:
        click.echo("dask-odm: of a regressor there is nothing to draw.", err=True)
    result = {**found.facts(), **drawn, "seconds": time.perf_counter() - started}
    told = {name: value for name, value in result.items() if name not in _IN_TABLE}
    _emit(as_json, result, f"{found.table()}\n\n{listing(told)}")


@main.command()
@json_option
def warmup(as_json: bool) -> None:
    """Compile all loops now, as an image or a cluster wants it; a minute or two, or seconds if it was done before.

    They are kept where NUMBA_CACHE_DIR says, else beside the package or in the user's cache, for later processes on
    machines with the same processor.
    """
    from dask_odm.cli.warmup import warm_up_all

    with _progress():
        seconds = warm_up_all()
    _emit(as_json, {"seconds": seconds}, f"all loops are compiled, {seconds:.1f} s")


@main.command()
@click.option("--folder", type=click.Path(), default="dask-odm-demo", show_default=True, help="Where to leave files.")
@json_option
def demo(folder: str, as_json: bool) -> None:
    """Train on a real data set, then on one larger than its workers' memory; three minutes.

    Leaves stores, models and a plot of the margins in the folder; a second run replaces them.
    """
    from dask_odm.cli.demo import run_demo

    with _progress():
        result = run_demo(folder, lambda line: click.echo(line, err=as_json))
    _emit(as_json, result, "")


def _is_given(parameter: str) -> bool:
    """Return whether an option of the running command was given, since its default may have the same value."""
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.DEFAULT


@contextmanager
def _progress() -> Iterator[None]:
    """Draw progress bars on stderr if it is a terminal."""
    bars = odm.ProgressBars()
    try:
        with listen(bars):
            yield
    finally:
        bars.close()


def _levels(levels: Any) -> str:
    from dask_odm.progress import format_history

    return format_history(levels)


def _gap(gap: float) -> str:
    unknown = "unknown (of landmarks without --certify, of a tree that ended above one partition)"
    return f"{gap:.1e}" if math.isfinite(gap) else unknown
