"""The memory that a call takes at its peak, as Python and NumPy ask for it."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def traced(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, int]:
    """What a call returns, and the most bytes that were taken during it."""
    tracemalloc.start()
    try:
        return call(*arguments, **options), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
