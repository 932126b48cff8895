"""Every estimator's name and home, once: `load_model`, the command line and the documentation read it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """Where an estimator is.

    Parameters
    ----------
    name : str
        The class.
    module : str
        Its home.
    word : str
        What the command line calls it.
    """

    name: str
    module: str
    word: str

    def load(self) -> Any:
        """The class; its module is imported now."""
        return getattr(import_module(self.module), self.name)


ESTIMATORS: dict[str, Entry] = {}


def register(name: str, module: str, word: str) -> None:
    """Make an estimator known, in this package or in yours."""
    ESTIMATORS[name] = Entry(name, module, word)


register("ODMClassifier", "dask_odm.estimators.odm_classifier", "odm")
register("ODMClassifierCV", "dask_odm.estimators.odm_classifier_cv", "odm-cv")
register("SaddleSVC", "dask_odm.estimators.saddle_svc", "saddle")
register("MDDRidge", "dask_odm.estimators.mdd_ridge", "mdd-ridge")
register("MDDKernelRidge", "dask_odm.estimators.mdd_kernel_ridge", "mdd-kernel-ridge")
register("MixingClassifier", "dask_odm.estimators.mixing_classifier", "mixing")


SOLVERS: dict[str, str] = {}  # the module of every solver object


def register_solvers(module: str, *names: str) -> None:
    """Make solver objects known, in this package or in yours."""
    SOLVERS.update(dict.fromkeys(names, module))


_ODM = ("Exact", "Landmark", "Newton", "SODM", "Cascade", "DiP", "DC", "DSVRG", "SVRG", "CSVRG")
register_solvers("dask_odm.methods.solver_objects", *_ODM)
register_solvers("dask_odm.methods.hulls.solver_objects", "MNP", "Saddle", "Gilbert")


def solver_class(name: str) -> Any:
    """Return the class of a solver object; KeyError if there is none of that name."""
    return getattr(import_module(SOLVERS[name]), name)


def by_word(word: str) -> Entry:
    """The estimator that the command line calls ``word``; KeyError where there is none."""
    return {entry.word: entry for entry in ESTIMATORS.values()}[word]
