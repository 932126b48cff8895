"""Loops are compiled when first called, with the loops that they call; that is said once, in log and on terminal."""

from __future__ import annotations

import ctypes
import hashlib
import io
import logging
import pickle
import signal
import sys
import threading

import numpy as np
import pytest

from dask_odm.linalg import jit


@jit.inlined
def _twice(x):
    return 2.0 * x


def _plain(x):
    for i in range(x.size):
        x[i] = _twice(x[i])


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
        seen.append(loop.is_made)
        take_in_others(self)

    monkeypatch.setattr(jit.Loop, "_take_in_others", watched)
    loop.made()
    assert seen[0] is False
    assert loop.is_made


def test_a_loop_is_called_by_its_address():
    @jit.pointed("void(CPointer(float64), int64)")
    def double_all(x, n):
        for i in range(n):
            x[i] = _twice(x[i])

    x = np.arange(3.0)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(double_all.address)
    call(x.ctypes.data, 2)
    np.testing.assert_array_equal(x, [0.0, 2.0, 2.0])


def test_a_loop_travels_by_its_name():
    from dask_odm.papers.saddle.problem import add_rows

    assert pickle.loads(pickle.dumps(add_rows)) is add_rows
    doubled(np.zeros(1))
    assert helper is not _twice
    assert pickle.loads(pickle.dumps(helper)) is _twice
    assert add_rows.__name__ == "add_rows"
    with pytest.raises(TypeError):
        add_rows()


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_compiler(monkeypatch):
    """LLVM works on one loop for seconds, a minute on a busy machine, and Python hears of nothing meanwhile."""
    loop, ended = jit.Loop(lambda x: x + 1.0, nogil=True), threading.Event()
    compiler = loop.made()._compiler
    compile_for = compiler.compile

    def slow(*arguments):
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # seconds in one call, as LLVM's are
        ended.set()
        return compile_for(*arguments)

    monkeypatch.setattr(compiler, "compile", slow)
    with pytest.raises(KeyboardInterrupt):
        loop(1.0)
    assert not ended.is_set()
    assert ended.wait(60)
    assert loop(1.0) == 2.0, "it is compiled all the same"
