"""The solver objects, such as ``dask_odm.solvers.Landmark(300)``, each loaded on first use (PEP 562)."""

from __future__ import annotations

from typing import Any

from dask_odm.estimators.registry import SOLVERS, solver_class

__all__ = [*SOLVERS]


def __getattr__(name: str) -> Any:
    """Load a solver object from the module that defines it."""
    if name not in SOLVERS:
        raise AttributeError(f"module 'dask_odm.solvers' has no attribute {name!r}")
    return solver_class(name)


def __dir__() -> list[str]:
    """Return the names of the solver objects; none is loaded for it."""
    return sorted(__all__)
