"""Kernels: values on blocks of rows, the Gram operator over a partition, landmarks."""

from __future__ import annotations

from typing import Any

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.dot import Linear, Polynomial
from dask_odm.kernels.radial import RBF, Laplacian

KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (RBF, Laplacian, Linear, Polynomial)}


def from_parameters(parameters: dict[str, Any]) -> Kernel:
    """The kernel that `Kernel.parameters` described; KeyError for an unknown name."""
    rest = dict(parameters)
    return KERNELS[rest.pop("name")](**rest)
