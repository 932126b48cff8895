"""How every hot loop is compiled: without the interpreter lock, kept on disk, free to reorder sums."""

from __future__ import annotations

from typing import Any

import numba

from dask_odm.typing import Array

compiled: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
# a helper whose constant arguments must be known to the compiler where it is called
inlined: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)


def frozen(array: Array) -> Array:
    """A read-only view, or the array if it is so already.

    A loop is compiled once more, for seconds, for rows that may not be written, as memory maps and what came from
    another process are. Where its rows are always frozen it is compiled once.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
