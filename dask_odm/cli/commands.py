"""The command line ``dask-odm``: ingest, info, verify, fit, search, predict, evaluate, curve, update, plan,
cluster, retire, warmup, demo.

Results go to stdout, with ``--json`` as one object and nothing else; progress, warnings and errors go to stderr. A
command that fails says why in one line and exits with 2. One that is interrupted by Ctrl-C or SIGTERM exits with 130.
Heavy imports are made by the command that needs them.
"""

from __future__ import annotations

from typing import Any

import click

import dask_odm as odm
from dask_odm.cli import shell
from dask_odm.cli.cluster import cluster, retire
from dask_odm.cli.cubes import CubeOptions, cube_options
from dask_odm.cli.fit import fit, search
from dask_odm.cli.judging import calibrate, curve, evaluate, importance, predict, report
from dask_odm.cli.plan import plan
from dask_odm.cli.rows import RowOptions, require_there, row_options
from dask_odm.cli.shell import Commands, Size, columns_option, emit, json_option, overwrite_option, word_option
from dask_odm.errors import InputError
from dask_odm.events import Ingested, listen
from dask_odm.printing import printable


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="dask-odm")
def main() -> None:
    """Large-margin classification and ridge regression, kernel and linear, for data that does not fit in memory."""


for _command in (fit, search, predict, evaluate, report, curve, importance, calibrate, plan, cluster, retire):
    main.add_command(_command)


@main.command()
@click.argument("sources", nargs=-1, metavar="SRC...")
@click.argument("store")
@row_options
@columns_option("--category", "categories", help="Column of words, even if they look like numbers or dates, such as "
                "zip codes; repeatable.")  # fmt: skip
@columns_option("--number", "numbers", help="Column of numbers, where other words are gaps; repeatable.")
@click.option("--max-levels", type=click.IntRange(1),
              help="Words of a column that get a feature each; rarer ones share one.  [default: 256]")  # fmt: skip
@word_option("--ids", "drop", "error", text="Leave out columns that differ in nearly every row, or refuse them.")
@click.option("--like", metavar="STORE|MODEL", help="Read columns, or texts, as those of this store or model.")
@cube_options
@click.option("--per-class", type=int, help="Most pixels of each class that are drawn from a cube.")
@click.option("--fraction", type=float, metavar="SHARE", help="Share of a cube's labelled pixels that is drawn.")
@click.option("--hash", "--n-features", "n_features", type=Size(), metavar="SIZE", help="Number of features: to which "
              "words of texts are hashed [2^20], or of LIBSVM text, which spares a first pass.")  # fmt: skip
