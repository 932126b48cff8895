"""Fixtures of the contracts: Dask configurations, and models that several tests only read."""

from collections.abc import Callable
from typing import Any

import dask
import pytest

from contracts.cases import Case
from dask_odm.events import Event, listen


@pytest.fixture(scope="session")
def heard_of() -> Callable[[Case], tuple[Any, list[Event]]]:
    """``heard_of(case)``: the model of its rows in memory, fitted once, and the events of its fit; for reading only."""
    kept: dict[str, tuple[Any, list[Event]]] = {}

    def fit(case: Case) -> tuple[Any, list[Event]]:
        if case.name not in kept:
            heard: list[Event] = []
            with listen(heard.append):
                kept[case.name] = case.fit(), heard
        return kept[case.name]

    return fit


@pytest.fixture(scope="session")
def model_of(heard_of) -> Callable[[Case], Any]:
    """``model_of(case)``: the model of `heard_of`."""
    return lambda case: heard_of(case)[0]


@pytest.fixture(scope="session")
def alone_of(path_of, without_workers) -> Callable[[Case], tuple[Any, list[Event]]]:
    """``alone_of(case)``: the model of its store, fitted once by passes in this process, and the events of its fit."""
    kept: dict[str, tuple[Any, list[Event]]] = {}

    def fit(case: Case) -> tuple[Any, list[Event]]:
        if case.name not in kept:
            heard: list[Event] = []
            with without_workers(), listen(heard.append), dask.config.set({"dask_odm.read-into-memory": 0}):
                kept[case.name] = case.fit(path_of(case)), heard
        return kept[case.name]

    return fit


@pytest.fixture(scope="session")
def path_of(tmp_path_factory) -> Callable[[Case], str]:
    """``path_of(case)``: the store of its rows, written once."""
    kept: dict[str, str] = {}

    def write(case: Case) -> str:
        if case.name not in kept:
            kept[case.name] = case.store(tmp_path_factory.mktemp(case.name)).path
        return kept[case.name]

    return write


def pytest_collection_modifyitems(items):
    """Let cascades and DiP end above tol, as they say that they do: every estimator has the same few rows here."""
    ended = "ignore:(.* stopped short. Machine .*)?solver='(cascade|dip)' ended:sklearn.exceptions.ConvergenceWarning"
    for item in items:
        if "contracts" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings(ended))
