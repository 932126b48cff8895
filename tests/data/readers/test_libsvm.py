"""LIBSVM text: what scikit-learn reads whole is what comes in blocks; errors name the line."""

import numpy as np
import pytest
from scipy.sparse import issparse

from dask_odm.data.readers import libsvm, lines
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.lines import TextBlock
from dask_odm.errors import InputError
from data.reading import COMPRESS, read_all, read_blocks, write_file
from traced import traced


def test_libsvm_the_first_pass_finds_the_largest_index_of_all_files(tmp_path):
    first = write_file(tmp_path / "1.svm", "# 8:1\n1 2:1 # 9:1\n")
    second = write_file(tmp_path / "2.svm", "-1 1:1 5:1\n")
    source = open_source([first, second])
    assert source.n_features == 5
    np.testing.assert_array_equal(read_all([first, second])[0], [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1]])
    assert open_source(first, n_features=7).n_features == 7


def test_libsvm_wide_rows_come_in_blocks_of_bounded_size(tmp_path):
    path = write_file(tmp_path / "wide.svm", "1 100000:1\n" * 1000)
    dense = {"allow_large": True, "sparse": False}
    sizes = [block.X.nbytes for block in read_blocks(path, block_bytes=1_000_000, **dense)]
    assert max(sizes) <= 1_000_000
    assert sum(sizes) == 1000 * 100_000 * 4


LIBSVM_ERRORS = [
    ("1 1:1\n\n# c\n-1 0:3\n", "line 4: index 0; LIBSVM indices begin at 1"),
    ("1 -3:1\n", "line 1: index -3; LIBSVM indices begin at 1"),
    ("1 1:1 9:1\n", "line 1: index 9 is beyond the 8 features of n_features .* or of the model; mend it"),
    ("1 1:1 99999999999999999999:1\n", "line 1: index 99999999999999999999 is beyond the 8 features"),
    ("1 1:1\n1:1 2:1\n", "line 2: the label is missing; the line begins with '1:1'"),
    ("1 qid 1:1\n", "line 1: 'qid' is not qid:number"),
    ("1 1:1\n1 2:3\xa0\n", "line 2: value '3.*' of index 2 is not a number"),
    ("yes 1:1\n", "line 1: label 'yes' is not a number"),
    ("1,2 1:1\n", "line 1: label '1,2' is not a number"),
    ("1 1:1\ninf 1:1\n", "line 2: the label is inf; it must be a finite number"),
    ("1 1:1\n1 2\n", "line 2: '2' is not index:value"),
    ("1 1:1 # a_b\n1 2:1_000\n", "line 2: value '1_000' of index 2 is not a number"),
    ("1_0 1:1\n", "line 1: label '1_0' is not a number"),
    ("1 1_0:1\n", "line 1: '1_0:1' is not index:value"),
    pytest.param("1 1:" + "x" * 70 + "\n", rf"line 1: value '{'x' * 60}'… \(70 characters\) of index 1", id="long"),
    pytest.param(f"1 {'9' * 99}:1\n", f"line 1: index {'9' * 30}… is beyond the 8 features", id="huge"),
    ("1 a:1\n", "line 1: 'a:1' is not index:value"),
    ("1 1:\n", "line 1: value '' of index 1 is not a number"),
    ("1 1:1\n\n1 2:-inf\n", "line 3, index 2: infinity"),
    ("1 1:1\n1 2:1e39\n", r"line 2, index 2: 1e\+39 is too large for float32; set dtype='float64'"),
    ("1 1:1e999\n", "line 1, index 1: infinity"),
    ("\xff 1:1\n", "line 1: label .* is not a number"),
    pytest.param("1 1:1" + " 2:1" * 100 + " # 1:1\n", "line 1: index 2 after 2; indices must ascend", id="more pairs"),
]


@pytest.mark.parametrize(("text", "message"), LIBSVM_ERRORS)
@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_libsvm_errors_name_file_and_line(tmp_path, text, message, block_bytes):
    path = write_file(tmp_path / "train.libsvm", text)
    with pytest.raises(InputError, match=rf"train\.libsvm, {message}"):
        read_all(path, n_features=8, block_bytes=block_bytes)


@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_libsvm_missing_values(tmp_path, block_bytes):
    path = write_file(tmp_path / "a.svm", "1 1:1\nnan 1:2\n\n1 2:nan\n1 1:nan 2:nan\n0 2:7\n")
    message = (
        r"a\.svm: missing values in the label \(1 row\), index 2 \(2 rows\) and index 1 \(1 row\), first at line 2;"
    )
    with pytest.raises(InputError, match=message):
        read_all(path, block_bytes=block_bytes)
    X, y, _ = read_all(path, block_bytes=block_bytes, drop_missing=True)
    assert X.tolist() == [[1, 0], [0, 7]]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_libsvm_without_labels(tmp_path, block_bytes):
    path = write_file(tmp_path / "a.txt", "1:5 2:1\n\n2:3 # c\nqid:4 1:1\n1 1:8\n")
    X, y, _ = read_all(path, label=False, block_bytes=block_bytes)
    assert y is None
    assert X.tolist() == [[5, 1], [0, 3], [1, 0], [8, 0]]
    with pytest.raises(InputError, match=r"a\.txt, line 1: the label is missing; .*\(label=False, --no-label"):
        read_all(path, block_bytes=block_bytes)
    with pytest.raises(InputError, match="line 2: value 'x' of index 1"):
        read_all(write_file(tmp_path / "b.svm", "1:1\n1:x\n"), label=False, block_bytes=block_bytes)


