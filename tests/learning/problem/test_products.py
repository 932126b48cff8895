"""Products of a Gram matrix in this process: against the plain matrix, and what they tell on the way."""

import numpy as np
import pytest

from dask_odm.events import listen
from dask_odm.kernels import RBF
from dask_odm.kernels.blocks import Gram
from dask_odm.learning.problem.products import RangedRows, RowProducts, quadratic
from dask_odm.linalg.rows import ArrayRows
from small_problems import small_problem


def test_quadratic_is_in_float64():
    p = small_problem(600, dtype="float32")
    index, v = np.arange(0, 600, 2), np.random.default_rng(1).normal(size=300)
    expected = v @ p.K[np.ix_(index, index)] @ v
    assert quadratic(RowProducts(p.kernel, p.X, 0), index, v) == pytest.approx(expected, rel=1e-12)
    assert quadratic(RowProducts(p.kernel, p.X, 0), index[:0], v[:0]) == 0.0


def test_a_certificate_of_many_rows_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr("dask_odm.events.TELL_SECONDS", 0.0)
    X = np.random.default_rng(0).normal(size=(8200, 3))
    v, heard, answers = np.random.default_rng(1).normal(size=8200), [], []
    for threads in (1, 2, 3):
        with listen(heard.append):
            active = RowProducts(RBF(1.0, 0.5), X, 0, threads).among(np.arange(8200), double_precision=True)
            answers.append(active(v).tobytes())
        told = [event for event in heard if event.phase == "certificate"]  # products may tell how far they are, too
        done = [event.done for event in told]
        assert done == sorted(done)
        assert done[0] < done[-1] == told[-1].total
        heard.clear()
    assert set(answers) == {Gram(RBF(1.0, 0.5), ArrayRows(X), 0).matvec(v).tobytes()}


class Counted(ArrayRows):
    """Notes how many rows are read at a time, as those on disk are held."""

    most = 0

    def read(self, start, stop):
        object.__setattr__(self, "most", max(self.most, stop - start))
        return super().read(start, stop)


@pytest.mark.parametrize("index", [[], [7], range(1000), range(300, 340), [0, 1, 2, 998, 999], range(5, 990, 90)])
def test_no_more_rows_are_read_at_a_time_than_are_asked_for(index):
    X = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    rows, index = Counted(X), np.array(index, np.int64)
    found = RangedRows(rows)[index]
    np.testing.assert_array_equal(found, X[index])
    assert found.dtype == X.dtype
    assert rows.most <= len(index)
