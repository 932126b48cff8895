"""What every task of workers has in common: arrays come aligned, or read-only, wherever they are in the arguments."""

from pathlib import Path

import numpy as np
import pytest

import round_jobs as jobs
from dask_odm.engine import tasks
from dask_odm.engine.tasks import aligned, read_only, worker_task


def unaligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that begins at an odd address, as an array may that came in one buffer with others."""
    buffer = np.empty(values.nbytes + 16, np.uint8)
    start = 1 - buffer.ctypes.data % 2
    found = buffer[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    assert not found.flags.aligned
    return found


@worker_task
def product(held, state, message):
    return held.T @ (held @ (state["walk"].w + message[0]))


def test_tasks_multiply_unaligned_arrays_to_the_same_bits():
    differ = 0
    for seed in range(20):
        held = np.random.default_rng(seed).standard_normal((30, 4))
        w, message = held[0] / 3, np.linspace(-1, 1, 4)
        expected = product(held, {"walk": jobs.Walk(w, 0)}, (message,))
        odd = unaligned(held), {"walk": jobs.Walk(unaligned(w), 0)}, (unaligned(message),)
        assert product(*odd).tobytes() == expected.tobytes()
        differ += product.__wrapped__(*odd).tobytes() != expected.tobytes()
    if not differ:
        pytest.skip("this NumPy multiplies unaligned arrays in the same order")


@pytest.mark.parametrize("baseline", [[1], []])
def test_memory_is_compared_where_it_was_asked_for_before_the_fit(baseline, monkeypatch, caplog):
    monkeypatch.setattr("dask_odm.engine.limits.first_baseline", baseline)  # none of a worker in a killed one's place
    monkeypatch.setattr(tasks, "STATUS", Path(__file__))
    resident = iter([(0, 0), (0, 200 << 20)])
    monkeypatch.setattr(tasks, "resident", lambda: next(resident))
    with tasks._Peaks().watched(("It", 100 << 20, 100 << 20, -1)):
        pass
    assert ["It took 200.00 MiB of memory" in each for each in caplog.messages] == [True] * len(baseline)


def test_aligned_leaves_all_else_as_it_is():
    nothing_to_do = {"a": [jobs.Walk(np.zeros(3), 1), (np.ones(2), "b")]}
    assert aligned(nothing_to_do) is nothing_to_do
    found = aligned([nothing_to_do, unaligned(np.arange(3.0))])
    assert found[0] is nothing_to_do
    assert found[1].flags.aligned
    np.testing.assert_array_equal(found[1], np.arange(3.0))


def test_read_only_reaches_arrays_in_records():
    walk = jobs.Walk(np.zeros(3), 1)
    frozen = read_only({"a": [walk, (unaligned(np.ones(2)), "b")]})
    assert not frozen["a"][0].w.flags.writeable
    assert not frozen["a"][1][0].flags.writeable
    assert frozen["a"][1][0].flags.aligned
    assert walk.w.flags.writeable, "the caller's own stays as it is"
