"""Memory that a process may use, and what it has in use before any task."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
from dask.utils import parse_bytes

import dask_odm.data.rows.stored  # noqa: F401  (tasks import it, so it belongs to the baseline)
from dask_odm.errors import InputError
from dask_odm.linalg.threads import return_free_memory

USABLE = 0.65  # share of a worker's memory limit: it pauses at 0.8, and the allocator takes its part
# Files of control groups, versions 1 and 2, in which Dask's workers look for their memory limit too.
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory.low",
)
TRIM = "MALLOC_TRIM_THRESHOLD_"  # set by the nanny; every array that is read then needs fresh pages


def baseline_bytes(warm_up: Callable[[], object]) -> int:
    """Return this process's resident bytes after ``warm_up``, which imports and compiles what tasks need."""
    warm_up()
    return_free_memory()
    return int(psutil.Process().memory_info().rss)


first_baseline: list[int] = []  # of this process, when it was first asked


def facts_of_worker(warm_up: Callable[[], object]) -> tuple[int, int, bool]:
    """Return this process's `baseline_bytes`, how much more that is than at first, and whether `TRIM` is set."""
    found = baseline_bytes(warm_up)
    first_baseline.append(found)
    del first_baseline[1:]
    return found, max(0, found - first_baseline[0]), bool(os.environ.get(TRIM))


@cache
def memory_limit_of_system() -> int:
    """Return the bytes that this process may use, by the machine, its control group and its own limit."""
    limits = [int(psutil.virtual_memory().total)]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # ValueError: "max" stands for no limit
            limits.append(int(Path(path).read_text()))
    limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    return min(limit for limit in limits if limit > 0)


def parse_limit(limit: int | str) -> int:
    """Return the bytes of a memory limit such as ``"2GB"``; raise InputError if it is none."""
    try:
        nbytes = int(parse_bytes(limit))
    except (ValueError, TypeError) as error:
        raise InputError(f"memory_limit must be bytes or a string such as '2GB'. Got {limit!r} instead.") from error
    if nbytes <= 0:
        raise InputError(f"memory_limit must be positive. Got {limit!r} instead.")
    return nbytes
