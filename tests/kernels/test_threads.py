"""Threads of the package keep order and errors; BLAS stays on one thread while anyone is within."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dask_odm.kernels.threads import MOST_THREADS, run_threads, single_threaded_blas, stream_threads


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_threads_keeps_the_order_and_passes_errors_on(threads):
    barrier = threading.Barrier(min(threads, 2))
    waited = run_threads(lambda i: barrier.wait(10) * 0 + i, range(4), threads)
    assert waited == [0, 1, 2, 3]
    assert run_threads(lambda i: i, [], threads) == []
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda i: 1 // i, [1, 0], threads)


@pytest.mark.parametrize("threads", [2, 3])
def test_a_thread_that_is_halted_leaves_all_further_items_to_the_others(threads):
    rest = threading.Semaphore(0)

    def work(i: int) -> bool:
        if i:
            rest.release()
            return True
        return all(rest.acquire(timeout=10) for _ in range(19))  # ends only once all others are done

    assert all(run_threads(work, range(20), threads))


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


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_streams_keep_the_order_hold_few_results_and_pass_errors_on(threads):
    begun: list[int] = []
    stream = stream_threads(lambda i: (begun.append(i), i)[1], range(40), threads)
    for i in range(20):
        assert next(stream) == i
        assert len(begun) <= i + 1 + threads
    stream.close()
    with pytest.raises(ZeroDivisionError):
        list(stream_threads(lambda i: 1 // i, [1, 0, 1], threads))


def test_threads_within_threads_end():
    def inner(i: int) -> int:
        return sum(run_threads(lambda j: i * j, range(4), 3)) + sum(stream_threads(lambda j: i * j, range(4), 3))

    assert run_threads(inner, range(300), MOST_THREADS) == [12 * i for i in range(300)]
