"""Classes as dataclasses of their parameters, which share the documentation and constraints of those they inherit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc, signature
from typing import Any, TypeVar, dataclass_transform

_SECTION = re.compile(r"^Parameters\n-+\n(.*?)\n*(?=^\S[^\n]*\n-+$|\Z)", re.M | re.S)
C = TypeVar("C")


@dataclass_transform(eq_default=False)
def with_parameters(cls: type[C]) -> type[C]:
    """Make a class a dataclass of its parameters, for scikit-learn's `get_params` and `set_params`.

    Parameters of a base are documented and constrained there, unless the class does it anew: its docstring gets their
    entries, and `_parameter_constraints` theirs. In the signature those of the class come first.
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
    constraints: dict[str, list[Any]] = {}
    entries: dict[str, str] = {}
    for base in reversed(bases):
        constraints |= vars(base).get("_parameter_constraints", {})
        entries |= parameter_entries(vars(base).get("__doc__"))
    made._parameter_constraints = {name: constraints[name] for name in names if name in constraints}
    made.__doc__ = _with_entries(cleandoc(cls.__doc__ or ""), [entries[name] for name in names if name in entries])
    return made


def _with_entries(docstring: str, entries: list[str]) -> str:
    """Return a docstring with these entries of parameters, each once, at its end if it has no section of them."""
    section = "\n".join(["Parameters", "-" * 10, *dict.fromkeys(entries)])
    if entries and not _SECTION.search(docstring):
        return f"{docstring}\n\n{section}"
    return _SECTION.sub(lambda found: f"{section}\n\n", docstring, count=1)


def parameter_entries(docstring: str | None) -> dict[str, str]:
    """Return the entry of every parameter of a numpydoc docstring, whole and without indentation, by name."""
    section = _SECTION.search(cleandoc(docstring or ""))
    found = re.findall(r"^\S[^\n]*(?:\n[ \t]+[^\n]*|\n(?=\n))*", section[1] if section else "", re.M)
    named = {entry: re.split(" *:|$", entry, maxsplit=1, flags=re.M)[0] for entry in found}
    return {name.strip(): entry for entry, names in named.items() for name in names.split(",")}
