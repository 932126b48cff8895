"""Kernels: their values on blocks of rows, the Gram operator over a partition, and landmarks."""

from __future__ import annotations

from typing import Any

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.named import RBF, Laplacian, Linear, Polynomial

# Constraints, options of the shell and lists of docstrings are made from these, in this order.
KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (RBF, Laplacian, Linear, Polynomial)}


def from_parameters(parameters: dict[str, Any]) -> Kernel:
    """Return the kernel that `Kernel.parameters` described; raise KeyError for an unknown name."""
    rest = dict(parameters)
    return KERNELS[rest.pop("name")](**rest)
