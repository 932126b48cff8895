"""NumPy arrays, .npy and .npz, in any order and any blocks; no pickle is ever loaded."""

import numpy as np
import pytest
import scipy.sparse

from dask_odm.errors import InputError
from data.reading import read_all


def test_npy_labels_from_a_column_or_beside(tmp_path):
    table = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "X.npy", table)
    np.save(tmp_path / "y.npy", np.array(["p", "q", "p", "q"]))
    X, y, weight = read_all(tmp_path / "X.npy", label=-1, weight=0)
    np.testing.assert_array_equal(X, table[:, 1:2])
    np.testing.assert_array_equal(y, table[:, 2])
    np.testing.assert_array_equal(weight, table[:, 0])
    assert read_all(tmp_path / "X.npy", label=str(tmp_path / "y.npy"))[1].tolist() == ["p", "q", "p", "q"]


def test_npz_numbers_and_names_as_text(tmp_path):
    np.savez(tmp_path / "a.npz", **{"X": np.arange(6.0).reshape(2, 3), "1": np.array([7, 8])})
    assert read_all(tmp_path / "a.npz", label="1")[1].tolist() == [7, 8]
    assert read_all(tmp_path / "a.npz", label="-1", weight="0")[1:][0].tolist() == [2, 5]


@pytest.mark.parametrize(("source", "options", "message"), [
    (np.zeros(3), {}, "two dimensions"),
    (np.zeros((3, 0)), {}, "two dimensions and a feature"),
    (np.array([["a"]]), {}, "features must be integers or floats. Got <U1"),
    (np.array([[True]]), {}, "features must be integers or floats. Got bool"),
    (np.array([[1j]]), {}, "Got complex128"),
    (np.array([[None], ["a"]]), {}, "Got object"),
    ((np.zeros((3, 1)), [0, 1]), {}, "X: y has 2 rows where X has 3"),
    (np.zeros((3, 2)), {"label": 2}, "no label column 2"),
    (np.zeros((3, 2)), {"label": "y"}, "X: no label column 'y'; the columns have no names"),
    ([np.zeros((3, 2))], {}, "a list must hold paths"),
    (5, {}, "cannot ingest int"), ([], {}, "cannot ingest list"),
])  # fmt: skip
def test_arrays_that_cannot_be_read(source, options, message):
    with pytest.raises(InputError, match=message):
        read_all(source, **options)


def test_archives_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros((2, 2)), b=np.zeros((2, 2)))
    with pytest.raises(InputError, match="no array 'X' among a, b"):
        read_all(path)
    np.savez(path, X=np.zeros((2, 2)), y=np.array([None, 1], dtype=object))
    with pytest.raises(InputError, match="array 'y': Python objects"):
        read_all(path)
    np.savez(path, X=np.zeros((2, 2)))
    with pytest.raises(InputError, match="no array 'z' among X"):
        read_all(path, label="z")
    scipy.sparse.save_npz(path, scipy.sparse.eye(3, format="csr"))
    with pytest.raises(InputError, match="a sparse matrix"):
        read_all(path)


@pytest.mark.parametrize(("save", "order"), [(np.savez, "C"), (np.savez_compressed, "F")])
def test_damaged_archives_and_arrays(tmp_path, save, order):
    path = tmp_path / "a.npz"
    save(path, X=np.asarray(np.random.default_rng(0).normal(size=(5000, 4)), order=order))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.npz, array 'X': the file is damaged"):
        read_all(path, block_bytes=5000)
    np.save(tmp_path / "X.npy", np.zeros((100, 3)))
    whole = (tmp_path / "X.npy").read_bytes()
    for cut in (3, 60, 500):
        (tmp_path / "X.npy").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"X\.npy: the file is (damaged, or no \.npy file|cut off)"):
            read_all(tmp_path / "X.npy")
    (tmp_path / "X.npy").write_bytes(whole.replace(b"}", b"(", 1))  # the header's text has no end
    with pytest.raises(InputError, match=r"X\.npy: the file is (damaged, or no \.npy file|cut off)"):
        read_all(tmp_path / "X.npy")


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"XX"), (6, b"\x01"), (8, b"\x63")],
    ids=["another member's place", "encrypted", "packed in an unknown way"],
)
def test_archives_whose_member_does_not_open(at, value, tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=np.arange(4000.0).reshape(1000, 4))
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    central = data.rindex(b"PK\1\2") + 2
    data[central + at : central + at + len(value)] = value if at else data[central : central + 2]
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.npz.* the file is damaged"):
        read_all(path)


def test_a_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "X.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(InputError, match=r"X\.npy: Python objects; save numbers"):
        read_all(tmp_path / "X.npy")
