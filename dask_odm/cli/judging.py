"""Command line, models at work: predict, evaluate, report, curve, importance and calibrate."""

from __future__ import annotations

import os
from functools import partial

import click

import dask_odm as odm
from dask_odm.cli.cubes import CubeOptions, cube_options, is_cube, open_cube, write_map
from dask_odm.cli.options import NumberOrText
from dask_odm.cli.rows import Judged, judged
from dask_odm.cli.shell import emit, json_option, overwrite_option, progress_shown
from dask_odm.errors import InputError
from dask_odm.printing import printable, short


@click.command()
@judged
@click.argument("out")
@click.option(
    "--proba", is_flag=True, help="Write the probability of every class; of models that were fitted with --loo."
)
@click.option("--decision-function", "scores", is_flag=True, help="Write scores instead of labels; of classifiers.")
@click.option(
    "--sets",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    metavar="COVERAGE",
    help="Write which classes may be a row's own, so that they hold it with this probability, and in CSV the label; of "
    "numbers, the ends of an interval, and the prediction. For models fitted with --loo, or calibrated.",
)
@overwrite_option
@json_option
def predict(
    given: Judged, out: str, proba: bool, scores: bool, sets: float | None, overwrite: bool, as_json: bool
) -> None:
    """Predict the rows of SRC and write them, in order, to OUT: a .csv file, a .zarr folder, or - for CSV on stdout.

    SRC is a store, or what ingest reads: files, a folder, a quoted pattern, or - for text on standard input. Labels
    in it, and other columns that are no features of the model, are left out. In zarr, labels are codes: places among
    the "classes" that the group's attribute "content" lists. Of a cube, zarr or NetCDF as xarray writes
    them, OUT is a map with its coordinates: a .zarr folder that xarray opens, or a .tif, which needs rioxarray.
    """
    from dask_odm.data.storage.locations import location_of
    from dask_odm.diagnostics.predictions import STDOUT, check_predictions, require_method, write_predictions

    if proba + scores + (sets is not None) > 1:
        raise click.UsageError("--proba, --decision-function and --sets exclude each other.")
    if out == STDOUT and as_json:
        raise click.UsageError("--json and - as OUT exclude each other: both write to stdout.")
    source = given.source
    if os.path.exists(source) and os.path.exists(out) and os.path.samefile(source, out):
        raise click.UsageError(f"OUT '{printable(out)}' is SRC, whose rows it would replace.")
    of_cube = is_cube(source)
    if of_cube:
        given.rows.refuse_for_cubes()
    else:
        check_predictions(out, overwrite=overwrite)
    what = "probabilities" if proba else "scores" if scores else "labels" if sets is None else "sets"
    coverage = {} if sets is None else {"coverage": sets}
    with progress_shown() as seconds:
        loaded = given.load()
        method = require_method(loaded, what, **coverage)  # before files are read
        if of_cube:
            if what == "labels" and hasattr(loaded, "classes_"):
                method = partial(loaded.predict, decode=False)  # codes need no text in a map's file
            with given.runs_on.opened():
                count = write_map(method, source, out, overwrite=overwrite)
        else:
            with given.beside(loaded, labels=False) as store:
                count = write_predictions(loaded, store, out, what=what, overwrite=overwrite, **coverage)
    if out == STDOUT:
        return
    result = {"path": location_of(out), "rows": count, "seconds": seconds()}
    said = {"probabilities": "rows of probabilities", "sets": "sets of classes"}
    if hasattr(loaded, "classes_") and not of_cube and not out.endswith(".csv"):
        shown = ", ".join(map(str, loaded.classes_[:5])) + ", …" * (len(loaded.classes_) > 5)
        said["labels"] = f"labels, as codes, which are places among the classes {shown}"
    if not hasattr(loaded, "classes_"):
        said = {"labels": "predictions", "sets": "intervals"}
    emit(as_json, result, f"{printable(out)}: {count} {said.get(what, what)}, {result['seconds']:.2f} s")


@click.command()
@judged
@click.option(
    "--pictures",
    metavar="FOLDER",
    help="Draw confusion, ROC and reliability into the folder, or predictions and residuals of numbers.",
)
@click.option(
    "--scoring",
    metavar="SCORE[,SCORE...]",
    help="Further scores, by scikit-learn's names, such as average_precision or matthews_corrcoef, or r2.",
)
@json_option
def evaluate(given: Judged, pictures: str | None, scoring: str | None, as_json: bool) -> None:
    """Compare predictions with the labels or targets of SRC: accuracy, confusion, margins; or R² and errors.

    Also precision and recall class by class, the area under the ROC and, of models that have probabilities, log loss,
    Brier score and calibration error.

    SRC is a store, or what ingest reads: files, a folder, a quoted pattern, or - for text on standard input. By default
    its labels are the column that is no feature of the model, and other columns that are none are left out.
    """
    from dask_odm.diagnostics import evaluation
    from dask_odm.diagnostics.plotting import draw

    with progress_shown() as seconds:
        loaded = given.load()
        with given.beside(loaded) as store:
            found = evaluation.evaluate(loaded, store)
            names = [] if scoring is None else [name.strip() for name in scoring.split(",")]
            scores = evaluation.scores_of(loaded, store, names) if names else {}
    drawn = {} if pictures is None else {"pictures": draw(found, pictures)}
    further = {"scores": scores} if scores else {}
    result = {**found.facts(), **further, **drawn, "seconds": seconds()}
    emit(as_json, result, found.text(**further, **drawn, seconds=result["seconds"]))


