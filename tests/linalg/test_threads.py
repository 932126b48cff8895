"""Threads of the package keep order and errors; BLAS stays on one thread while anyone is within."""

import signal
import threading
import time

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dask_odm.linalg.threads import MOST_THREADS, run_threads, single_threaded_blas


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_threads_keeps_the_order_and_passes_errors_on(threads):
    barrier = threading.Barrier(min(threads, 2))
    waited = run_threads(lambda i: barrier.wait(10) * 0 + i, range(4), threads)
    assert waited == [0, 1, 2, 3]
    assert run_threads(lambda i: i, [], threads) == []
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda i: 1 // i, [1, 0], threads)


def test_the_thread_that_was_last_at_work_is_asked_first():
    """The allocator keeps what each thread has freed: threads in turn would hold more than those that work together."""
    together = threading.Barrier(8)
    run_threads(lambda _: together.wait(10), range(8), 8)
    seen = set()
    for _ in range(30):
        pair = threading.Barrier(2)
        seen |= set(run_threads(lambda _, pair=pair: pair.wait(10) * 0 + threading.get_ident(), range(2), 2))
        time.sleep(0.001)  # whoever has ended waits again
    assert len(seen) <= 3


def test_items_share_threads_with_those_that_work_beside_them():
    begun, alone = threading.Barrier(2), threading.Event()

    def inside(_: int) -> int:
        time.sleep(0.01)
        return threading.get_ident()

    def work(i: int) -> list[set[int]]:
        begun.wait(10)
        found = [set(run_threads(inside, range(8), 2))]
        if i:
            alone.set()
            return found
        assert alone.wait(10)
        end = time.monotonic() + 10
        while len(found[-1]) < 2 and time.monotonic() < end:  # the other one may not have left yet
            found.append(set(run_threads(inside, range(8), 2)))
        return found

    first, second = run_threads(work, range(2), 2)
    assert [len(first[0]), len(second[0])] == [1, 1], "both threads work"
    assert len(first[-1]) == 2, "one is left"


def test_items_have_the_threads_that_their_call_was_given_and_its_other_items_leave():
    begun = threading.Barrier(2)

    def work(_: int) -> list[int]:
        begun.wait(10)
        pair = threading.Barrier(2)
        return run_threads(lambda i: pair.wait(10) * 0 + i, range(2), 2)

    assert run_threads(work, range(2), 4) == [[0, 1]] * 2


@pytest.mark.parametrize(("items", "threads"), [(1, 1), (1, 2), (3, 1)])
def test_items_that_have_no_others_beside_them_take_the_threads_of_their_call(items, threads):
    def work(_: int) -> int:
        return len(set(run_threads(lambda _: time.sleep(0.01) or threading.get_ident(), range(12), 4)))

    assert run_threads(work, range(items), threads) == [threads] * items


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_of_the_caller_ends_the_items_of_other_threads(waits):
    """Each may be half of a store; the caller is at an item of its own, or waits for theirs."""
    main, begun, left, sent = threading.main_thread(), threading.Event(), threading.Event(), []

    def interrupt() -> None:
        sent.append(time.monotonic())  # a busy machine may begin late
        signal.pthread_kill(main.ident, signal.SIGINT)

    def work(_: int) -> None:
        if threading.current_thread() is main:
            begun.wait(60)
            if not waits:
                interrupt()
                time.sleep(10)
            return
        try:
            if waits:
                threading.Timer(0.2, interrupt).start()
            begun.set()
            for _ in range(1000):
                time.sleep(0.01)
        finally:
            left.set()

    with pytest.raises(KeyboardInterrupt):
        run_threads(work, range(2), 2)
    assert left.wait(3)
    assert time.monotonic() - sent[0] < 4
    assert run_threads(lambda i: i, range(8), 2) == list(range(8)), "the threads are there for others"


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


def test_threads_within_threads_end():
    def inner(i: int) -> int:
        return 2 * sum(run_threads(lambda j: i * j, range(4), 3))

    assert run_threads(inner, range(300), MOST_THREADS) == [12 * i for i in range(300)]
