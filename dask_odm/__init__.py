"""The public names of dask_odm, each loaded on first use (PEP 562).

``import dask_odm`` itself loads only this file and the registry of estimators, which imports none of them. So a worker
that needs a kernel or a store does not pay for scikit-learn, pandas and xarray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_odm.estimators.registry import ESTIMATORS

if TYPE_CHECKING:
    import dask_odm.datasets
    import dask_odm.solvers  # noqa: F401
    from dask_odm.data.ingest import ingest as ingest
    from dask_odm.data.store.interchange import open_store as open_store
    from dask_odm.data.store.store import Store as Store
    from dask_odm.diagnostics.importance import permutation_importance as permutation_importance
    from dask_odm.diagnostics.learning_curve import learning_curve as learning_curve
    from dask_odm.diagnostics.plotting import plot_confusion as plot_confusion
    from dask_odm.diagnostics.plotting import plot_importance as plot_importance
    from dask_odm.diagnostics.plotting import plot_learning_curve as plot_learning_curve
    from dask_odm.diagnostics.plotting import plot_margin_distribution as plot_margin_distribution
    from dask_odm.diagnostics.plotting import plot_predictions as plot_predictions
    from dask_odm.diagnostics.plotting import plot_reliability as plot_reliability
    from dask_odm.diagnostics.plotting import plot_roc as plot_roc
    from dask_odm.diagnostics.plotting import plot_shard_weights as plot_shard_weights
    from dask_odm.diagnostics.report import report as report
    from dask_odm.errors import ClusterError as ClusterError
    from dask_odm.errors import DaskODMError as DaskODMError
    from dask_odm.errors import InputError as InputError
    from dask_odm.errors import MemoryLimitError as MemoryLimitError
    from dask_odm.errors import ObjectStoreError as ObjectStoreError
    from dask_odm.errors import StoreError as StoreError
    from dask_odm.estimators.groups import spatial_blocks as spatial_blocks
    from dask_odm.estimators.mdd_ridge import MDDKernelRidge as MDDKernelRidge
    from dask_odm.estimators.mdd_ridge import MDDRidge as MDDRidge
    from dask_odm.estimators.mixing_classifier import MixingClassifier as MixingClassifier
    from dask_odm.estimators.odm_classifier import ODMClassifier as ODMClassifier
    from dask_odm.estimators.odm_searches import ODMClassifierCV as ODMClassifierCV
    from dask_odm.estimators.odm_regressor import ODMRegressor as ODMRegressor
    from dask_odm.estimators.odm_searches import ODMRegressorCV as ODMRegressorCV
    from dask_odm.estimators.one_class_odm import OneClassODM as OneClassODM
    from dask_odm.estimators.saddle_svc import SaddleSVC as SaddleSVC
    from dask_odm.estimators.saving import load_model as load_model
    from dask_odm.estimators.scoring import CostScorer as CostScorer
    from dask_odm.events import listen as listen
    from dask_odm.methods.metric_settings import Metric as Metric
    from dask_odm.progress import ProgressBars as ProgressBars

    __version__: str

_NAMES = {
    "dask_odm.errors": (
        "ClusterError", "DaskODMError", "InputError", "MemoryLimitError", "ObjectStoreError", "StoreError",
    ),
    "dask_odm.data.ingest": ("ingest",),
    "dask_odm.data.store.interchange": ("open_store",),
    "dask_odm.data.store.store": ("Store",),
    "dask_odm.diagnostics.importance": ("permutation_importance",),
    "dask_odm.diagnostics.learning_curve": ("learning_curve",),
    "dask_odm.diagnostics.report": ("report",),
    "dask_odm.diagnostics.plotting": (
        "plot_confusion", "plot_importance", "plot_learning_curve", "plot_margin_distribution", "plot_predictions",
        "plot_reliability", "plot_roc", "plot_shard_weights",
    ),
    "dask_odm.estimators.saving": ("load_model",),
    "dask_odm.estimators.groups": ("spatial_blocks",),
    "dask_odm.estimators.scoring": ("CostScorer",),
    "dask_odm.events": ("listen",),
    "dask_odm.methods.metric_settings": ("Metric",),
    "dask_odm.progress": ("ProgressBars",),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_HOME |= {entry.name: entry.module for entry in ESTIMATORS.values()}
_MODULES = ("datasets", "solvers")
__all__ = sorted([*_HOME, *_MODULES, "__version__"])


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
