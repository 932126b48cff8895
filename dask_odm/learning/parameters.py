"""Classes as dataclasses of their parameters, which share what they inherit; and solver objects.

A solver object has the parameters of one way to solve a problem, with their constraints and documentation.
``solver="landmark"`` names a solver with its defaults, ``solver=Landmark(n_landmarks=300)`` says more. An object has
scikit-learn's `get_params` and `set_params`, so that searches reach its parameters as ``solver__n_landmarks``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc, signature
from numbers import Integral, Real
from textwrap import fill
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.errors import InputError

_LIST = "{…}"  # in a docstring, stands for the words that a parameter takes
_SECTIONS = {
    title: re.compile(rf"^{title}\n-+\n(.*?)\n*(?=^\S[^\n]*\n-+$|\Z)", re.M | re.S)
    for title in ("Parameters", "Attributes", "Returns", "Raises")
}
C = TypeVar("C")
T = TypeVar("T")
# constraints of parameters
COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0.0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0.0, None, closed="left")


def parameter(default: T, *constraints: Any) -> T:
    """Return the field of a parameter: its default, and the constraints by which scikit-learn checks its values."""
    found: T = field(default=default, metadata={"constraints": list(constraints)})
    return found


@dataclass_transform(eq_default=False)
def with_parameters(cls: type[C]) -> type[C]:
    """Make a class a dataclass of its parameters, for scikit-learn's `get_params` and `set_params`.

    Each is a field, whose constraints `parameter` or the type bool tells, or a `_parameter_constraints` of the class.
    Parameters of a base are documented and constrained there, unless the class does it anew: its docstring gets their
    entries, and `_parameter_constraints` theirs. In the signature those of the class come first. Its docstring gets the
    entries of a base's attributes behind its own, and a `fit` of its own all entries of a base's `fit`. ``{…}`` in the
    first line of an entry becomes the words that the parameter takes, and below it what a `Registered` says of each. A
    parameter ``solver`` takes the ``_solvers`` of the class.
    """
    made: Any = dataclass(eq=False, repr=False)(cls)
    bases = made.__mro__
    given = signature(made.__init__)
    fields = {base: vars(base).get("__dataclass_fields__", ()) for base in bases}

    def order(name: str) -> tuple[bool, int]:
        return name != "self", max((i for i, base in enumerate(bases) if name in fields[base]), default=0)

    ordered = sorted(given.parameters.values(), key=lambda each: (each.kind, order(each.name)))
    made.__init__.__signature__ = given.replace(parameters=ordered)
    names = [each.name for each in ordered[1:]]
    solvers = getattr(made, "_solvers", ())
    constraints: dict[str, list[Any]] = {"solver": [SolverOptions(solvers)]} if solvers else {}
    entries: dict[str, str] = {}
    for base in reversed(bases):
        constraints |= _constraints(base)
        own = parameter_entries(vars(base).get("__doc__"))
        entries |= {name: _with_words(entry, constraints.get(name, ())) for name, entry in own.items()}
    made._parameter_constraints = {name: constraints[name] for name in names if name in constraints}
    attributes = _told([base.__doc__ for base in bases], "Attributes")
    documented = _with_entries(cleandoc(cls.__doc__ or ""), [entries[name] for name in names if name in entries])
    made.__doc__ = _with_entries(documented, attributes.values(), "Attributes")
    fit = vars(made).get("fit")
    if fit is not None:
        docstrings = [getattr(vars(base).get("fit"), "__doc__", None) for base in bases]
        for title in ("Raises", "Returns", "Parameters"):  # each is put in front of those before
            told = _told(docstrings, title)
            taken = signature(fit).parameters if title == "Parameters" else told
            fit.__doc__ = _with_entries(cleandoc(fit.__doc__), [told[name] for name in taken if name in told], title)
    return made


def _constraints(base: type) -> dict[str, list[Any]]:
    """Return the constraints of the fields of a class, and those that it has besides, as scikit-learn's have."""
    fields = vars(base).get("__dataclass_fields__", {}).values()
    own = [each for each in fields if each.name in base.__annotations__]
    found = {each.name: ["boolean"] for each in own if each.type in (bool, "bool")}
    found |= {each.name: each.metadata["constraints"] for each in own if each.metadata}
    return found | vars(base).get("_parameter_constraints", {})


def _told(docstrings: Iterable[str | None], title: str) -> dict[str, str]:
    """Return the entries of the docstrings' sections by name, of each name the first."""
    found: dict[str, str] = {}
    for docstring in docstrings:
        for name, entry in parameter_entries(docstring, title).items():
            found.setdefault(name, entry)
    return found


def _with_words(entry: str, constraints: Sequence[Any]) -> str:
    """Return the entry of a parameter with the words that it takes, and what they mean, in place of ``{…}``."""
    words = next((each for each in constraints if isinstance(each, StrOptions)), None)
    if words is None or _LIST not in entry:
        return entry
    first, _, text = entry.partition("\n")
    first = first.replace(_LIST, "{" + ", ".join(f'"{word}"' for word in words.options) + "}")
    if _LIST in text:
        whole = " ".join(text.replace(_LIST, words.meanings).split())
        text = fill(whole, 116, initial_indent="    ", subsequent_indent="    ")
    return f"{first}\n{text}"


