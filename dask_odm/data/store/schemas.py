"""Schemas of the JSON in a record, by kind: a model, a checkpoint of a tree or of steps, a prediction.

A digest shows that a record is as it was written, not that this package wrote it. A schema is a function of a value and
its name that raises ValueError. Schemas of objects are composed of those of their fields.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from dask_odm.events import Event, IterationFinished, LevelFinished

Check = Callable[[Any, str], None]
MAX_DEGREE = 1000  # of a polynomial kernel; each degree costs a product per value
LARGEST_WHOLE = 2**sys.float_info.mant_dig  # beyond it, floats do not hold every whole number


def _checked(is_sound: Callable[[Any], bool], what: str) -> Check:
    """Return a schema for a value that is sound; the error says ``what`` others are not."""

    def check(value: Any, name: str) -> None:
        if not is_sound(value):
            raise ValueError(f"{name} is {_shown(value)}, {what}")

    return check


def whole(low: int = 0, high: int = LARGEST_WHOLE) -> Check:
    """Return a schema for a whole number from ``low`` to ``high``."""
    return _checked(
        lambda value: type(value) is int and low <= value <= high, f"not a whole number from {low} to {high}"
    )


def real(above: float = -math.inf, *, at_least: float = -math.inf, finite: bool = True) -> Check:
    """Return a schema for a number above one bound and not below another.

    NaN and infinity are refused if ``finite``.
    """

    def is_sound(value: Any) -> bool:
        if type(value) is not float and not (type(value) is int and abs(value) <= LARGEST_WHOLE):
            return False
        return above < value and at_least <= value if math.isfinite(value) else not finite

    bound = f" above {above:g}" if above > -math.inf else f" of at least {at_least:g}" * (at_least > -math.inf)
    return _checked(is_sound, f"not a finite number{bound}")


text = _checked(lambda value: isinstance(value, str), "not text")
# or true, false or null
scalar = _checked(lambda value: isinstance(value, str | int | float | None), "neither text nor a number")
anything = _checked(lambda _: True, "")  # it is checked elsewhere


def each(schema: Check, *, least: int = 0) -> Check:
    """Return a schema for a list of at least ``least`` items, each checked by ``schema``."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError(f"{name} is {_shown(value)}, not a list" + f" of {least} or more" * (least > 0))
        for i, item in enumerate(value):
            schema(item, f"{name}[{i}]")

    return check


def mapping(needed: Mapping[str, Check], other: Mapping[str, Check] | None = None, rest: Check | None = None) -> Check:
    """Return a schema for an object with fields ``needed`` and optional ``other`` ones.

    All further fields are checked by ``rest``, or refused if that is None.
    """
    known = dict(needed) | dict(other or {})

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{name} is {_shown(value)}, not an object")
        for key in needed:
            if key not in value:
                raise ValueError(f"{name or 'it'} lacks {key!r}")
        for key, item in value.items():
            schema = known.get(key, rest)
            if schema is None:
                raise ValueError(f"{name or 'it'} has {_shown(key)}, which is unknown")
            schema(item, f"{name}.{key[:40]}".removeprefix("."))

    return check


def _or_null(schema: Check) -> Check:
    return lambda value, name: None if value is None else schema(value, name)


def _figures_of(event: type[Event], rest: Check | None = None) -> Check:
    """Return a schema for an entry of a history: the fields of an event, of which some may be None."""
    kinds: dict[Any, Check] = {int: whole(), float: real()}
    kinds |= {kind | None: _or_null(schema) for kind, schema in kinds.items()}
    hints = get_type_hints(event)
    schemas = {each.name: kinds[hints[each.name]] for each in fields(event)}
    needed = {each.name: schemas[each.name] for each in fields(event) if each.default is MISSING}
    return mapping(needed, schemas, rest)


KERNEL = mapping(
    {"name": text},
    {"bias": real(at_least=0), "gamma": real(0), "coef0": real(at_least=0), "degree": whole(1, MAX_DEGREE)},
)
_OF_A_FIT = {"fit": text, "seed": whole(0, 2**31 - 1)}
_MODEL = mapping(
    {
        "estimator": text,
        "model": mapping({"kind": text}, rest=anything),
        "parameters": mapping({}, rest=anything),
        "schema": mapping(
            {"n_features": whole(1, 10_000_000)},
            {
                "rows": whole(1),
                "classes": each(scalar),
                "classes_dtype": text,
                "feature_names": each(text),
                "medians": each(real()),
                "feature_dimension": text,
                "text": text,
                "columns": mapping(
                    {"dtype": text, "columns": each(mapping({"name": text, "kind": text}, rest=anything))}
                ),
                "cube": mapping({"dimensions": each(text), "missing": whole(), "words": mapping({}, rest=text)}),
            },
        ),
        "fitted": mapping({}, rest=anything),
    },
    _OF_A_FIT,
)
_TREE = mapping({**_OF_A_FIT, "level": whole(0, 64), "history": each(_figures_of(LevelFinished), least=1)}, rest=scalar)
_STEPS = each(_figures_of(IterationFinished, rest=scalar), least=1)  # a family may record further figures
_STATE = mapping({**_OF_A_FIT, "history": _STEPS}, rest=scalar)
_CLASSES = mapping({"classes": each(scalar, least=1)})
_TARGETS = mapping({"targets": whole(1)})


def _either(field: str, with_it: Check, without: Check) -> Check:
    """Return a schema that depends on whether an object has a field."""
    return lambda value, name: (with_it if isinstance(value, dict) and field in value else without)(value, name)


SCHEMAS: dict[str, Check] = {
    "model": _MODEL,
    "checkpoint": _either("level", _TREE, _STATE),
    "prediction": _either("targets", _TARGETS, _CLASSES),
}


def _shown(value: Any) -> str:
    """Return a value for a message, cut if it is long: Python refuses to print whole numbers of thousands of digits."""
    is_long = type(value) is int and abs(value) > 10**60
    words = repr(value) if isinstance(value, str | int | float | None) and not is_long else ""
    return words if 0 < len(words) <= 60 else f"{words[:60]}… ({type(value).__name__})"