@click.command()
@judged
@cube_options
@click.argument("out")
@click.option("--importance/--no-importance", default=None,
              help="Tell which features matter; by default of up to 141, by some rows if they are many.")  # fmt: skip
@overwrite_option
@json_option
def report(given: Judged, cube: CubeOptions, out: str, importance: bool | None, overwrite: bool,
           as_json: bool) -> None:  # fmt: skip
    """Write a page OUT of HTML: what a MODEL learned and how, how well it predicts the labelled rows of SRC.

    The page holds all its pictures, and loads nothing. SRC is as for evaluate, or a cube, zarr or NetCDF as xarray
    writes them: then the page has a map, and with --labels how well the labelled cells are predicted.
    """
    from dask_odm.data.storage.locations import location_of

    with progress_shown() as seconds:
        loaded = given.load()
        if is_cube(given.source):
            given.rows.refuse_for_cubes()
            X, y = (open_cube(given.source), None) if cube.labels is None else cube.opened(given.source)
            with given.runs_on.opened():
                odm.report(loaded, X, out, y=y, importance=importance, overwrite=overwrite)
        elif cube != CubeOptions():
            raise click.UsageError("--labels, --features and --ignore are for cubes.")
        else:
            with given.beside(loaded) as store:
                odm.report(loaded, store, out, importance=importance, overwrite=overwrite)
    result = {"path": location_of(out), "seconds": seconds()}
    emit(as_json, result, f"{printable(out)}: {result['seconds']:.2f} s")


@click.command()
@click.argument("model")
@click.argument("store")
@click.option("--scoring", help="A score of scikit-learn's.  [default: accuracy, or r2 of numbers]")
@click.option("--random-state", type=click.IntRange(0), default=0, help="Draws the rows.")
@json_option
def curve(model: str, store: str, scoring: str | None, random_state: int, as_json: bool) -> None:
    """Score left-out rows of models that learn from more and more rows of a STORE, by the settings of a MODEL.

    Up to 50,000 rows are drawn. The last line is what twice as many rows would bring, by how the score has grown.
    """
    with progress_shown() as seconds:
        loaded = odm.load_model(model)
        found = odm.learning_curve(loaded, store, scoring=scoring, random_state=random_state)
    points = list(zip(found.rows.tolist(), found.scores.tolist(), strict=True))
    facts = {"scoring": scoring or loaded.scored_by, "points": points, "twice": found.twice, "seconds": seconds()}
    lines = [f"{rows:>10,}  {score:.4f}" for rows, score in points]
    emit(as_json, facts, "\n".join([*lines, f"{'twice':>10}  {found.twice:.4f}"]))


@click.command()
@judged
@click.option("--repeats", type=click.IntRange(1), default=5, help="How often each feature is taken from other rows.")
@click.option("--random-state", type=click.IntRange(0), default=0, help="Draws these rows.")
@json_option
def importance(given: Judged, repeats: int, random_state: int, as_json: bool) -> None:
    """Tell which features a MODEL needs: what its score on SRC loses if one of them is taken from other rows.

    The score is accuracy or, of a regressor, R². SRC has labels or targets, and is as for evaluate. Take rows that the
    model did not learn from.
    """
    with progress_shown() as seconds:
        loaded = given.load()
        with given.beside(loaded) as store:
            found = odm.permutation_importance(loaded, store, n_repeats=repeats, random_state=random_state)
    each = zip(found.feature_names, found.importances_mean.tolist(), found.importances_std.tolist(), strict=True)
    features = sorted(each, key=lambda feature: -feature[1])
    facts = {
        "score": found.score,
        "features": [{"name": name, "lost": mean, "deviation": deviation} for name, mean, deviation in features],
        "seconds": seconds(),
    }
    width = max(len(short(name)) for name in found.feature_names)
    lines = [f"{short(name):{width}}  {mean:8.4f} ± {deviation:.4f}" for name, mean, deviation in features]
    emit(as_json, facts, "\n".join([*lines, "", f"lost of a score of {found.score:.4f}, {facts['seconds']:.2f} s"]))


@click.command()
@judged
@click.argument("out")
@click.option(
    "--threshold",
    type=NumberOrText(whole=False),
    metavar="SCORE|SHARE",
    help="Move the boundary between two classes: to where a score of scikit-learn's, such as balanced_accuracy or f1, "
    "is best, or so that this share of the rows is of the second class.",
)
@overwrite_option
@json_option
def calibrate(given: Judged, out: str, threshold: float | str | None, overwrite: bool, as_json: bool) -> None:
    """Fit the sets and the boundary of a MODEL to labelled rows SRC that it did not learn from, and write it to OUT.

    Sets of classes (predict --sets) then hold a row's own class as often as promised. SRC is as for evaluate.
    """
    from dask_odm.data.store.records import check_target

    check_target(out, "model", overwrite=overwrite)
    with progress_shown() as seconds:
        loaded = given.load()
        if not hasattr(loaded, "calibrate"):
            raise InputError(f"{type(loaded).__name__} has no sets of classes; ODMClassifier and ODMClassifierCV have.")
        with given.beside(loaded) as store:
            if threshold is None or not hasattr(loaded, "multilabel_"):
                loaded.calibrate(store.path)
            if threshold is not None:
                loaded.tune_threshold(threshold, store.path)
        loaded.save(out, overwrite=overwrite)
    by = getattr(loaded, "threshold_", None)
    moved = [] if by is None else [by] if isinstance(by, float) else by.tolist()
    told = f", its boundary moved by {', '.join(f'{each:.3g}' for each in moved)}" if moved else ""
    emit(as_json, {"path": out, "threshold": by, "seconds": seconds()}, f"{printable(out)}: calibrated{told}")