def _with_entries(docstring: str, entries: Collection[str], title: str = "Parameters") -> str:
    """Return a docstring with these entries in a section, each once; a new one is in front of all but parameters."""
    section = "\n".join([title, "-" * len(title), *dict.fromkeys(entries)])
    if entries and not _SECTIONS[title].search(docstring):
        before, *after = re.split(r"^(?=(?!Parameters\n)\S[^\n]*\n-+$)", docstring, maxsplit=1, flags=re.M)
        return "\n\n".join([before.rstrip(), section, *after])
    return _SECTIONS[title].sub(lambda found: f"{section}\n\n", docstring, count=1)


def parameter_entries(docstring: str | None, title: str = "Parameters") -> dict[str, str]:
    """Return the entry of every parameter of a numpydoc docstring, whole and without indentation, by name."""
    section = _SECTIONS[title].search(cleandoc(docstring or ""))
    found = re.findall(r"^\S[^\n]*(?:\n[ \t]+[^\n]*|\n(?=\n))*", section[1] if section else "", re.M)
    named = {entry: re.split(" *:|$", entry, maxsplit=1, flags=re.M)[0] for entry in found}
    return {name.strip(): entry for entry, names in named.items() for name in names.split(",")}


class SolverObject(BaseEstimator):
    """The base of all solver objects."""

    word: ClassVar[str]  # what names it in ``solver=`` and on the command line: the name of its class in lower case
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.word = cls.__name__.lower()

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is a solver of the same kind with the same parameters, as of a clone or a loaded model."""
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        """Return the same for all objects of a kind, whose parameters may be set."""
        return hash(type(self))


SolverClasses = Sequence[type[SolverObject]]


class Registered(StrOptions):
    """The constraint of a parameter that takes the words of a registry, and perhaps others before them.

    The first line of the docstring of what a word names says what the word means. The registry is asked anew each time,
    since users may register their own.
    """

    def __init__(self, registry: Mapping[str, Any], *others: str) -> None:
        self.registry = registry
        self.others = others
        self.type = str
        self.deprecated: frozenset[str] = frozenset()
        self.hidden = False

    @property
    def options(self) -> KeysView[str]:
        """The words, in their order."""
        return dict.fromkeys([*self.others, *self.registry]).keys()

    @property
    def meanings(self) -> str:
        """A sentence for each word of the registry."""
        lines = {word: (each.__doc__ or word).partition("\n")[0] for word, each in self.registry.items()}
        return " ".join(f'"{word}": {line}' for word, line in lines.items())


class SolverOptions(StrOptions):
    """The constraint of a ``solver`` parameter: "auto", the word of one of the solver objects, or such an object."""

    def __init__(self, classes: SolverClasses) -> None:
        super().__init__(dict.fromkeys(["auto", *(each.word for each in classes)]).keys())
        self.classes = tuple(classes)

    def is_satisfied_by(self, val: Any) -> bool:
        return isinstance(val, self.classes) or super().is_satisfied_by(val)

    def __str__(self) -> str:
        names = ", ".join(each.__name__ for each in self.classes)
        return f"{super().__str__()} or a solver object of dask_odm.solvers ({names})"


def solver_object(solver: str | SolverObject, classes: SolverClasses) -> SolverObject | None:
    """Return the solver that is given by its word or as an object, with plain values as parameters; None for "auto".

    Values of NumPy's types become Python's, which JSON takes.
    """
    if solver == "auto":
        return None
    if isinstance(solver, str):
        return by_word(classes)[solver]()
    values = solver.get_params(deep=False)
    return type(solver)(
        **{name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    )


def by_word(classes: SolverClasses) -> dict[str, type[SolverObject]]:
    """Return the solver objects by the words that name them."""
    return {each.word: each for each in classes}


def solver_word(solver: str | SolverObject) -> str:
    """Return the word of a solver that is given by its word or as an object."""
    return solver if isinstance(solver, str) else solver.word


def moved_parameters(classes: SolverClasses) -> dict[str, str]:
    """Return, for every parameter of the solver objects, a hint that says where it is given."""
    owners: dict[str, list[str]] = {}
    for each in classes:
        for name in each._get_param_names():
            owners.setdefault(name, []).append(each.__name__)
    hints = {}
    for name, (first, *others) in owners.items():
        also = f" (also {', '.join(others)})" if others else ""
        hints[name] = f"the solver has it now, solver=dask_odm.solvers.{first}({name}=…){also}."
    return hints


def with_object(params: dict[str, Any], current: Any, classes: SolverClasses) -> dict[str, Any]:
    """Return ``params`` for `set_params`; if ``solver`` is a word and ``solver__…`` is set, replace it by its object.

    Raises InputError for ``solver__…`` with "auto", which has no parameters.
    """
    nested = [name for name in params if name.startswith("solver__")]
    solver = params.get("solver", current)
    if not nested or not isinstance(solver, str):
        return params
    known = by_word(classes)
    if solver not in known:
        words = ", ".join(map(repr, sorted(known)))
        raise InputError(f"{nested[0]}: solver={solver!r} has no parameters; name a solver, one of {words}.")
    return params | {"solver": known[solver]()}
