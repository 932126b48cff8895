"""Every estimator: scikit-learn's own checks pass, but for those that are named, and parameters are all constrained."""

import re
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from contracts.cases import CHECKED
from dask_odm import MDDRidge, ODMClassifier
from dask_odm.estimators.registry import ESTIMATORS

# Checks whose outcome depends on solver, kernel and scaling. All others see what the estimators of a class share.
LEARNING = {
    "check_class_weight_classifiers", "check_classifiers_one_label_sample_weights", "check_classifiers_train",
    "check_estimators_pickle", "check_fit2d_1feature", "check_fit2d_1sample", "check_fit_idempotent",
    "check_methods_subset_invariance", "check_non_transformer_estimators_n_iter", "check_outliers_train",
    "check_positive_only_tag_during_fit", "check_readonly_memmap_input", "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data",
}  # fmt: skip


def failed_checks(estimator: Any, *, whole: bool) -> dict[str, str]:
    """Names of scikit-learn's checks that fail, with what was raised within.

    All are tried if ``whole``, else those of `LEARNING`, each in its last variant.
    """
    found = [(check.func.__name__, check) for _, check in estimator_checks_generator(estimator, mark=None)]
    chosen = found if whole else {name: (name, check) for name, check in found if name in LEARNING}.values()
    assert len(chosen) > (30 if whole else 6)
    failed = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, check in chosen:
            try:
                check(estimator)
            except SkipTest:
                pass
            except Exception as error:
                failed[name] = str(error.__cause__ or error)
    return failed


def name_of(estimator: Any) -> str:
    """The text of an estimator, without addresses."""
    return re.sub(r"<function (\w+)[^>]*>", r"\1", " ".join(str(estimator).split()))


def estimators() -> Iterator[Any]:
    """Yield estimators to check, the checks that fail, and whether all are tried: in the first of each class.

    Without the long tests there are those of `ODMClassifier` and `MDDRidge` only.
    """
    seen: set[type] = set()
    for estimator, expected in CHECKED:
        first = type(estimator) not in seen
        seen.add(type(estimator))
        marks = [] if first and type(estimator) in (ODMClassifier, MDDRidge) else [pytest.mark.slow]
        yield pytest.param(estimator, expected, first, id=name_of(estimator), marks=marks)


@pytest.mark.parametrize(("estimator", "expected", "whole"), list(estimators()))
def test_scikit_learn_compatible(estimator, expected, whole):
    failed = failed_checks(estimator, whole=whole)
    assert set(failed) == set(expected), failed
    for name, message in expected.items():
        assert message in failed[name]


def test_every_estimator_is_checked():
    assert {type(estimator).__name__ for estimator, _ in CHECKED} >= set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_is_constrained(name):
    estimator = ESTIMATORS[name].load()
    assert set(estimator._parameter_constraints) == set(estimator().get_params())
