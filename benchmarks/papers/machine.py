"""What a machine is and how fast it is just now: figures without it say nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import psutil
from dask.system import CPU_COUNT
from threadpoolctl import threadpool_info

LIBRARIES = ("dask-odm", "numpy", "scipy", "scikit-learn", "numba", "dask", "dask-ml")
COPIED = 1 << 27  # bytes: more than caches hold
SIDE = 1536  # of the matrices that are multiplied


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and its bandwidth, speed of matrix products and BLAS's kernel, versions; a second."""
    return {
        "processor": _processor(),
        "cores": CPU_COUNT,
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "copy_gb_per_second": _copy_speed(),
        "gemm_gflops": {name: _product_speed(name) for name in ("float32", "float64")},
        "blas": sorted({_blas(each) for each in threadpool_info() if each["user_api"] == "blas"}),
        "forced_blas_kernel": os.environ.get("OPENBLAS_CORETYPE"),
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def machine_line(machine: dict[str, Any]) -> str:
    """The machine in a sentence or two, for the foot of a table."""
    gemm = machine["gemm_gflops"]
    forced = machine["forced_blas_kernel"]
    text = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB; memory copied at "
        f"{machine['copy_gb_per_second']:.1f} GB/s; matrix products {gemm['float32']:.0f} GFLOP/s in float32, "
        f"{gemm['float64']:.0f} in float64 by {', '.join(machine['blas']) or 'an unknown BLAS'}"
    )
    if forced:
        text += f" (OPENBLAS_CORETYPE={forced} chooses its kernel, perhaps a slower one than the processor has)"
    load = "" if machine["load"] is None else f"; load average {machine['load']:.1f} at the start"
    return f"{text}{load}."


def code_digest() -> str:
    """A few digits of the package's source, which tell one commit from another."""
    digest = hashlib.sha256()
    with as_file(files("dask_odm")) as folder:
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _blas(found: dict[str, Any]) -> str:
    name = found.get("internal_api") or "BLAS"
    kernel = found.get("architecture")
    return f"{name} {found.get('version') or ''}{f' ({kernel})' if kernel else ''}".strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _least(run: Callable[[], object], times: int = 3) -> float:
    run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)


def _copy_speed() -> float:
    source, target = np.ones(COPIED // 8), np.empty(COPIED // 8)
    return 2 * COPIED / _least(lambda: np.copyto(target, source)) / 1e9


def _product_speed(name: str) -> float:
    A, out = np.ones((SIDE, SIDE), name), np.empty((SIDE, SIDE), name)
    return 2 * SIDE**3 / _least(lambda: np.matmul(A, A, out=out)) / 1e9
