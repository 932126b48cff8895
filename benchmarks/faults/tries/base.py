"""A kind of try: how long one may take, and how one is made of its number."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tries.outcomes import Outcome

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One kind of try.

    Parameters
    ----------
    name : str
    seconds : float
        What one may take, its preparation included: longer is a hang, and the process is killed.
    prepare : callable
        Given a folder, makes what all tries share: a callable that takes a number and a generator of random numbers,
        and tries once.
    preload : bool, default=False
        It runs under the library that makes system calls fail.
    """

    name: str
    seconds: float
    prepare: Callable[[Path], Callable[[int, np.random.Generator], Outcome]]
    preload: bool = False


def generator(seed: int, kind: str, number: int) -> np.random.Generator:
    """Random numbers of one try, the same whichever were tried before."""
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), number])


def pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    """One of some, whatever they are."""
    return among[int(rng.integers(len(among)))]


def chosen(names: Collection[str], wanted: str | None) -> list[str]:
    """Those that are wanted, with semicolons between, or that begin with what is none's name; all where nothing is."""
    words = [each.strip() for each in (wanted or "").split(";") if each.strip()] or [""]
    return [name for name in names if any(name == e or (e not in names and name.startswith(e)) for e in words)]


def parts(number: int, *axes: Sequence[Any]) -> list[Any]:
    """One value of each axis: neighbouring numbers differ in the first, and all combinations come round."""
    found = []
    for axis in axes:
        number, at = divmod(number, len(axis))
        found.append(axis[at])
    return found
