"""One special route, and how a call is made without it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Route:
    """A route, a case for it, and the same work with and without it."""

    name: str
    case: str
    used: Callable[[], Any]
    unused: Callable[[], Any]

    @classmethod
    def replacing(cls, name: str, case: str, work: Callable[[], Any], module: ModuleType, **instead: Any) -> Route:
        """Build a route that ``work`` takes unless names of ``module`` stand for something else."""

        def unused() -> Any:
            with contextlib.ExitStack() as stack:
                for attribute, other in instead.items():
                    stack.enter_context(mock.patch.object(module, attribute, other))
                return work()

        return cls(name, case, work, unused)

    def seconds(self, repeats: int) -> tuple[float, float]:
        """Return the least seconds with the route and without it, in turns, after one run of each that compiles."""
        found = [float("inf")] * 2
        for i in range(repeats + 1):
            for k, work in enumerate((self.used, self.unused)):
                began = time.perf_counter()
                work()
                found[k] = min(found[k], time.perf_counter() - began) if i else found[k]
        return found[0], found[1]


Routes = Iterator[Route]
