"""What is written is what is read, for every reader: whatever the blocks, line ends, spelling and compression.

The references are other libraries on the whole text (`load_svmlight_file`, `pandas.read_csv`, NumPy) and the numbers
that were written.
"""

import csv
import io
from dataclasses import dataclass

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_svmlight_file

from dask_odm.data.readers.formats import open_source
from data.reading import COMPRESS, read_all, write_file

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
sizes = st.one_of(st.integers(1, 60), st.integers(60, 5_000), st.just(8_000_000))  # of blocks, from a byte upward
suffixes = st.sampled_from([*COMPRESS, "", "", ""])
dtypes = st.sampled_from(["float32", "float64"])
floats = st.one_of(
    st.integers(-1000, 1000).map(float),
    st.floats(-3e38, 3e38, allow_subnormal=False).filter(lambda value: value == 0 or abs(value) > 1e-30),
    st.floats(-10, 10).map(lambda value: round(value, 3)),
)


@st.composite
def spelled(draw, value: float) -> str:
    """A number as some program would write it: shortest, long, with exponent, sign, leading or no zeros."""
    form = draw(st.sampled_from(["r", ".17g", ".16e", ".17E", "+.17g", "0", "i"]))
    if form == "i" and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if form in "ri":
        return repr(value)
    text = format(value, ".17g") if form == "0" else format(value, form)
    if form != "0":
        return text
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    return f"{sign}{digits.removeprefix('0')}" if digits.startswith("0.") else f"{sign}00{digits}"


@dataclass(frozen=True)
class Text:
    """A file to write, and what it says."""

    data: bytes
    X: np.ndarray
    y: list


@st.composite
def libsvm_texts(draw) -> Text:
    """Rows of pairs, some of them empty, with blanks, comments, queries and blank lines."""
    rows, features = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    end, lines, X, y = draw(st.sampled_from(["\n", "\r\n"])), [], np.zeros((rows, features)), []
    for i in range(rows):
        label = draw(st.sampled_from(["1", "-1", "+1", "0", "2.5", "1e0", "-3.25E+2"]))
        parts = [label, *draw(st.sampled_from([[], [], [], ["qid:7"]]))]
        for j in sorted(draw(st.sets(st.integers(0, features - 1)))):
            X[i, j] = draw(floats)
            parts.append(f"{j + 1}:{draw(spelled(float(X[i, j])))}")
        gap, tail = (
            draw(st.sampled_from([" ", "  ", "\t"])),
            draw(st.sampled_from(["", "", " ", "\t# 1:2 c", " #", "#9:1"])),
        )
        lines += draw(st.sampled_from([[], [], [], [""], ["  \t"], ["# 3:4 a comment"]]))
        lines.append(gap.join(parts) + tail)
        y.append(float(label))
    text = end.join(lines) + draw(st.sampled_from([end, "", end + end]))
    mark = draw(st.sampled_from(["", "", "\ufeff"]))
    return Text((mark + text).encode(), X, y)


@quick
@given(libsvm_texts(), sizes, suffixes, dtypes)
def test_libsvm_text(tmp_path, text, block_bytes, suffix, dtype):
    path = write_file(tmp_path / f"a.svm{suffix}", COMPRESS[suffix](text.data))
    X, y, weight = read_all(path, n_features=text.X.shape[1], dtype=dtype, block_bytes=block_bytes)
    np.testing.assert_array_equal(X, text.X.astype(dtype), strict=True)
    assert y.tolist() == text.y
    assert weight is None
    plain = text.data.removeprefix("\ufeff".encode())
    sparse, labels = load_svmlight_file(io.BytesIO(plain), n_features=text.X.shape[1], zero_based=False)
    np.testing.assert_array_equal(X, sparse.toarray().astype(dtype))
    np.testing.assert_array_equal(y, labels)


_words = st.text("abcxyz ,;|\t\"'#é猫_-", min_size=1, max_size=8).filter(lambda word: word.strip() and "\n" not in word)
_names = st.text("abcdefgh ,;é\"'", min_size=1, max_size=5).map(str.strip).filter(bool)


@dataclass(frozen=True)
class Table(Text):
    """CSV text, with its names, separator and options for the reader."""

    names: list[str] | None
    separator: str
    options: dict


