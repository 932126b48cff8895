"""How every hot loop is compiled: without the interpreter lock, kept on disk, free to reorder sums."""

from __future__ import annotations

from typing import Any

import numba

compiled: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
# a helper whose constant arguments must be known to the compiler where it is called
inlined: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
