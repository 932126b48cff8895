"""Blocks of whole lines: all bytes in their order, whatever the size of blocks; text quoted in messages."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_odm.data.readers.lines import text_blocks
from dask_odm.data.readers.sources import shown
from dask_odm.errors import InputError
from data.reading import write_file

BOM = b"\xef\xbb\xbf"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"\r\n", b"\r", BOM]), max_size=30), st.integers(1, 20))
def test_blocks_are_the_whole_text_in_whole_lines(tmp_path, pieces, block_bytes):
    data = b"".join(pieces)
    blocks = list(text_blocks(write_file(tmp_path / "a", data), block_bytes))
    whole = data if b"\n" in data or b"\r" not in data[:-1] else data.replace(b"\r", b"\n")
    assert b"".join(block.data for block in blocks) == whole.removeprefix(BOM)  # one mark, not each
    assert all(block.data.endswith(b"\n") for block in blocks[:-1])
    line = 1
    for block in blocks:
        assert block.first_line == line
        line += block.data.count(b"\n")


@pytest.mark.slow
def test_a_long_line_is_not_copied_for_each_block_of_it(tmp_path):
    """2 MB in reads of 3 bytes: a copy for each would be 700 GB, minutes of work."""
    path = write_file(tmp_path / "a", b"1" * 2_000_000 + b"\n2\n")
    began = time.monotonic()
    blocks = [block.data for block in text_blocks(path, 1)]
    assert blocks == [b"1" * 2_000_000 + b"\n", b"2\n"]
    assert time.monotonic() - began < 30


def test_a_line_without_an_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_odm.data.readers.lines.TEXT_BYTES", 1000)
    with pytest.raises(InputError, match="a, line 2: longer than 1000 bytes; is this a text file"):
        list(text_blocks(write_file(tmp_path / "a", b"1\n" + b"x" * 3000), 100))


@pytest.mark.parametrize(("text", "expected"), [
    ("a", "'a'"), (b"\xff\n", "'\ufffd\\n'"), ("x" * 60, f"'{'x' * 60}'"),
    ("x" * 61, f"'{'x' * 60}'\u2026 (61 characters)"),
    ("\0" * 60, "'" + "\\x00" * 15 + "'\u2026 (60 characters)"),
])  # fmt: skip
def test_text_in_messages_is_short_and_printable(text, expected):
    assert shown(text) == expected
    assert shown(text).isprintable()