@st.composite
def csv_tables(draw) -> Table:
    """Numbers and a label column anywhere, quoted or not, with names or without."""
    rows, features = draw(st.integers(1, 10)), draw(st.integers(1, 5))
    separator, end = draw(st.sampled_from([",", ";", "\t", "|"])), draw(st.sampled_from(["\n", "\r\n"]))
    names = draw(st.none() | st.lists(_names, min_size=features + 1, max_size=features + 1, unique=True))
    at = draw(st.integers(0, features))
    X = np.array([[draw(floats) for _ in range(features)] for _ in range(rows)])
    y = [draw(st.one_of(_words, st.integers(-3, 3).map(str))) for _ in range(rows)]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=end, quoting=draw(st.sampled_from([0, 1])))
    if names is not None:
        writer.writerow(names)
    for row, label in zip(X.tolist(), y, strict=True):
        fields = [draw(spelled(value)) for value in row]
        writer.writerow([*fields[:at], label, *fields[at:]])
        out.write(draw(st.sampled_from(["", "", "", end, f" {end}" if separator != "\t" else end])))
    text = out.getvalue()
    text = text if draw(st.booleans()) else text.removesuffix(end)
    options = {"header": names is not None, "label": at}
    return Table(text.encode(), X, y, names, separator, options)


def _separator_is_told(table: Table) -> bool:
    """Whether the first line has more separators than other marks that could be one."""
    first = next(line for line in table.data.decode().split("\n") if line.strip())
    return all(first.count(mark) < first.count(table.separator) for mark in {*",;\t|"} - {table.separator})


@quick
@given(csv_tables().filter(_separator_is_told), sizes, suffixes, dtypes, st.booleans())
def test_csv_text(tmp_path, table, block_bytes, suffix, dtype, mark):
    data = ("\ufeff".encode() if mark else b"") + table.data
    path = write_file(tmp_path / f"a.csv{suffix}", COMPRESS[suffix](data))
    options = table.options | {"dtype": dtype, "block_bytes": block_bytes}
    source = open_source(path, **options)
    at, count = table.options["label"], table.X.shape[1] + 1
    features = [i for i in range(count) if i != at]
    assert source.n_features == table.X.shape[1]
    assert source.feature_names == (None if table.names is None else tuple(table.names[i] for i in features))
    X, y, _ = read_all(path, **options)
    tolerance = 2 * np.finfo(dtype).eps  # pandas' parser may miss the last bit
    np.testing.assert_allclose(X, table.X.astype(dtype), rtol=tolerance, strict=True)
    assert y.tolist() == table.y
    frame = pd.read_csv(
        io.BytesIO(table.data), sep=table.separator, header=None if table.names is None else 0, index_col=False,
        names=range(count), dtype={i: str if i == at else np.float64 for i in range(count)}, na_filter=False,
        skip_blank_lines=True,
    )  # fmt: skip
    np.testing.assert_array_equal(X, frame[features].to_numpy().astype(dtype))
    assert y.tolist() == frame[at].tolist()


ARRAY_FILES = ["memory", ".npy", "fortran.npy", ".npz", "compressed.npz", "fortran.npz", "compressed fortran.npz"]
arrays = hnp.arrays(
    st.sampled_from(["<f4", "<f8", ">f8", "<i2", "|u1", "<i8", "<f2"]),
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements={"allow_nan": False, "allow_infinity": False, "min_value": 0, "max_value": 100},
)


@quick
@given(arrays, sizes, dtypes, st.sampled_from(ARRAY_FILES), st.data())
def test_arrays(tmp_path, X, block_bytes, dtype, kind, data):
    y = data.draw(hnp.arrays(st.sampled_from(["<i8", "<U3", "|b1", "<f8"]), len(X), elements=None, fill=st.nothing()))
    labels = np.arange(len(X)) % 3 if y.dtype.kind in "fU" else y
    path = tmp_path / f"a{kind}"
    given = np.asfortranarray(X) if "fortran" in kind else X
    if kind == "memory":
        X_read, y_read, _ = read_all((X, labels), dtype=dtype, block_bytes=block_bytes)
    elif kind.endswith(".npy"):
        np.save(path, given)
        np.save(tmp_path / "y.npy", labels)
        options = {"label": str(tmp_path / "y.npy"), "dtype": dtype, "block_bytes": block_bytes}
        X_read, y_read, _ = read_all(path, **options)
    else:
        (np.savez_compressed if kind.startswith("c") else np.savez)(path, X=given, y=labels)
        X_read, y_read, _ = read_all(path, dtype=dtype, block_bytes=block_bytes)
    np.testing.assert_array_equal(X_read, X.astype(dtype), strict=True)
    np.testing.assert_array_equal(y_read, labels)
