"""Every estimator: scikit-learn's own checks pass, but for those that are named, and parameters are all constrained."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.utils.estimator_checks import check_estimator

from contracts.cases import CHECKED
from dask_odm.estimators.registry import ESTIMATORS


def failed_checks(estimator: Any) -> dict[str, str]:
    """Names of scikit-learn's checks that fail, with what was raised within."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    assert len(results) > 30
    failed = [r for r in results if r["status"] not in ("passed", "skipped")]
    return {r["check_name"]: str(r["exception"].__cause__ or r["exception"]) for r in failed}


def name_of(estimator: Any) -> str:
    """The text of an estimator, without addresses."""
    return re.sub(r"<function (\w+)[^>]*>", r"\1", " ".join(str(estimator).split()))


def estimators() -> Iterator[Any]:
    """Estimators to check with the checks that fail: the first of each class, and with the long tests the others."""
    seen: set[type] = set()
    for each in CHECKED:
        marks = [pytest.mark.slow] if type(each[0]) in seen else []
        seen.add(type(each[0]))
        yield pytest.param(*each, id=name_of(each[0]), marks=marks)


@pytest.mark.parametrize(("estimator", "expected"), list(estimators()))
def test_scikit_learn_compatible(estimator, expected):
    failed = failed_checks(estimator)
    assert set(failed) == set(expected), failed
    for name, message in expected.items():
        assert message in failed[name]


def test_every_estimator_is_checked():
    assert {type(estimator).__name__ for estimator, _ in CHECKED} >= set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_is_constrained(name):
    estimator = ESTIMATORS[name].load()
    assert set(estimator._parameter_constraints) == set(estimator().get_params())
