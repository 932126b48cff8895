"""Every estimator: events, checkpoints, seeds, memory limits, and fits that fail."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from contracts.cases import assert_equal, each_case, each_of, scores, steps
from dask_odm.errors import InputError, MemoryLimitError, StoreError
from dask_odm.events import Event, listen
from dask_odm.learning.training.checkpoints import is_checkpoint_there
from stopping import StoppedError, stop_at


def stop_at_step(number: int) -> Callable[[object], None]:
    return stop_at(number, lambda event: steps([event]))


@each_case
def test_listeners_hear_the_figures_of_the_history(case, heard_of):
    case.require("events")
    model, heard = heard_of(case)
    assert all(isinstance(event, Event) for event in heard)
    told = steps(heard)
    records = [record for record in model.history_ if "nodes" not in record]  # levels of cells are counted at the end
    assert len(told) == len(records) > 0
    for event, record in zip(told, records, strict=True):
        figures = {name: value for name, value in vars(event).items() if name in record}
        assert len(figures) > 2
        assert all(record[name] == value or value != value for name, value in figures.items())


@each_case
def test_a_stopped_fit_goes_on_to_the_same_bits(case, heard_of, alone_of, path_of, tmp_path, over_passes):
    """From a store by passes, if it can learn so: it has more to find again than rows in memory."""
    case.require("checkpoint")
    in_memory = "passes" in case.without
    whole, heard = (heard_of if in_memory else alone_of)(case)
    data = case.rows() if in_memory else (path_of(case),)
    path, count = str(tmp_path / "c.zarr"), len(steps(heard))
    with pytest.raises(StoppedError):
        case.fit(*data, checkpoint=path, callbacks=[stop_at_step((count + 2) // 2)])
    again: list[Event] = []
    resumed = case.fit(*data, checkpoint=path, resume=True, callbacks=[again.append])
    assert_equal(resumed, whole)
    assert len(steps(again)) < count


@each_of("newton")
def test_without_resume_a_fit_starts_afresh(case, heard_of, tmp_path):
    whole, heard = heard_of(case)
    afresh: list[Event] = []
    for _ in range(2):
        afresh.clear()
        assert_equal(case.fit(checkpoint=str(tmp_path / "c.zarr"), callbacks=[afresh.append]), whole)
    assert len(steps(afresh)) == len(steps(heard))


@each_case
def test_a_checkpoint_of_other_data_or_parameters_is_refused(case, tmp_path):
    case.require("checkpoint")
    X, y = case.rows()
    path = str(tmp_path / "c.zarr")
    stop = stop_at(1, lambda event: steps([event]) and is_checkpoint_there(path))
    with pytest.raises(StoppedError):
        case.fit(checkpoint=path, callbacks=[stop])
    others = [((X[:-1], y[:-1]), {}), ((X + 1.0, y), {}), ((X, y), case.other)]
    if "targets" not in case.without:
        others.append(((X, y[::-1]), {}))
    for data, changes in others:
        with pytest.raises(StoreError, match="is of another fit"):
            case.fit(*data, checkpoint=path, resume=True, **changes)


@each_case
def test_too_little_memory_is_refused_with_both_figures(case):
    case.require("memory limit")
    with pytest.raises(MemoryLimitError, match=r"needs [\d.]+ \wiB.*, but only .*0\.98 kiB"):
        case.fit(memory_limit=1000)


@each_case
def test_a_refit_that_fails_leaves_the_old_model(case, model_of):
    X, y = case.rows()
    model = deepcopy(model_of(case))
    before = scores(model, X)
    attributes = {name: value for name, value in vars(model).items() if name.endswith("_")}
    with pytest.raises(InputError, match="NaN"):
        model.fit(np.where(X.max(axis=0) == X, np.nan, X)[:, :2], y)  # of other features
    if "events" not in case.without:
        with pytest.raises(StoppedError), listen(stop_at_step(1)):
            model.fit(X[::-1], y[::-1])
    assert scores(model, X).tobytes() == before.tobytes()
    assert all(vars(model)[name] is value for name, value in attributes.items())
