"""Solver objects: the parameters of one way to solve a problem, with their constraints and documentation.

``solver="landmark"`` names a solver with its defaults, ``solver=Landmark(n_landmarks=300)`` says more. An object has
scikit-learn's `get_params` and `set_params`, so that searches reach its parameters as ``solver__n_landmarks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions, validate_parameter_constraints

from dask_odm.errors import InputError

AUTO = "auto"


class SolverObject(BaseEstimator):
    """The base of all solver objects.

    Attributes
    ----------
    word : str
        What names the solver in ``solver=`` and on the command line: the name of its class in lower case.
    """

    word: ClassVar[str]
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

    def check(self) -> None:
        """Raise scikit-learn's InvalidParameterError if a parameter is out of its range."""
        name = type(self).__name__
        validate_parameter_constraints(self._parameter_constraints, self.get_params(deep=False), caller_name=name)


SolverClasses = Sequence[type[SolverObject]]


class SolverOptions(StrOptions):
    """The constraint of a ``solver`` parameter: "auto", the word of a solver object, or such an object.

    Parameters
    ----------
    classes : sequence of type
        The solver objects that the estimator takes.
    """

    def __init__(self, classes: SolverClasses) -> None:
        super().__init__({AUTO, *(each.word for each in classes)})
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
    if solver == AUTO:
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
    names = dict.fromkeys(name for each in classes for name in each._get_param_names())
    owners = {name: [each.__name__ for each in classes if name in each._get_param_names()] for name in names}
    return {name: _moved_to(name, *found) for name, found in owners.items()}


def _moved_to(parameter: str, first: str, *others: str) -> str:
    also = f" (also {', '.join(others)})" if others else ""
    return f"the solver has it now, solver=dask_odm.solvers.{first}({parameter}=…){also}."


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
