"""Options made from estimators: of a toy with a parameter of every kind, and of every registered estimator."""

import json
import os
import sys
from collections.abc import Iterator
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import ClassVar

import click
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from cli.running import run, run_json
from dask_odm.cli import main
from dask_odm.cli.options import label_of, options_of
from dask_odm.diagnostics.summaries import plain
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.registry import ESTIMATORS, register
from small_stores import store_of

# Parameters without an option, of any estimator, and why.
WITHOUT_OPTION = {"callbacks": "functions are no text", "warm_start": "a command starts from a model, --start"}


class ToyEstimator(BaseEstimator):
    """Learns nothing.

    Parameters
    ----------
    shrink : float, default=0.5
        Share ``s`` that is left out, e.g. of "far" rows. More is said here: of no use to a shell.
    steps : int or None, default=None
        Most steps
        of two lines. None: as many as it takes.
    metric : {"near", "far", "given"} or callable, default="near"
        What is near.
    width : {"auto"} or float, default="auto"
    budget : int, str or None, default=None
    name_of_it : str, default="toy"
    place : str or None, default=None
    twice, thrice : bool, default=False
        Whether twice or thrice.
    class_weight : dict, "balanced" or None, default=None
    random_state : int, RandomState instance or None, default=None
    warm_start : bool, default=False
    callbacks : list or None, default=None

    Attributes
    ----------
    width : float
        Not the parameter.
    """

    _parameter_constraints: ClassVar[dict] = {
        "shrink": [Interval(Real, 0.0, 1.0, closed="left")],
        "steps": [Interval(Integral, 1, None, closed="left"), None],
        "metric": [StrOptions({"near", "far", "given"}), callable],
        "width": [StrOptions({"auto"}), Interval(Real, 0.0, None, closed="neither")],
        "budget": [Interval(Integral, 1, None, closed="left"), str, None],
        "name_of_it": [str],
        "place": [str, os.PathLike, None],
        "twice": ["boolean"],
        "thrice": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "callbacks": [list, tuple, None],
    }
    _needs_memory: ClassVar[dict] = {"metric": {"given"}}
    fitted: ClassVar[list] = []

    def __init__(
        self, shrink=0.5, *, steps=None, metric="near", width="auto", budget=None, name_of_it="toy", place=None,
        twice=False, thrice=True, class_weight=None, random_state=None, warm_start=False, callbacks=None,
    ):  # fmt: skip
        self.shrink, self.steps, self.metric, self.width, self.budget = shrink, steps, metric, width, budget
        self.name_of_it, self.place, self.twice, self.thrice = name_of_it, place, twice, thrice
        self.class_weight, self.random_state = class_weight, random_state
        self.warm_start, self.callbacks = warm_start, callbacks

    def fit(self, path):
        self.n_features_in_ = 2
        self.fitted.append(self)

    def save(self, path, *, overwrite=False):
        Path(path).mkdir(exist_ok=True)


@pytest.fixture
def toy(monkeypatch) -> Iterator[list[ToyEstimator]]:
    """The toy, registered as ``toy``; what was fitted comes into the list."""
    monkeypatch.setattr(ToyEstimator, "fitted", fitted := [])
    monkeypatch.setitem(sys.modules, "toy_of_options", sys.modules[ToyEstimator.__module__])
    for name in set(ESTIMATORS) - {"ODMClassifier"}:
        monkeypatch.delitem(ESTIMATORS, name)
    register("ToyEstimator", "toy_of_options", "toy")
    yield fitted
    del ESTIMATORS["ToyEstimator"]


@pytest.fixture(scope="module")
def store(tmp_path_factory, make_rings) -> str:
    """A store of the labels -1.0 and 1.0."""
    X, y = make_rings(100)
    return store_of(tmp_path_factory.mktemp("stores") / "a.zarr", X, y.astype(int)).path


def test_help_of_an_estimator(toy):
    text = " ".join(run("fit", "--estimator", "toy", "--help").stdout.split())
    for each in (
        "--estimator [odm|toy]",
        '--shrink FLOAT Share s that is left out, e.g. of "far" rows. [default: 0.5]',
        "--steps INTEGER Most steps of two lines. --metric",
        "--metric [far|near] What is near. [default: near]",
        "--width [auto|FLOAT] [default: auto]",
        "--budget TEXT --name-of-it",
        "--name-of-it TEXT [default: toy] --place PATH",
        "--twice / --no-twice Whether twice or thrice. [default: no-twice]",
        "--thrice / --no-thrice Whether twice or thrice. [default: thrice]",
        "--class-weight balanced|LABEL=NUMBER Repeatable.",
        "--random-state INTEGER",
    ):
        assert each in text
    assert "warm" not in text
    assert "callbacks" not in text
    assert "--lam" not in text
    assert "--lam" in run("fit", "--help").stdout


