"""A setting of Dask's for tests that start workers, but are not about how these start."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from unittest.mock import patch

import dask
from distributed.utils import get_mp_context


@cache
def quick_settings() -> dict[str, str]:
    """Settings by which workers are forked off a process that has loaded what they need; it is started now.

    A worker is there in a fifth of a second then. Empty where processes cannot be forked so.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return {}
    from multiprocessing import forkserver

    settings = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(settings):
        get_mp_context().set_forkserver_preload(["preloaded"])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):  # for it to find `preloaded`
        forkserver.ensure_running()
    return settings
