"""``python -m benchmarks``: methods side by side on the same rows, with tables and plots."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.papers.figures import write_figures
from benchmarks.papers.matrix import Matrix, run_matrix
from benchmarks.papers.methods import INGREDIENTS, METHODS
from benchmarks.papers.report import markdown
from dask_odm.cli.shell import emit, json_option
from dask_odm.errors import InputError


def _words(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (value or "").split(",") if word.strip())


@click.command()
@click.argument("names", nargs=-1, metavar="[DATA]...")
@click.option("--data", "source", type=click.Path(), envvar="DASK_ODM_DATA", help="Folder of LIBSVM files.")
@click.option("--folder", type=click.Path(), default="dask-odm-bench", show_default=True, help="Where results go.")
@click.option(
    "--methods",
    callback=_words,
    default="ours,rivals,libraries",
    show_default=True,
    help="Methods or groups of them, with commas: ours, rivals, libraries, ingredients, or names such as sodm,SVC.",
)
@click.option("--kernels", callback=_words, default="rbf,linear", show_default=True, help="rbf, linear, or both.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Splits of every data set.")
@click.option("--rows", type=click.IntRange(50), help="Take only so many rows of every data set.")
@click.option("--cores", callback=_words, help="Run SODM on so many cores, too, such as 1,2,4.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds of a cell.")
@click.option("--fetch", is_flag=True, help="Fetch data sets that the folder does not have from the LIBSVM site.")
@json_option
def bench(names: tuple[str, ...], source: str | None, folder: str, methods: tuple[str, ...], kernels: tuple[str, ...],
          cores: tuple[str, ...], as_json: bool, **options: Any) -> None:  # fmt: skip
    """Compare methods on data sets, each in a fresh process; the same command goes on after an interrupt.

    DATA are names of LIBSVM files in --data (svmguide1 is svmguide1.svm.xz, or svmguide1.train.svm.xz with
    svmguide1.test.svm.xz), or made up: shells, overlapping, separable or susy-shaped with a number of rows, as
    shells:20000. By default two small sets: svmguide1 and phishing, or two made up. Writes results.jsonl, report.md
    and plots to the folder.
    """
    if not set(kernels) <= {"rbf", "linear"} or not kernels:
        raise click.BadParameter(f"rbf, linear, or both. Got {','.join(kernels)} instead.", param_hint="--kernels")
    if not all(word.isdigit() for word in cores):
        raise click.BadParameter(f"numbers of cores. Got {','.join(cores)} instead.", param_hint="--cores")
    data = names or _small_sets(source)
    where = Path(folder)
    try:
        matrix = Matrix(data, _methods(methods), kernels, cores=[int(c) for c in cores], source=source, **options)
        results = run_matrix(matrix, where, lambda line: click.echo(line, err=True))
    except InputError as error:
        raise click.UsageError(str(error)) from error
    text = markdown(results, _command())
    (where / "report.md").write_text(text, encoding="utf-8")
    plots = write_figures(results, where)
    files = [where / "report.md", *plots]
    records = list(results.records.values())
    emit(as_json, {"machine": results.machine, "records": records, "files": files}, text)
    click.echo("\n".join(f"written: {file}" for file in files), err=True)


def _small_sets(source: str | None) -> tuple[str, ...]:
    """Return data sets that take little time: from the folder if it has them, else generated."""
    found = ("svmguide1", "phishing")
    files = os.listdir(source) if source and os.path.isdir(source) else []
    there = all(any(file.startswith(f"{name}.") for file in files) for name in found)
    return found if there else ("shells:4000", "overlapping:4000")


def _methods(words: tuple[str, ...]) -> list[str]:
    """Return names of methods, with groups expanded."""
    rivals = [name for name in METHODS if name in ("cascade", "dip", "dc", "sodm as published")]
    libraries = [name for name, method in METHODS.items() if method.family == "svm"]
    groups = {
        "ours": [name for name in METHODS if name not in (*rivals, *libraries)],
        "rivals": rivals,
        "libraries": libraries,
        "ingredients": list(INGREDIENTS),
    }
    return list(dict.fromkeys(name for word in words for name in groups.get(word, [word])))


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