@word_option("--target", "auto", "classes", "real", text="Labels are classes, or real values to regress on.")
@click.option("--drop-missing", is_flag=True, help="Leave out rows with a missing value, and say how many.")
@word_option("--dtype", "float32", "float64")
@click.option("--test-size", type=float, metavar="SHARE", help="Share of the rows, drawn into a second store.")
@click.option("--test-store", metavar="STORE", help="The second store.  [default: STORE with -test]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the split and of what is drawn.")
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: 8 to 16 MB]")
@click.option("--compression", type=click.Choice(["zstd"]), help="Compress chunks, as for an object store.")
@click.option("--sparse/--no-sparse", default=None, help="Store entries that are not zero.  [default: by their share]")
@click.option("--yes", "allow_large", is_flag=True, help="Write a store far larger than the text it is made of.")
@overwrite_option
@json_option
def ingest(
    sources: tuple[str, ...], store: str, rows: RowOptions, cube: CubeOptions, like: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Read data files once and write them as a STORE.

    SRC are files of one --format, one after another, a folder or quoted patterns of such, a store, or - for text on
    standard input. Texts may be .gz, .bz2, .xz, .zst, .zip or .tar. Columns may hold numbers, words, dates, booleans
    and gaps: a table tells how each is read. With --labels, SRC is a cube, zarr or NetCDF as xarray writes them, of
    which pixels with a label are stored. With --text, rows are made of the words of a column, hashed and weighted by
    how few rows hold them.
    """
    from dask_odm.diagnostics.summaries import column_lines, listing, store_facts

    if not sources:  # click takes the last argument for the store
        raise click.UsageError("Missing argument 'STORE', the folder to write.")
    source: Any = sources[0] if len(sources) == 1 else list(sources)
    if cube.labels is not None:
        if len(sources) > 1:
            raise click.UsageError("--labels goes with one SRC.")
        source = cube.opened(source)
    reading = {name: value for name, value in vars(rows).items() if name != "no_label"}
    reading["label"] = False if rows.no_label else rows.label
    if like is not None:
        source, known = rows.like(list(sources), like)
        reading |= known
    heard: list[Any] = []
    with shell.progress_shown() as seconds, listen(heard.append):
        done: Any = odm.ingest(
            source, store, **{name: each for name, each in options.items() if each is not None} | reading
        )
    found = next(each for each in heard if isinstance(each, Ingested))
    facts = [store_facts(each) for each in (done if isinstance(done, tuple) else (done,))]
    origin = {"labels_from": found.label, "target": found.target, "dropped": found.dropped}
    result = {"store": facts[0], "test_store": facts[1] if len(facts) > 1 else None, **origin}
    said = listing({"labels_from": found.label, "rows_dropped": found.dropped or None})
    text = "\n\n".join(filter(None, [*map(listing, facts), column_lines(facts[0]), said]))
    emit(as_json, {**result, "seconds": seconds()}, text)


@main.command()
@click.argument("path", metavar="PATH")
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what a store, a model or a checkpoint holds."""
    from dask_odm.data.store.records import read_kind, read_record
    from dask_odm.diagnostics import summaries
    from dask_odm.progress import format_history

    require_there(path)
    kind = read_kind(path)
    if kind == "model":
        model = odm.load_model(path)
        facts = {**summaries.model_facts(model, path), **summaries.search_facts(model)}
    elif kind == "checkpoint":
        facts = summaries.checkpoint_facts(read_record(path, kind))
    else:
        facts = summaries.store_facts(odm.Store.open(path))
    levels = format_history(facts["history"]) if facts.get("history") else ""
    said = [summaries.listing(facts), summaries.column_lines(facts), levels]
    emit(as_json, facts, "\n\n".join(filter(None, said)))


@main.command()
@click.argument("model")
@click.argument("store")
@click.argument("target", metavar="OUT")
@overwrite_option
@json_option
def update(model: str, store: str, target: str, overwrite: bool, as_json: bool) -> None:
    """Add the rows of a STORE to a ridge MODEL of one shard, and write what a fit of all rows would have found."""
    from dask_odm.data.store.records import check_target
    from dask_odm.diagnostics.summaries import listing, model_facts

    check_target(target, "model", overwrite=overwrite)
    learner: Any = odm.load_model(model)
    if not hasattr(learner, "update"):
        how = "more rows by fit --start" if "warm_start" in learner.get_params() else "all rows anew by fit"
        raise InputError(f"'{model}' is of {type(learner).__name__}, which learns {how}.")
    with shell.progress_shown():
        learner.update(odm.Store.open(store).path)
        learner.save(target, overwrite=overwrite)
    facts = model_facts(learner, target)
    emit(as_json, facts, listing(facts))


@main.command()
@click.argument("path", metavar="STORE")
@json_option
def verify(path: str, as_json: bool) -> None:
    """Check every file of a store, model, checkpoint or prediction against its checksum."""
    from dask.utils import format_bytes

    from dask_odm.data.store.records import read_kind, read_record

    require_there(path)
    with shell.progress_shown() as seconds:
        kind = read_kind(path)
        found: Any = odm.Store.open(path) if kind in (None, "store") else read_record(path, kind)
        nbytes = found.verify()
    result = {"path": found.path, "sound": True, "bytes": nbytes, "seconds": seconds()}
    emit(as_json, result, f"{printable(path)}: sound, {format_bytes(nbytes)} read.")


@main.command()
@json_option
def warmup(as_json: bool) -> None:
    """Compile all loops now, as an image or a cluster wants it; a minute or two, or seconds if it was done before.

    They are kept where NUMBA_CACHE_DIR says, else beside the package or in the user's cache, for later processes on
    machines with the same processor.
    """
    from dask_odm.cli.warmup import warm_up_all

    with shell.progress_shown() as seconds:
        warm_up_all()
    taken = seconds()
    emit(as_json, {"seconds": taken}, f"all loops are compiled, {taken:.1f} s")


@main.command()
@click.option("--folder", type=click.Path(), default="dask-odm-demo", show_default=True, help="Where to leave files.")
@json_option
def demo(folder: str, as_json: bool) -> None:
    """Train on a real data set, then on one larger than its workers' memory; two minutes.

    Leaves stores, models and a plot of the margins in the folder; a second run replaces them.
    """
    from dask_odm.cli.demo import run_demo

    with shell.progress_shown():
        result = run_demo(folder, lambda line: click.echo(line, err=as_json))
    emit(as_json, result, "")
