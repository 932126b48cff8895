"""CSV text: what pandas wrote is what comes in blocks; errors name line and column."""

import numpy as np
import pytest

from dask_odm import InputError
from dask_odm.data.readers.formats import open_source
from data.reading import COMPRESS, read_all, write_file
from traced import traced


@pytest.mark.parametrize(("text", "options", "names", "X", "y"), [
    ("a,b,c\n1,2,3\n", {}, ("a", "b"), [[1, 2]], ["3"]),
    ("a,y,c\n1,2,3\n", {}, ("a", "c"), [[1, 3]], ["2"]),
    ("TARGET,b\n1,2\n", {}, ("b",), [[2]], ["1"]),
    ("1,2,3\n4,5,6\n", {}, None, [[1, 2], [4, 5]], ["3", "6"]),
    ("5.1,3.5,setosa\n", {}, None, [[5.1, 3.5]], ["setosa"]),
    ("0,1,label\n4,5,6\n", {}, ("0", "1"), [[4, 5]], ["6"]),
    ("1,2,3\n", {"label": 0}, None, [[2, 3]], ["1"]),
    ("1,2,3\n", {"label": -2}, None, [[1, 3]], ["2"]),
    ("1,2,3\n", {"label": "1"}, None, [[1, 3]], ["2"]),
    ("a,b,c\n1,2,3\n", {"label": "b"}, ("a", "c"), [[1, 3]], ["2"]),
    ("a,b,c\n1,2,3\n", {"label": False}, ("a", "b", "c"), [[1, 2, 3]], None),
    ("1,2,3\n4,5,6\n", {"header": True}, ("1", "2"), [[4, 5]], ["6"]),
    ("1,2,3\n", {"weight": 2}, None, [[1]], ["2"]),
    ("\n\n a , b ,y\n\n 1 , 2 , 3 \n\n", {}, ("a", "b"), [[1, 2]], [" 3 "]),
    ("\ufeffa,b,y\r\n1,2,3\r\n", {}, ("a", "b"), [[1, 2]], ["3"]),
    ('"a,1",b,y\n1,2,"x ""y"""\n', {}, ("a,1", "b"), [[1, 2]], ['x "y"']),
    ("a,b,y\n1,2,NA\n", {}, ("a", "b"), [[1, 2]], ["NA"]),
    ("id,a,y\nr0,2,3\n", {"drop": "id"}, ("a",), [[2]], ["3"]),
    (",a,y\n0,2,3\n", {"drop": "0"}, ("a",), [[2]], ["3"]),
    ("id,a,y\nr0, 2 ,3\n", {"drop": "id"}, ("a",), [[2]], ["3"]),
    ("id,a,b,z\nr0,2,4,\n", {"drop": ["z", 0]}, ("a",), [[2]], ["4"]),
    ("7,x,2,3,True\n", {"drop": [-1, 1], "label": False}, None, [[7, 2, 3]], None),
])  # fmt: skip
def test_csv_header_and_label_are_found(tmp_path, text, options, names, X, y):
    path = write_file(tmp_path / "a.csv", text)
    assert open_source(path, **options).feature_names == names
    rows, labels, _ = read_all(path, dtype="float64", **options)
    np.testing.assert_array_equal(rows, X)
    assert labels is None if y is None else labels.tolist() == y


