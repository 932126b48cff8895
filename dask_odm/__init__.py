"""The public names of dask_odm, each loaded on first use (PEP 562).

``import dask_odm`` itself loads only this file and the registry of estimators, which imports none of them. So a worker
that needs a kernel or a store does not pay for scikit-learn, pandas and xarray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_odm.estimators.registry import ESTIMATORS

if TYPE_CHECKING:
    import dask_odm.datasets  # noqa: F401 (the public name of a module)
    from dask_odm.data.ingest import ingest
    from dask_odm.data.store.interchange import open_store
    from dask_odm.data.store.store import Store
    from dask_odm.diagnostics.plotting import (
        plot_confusion,
        plot_margin_distribution,
        plot_reliability,
        plot_roc,
        plot_shard_weights,
    )
    from dask_odm.errors import ClusterError, DaskODMError, InputError, MemoryLimitError, ObjectStoreError, StoreError
    from dask_odm.estimators.mdd_kernel_ridge import MDDKernelRidge as MDDKernelRidge
    from dask_odm.estimators.mdd_ridge import MDDRidge as MDDRidge
    from dask_odm.estimators.mixing_classifier import MixingClassifier as MixingClassifier
    from dask_odm.estimators.odm_classifier import ODMClassifier as ODMClassifier
    from dask_odm.estimators.odm_classifier_cv import ODMClassifierCV as ODMClassifierCV
    from dask_odm.estimators.saddle_svc import SaddleSVC as SaddleSVC
    from dask_odm.estimators.saving import load_model
    from dask_odm.events import listen
    from dask_odm.progress import ProgressBars

    __version__: str

__all__ = [
    "ClusterError",
    "DaskODMError",
    "InputError",
    "MemoryLimitError",
    "ObjectStoreError",
    "ProgressBars",
    "Store",
    "StoreError",
    "__version__",
    "datasets",
    "ingest",
    "listen",
    "load_model",
    "open_store",
    "plot_confusion",
    "plot_margin_distribution",
    "plot_reliability",
    "plot_roc",
    "plot_shard_weights",
    "solvers",
    *ESTIMATORS,
]

_HOME = {
    "ClusterError": "dask_odm.errors",
    "DaskODMError": "dask_odm.errors",
    "InputError": "dask_odm.errors",
    "MemoryLimitError": "dask_odm.errors",
    "ObjectStoreError": "dask_odm.errors",
    "ProgressBars": "dask_odm.progress",
    "Store": "dask_odm.data.store.store",
    "StoreError": "dask_odm.errors",
    "ingest": "dask_odm.data.ingest",
    "listen": "dask_odm.events",
    "load_model": "dask_odm.estimators.saving",
    "open_store": "dask_odm.data.store.interchange",
    "plot_confusion": "dask_odm.diagnostics.plotting",
    "plot_margin_distribution": "dask_odm.diagnostics.plotting",
    "plot_reliability": "dask_odm.diagnostics.plotting",
    "plot_roc": "dask_odm.diagnostics.plotting",
    "plot_shard_weights": "dask_odm.diagnostics.plotting",
    **{entry.name: entry.module for entry in ESTIMATORS.values()},
}

_MODULES = ("datasets", "solvers")


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, and keep it."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("dask-odm")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"dask_odm.{name}")
    else:
        raise AttributeError(f"module 'dask_odm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names; none is loaded for it."""
    return sorted(__all__)