def test_values_reach_the_estimator(toy, store, tmp_path):
    run("fit", store, tmp_path / "m", "--estimator=toy")
    given = {
        "--shrink": 2, "--steps": 3, "--metric": "far", "--width": 0.25, "--budget": "2GB", "--name-of-it": "x",
        "--place": "y", "--class-weight": "-1=0.5", "--random-state": 7,
    }  # fmt: skip
    options = [each for pair in given.items() for each in pair]
    result = run(
        "fit", "--overwrite", "--estimator", "toy", store, tmp_path / "m", *options, "--twice", "--no-thrice", "--json"
    )
    default, chosen = (each.get_params() for each in toy)
    assert default == ToyEstimator(random_state=default["random_state"]).get_params()  # a seed is drawn
    expected = {
        "shrink": 2.0, "steps": 3, "metric": "far", "width": 0.25, "budget": "2GB", "name_of_it": "x", "place": "y",
        "twice": True, "thrice": False, "class_weight": {-1: 0.5}, "random_state": 7,
    }  # fmt: skip
    assert chosen == default | expected
    facts = json.loads(result.stdout)
    assert (facts["estimator"], facts["features"], facts["rows"]) == ("ToyEstimator", 2, 100)


def test_words_and_numbers(toy, store, tmp_path):
    run("fit", store, tmp_path / "m", "--overwrite", "--estimator", "toy", "--width", "auto", "--budget", 100)
    run("fit", store, tmp_path / "m", "--overwrite", "--estimator", "toy", "--width", "wide", "--budget", 1.5)
    assert [(each.width, each.budget) for each in toy] == [("auto", 100), ("wide", "1.5")]  # the estimator judges them
    assert "'given' is not one of 'far', 'near'" in run(
        "fit", store, tmp_path / "m", "--estimator", "toy", "--metric", "given", status=2
    ).stderr  # fmt: skip


@pytest.mark.parametrize("arguments", [("--estimator", "odd"), ("--estimator=odd",), ("--estimator",)])
def test_an_unknown_estimator_lists_those_known(toy, arguments):
    assert "is not one of 'odm', 'toy'." in run("fit", "a", "b", *arguments, status=2).stderr


@pytest.mark.parametrize(
    ("texts", "weights"), [(["balanced"], "balanced"), (["-1=0.5", "1=3"], {-1: 0.5, 1: 3.0}), (["1.0=2"], {1: 2.0})]
)
def test_class_weight_is_that_of_python(store, tmp_path, texts, weights):
    options = [each for text in texts for each in ("--class-weight", text)]
    done = run_json("fit", store, tmp_path / "m", *options, "--random-state", 0)
    expected = ODMClassifier(class_weight=weights, random_state=0).fit(store)
    assert done["dual_gap"] == expected.dual_gap_
    assert done["parameters"]["class_weight"] == plain(weights)


@pytest.mark.parametrize(("options", "message"), [
    (["--class-weight", "odd"], "--class-weight must be"),
    (["--class-weight", "5=2"], "class_weight names '5', which is not among the classes [-1, 1]."),
    (["--class-weight", "1=much"], "class_weight must be finite and not negative numbers. Got 'much' for 1."),
    (["--class-weight", "balanced", "--class-weight", "1=2"], "Got 'balanced' for ''."),
    (["--theta", 1.0], "--theta must be a float in the range [0.0, 1.0)."),
    (["--gamma", "big"], "--gamma must be"),
    (["--solver", "sodm", "--n-partitions", 0], "--n-partitions must be an int in the range [1, inf)"),
    (["--memory-limit", "lots"], "memory_limit must be"),
])  # fmt: skip
def test_wrong_values_are_told_by_the_estimator_in_one_line(store, tmp_path, options, message):
    result = run("fit", store, tmp_path / "m", *options, status=2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_labels_are_told_by_text_then_by_value():
    assert label_of("1", ["1", "2"]) == "1"
    assert label_of("1", [1.0, 2.0]) == 1.0
    assert label_of("True", [False, True]) is True
    assert label_of("3", [1, 2]) == "3"
    assert label_of("a=b", ["a=b"]) == "a=b"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_has_an_option_or_a_reason(name):
    estimator = ESTIMATORS[name].load()
    options = {option.name: option for option in options_of(estimator)}
    solvers = getattr(estimator, "_solvers", ())
    parameters = signature(estimator).parameters
    assert set(parameters) - set(options) <= set(WITHOUT_OPTION)
    assert set(options) - set(parameters) == {each for solver in solvers for each in signature(solver).parameters}
    assert set(options) & {param.name for param in main.commands["fit"].params} == set()
    if "scale" in options:
        assert "none" in options["scale"].make_metavar(click.Context(main))
        assert options["scale"].type_cast_value(click.Context(main), "none") is None
    for each, option in options.items():
        assert each not in parameters or option.default == parameters[each].default or option.multiple
        assert option.help, each
        assert option.help.endswith((".", ".)")), each
        assert len(option.help) < 140, each
        assert "None" not in option.help, each