COMMA = (
    r"write numbers with a decimal point, or pass the frame of pandas\.read_csv, to which decimal=',' or thousands=','"
)
CSV_ERRORS = [
    (
        "1,2,a\n3,x,b\n",
        r"column 1 \('x' in line 2\) holds no numbers; .*; or .* labels by .*, which now are .* column 2\.$",
    ),
    ("p,q,y\n1,2,a\n3,x,b\n", r"column 'q' \('x' in line 3\) holds no numbers"),
    ("1,2,a\n\n3,4,b,5\n", "line 3: 4 fields, but there are 3 columns"),
    ("p,q,y\n1,2,a,\n", "line 2: 4 fields, but there are 3 columns"),
    ("1,2,a\nTRUE,b\n", "line 2: 2 fields, but there are 3 columns"),
    pytest.param("1,2,a\n" + "1," * 200_000, "line 2: 200001 fields, but there are 3 columns", id="wide line"),
    pytest.param("1," * 100_001, "line 1: 100002 columns; at most 100000 can be read as CSV. Write", id="wide"),
    pytest.param("1,2,a\n3," + "x" * 70 + ",b", rf"column 1 \('{'x' * 60}'… \(70 characters\) in line", id="long"),
    ("1,2,a\n,4,b\n3,4\n", "line 3: 2 fields, but there are 3 columns"),
    ("y,p,q\na,2,3\nb,2,?\nb,2\n", "line 4: 2 fields, but there are 3 columns"),
    (
        "town,p,color,y\nRome,2,red,1\n",
        r"column 'town' \('Rome' in line 2\) and column 'color' \('red' in line 2\) hold no numbers; .* by drop=",
    ),
    ("p,q,r,s,t,u,v,y\na,b,c,d,e,f,g,1\n", r"column 'p' .*, column 't' \('e' .*\) and 2 more columns hold no numbers"),
    ("1,2,a\n3,True,b\n", r"column 1 \('True' in line 2\) holds no numbers"),
    ('1,2,a\n3,4,"b\n5,6,c\n', "line 2: .*fields hold no line breaks; use pandas.read_csv"),
    ('1,2,a\n3,4,"b\n5,6"\n', "line 2: .*fields hold no line breaks"),
    ("1,2,a\n3,4,b\r5,6,c\n", "line 2: .*fields hold no line breaks"),
    ("1,2,a\n\ufeff3,4,b\n", "line 2: a byte order mark; were files joined"),
    ("1,2,a\n\x0c\n", "line 2: 1 field, but there are 3 columns"),
    ("1,2,a\n3\xad,4,b\n", r"column 0 \('3.*' in line 2\) holds no numbers"),
    (b"1,2,a\n3,4,\xff\n", "line 2: not UTF-8"),
    ("1,2\x00,a\n", r"column 1 \('2.x00' in line 1\) holds no numbers"),
    ("a,a,y\n1,2,3\n", "line 1: two columns are named 'a'; give each a name"),
    (",a,y\n0,2,3\n", "line 1: column 0 has no name; if it is a row number"),
    # dialects that are not clear
    ("l;w;kind\n1,500;2,250;a\n2;3,250;b\n", rf"column 'l' \('1,500' in .* hold no numbers; {COMMA}"),
    ("l;w;kind\n1.500,5;2,25;a\n2;3,25;b\n", rf"column 'l' \('1.500,5' in line 2\) holds .*; {COMMA}"),
    ("l;w;kind\n1,5;2,25;a\n2;3.5;b\n", rf"column 'l' \('1,5' in line 2\).*; {COMMA}"),
    ("a b kind\n1 2 x\n2 3\n", "line 1: 'a b kind' is one column; .* by blanks if all lines have as many words"),
    ("my export\na,b,kind\n1,2,x\n", "line 1: 'my export' is one column"),
    (
        '"a" "b"\n"1" 1 2\n"2" 2 3\n',
        r"line 1: a quotation mark within a field; .* pandas\.read_csv\(path, sep=\.\.\.\)",
    ),
    ("a,b\r\n1,2\r3,4\r\n", "line 2: a carriage return; fields hold no line breaks"),
]


@pytest.mark.parametrize(("text", "message"), CSV_ERRORS)
@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_csv_errors_name_file_and_line(tmp_path, text, message, block_bytes):
    path = write_file(tmp_path / "train.csv", text)
    with pytest.raises(InputError, match=rf"train\.csv[,:] {message}"):
        read_all(path, block_bytes=block_bytes)


@pytest.mark.parametrize("label", ["y", False])
def test_csv_who_chose_the_labels_is_not_told_to(tmp_path, label):
    path = write_file(tmp_path / "a.csv", "p,y\nx,1\n")
    with pytest.raises(InputError, match=r"column 'p' \('x' in line 2\) .*: leave other .* by drop= \(--drop\)\.$"):
        read_all(path, label=label)


@pytest.mark.parametrize("word", ['"a, b, c, d"e "" f', pytest.param(f'"{"," * 200_000}"', id="long")])
@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_csv_odd_quotations_are_read_alike_wherever_a_block_begins(tmp_path, word, block_bytes):
    path = write_file(tmp_path / "a.csv", f"1,2,a\n3,4,{word}\n5,6,b\n")
    X, y, _ = read_all(path, block_bytes=block_bytes)
    np.testing.assert_array_equal(X, [[1, 2], [3, 4], [5, 6]])
    parsed = word[1:-1] if word.endswith('"') else 'a, b, c, de "" f'
    assert y.tolist() == ["a", parsed, "b"]


