"""Every estimator: events, checkpoints, seeds, memory limits, and fits that fail."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.cases import assert_equal, each_case, scores, steps
from dask_odm.errors import InputError, MemoryLimitError, StoreError
from dask_odm.events import Event, listen


class StoppedError(Exception):
    pass


class Stopper:
    """A callback that ends a fit at the end of one of its steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, event: Event) -> None:
        self.left -= len(steps([event]))
        if self.left == 0:
            raise StoppedError


@each_case
def test_callbacks_hear_the_figures_of_the_history(case):
    case.require("events")
    heard: list[Event] = []
    model = case.fit(callbacks=[heard.append])
    assert all(isinstance(event, Event) for event in heard)
    told = steps(heard)
    records = [record for record in model.history_ if "nodes" not in record]  # levels of cells are counted at the end
    assert len(told) == len(records) > 0
    for event, record in zip(told, records, strict=True):
        figures = {name: value for name, value in vars(event).items() if name in record}
        assert len(figures) > 2
        assert all(record[name] == value or value != value for name, value in figures.items())


@pytest.mark.parametrize("place", ["memory", "store"])
@each_case
def test_a_stopped_fit_goes_on_to_the_same_bits(case, place, path_of, tmp_path, request):
    case.require("checkpoint")
    if place == "store":
        case.require("passes")
        request.getfixturevalue("over_passes")
    data = case.rows() if place == "memory" else (path_of(case),)
    heard: list[Event] = []
    whole = case.fit(*data, callbacks=[heard.append])
    path, count = str(tmp_path / "c.zarr"), len(steps(heard))
    with pytest.raises(StoppedError):
        case.fit(*data, checkpoint=path, callbacks=[Stopper((count + 2) // 2)])
    again: list[Event] = []
    resumed = case.fit(*data, checkpoint=path, resume=True, callbacks=[again.append])
    assert_equal(resumed, whole)
    assert len(steps(again)) < count
    afresh: list[Event] = []
    assert_equal(case.fit(*data, checkpoint=path, callbacks=[afresh.append]), whole)
    assert len(steps(afresh)) == count, "without resume it starts afresh"


@each_case
def test_a_checkpoint_of_other_data_or_parameters_is_refused(case, tmp_path):
    case.require("checkpoint")
    X, y = case.rows()
    path = str(tmp_path / "c.zarr")
    case.fit(checkpoint=path)
    others = [((X[:-1], y[:-1]), {}), ((X + 1.0, y), {}), ((X, y), case.other)]
    if "targets" not in case.without:
        others.append(((X, y[::-1]), {}))
    for data, changes in others:
        with pytest.raises(StoreError, match="is of another fit"):
            case.fit(*data, checkpoint=path, resume=True, **changes)


@each_case
def test_the_same_seed_gives_the_same_bits(case, model_of):
    assert_equal(case.fit(), model_of(case))


@each_case
def test_too_little_memory_is_refused_with_both_figures(case):
    case.require("memory limit")
    with pytest.raises(MemoryLimitError, match=r"needs [\d.]+ \wiB.*, but only .*0\.98 kiB"):
        case.fit(memory_limit=1000)


@each_case
def test_a_refit_that_fails_leaves_the_old_model(case):
    X, y = case.rows()
    model = case.fit()
    before = scores(model, X)
    attributes = {name: value for name, value in vars(model).items() if name.endswith("_")}
    with pytest.raises(InputError, match="NaN"):
        model.fit(np.where(X.max() == X, np.nan, X), y)
    if "events" not in case.without:
        with pytest.raises(StoppedError), listen(Stopper(1)):
            model.fit(X[::-1], y[::-1])
    assert scores(model, X).tobytes() == before.tobytes()
    assert all(vars(model)[name] is value for name, value in attributes.items())
