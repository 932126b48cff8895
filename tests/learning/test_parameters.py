"""Parameters of a base: in the signature after those of the class, documented and constrained as there or anew."""

from dataclasses import KW_ONLY
from inspect import getdoc, signature
from typing import ClassVar

import pytest

from dask_odm.estimators.registry import ESTIMATORS
from dask_odm.learning.parameters import parameter_entries, with_parameters


@with_parameters
class Base:
    """Base.

    Parameters
    ----------
    shared : int, default=1
        In two

        paragraphs.
    changed : float, default=2.0
        As the base has it.

    Attributes
    ----------
    shared : int
        Told anew.
    both_ : float
        Of the base.
    """

    _parameter_constraints: ClassVar[dict] = {"shared": [int], "changed": [float]}

    _: KW_ONLY
    shared: int = 1
    changed: float = 2.0


class Between(Base):
    """No parameters of its own."""


@with_parameters
class Leaf(Between):
    """Leaf.

    Parameters
    ----------
    own, other : str
        Two.
    changed : float, default=3.0
        Anew.

    Attributes
    ----------
    shared : int
        Not the parameter.
    """

    _parameter_constraints: ClassVar[dict] = {"own": [str], "other": [str], "changed": [float, None]}

    own: str = "a"
    _: KW_ONLY
    other: str = "b"
    changed: float = 3.0


def test_a_class_has_the_parameters_of_its_bases_behind_its_own():
    assert str(signature(Leaf)).replace("'", "") == (
        "(own: str = a, *, other: str = b, shared: int = 1, changed: float = 3.0) -> None"
    )
    assert vars(Leaf("x", shared=4)) == {"own": "x", "other": "b", "shared": 4, "changed": 3.0}
    assert Leaf._parameter_constraints == {"own": [str], "other": [str], "shared": [int], "changed": [float, None]}


def test_its_documentation_is_whole():
    assert getdoc(Leaf) == (
        "Leaf.\n\nParameters\n----------\n"
        "own, other : str\n    Two.\n"
        "shared : int, default=1\n    In two\n\n    paragraphs.\n"
        "changed : float, default=3.0\n    Anew.\n\n"
        "Attributes\n----------\nshared : int\n    Not the parameter.\nboth_ : float\n    Of the base."
    )
    assert "As the base has it." in getdoc(Base)


def test_sections_of_bases_alone_are_in_front_of_others():
    documented = with_parameters(type("Bare", (Base,), {"__doc__": "Bare.\n\nExamples\n--------\n>>> None"}))
    titles = [line for line in getdoc(documented).split("\n") if line in ("Parameters", "Attributes", "Examples")]
    assert titles == ["Parameters", "Attributes", "Examples"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_document_every_parameter_once(name):
    estimator = ESTIMATORS[name].load()
    entries = parameter_entries(getdoc(estimator))
    assert list(entries) == list(signature(estimator).parameters)
    assert [getdoc(estimator).count(f"\n{name} : ") for name in ("dtype", "memory_limit", "callbacks")] == [1, 1, 1]
    of_fit = [name for name in parameter_entries(getdoc(estimator.fit)) if name in signature(estimator.fit).parameters]
    assert of_fit == list(signature(estimator.fit).parameters)[1:]
