"""What tasks make a worker import, loaded once in the process that workers of tests are forked off.

A worker otherwise spends a second of processor time on it at its first task, and the tests start hundreds.
"""

import gc
import importlib
import pkgutil

import distributed  # noqa: F401
import numba
import pandas  # noqa: F401

import dask_odm.kernels
import dask_odm.learning.problem
import dask_odm.linalg
import dask_odm.methods
import dask_odm.papers

for package in (dask_odm.linalg, dask_odm.kernels, dask_odm.learning.problem, dask_odm.methods, dask_odm.papers):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if package not in (dask_odm.methods, dask_odm.papers) or module.name.endswith("workers"):
            importlib.import_module(module.name)

numba.njit(lambda: 0)()  # fills the compiler's tables
gc.freeze()  # a collection in a fork would write to, and so copy, every page of it
