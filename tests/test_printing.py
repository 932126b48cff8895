"""Text from data as people see it: nothing that a terminal obeys, nothing that cannot be written, and an end."""

import pickle

import pytest

from dask_odm.errors import InputError, StoreError
from dask_odm.html import safe, table
from dask_odm.printing import printable, quoted, short


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 日本", "naïve 日本"), ("", ""), ("\x1b]0;x\x07", "\\x1b]0;x\\x07"), ("a\nb\t", "a\\nb\\t"),
        ("\ud800", "\\ud800"), ("\u202eabc", "\\u202eabc"), ("\x9b31m", "\\x9b31m"), ("it's", "it's"),
    ],
)  # fmt: skip
def test_what_is_no_letter_is_spelled(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown
    assert printable(text).isprintable()
    printable(text).encode()


def test_of_long_text_both_ends_are_left():
    long = "start" + "x" * 1_000_000 + "end"
    assert short(long).startswith("startx")
    assert short(long).endswith("xend")
    assert len(short(long)) == 60
    assert short("x" * 60) == "x" * 60
    assert len(quoted(long)) < 70
    assert quoted(["a", "b\x1b"]) == r"['a', 'b\x1b']"
    assert len(quoted(list(range(20_000)))) < 60


def test_errors_are_printable_however_they_are_shown():
    for kind in (InputError, StoreError):
        error = kind("store 'a\x1b]0;x\x07\ud800' is none\nof ours")
        assert str(error) == "store 'a\\x1b]0;x\\x07\\ud800' is none\nof ours"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert len(str(InputError("L" * 1_000_000))) == 2000


def test_pages_have_printable_cells_that_end():
    assert safe("<\x1b\udcff>") == r"&lt;\x1b\udcff&gt;"
    assert len(table(["L" * 100_000], [["L" * 100_000]])) < 2000
