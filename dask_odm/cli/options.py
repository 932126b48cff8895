"""The options of ``dask-odm fit``, made from an estimator's constraints, signature and docstring.

A parameter is written once, in its estimator. `_parameter_constraints` says which values its option takes. The
signature has its default. The first sentence of its entry under "Parameters" is the help. A parameter that a shell
cannot give, such as a function, has no option. The estimator itself checks the range of values, in its own words.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import getdoc, signature
from numbers import Integral
from typing import Any

import click

from dask_odm.cli.shell import option, shell_words
from dask_odm.estimators.registry import ESTIMATORS, by_word

DEFAULT = "odm"
SEARCHES = "-cv"  # end of the word of an estimator that searches for the settings of another
_OPTIONS = "dask_odm.estimator_options"


class EstimatorCommand(click.Command):
    """A command with options for the parameters of an estimator, which ``--estimator`` names.

    Those whose words have the ``suffix`` are named without it. For an option that only other packages have, the error
    names its replacement; for one of ``ingest``, this command.
    """

    def __init__(self, *args: Any, suffix: str = "", **named: Any) -> None:
        super().__init__(*args, **named)
        self.suffix = suffix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [entry.word for entry in ESTIMATORS.values()]
        words = click.Choice([word for word in known if word + self.suffix in known])
        text = "What is learned; the options of its parameters follow."
        chosen = click.Option(["--estimator"], type=words, default=DEFAULT, show_default=True, help=text)
        estimator = by_word(chosen.type_cast_value(ctx, _named(args)) + self.suffix).load()
        ctx.meta[_OPTIONS] = [chosen, *options_of(estimator)]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flag = error.option_name
            known = estimator.hints()
            of_store = getattr(ctx.find_root().command, "commands", {}).get("ingest", self).params
            if any(flag in each.opts for each in of_store):
                known = {flag.lstrip("-"): "it is one of 'dask-odm ingest', which writes the STORE."} | known
            instead = known.get(flag.lstrip("-"), known.get(flag.lstrip("-").upper()))
            if instead is None:
                raise
            raise click.NoSuchOption(flag, f"No option {flag}: {shell_words(instead, ())}", ctx=ctx) from error

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*ctx.meta.get(_OPTIONS, ()), *super().get_params(ctx)]


def _named(args: list[str]) -> str:
    """Return the last word given for ``--estimator``."""
    finder = ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--estimator", nargs="?", const="", default=DEFAULT)
    return finder.parse_known_args(args)[0].estimator


def options_of(estimator: type[Any]) -> list[click.Option]:
    """Return an option for every parameter of an estimator's class that a shell can give, in the signature's order."""
    found = []
    for name, form, default, text in _parameters(estimator):
        if form is not None:
            found.append(_option(name, form, default, text))
        if name == "solver":
            found += _solver_options(estimator)
    return found


def _parameters(owner: type[Any]) -> Iterator[tuple[str, dict[str, Any] | None, Any, str]]:
    """Yield name, form (see `form_of`), default and help of every parameter of an estimator or a solver object."""
    helps = help_texts(getdoc(owner) or "")
    for name, parameter in signature(owner).parameters.items():
        yield name, form_of(owner, name), parameter.default, helps.get(name, "")


def _solver_options(estimator: type[Any]) -> list[click.Option]:
    """Return an option for every parameter of an estimator's solvers. Solvers with the same parameter share it."""
    found: dict[str, click.Option] = {}
    several = "array-like" in estimator._parameter_constraints["solver"]
    for solver in estimator._solvers:
        for name, form, default, text in _parameters(solver):
            if name not in found and form is not None:
                words = ", ".join(_solvers_with(name, estimator._solvers))
                shown = "" if default is None else f"; default {default}"
                form = {"type": OneOrMore(click.INT)} if several and form == {"type": click.INT} else form
                found[name] = _option(name, form, None, f"{text} (--solver {words}{shown}.)")
    return list(found.values())


def _solvers_with(name: str, classes: Sequence[Any]) -> list[str]:
    """Return the words of the solvers with a parameter of this name."""
    return [each.word for each in classes if name in signature(each).parameters]


def _option(name: str, form: Mapping[str, Any], default: Any, text: str) -> click.Option:
    flag = option(name)
    if form.get("multiple"):
        return click.Option([flag, name], help=f"{text} Repeatable.".strip(), **form)
    flags = f"{flag}/--no-{flag[2:]}" if form["type"] is click.BOOL else flag
    return click.Option([flags, name], default=default, show_default=default is not None, help=text, **form)


