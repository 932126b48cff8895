"""Loops are compiled when first called, with the loops that they call; that is said once, in log and on terminal."""

import errno
import gc
import io
import logging
import pickle
import signal
import sys
import threading
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from dask_odm.linalg import jit


@jit.inlined
def _twice(x):
    return 2.0 * x


def _plain(x):
    for i in range(x.size):
        x[i] = _twice(x[i])


def _plain_sum(x):
    total = 0.0
    for i in range(x.size):
        total += x[i]
    return total


doubled = jit.Loop(_plain, nogil=True)
helper = _twice  # as a module has it that imported it before it was made


def test_a_loop_is_made_with_the_loops_that_it_calls(monkeypatch, caplog):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    jit._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="dask_odm"):
        for kind in (np.float64, np.float32):  # two specialisations, one word
            x = np.arange(3.0).astype(kind)
            doubled(x)
            np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])
    assert caplog.messages == [jit.COMPILING]
    assert terminal.getvalue() == f"{jit.COMPILING} …\n"
    assert "dask-odm warmup" in jit.COMPILING


def test_no_thread_sees_a_loop_before_those_that_it_calls_are_made(monkeypatch):
    seen, take_in_others = [], jit.Loop._take_in_others
    loop = jit.Loop(_plain, nogil=True)

    def watched(self):
        seen.append(loop._made)
        take_in_others(self)

    monkeypatch.setattr(jit.Loop, "_take_in_others", watched)
    loop.made()
    assert seen[0] is None
    assert loop._made is not None


@pytest.fixture
def unkept(caplog):
    """Return how often it was said since then that compiled code is not kept."""
    jit._tell_unkept.cache_clear()
    return lambda: caplog.messages.count(jit.UNKEPT)


def test_loops_are_compiled_though_no_folder_can_keep_them(unkept):
    nowhere = eval("lambda x: 3.0 * x")  # Numba finds no folder for functions that have no file
    assert jit.compiled(nowhere)(2.0) == 6.0
    assert jit.compiled_in_order(nowhere)(2.0) == 6.0
    assert unkept() == 1
    assert "NUMBA_CACHE_DIR" in jit.UNKEPT


@pytest.mark.parametrize("damaged", ["full", "index", "code"])
def test_loops_are_compiled_though_they_cannot_be_kept_or_read(damaged, unkept, monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    if damaged == "full":
        error = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr("numba.core.caching.tempfile.TemporaryFile", Mock(side_effect=[DEFAULT, error, error]))
    else:
        assert jit.compiled(_plain_sum)(np.ones(2)) == 2.0
        for file in tmp_path.glob(f"*/*.{'nbi' if damaged == 'index' else 'nbc'}"):
            file.write_bytes(b"?")
    loop = jit.compiled(_plain_sum)
    assert loop(np.ones(3)) == 3.0
    assert loop(np.ones(3, np.float32)) == 3.0
    assert unkept() == 1


def test_what_cannot_be_compiled_is_no_matter_of_the_cache(unkept):
    import numba

    with pytest.raises(numba.TypingError):
        jit.compiled(lambda x: x.unknown)(1.0)
    assert unkept() == 0


def test_a_loop_travels_by_its_name():
    from dask_odm.papers.saddle.problem import add_rows

    assert pickle.loads(pickle.dumps(add_rows)) is add_rows
    doubled(np.zeros(1))
    assert helper is not _twice
    assert pickle.loads(pickle.dumps(helper)) is _twice
    assert add_rows.__name__ == "add_rows"
    with pytest.raises(TypeError):
        add_rows()


def test_an_interrupt_does_not_wait_for_the_compiler(monkeypatch):
    """LLVM works on one loop for seconds, a minute on a busy machine, and Python hears of nothing meanwhile."""
    loop = jit.Loop(lambda x: x + 1.0, nogil=True)
    main, compiler_may_end, ended = threading.main_thread(), threading.Event(), threading.Event()
    compiler = loop.made()._compiler
    compile_for = compiler.compile

    def slow(*arguments):
        assert threading.current_thread() is not main, "Python handles signals in the main thread alone"
        threading.Timer(0.1, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
        assert compiler_may_end.wait(60)
        code = compile_for(*arguments)
        ended.set()
        return code

    monkeypatch.setattr(compiler, "compile", slow)
    signal.siginterrupt(signal.SIGINT, False)  # a signal ends no wait, as when it comes right before one
    try:
        with pytest.raises(KeyboardInterrupt):
            loop(1.0)
    finally:
        signal.siginterrupt(signal.SIGINT, True)
    assert not compiler_may_end.is_set()
    compiler_may_end.set()
    assert ended.wait(60)
    assert loop(1.0) == 2.0, "it is compiled all the same"


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_looked_for_while_a_loop_is_compiled(collects, monkeypatch):
    loop = jit.Loop(lambda x: x + 1.0, nogil=True)
    compiler = loop.made()._compiler
    compile_for = compiler.compile
    seen = []

    def watched(*arguments):
        seen.append(gc.isenabled())
        return compile_for(*arguments)

    monkeypatch.setattr(compiler, "compile", watched)
    if not collects:
        gc.disable()
    try:
        assert loop(1.0) == 2.0
        assert seen == [False]
        assert gc.isenabled() is collects
    finally:
        gc.enable()
