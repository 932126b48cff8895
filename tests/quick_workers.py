"""A setting of Dask's for tests that start workers, but are not about how these start."""

from __future__ import annotations

import multiprocessing

import dask
from distributed.utils import get_mp_context

# Forked off a process that has Dask loaded, a worker is there in a fifth of a second, where it can be done.
QUICK = (
    {"distributed.worker.multiprocessing-method": "forkserver"}
    if "forkserver" in multiprocessing.get_all_start_methods()
    else {}
)

if QUICK:
    with dask.config.set(QUICK):
        get_mp_context().set_forkserver_preload(["preloaded"])
