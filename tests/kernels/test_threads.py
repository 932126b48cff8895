"""Threads of the package keep order and errors; BLAS stays on one thread while anyone is within."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dask_odm.kernels.threads import run_threads, single_threaded_blas


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_threads_keeps_the_order_and_passes_errors_on(threads):
    barrier = threading.Barrier(min(threads, 2))
    waited = run_threads(lambda i: barrier.wait(10) * 0 + i, range(4), threads)
    assert waited == [0, 1, 2, 3]
    assert run_threads(lambda i: i, [], threads) == []
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda i: 1 // i, [1, 0], threads)


def blas_threads() -> set[int]:
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_blas_is_limited_by_whoever_is_inside_and_restored_after():
    with threadpool_limits(2, "blas"):
        before = blas_threads()
        assert before == {2}
        with single_threaded_blas:
            assert blas_threads() == {1}
            with single_threaded_blas:
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == before
        thread = threading.Thread(target=lambda: single_threaded_blas.__enter__())
        thread.start()
        thread.join()
        assert blas_threads() == {1}, "a limit set by another thread holds for the process"
        single_threaded_blas.__exit__()
        assert blas_threads() == before
