"""Parser of LIBSVM text: it takes what scikit-learn's reader takes, and finds the same numbers, bit by bit."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from dask_odm.data.readers import libsvm
from dask_odm.data.readers.libsvm_rows import parse_rows
from dask_odm.data.readers.lines import TextBlock
from traced import traced

FEATURES = 12
NUMBERS = r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?"
AT_THE_EDGE = """
    9007199254740991 9007199254740992 9007199254740993 90071992547409930 1e22 1e23 123e22 1e-22 1e-23 5e-324 2e-324
    999999999999999999 9999999999999999999 0.1 .1 1. -0 +0.0 0.30000000000000004 1E5 1e+5 -1e-05 1e0000000000001 nan
    0000000000000000000001 179769313486231570000000000000000000000e270 -NaN 1e99999999999999999999 infinity
"""


def values_of(words: list[str]) -> np.ndarray:
    """The words as values of the only feature, and as labels, which must be the same numbers."""
    found = parse_rows("".join(f"{word} 1:{word}\n" for word in words).encode(), 1)
    assert found is not None
    np.testing.assert_array_equal(found[0].data, found[1])
    return found[1]


def test_numbers_at_the_edge_of_what_is_exact():
    words = AT_THE_EDGE.split()
    assert values_of(words).tobytes() == np.array([float(word) for word in words]).tobytes()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.from_regex(NUMBERS, fullmatch=True), min_size=1, max_size=9))
def test_numbers_are_those_of_python(words):
    assert values_of(words).tobytes() == np.array([float(word) for word in words]).tobytes()


@pytest.mark.parametrize("word", ["", "+", "-", ".", "e5", "1e", "1e+", "1.2.3", "0x1", "1_0", "1:1", "--1", "1-", "١"])
def test_other_words_are_refused(word):
    assert parse_rows(f"1 1:{word}\n".encode(), 1) is None
    assert not word or parse_rows(f"{word} 1:1\n".encode(), 1) is None


pieces = st.sampled_from([*"1123:::.-+e#q \t\r\n\n", "1:1", " 1:2", " 2:3", " 3:-1e5", "\n1", "\n- ", "qid:4", " qid:"])


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join).map(str.encode))
def test_what_is_a_row_is_what_scikit_learn_takes(text):
    found = parse_rows(text, FEATURES)
    try:
        X, y = load_svmlight_file(io.BytesIO(text), n_features=FEATURES, zero_based=False)
    except (ValueError, OverflowError, IndexError):
        assert found is None
        assert "not LIBSVM text" not in str(libsvm.explain(TextBlock("a", text, 1, 0), FEATURES))
        return
    assert found is not None
    np.testing.assert_array_equal(found[1], y)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(X, name))


def test_a_line_of_more_pairs_than_features_takes_little_memory():
    assert parse_rows(b"1 1:1\n", 1) is not None  # compiles
    text = b"1 1:1" + b" 2:1" * 100_000
    found, peak = traced(parse_rows, text, 8)
    assert found is None
    assert peak < 2 * len(text)