@pytest.mark.parametrize("block_bytes", [40, 10**6])
@pytest.mark.parametrize("field", ["", " ", "NA", " n/a ", "nan", "-NaN", "NULL", "nOnE", "?", '" "'])
def test_csv_every_word_for_a_missing_value(tmp_path, field, block_bytes):
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    lines = [f"{a!r},{b!r},yes" for a, b in numbers.tolist()]
    lines[7] = f"1.5,{field},no"
    lines[20] = f"{field},2,{field or 'x'}"
    path = write_file(tmp_path / "a.csv", "\n".join(["a,b,y", *lines]))
    X, y, _ = read_all(path, drop_missing=True, block_bytes=block_bytes, dtype="float64")
    np.testing.assert_array_equal(X, np.delete(numbers, [7, 20], axis=0))
    assert y.tolist() == ["yes"] * 28
    with pytest.raises(InputError, match=r"a\.csv: missing values in .*column 'a' \(1 row\) and column 'b' \(1 row\)"):
        read_all(path, block_bytes=block_bytes)


def test_csv_words_are_no_numbers_beside_missing_values(tmp_path):
    for words in ("True\n?\nFalse", 'True\n""\nFalse', "1\n?\nblue"):
        path = write_file(tmp_path / "a.csv", "x,y\n" + "".join(f"{word},1\n" for word in words.split("\n")))
        with pytest.raises(
            InputError,
            match=r"column 'x' \('(True|blue)' in line \d\) .*; sparse rows, and those of a model of numbers, hold",
        ):
            read_all(path)


