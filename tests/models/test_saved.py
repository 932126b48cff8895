"""Models in files: the same bits, read once a process, replaced ones noticed, unknown ones refused."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.data.store.records import read_record, write_record
from dask_odm.errors import StoreError
from dask_odm.models import predict
from dask_odm.models.models import LinearModel
from dask_odm.models.predict import ModelFile, model_from
from models.made import make, rows


@pytest.fixture
def path(tmp_path) -> str:
    p = make()
    write_record(tmp_path / "m.zarr", "model", p.arrays(), {"model": p.description()})
    return str(tmp_path / "m.zarr")


@pytest.mark.parametrize("held", [0, 1 << 30], ids=["on disk", "held"])
def test_from_a_file_the_same_bits(path, monkeypatch, held):
    monkeypatch.setattr(predict, "HELD_BYTES", held)
    p = model_from(read_record(path, "model"))
    assert isinstance(p.support, np.ndarray) == (held > 0)
    assert p.support.shape == (130, 3)
    np.testing.assert_array_equal(p.support[3:7], make().support[3:7])
    assert p.values(rows(50)).tobytes() == make().values(rows(50)).tobytes()
    assert p.kernel == make().kernel


def test_a_linear_model_of_several_outputs(tmp_path):
    model = LinearModel(np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0]))
    write_record(tmp_path / "m.zarr", "model", model.arrays(), {"model": model.description()})
    again = model_from(read_record(tmp_path / "m.zarr", "model"))
    assert again.values(rows(5)).tobytes() == model.values(rows(5)).tobytes()


def test_a_model_file_is_read_once_a_process(path, monkeypatch):
    file, reads = ModelFile.of(read_record(path, "model")), []
    monkeypatch.setattr(predict, "read_record", lambda *a: reads.append(a) or read_record(*a))
    for _ in range(3):
        np.testing.assert_array_equal(file.load().values(rows(5)), make().values(rows(5)))
    assert len(reads) == 1


def test_a_replaced_model_file_is_noticed(path):
    old = ModelFile(str(path), "0" * 64)
    assert not old.is_current()
    with pytest.raises(StoreError, match="was replaced since it was loaded"):
        old.load()


@pytest.mark.parametrize("kernel", [{"name": "sigmoid"}, {"name": "rbf", "delta": 1.0}, {}, None])
def test_an_unknown_kernel(tmp_path, kernel):
    write_record(tmp_path / "m.zarr", "model", make().arrays(), {"model": {"kind": "kernel", "kernel": kernel}})
    with pytest.raises(StoreError, match="does not hold a kernel model"):
        model_from(read_record(tmp_path / "m.zarr", "model"))


@pytest.mark.parametrize("model", [None, {}, {"kind": "tree"}, {"kind": ["kernel"]}, "kernel"], ids=str)
def test_an_unknown_kind(tmp_path, model):
    write_record(tmp_path / "m.zarr", "model", make().arrays(), {"model": model})
    with pytest.raises(StoreError, match="of a kind that this dask_odm does not know"):
        model_from(read_record(tmp_path / "m.zarr", "model"))


@pytest.mark.parametrize("name", ["shift", "coefficients", "intercept", "support_vectors"])
def test_arrays_that_do_not_fit_each_other(tmp_path, name):
    arrays = make().arrays()
    write_record(
        tmp_path / "m.zarr", "model", arrays | {name: arrays[name][:-1][..., :2]}, {"model": make().description()}
    )
    with pytest.raises(StoreError, match="does not hold a kernel model"):
        model_from(read_record(tmp_path / "m.zarr", "model"))
