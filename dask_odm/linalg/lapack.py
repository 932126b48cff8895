"""Routines of LAPACK and BLAS, called without the interpreter lock, which SciPy's own wrappers keep."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from dask_odm.typing import Array


def lapack(name: str, *arguments: str | int | Array) -> int:
    """Call a routine that is named without its type, such as "potrf", and return its ``info``, 0 for a success.

    Its type is that of the arrays, float32 or float64. They are passed as they lie in memory, which LAPACK reads column
    by column: a C-contiguous matrix is its transpose there. Shapes are not checked.
    """
    kind = next("s" if each.dtype == np.float32 else "d" for each in arguments if isinstance(each, np.ndarray))
    info = ctypes.c_int(0)
    _routine(kind + name)(*map(_pointer, arguments), ctypes.byref(info))
    return info.value


def symmetric_product(A: Array, x: Array) -> Array:
    """Return ``A x`` (n,) of a symmetric matrix, of which the upper half of a C-contiguous array (n, n) is read.

    It reads half the memory that ``A @ x`` does, and takes half the time.
    """
    n = len(A)
    out = np.empty(n, A.dtype)
    kind, number = ("s", ctypes.c_float) if A.dtype == np.float32 else ("d", ctypes.c_double)
    given = ("L", n, number(1.0), A, n, x.astype(A.dtype), 1, number(0.0), out, 1)
    _routine(kind + "symv")(*map(_pointer, given))
    return out


def _pointer(argument: Any) -> Any:
    if isinstance(argument, str):
        return argument.encode()
    if not isinstance(argument, np.ndarray):
        return ctypes.byref(ctypes.c_int(argument) if isinstance(argument, int) else argument)
    whole: Any = argument.T if argument.flags.f_contiguous else argument
    if argument.size and whole.flags.carray:
        return ctypes.byref(ctypes.c_char.from_buffer(whole))  # a fifth of the time that `argument.ctypes` takes
    return ctypes.c_void_p(argument.ctypes.data)


@cache
def _routine(name: str) -> Any:
    """Return the function that SciPy offers to Cython code; ctypes releases the lock while it calls it."""
    capsule = (cython_lapack.__pyx_capi__ | cython_blas.__pyx_capi__)[name]
    api = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return ctypes.CFUNCTYPE(None)(pointer_of(capsule, name_of(capsule)))
