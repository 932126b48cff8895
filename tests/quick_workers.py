"""Settings of Dask's for tests that start workers, but are not about how these start."""

import multiprocessing
import os
import sys
from functools import cache
from typing import Any
from unittest.mock import patch

import dask
from distributed.utils import get_mp_context

from dask_odm.engine.workers import UNPROFILED


@cache
def quick_settings() -> dict[str, Any]:
    """Settings by which workers are forked off a process that has loaded what they need, and are not profiled.

    The process is started now, and a worker is there in a fifth of a second then, where processes can be forked so.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return dict(UNPROFILED)
    from multiprocessing import forkserver

    settings = {**UNPROFILED, "distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(settings):
        get_mp_context().set_forkserver_preload(["preloaded"])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):  # for it to find `preloaded`
        forkserver.ensure_running()
    return settings
