"""Registry of the names and modules of estimators, for `load_model`, the command line and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """Class name, module and command-line word of an estimator."""

    name: str
    module: str
    word: str

    def load(self) -> Any:
        """Import the module, and return the class."""
        return getattr(import_module(self.module), self.name)


ESTIMATORS: dict[str, Entry] = {}


def register(name: str, module: str, word: str) -> None:
    """Register an estimator of this package or yours."""
    ESTIMATORS[name] = Entry(name, module, word)


register("ODMClassifier", "dask_odm.estimators.odm_classifier", "odm")
register("ODMClassifierCV", "dask_odm.estimators.odm_searches", "odm-cv")
register("SaddleSVC", "dask_odm.estimators.saddle_svc", "saddle")
register("OneClassODM", "dask_odm.estimators.one_class_odm", "one-class")
register("ODMRegressor", "dask_odm.estimators.odm_regressor", "regressor")
register("ODMRegressorCV", "dask_odm.estimators.odm_searches", "regressor-cv")
register("MDDRidge", "dask_odm.estimators.mdd_ridge", "mdd-ridge")
register("MDDKernelRidge", "dask_odm.estimators.mdd_ridge", "mdd-kernel-ridge")
register("MixingClassifier", "dask_odm.estimators.mixing_classifier", "mixing")


SOLVERS: dict[str, str] = {}  # the module of every solver object


def register_solvers(module: str, *names: str) -> None:
    """Register solver objects of this package or yours."""
    SOLVERS.update(dict.fromkeys(names, module))


register_solvers("dask_odm.methods.settings", "Exact", "Landmark", "Cells", "Newton")
register_solvers("dask_odm.papers.sodm.solver_objects", "SODM", "Cascade", "DiP", "DC")
register_solvers("dask_odm.papers.dsvrg.solver_objects", "DSVRG", "SVRG", "CSVRG")
ODM_SOLVERS = tuple(SOLVERS)  # those of `ODMClassifier`
register_solvers("dask_odm.papers.saddle.solver_objects", "MNP", "Saddle", "Gilbert")


def solver_class(name: str) -> Any:
    """Return the class of a solver object; raise KeyError if there is none of that name."""
    return getattr(import_module(SOLVERS[name]), name)


def by_word(word: str) -> Entry:
    """Return the estimator with that word on the command line; raise KeyError if there is none."""
    return {entry.word: entry for entry in ESTIMATORS.values()}[word]
