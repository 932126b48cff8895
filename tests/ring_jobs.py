"""Hops and gradients that die on the way, for the tests of the ring: tasks that workers import."""

import os
import time


def where(x: list, number: int) -> list:
    """A hop that adds its number and its process to a list."""
    return [*x, (number, os.getpid())]


def slowly(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x + 1


def fails(x: int, number: int) -> int:
    if number == 2:
        raise ZeroDivisionError(f"at {number}, with {x}")
    return x + 1
