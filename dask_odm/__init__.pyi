"""The public names and their homes, for type checkers; `__init__.py` loads them by these lines."""

from dask_odm import datasets as datasets
from dask_odm import solvers as solvers
from dask_odm.data.ingest import ingest as ingest
from dask_odm.data.store.interchange import open_store as open_store
from dask_odm.data.store.store import Store as Store
from dask_odm.diagnostics.evaluation import evaluate as evaluate
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
from dask_odm.estimators.odm_regressor import ODMRegressor as ODMRegressor
from dask_odm.estimators.odm_searches import ODMClassifierCV as ODMClassifierCV
from dask_odm.estimators.odm_searches import ODMRegressorCV as ODMRegressorCV
from dask_odm.estimators.one_class_odm import OneClassODM as OneClassODM
from dask_odm.estimators.saddle_svc import SaddleSVC as SaddleSVC
from dask_odm.estimators.saving import load_model as load_model
from dask_odm.estimators.scoring import CostScorer as CostScorer
from dask_odm.events import listen as listen
from dask_odm.methods.metric_settings import Metric as Metric
from dask_odm.progress import ProgressBars as ProgressBars

__version__: str