def test_libsvm_what_the_first_pass_refuses(tmp_path):
    with pytest.raises(InputError, match=r"line 2: index 10000001; at most 10000000 features"):
        open_source(write_file(tmp_path / "a.svm", "1 1:1\n1 10000001:1\n"))
    with pytest.raises(InputError, match="no index:value pair in any line"):
        open_source(write_file(tmp_path / "b.svm", "1\n-1\n"))
    for n_features in (0, -1, 10**9):
        with pytest.raises(InputError, match="n_features must be between 1 and 10000000"):
            open_source(str(tmp_path / "a.svm"), n_features=n_features)


def test_an_index_of_hundreds_of_digits(tmp_path):
    zeros = write_file(tmp_path / "zeros.svm", f"1 1:1\n2 {'0' * 400}5:1\n")
    assert read_all(zeros)[0].shape == (2, 5)
    nines = write_file(tmp_path / "nines.svm", f"1 1:1\n2 {'9' * 400}:1\n")
    with pytest.raises(InputError, match=r"line 2: index 9{30}…; at most 10000000 features"):
        open_source(nines)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_an_index_that_makes_far_more_of_the_text_than_it_can_mean(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(lines, "TEXT_BYTES", 1 << 16)
    text = b"# 9:9\n\n" + b"1 2:1\n-1 5:1\n" * 10 + b"1 50000:1\n"
    path = write_file(tmp_path / f"a.svm{suffix}", COMPRESS[suffix](text))
    message = r"a\.svm.*, line 23: index 50000 makes 21 rows of 50000 features, 4\.01 MiB as a store, of 147 B of text"
    with pytest.raises(InputError, match=message):
        open_source(path)
    with pytest.raises(InputError, match=r"8\.01 MiB as a store"):
        open_source(path, dtype="float64")
    for way_out in ({"n_features": 50000}, {"allow_large": True}):
        assert read_all(path, **way_out, sparse=False)[0].shape == (21, 50000)
    (block,) = read_blocks(path, sparse=True)
    assert block.X.shape == (21, 50000)
    assert block.X.nnz == 21
    with pytest.raises(InputError, match="line 23: index 50000 is beyond the 5 features"):
        read_all(path, n_features=5)


def test_wide_rows_of_few_entries_are_sparse_by_themselves(tmp_path, monkeypatch):
    """Only one row with so large an index may be a mistake; a usual text or click log has many."""
    monkeypatch.setattr(lines, "TEXT_BYTES", 1 << 16)
    rng = np.random.default_rng(0)
    rows = [np.unique(rng.integers(1, 20_001, 30)) for _ in range(500)]
    text = "".join(f"{i % 2} {' '.join(f'{k}:1' for k in row)}\n" for i, row in enumerate(rows))
    path = write_file(tmp_path / "a.svm", text)
    for block_bytes in (5000, 10**6):
        (block, *_) = read_blocks(path, block_bytes=block_bytes)
        assert issparse(block.X)
        assert block.X.shape[1] == max(row[-1] for row in rows)
        assert block.X[[7]].indices.tolist() == (rows[7] - 1).tolist()
    with pytest.raises(InputError, match=r"makes 500 rows of \d+ features"):
        open_source(path, sparse=False)
    with pytest.raises(InputError, match=r"line 501: index 60000 makes 501 rows of 60000 features"):
        open_source(write_file(tmp_path / "b.svm", f"{text}1 60000:1\n"))


def test_wide_rows_that_have_their_text_are_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "TEXT_BYTES", 1)
    pairs = " ".join(f"{i}:1" for i in range(1, 20001, 100))  # one feature in a hundred
    assert open_source(write_file(tmp_path / "a.svm", f"1 {pairs}\n" * 20)).n_features == 19901


def test_a_long_line_is_explained_in_little_memory(tmp_path):
    path = tmp_path / "a.libsvm"
    path.write_bytes(b"1 " + b" ".join(b"%d:1" % i for i in range(1, 30_000)) + b" 7:1\n")
    text = TextBlock(str(path), path.read_bytes(), 1, 0)
    error, peak = traced(libsvm.explain, text, 30_000)
    assert str(error).endswith("line 1: index 7 after 29999; indices must ascend.")
    assert peak < 4 * len(text.data)  # a list of the pairs would take seven times as much


@pytest.mark.parametrize("line", [b"1 qid:3 1:2 2:3 # 1:1 1:1 1:1" + b" " * 100, b"1 1:2 2:3" + b" " * 100])
def test_a_long_line_of_few_pairs_is_parsed(tmp_path, line):
    X, _, _ = read_all(write_file(tmp_path / "a.libsvm", line), block_bytes=40)
    np.testing.assert_array_equal(X, [[2, 3]])
