"""Solver objects: the parameters of one way to solve a problem, with their constraints and documentation.

``solver="landmark"`` names a solver with its defaults, ``solver=Landmark(n_landmarks=300)`` says more. An object has
scikit-learn's `get_params` and `set_params`, so that searches reach its parameters as ``solver__n_landmarks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions, validate_parameter_constraints

from dask_odm.errors import InputError

AUTO = "auto"


class SolverObject(BaseEstimator):
    """The base of all solver objects; a family of estimators has a subclass of its own.

    Attributes
    ----------
    word : str
        What names the solver in ``solver=`` and on the command line.
    """

    word: ClassVar[str]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def check(self) -> None:
        """Raise scikit-learn's InvalidParameterError if a parameter is out of its range."""
        name = type(self).__name__
        validate_parameter_constraints(self._parameter_constraints, self.get_params(deep=False), caller_name=name)


SolverClasses = Sequence[type[SolverObject]]


def solver_constraint(family: type[SolverObject], classes: SolverClasses) -> list[Any]:
    """Return the constraint of a ``solver`` parameter: a word of ``classes``, or an object of their ``family``."""
    return [StrOptions({AUTO, *(each.word for each in classes)}), family]


def solver_object(solver: str | SolverObject, classes: SolverClasses) -> SolverObject | None:
    """Return the object that ``solver`` is or names; None for "auto"."""
    if isinstance(solver, SolverObject):
        return solver
    return {each.word: each for each in classes}[solver]() if solver != AUTO else None


def solver_word(solver: str | SolverObject) -> str:
    """Return the word of a solver that is given by its word or as an object."""
    return solver if isinstance(solver, str) else solver.word


def owners(parameter: str, classes: SolverClasses) -> list[type[SolverObject]]:
    """Return the solver objects that have a parameter of this name."""
    return [each for each in classes if parameter in each._get_param_names()]


def moved_parameters(classes: SolverClasses) -> dict[str, str]:
    """Return, for every parameter of the solver objects, a hint that says where it is given."""
    names = dict.fromkeys(name for each in classes for name in each._get_param_names())
    return {name: moved_to(name, owners(name, classes)) for name in names}


def moved_to(parameter: str, found: SolverClasses) -> str:
    """Return a hint that ``parameter`` belongs to the solver objects ``found``."""
    calls = " or ".join(f"solver=dask_odm.solvers.{each.__name__}({parameter}=…)" for each in found)
    return f"it is a parameter of the solver now: {calls}."


def with_object(params: dict[str, Any], current: Any, classes: SolverClasses) -> dict[str, Any]:
    """Return ``params`` of `set_params`, where ``solver__…`` finds the object that a word names.

    Raises
    ------
    InputError
        ``solver__…`` for "auto", which has no parameters.
    """
    nested = [name for name in params if name.startswith("solver__")]
    solver = params.get("solver", current)
    if not nested or isinstance(solver, SolverObject):
        return params
    words = {each.word for each in classes}
    if solver not in words:
        raise InputError(f"solver={solver!r} has no parameters, but {nested[0]} was given; name a solver, such as "
                         f"{', '.join(map(repr, sorted(words)))}.")  # fmt: skip
    return params | {"solver": solver_object(solver, classes)}