@pytest.mark.parametrize(("options", "message"), [
    ({"label": "z"}, "no label column 'z'; the columns are a, b, y"),
    ({"label": 3}, "no label column 3; there are 3 columns"),
    ({"weight": "z"}, "no weight column 'z'"),
    ({"n_features": 3}, "2 features, but n_features is 3"),
    ({"label": "a", "weight": "a"}, "no feature columns beside label and weight"),
])  # fmt: skip
def test_csv_options_that_do_not_fit(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        open_source(write_file(tmp_path / "a.csv", "a,b,y\n1,2,3\n"), **options)


@pytest.mark.parametrize("value", ["x", "inf"])
def test_a_number_of_a_column_in_a_message_is_one_that_parameters_take(tmp_path, value):
    path = write_file(tmp_path / "a.csv", f"1,2,3\n0,4,{value}\n")
    with pytest.raises(InputError, match=r"column 2\b"):
        read_all(path, label=0)
    assert read_all(path, label=0, drop=2)[0].tolist() == [[2], [4]]


# Dialects -------------------------------------------------------------------------------------------------

XY = ([[1.5, 2.25], [2, -0.5]], ["a", "b"])
DIALECTS = {
    "decimal commas": ("l;w;kind\n1,5;2,25;a\n2;-,5;b\n", XY),
    "decimal commas after tabs": ("l\tw\tkind\n1,5\t2,25\ta\n2\t-5,0E-1\tb\n", XY),
    "decimal commas after blanks": ("l w kind\n1,5 2,25 a\n2 -,5 b\n", XY),
    "decimal commas in quotes": ('l;w;kind\n"1,5";"2,25";a\n2;"-,5";b\n', XY),
    "decimal commas with blanks and gaps": ("l;w;kind\n 1,5 ;2,25;a\nNA;1;c\n2; -,5;b\n", XY),
    "as many commas as semicolons": ("1,5;0\n2,5;1\n", ([[1.5], [2.5]], ["0", "1"])),
    "a decimal comma in the targets only": ("l;w;y\n1;2;0,5\n2;3;1,5\n", ([[1, 2], [2, 3]], ["0.5", "1.5"])),
    "a comma in the header": ("x, C;y\n1,5;0\n2,5;1\n", ([[1.5], [2.5]], ["0", "1"])),
    "the separator named": ("sep=;\nl;w;kind\n1.5;2.25;a\n2;-.5;b\n", XY),
    "another separator named": ('"SEP=^"\r\nl^w^kind\r\n1.5^2.25^a\r\n2^-.5^b\r\n', XY),
    "comments": ("# logger 7, in the cellar, wet\n#\n\nl,w,kind\n1.5,2.25,a\n# off\n#8,8,b\n2,-.5,b\n#end", XY),
    "decimal commas between comments": ("l;w;kind\n1,5;2,25;a\n# off\n2;-,5;b\n", XY),
    "as many commas as semicolons between comments": ("1,5;0\n# off\n2,5;1\n", ([[1.5], [2.5]], ["0", "1"])),
    "blanks between comments": ("l w kind\n1.5 2.25 a\n# off for a while\n2 -.5 b\n", XY),
    "names in a comment": ("# by hand\n# l,w,kind\n1.5,2.25,a\n2,-.5,b\n", XY),
    "savetxt": ("# l w kind\n1.5e+00 2.25e+00 a\n2.0e+00 -5.0e-01 b\n", XY),
    "blanks": ("l w kind\n1.5 2.25 a\n2 -.5 b\n", XY),
    "columns of equal width": ("   l     w  kind\n 1.5  2.25  a   \n 2    -.5   b\n", XY),
    "carriage returns": ("l,w,kind\r1.5,2.25,a\r2,-.5,b\r", XY),
}


@pytest.mark.parametrize("block_bytes", [1, 10**6])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects(tmp_path, dialect, suffix, block_bytes):
    text, (X, y) = DIALECTS[dialect]
    path = write_file(tmp_path / f"a.csv{suffix}", COMPRESS[suffix](text.encode()))
    rows, labels, _ = read_all(path, dtype="float64", block_bytes=block_bytes, drop_missing=True)
    assert rows.tolist() == X
    assert labels.tolist() == y
    if "kind" in text:
        assert open_source(path).feature_names == ("l", "w")


@pytest.mark.parametrize(("text", "options", "X", "y"), [
    ("a,b\n2,3;4\n5,3;1\n", {}, [[2], [5]], ["3;4", "3;1"]),  # the header has commas alone
    ("a;b;c\n1;hello, you;x\n2;no;y\n", {"drop": "b"}, [[1], [2]], ["x", "y"]),
    ("l;w;y\n0.5;1;1,2\n2;3;2,3\n", {}, [[0.5, 1], [2, 3]], ["1,2", "2,3"]),  # numbers have a point
    ("#1,2,3,x\n#2,4,5,y\n", {"drop": 0}, [[2, 3], [4, 5]], ["x", "y"]),
    ("name,a,y\n#1,2,x\n#2,4,y\n", {"drop": "name"}, [[2], [4]], ["x", "y"]),
    ("# ids\n#1,2,3,x\n#2,4,5,y\n3,6,7,x\n", {"drop": 0}, [[2, 3], [4, 5], [6, 7]], ["x", "y", "x"]),
    ("#f00,1\n#f00,2\nred,3\n", {"label": "0"}, [[1], [2], [3]], ["#f00", "#f00", "red"]),
])  # fmt: skip
def test_what_is_no_dialect(tmp_path, text, options, X, y):
    rows, labels, _ = read_all(write_file(tmp_path / "a.csv", text), **options)
    assert rows.tolist() == X
    assert labels.tolist() == y


@pytest.mark.parametrize("separator", [b" ", b";", b"|"])
def test_a_line_of_millions_of_words_is_refused_in_bounded_memory(tmp_path, separator):
    (tmp_path / "a.csv").write_bytes((b"1" + separator) * 1_500_000)

    def refused() -> None:
        with pytest.raises(InputError, match=r"a\.csv, line 1: "):
            read_all(tmp_path / "a.csv")

    _, peak = traced(refused)
    assert peak < 60e6, "a string for every word takes more"


def test_blanks_in_texts_separate_nothing(tmp_path):
    source = open_source(write_file(tmp_path / "a.csv", "some text\nmore text\n"), text=0, label=False, header=False)
    assert sum(block.X.shape[0] for block in source.blocks()) == 2


def test_later_commas_are_not_words(tmp_path):
    """The first 64 KiB tell whether numbers have a decimal comma; what is otherwise after them is an error."""
    text = "l;w;kind\n" + "1;2;a\n" * 20_000 + "1,5;2;b\n"
    with pytest.raises(InputError, match=rf"column 'l' \('1,5' in line 20002\) holds no numbers; {COMMA}"):
        read_all(write_file(tmp_path / "a.csv", text))


def test_files_of_a_dialect_are_one_data_set(tmp_path):
    text = "sep=;\n# {0}\nl;w;kind\n1,5;{0};a\n"
    paths = [write_file(tmp_path / f"{i}.csv", text.format(i)) for i in range(3)]
    assert read_all(paths)[0].tolist() == [[1.5, i] for i in range(3)]
    with pytest.raises(InputError, match=r"b\.csv, line 1: the columns are not those of"):
        read_all([paths[0], write_file(tmp_path / "b.csv", "l;u;kind\n1,5;2;a\n")])
