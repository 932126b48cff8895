"""Models in files: the same bits, read once a process, replaced ones noticed, unknown ones refused."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dask_odm.data.store.records import read_record, write_record
from dask_odm.errors import StoreError
from dask_odm.models import predict
from dask_odm.models.linear_model import LinearModel
from dask_odm.models.predict import ModelFile, model_from
from models.made import GAUSS, SCALING, make, make_pairs, rows
from small_problems import matrix


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


@pytest.mark.parametrize("model", [LinearModel(np.ones((1, 3)), np.ones(1)), make(outputs=3)], ids=["linear", "kernel"])
def test_classes_that_had_no_row_are_kept(tmp_path, model):
    model = replace(model, lacking=(1, 2))
    write_record(tmp_path / "m.zarr", "model", model.arrays(), {"model": model.description()})
    again = model_from(read_record(tmp_path / "m.zarr", "model"))
    assert again.lacking == (1, 2)
    assert again.values(rows(20)).tobytes() == model.values(rows(20)).tobytes()


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


DESCRIPTIONS = [
    *(
        {"kind": "kernel", "kernel": kernel}
        for kernel in ({"name": "sigmoid"}, {"name": "rbf", "delta": 1.0}, {}, None)
    ),
    *(make().description() | {"lacking": it} for it in ([2, 1], [1, 1], [-1], [3], [True], ["a"], 1, None)),
]
STARTS = ([0, 300, 301, 301, 419], [1, 300, 301, 301, 420], [0, 301, 300, 301, 420], [0, 300, 420], [0.0, 420.0])
KERNEL, PAIRS = make().arrays(), make_pairs().arrays()
LIES = [
    *((KERNEL, description) for description in DESCRIPTIONS),
    *(
        (KERNEL | {name: KERNEL[name][:-1][..., :2]}, make().description())
        for name in ("shift", "coefficients", "intercept", "support_vectors")
    ),
    *((PAIRS | {"starts": np.array(starts)}, make_pairs().description()) for starts in STARTS),
]


@pytest.mark.parametrize(("arrays", "description"), LIES)
def test_what_is_no_model_of_its_kind(tmp_path, arrays, description):
    write_record(tmp_path / "m.zarr", "model", arrays, {"model": description})
    with pytest.raises(StoreError, match=f"does not hold a {description['kind']} model"):
        model_from(read_record(tmp_path / "m.zarr", "model"))


@pytest.mark.parametrize("model", [None, {}, {"kind": "tree"}, {"kind": ["kernel"]}, "kernel"], ids=str)
def test_an_unknown_kind(tmp_path, model):
    write_record(tmp_path / "m.zarr", "model", make().arrays(), {"model": model})
    with pytest.raises(StoreError, match="of a kind that this dask_odm does not know"):
        model_from(read_record(tmp_path / "m.zarr", "model"))


def test_a_model_of_pairs(tmp_path):
    """Its scores are the sums over the rows of each pair, from a file too."""
    model = make_pairs()
    write_record(tmp_path / "m.zarr", "model", model.arrays(), {"model": model.description()})
    again = model_from(read_record(tmp_path / "m.zarr", "model"))
    scores = again.machine_scores(rows(50))
    assert scores.tobytes() == model.machine_scores(rows(50)).tobytes()
    K = matrix(GAUSS, SCALING(rows(50)), SCALING(model.support))
    for machine, (a, b) in enumerate(combinations(range(4), 2)):
        of_a, of_b = (slice(*model.starts[code : code + 2]) for code in (a, b))
        sums = K[:, of_a] @ model.coefficients[b - 1, of_a] + K[:, of_b] @ model.coefficients[a, of_b]
        np.testing.assert_allclose(scores[machine], sums + machine)