def form_of(owner: type[Any], name: str) -> dict[str, Any] | None:
    """Return the arguments of `click.Option` that a parameter's constraints tell; None if a shell cannot give it."""
    constraints = owner._parameter_constraints.get(name, [])
    if name == "warm_start":
        return None  # a command has no fit before it
    if "boolean" in constraints:
        return {"type": click.BOOL}
    if "random_state" in constraints:
        return {"type": click.INT}  # a seed; a generator is an object
    needs_memory = getattr(owner, "_needs_memory", {}).get(name, ())
    words = [word for each in constraints for word in sorted(getattr(each, "options", ())) if word not in needs_memory]
    wholes = {each.type is Integral for each in constraints if hasattr(each, "closed")}
    whole = True in wholes if len(wholes) == 1 else None  # None for either kind of number
    several = "array-like" in constraints and name != "solver"  # options of a solver make several solvers
    if dict in constraints:
        return {"multiple": True, "metavar": "|".join([*words, "LABEL=NUMBER"])}
    if os.PathLike in constraints:
        return {"type": click.Path()}
    if wholes and (words or str in constraints or whole is None):
        shown = "|".join([*words, "INTEGER" if whole else "FLOAT"])
        return {"type": NumberOrText(whole=whole)} | ({"metavar": f"[{shown}]"} if words else {})
    if whole:
        return {"type": OneOrMore(click.INT) if several else click.INT}
    if wholes:
        return {"type": click.FLOAT}
    if str in constraints:
        return {"type": OneOrMore(click.STRING) if several else click.STRING}
    if words and several:
        return {"type": OneOrMore(click.Choice(words)), "metavar": f"[{'|'.join(words)}],…"}
    if words:
        named = None in constraints and (name == "scale" or signature(owner).parameters[name].default is not None)
        return {"type": WordOrNone([*words, "none"]) if named else click.Choice(words)}
    return {"type": OneOrMore(click.FLOAT, listed=True)} if several else None


class OneOrMore(click.ParamType):
    """Option type: one value of type ``kind``, or a list of several separated by commas.

    If it is ``listed``, one value makes a list too.
    """

    def __init__(self, kind: click.ParamType, *, listed: bool = False) -> None:
        self.kind = kind
        self.listed = listed
        self.name = f"{kind.name},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = [self.kind.convert(each, param, ctx) for each in value.split(",")]
        return found if self.listed or len(found) > 1 else found[0]


class WordOrNone(click.Choice):
    """Option type: one of some words, or "none" for None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return None if found == "none" else found


class NumberOrText(click.ParamType):
    """Option type: a number if the text is one, else the text itself, which the estimator knows or refuses.

    The number is a whole one, a float, or either if ``whole`` is None.
    """

    name = "text"

    def __init__(self, *, whole: bool | None) -> None:
        self.whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            with suppress(ValueError):
                either = self.whole is None and value.isdecimal()
                return int(value) if self.whole or either else float(value)
        return value


def parameters_of(
    estimator: type[Any], given: Mapping[str, Any], labels: Callable[[], Sequence[Any]]
) -> dict[str, Any]:
    """Return the parameters of an estimator from the values of its options, as click read them.

    ``labels`` returns the labels of the training data, which tell the number 1 from the word "1".
    """
    defaults = {name: each.default for name, each in signature(estimator).parameters.items()}
    found = {
        name: value if not isinstance(value, tuple) else pairs_of(value, labels) if value else defaults[name]
        for name, value in given.items()
        if name in defaults
    }
    of_solver = {name: value for name, value in given.items() if name not in defaults and value is not None}
    return found | ({"solver": _solver_of(estimator, found["solver"], of_solver)} if of_solver else {})


def _solver_of(estimator: type[Any], word: Any, given: dict[str, Any]) -> Any:
    """Return the solver object of a word and its parameters; a list of objects if a parameter has several values."""
    classes = {each.word: each for each in estimator._solvers}
    for name in given:
        words = _solvers_with(name, estimator._solvers)
        if word not in words:
            instead = " or ".join(f"--solver {each}" for each in words)
            raise click.UsageError(f"{option(name)} is an option of {instead}, not of --solver {word}.")
    several = [name for name, value in given.items() if isinstance(value, list)]
    if not several:
        return classes[word](**given)
    return [classes[word](**given | {several[0]: value}) for value in given[several[0]]]


def pairs_of(texts: Sequence[str], labels: Callable[[], Sequence[Any]]) -> dict[Any, Any] | str:
    """Return numbers by label from texts ``LABEL=NUMBER``; a single text that is no pair is returned as it is."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    known = labels()
    found = {}
    for text in texts:
        label, _, number = text.rpartition("=")
        found[label_of(label, known)] = NumberOrText(whole=False).convert(number, None, None)
    return found


def label_of(text: str, labels: Sequence[Any]) -> Any:
    """Return the one of ``labels`` that a text stands for, by its text or its value; the text itself if none does."""
    for label in labels:
        if text == str(label):
            return label
    with suppress(ValueError):
        return next((label for label in labels if not isinstance(label, str) and label == float(text)), text)
    return text


def help_texts(docstring: str) -> dict[str, str]:
    """Return the first sentence of every parameter of a numpydoc docstring."""
    from dask_odm.learning.parameters import parameter_entries  # loads scikit-learn, as an estimator has by now

    texts = {name: " ".join(entry.split("\n")[1:]) for name, entry in parameter_entries(docstring).items()}
    joined = {name: " ".join(text.split()) for name, text in texts.items() if text.strip()}
    end = re.compile(r'(?<=[.!?]) (?=["`(]*[A-Z]|["`]+\w)')  # behind a full stop before a new sentence
    return {name: end.split(text, maxsplit=1)[0].replace("`", "") for name, text in joined.items()}
