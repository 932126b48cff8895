"""Stores and models that earlier versions wrote are read, and predict what they did; other tools keep models."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dask_odm as odm

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
VERSIONS = sorted(each.parent for each in (Path(__file__).parent / "fixtures").glob("*/expected.json"))
MODELS = [(folder, name) for folder in VERSIONS for name in json.loads((folder / "expected.json").read_text("utf-8"))]


def test_this_version_wrote_some() -> None:
    series = odm.__version__.rpartition(".")[0]
    assert any(folder.name.startswith(series) for folder in VERSIONS), "run tests/fixtures/write.py"


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_stores_are_whole(folder: Path) -> None:
    for name in ("rows", "targets"):
        store = odm.Store.open(folder / f"{name}.zarr")
        assert store.verify() > 0
        assert store.rows == 60
    rows = odm.open_store(folder / "rows.zarr")
    assert rows["feature"].values.tolist() == ["width", "height", "größe"]
    assert set(rows["y"].values) == {"blue", "green", "rosé"}


@pytest.mark.parametrize(("folder", "name"), MODELS, ids=lambda each: getattr(each, "name", each))
def test_models_predict_what_they_did(folder: Path, name: str, tmp_path: Path) -> None:
    model = odm.load_model(folder / f"{name}.zarr")
    X = odm.open_store(folder / "rows.zarr")["X"].values
    if hasattr(model, "feature_names_in_"):
        X = pd.DataFrame(X, columns=model.feature_names_in_)
    expected = json.loads((folder / "expected.json").read_text("utf-8"))[name]
    if isinstance(expected[0], str):
        assert model.predict(X).tolist() == expected
    else:
        np.testing.assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "again.zarr")
    again = odm.load_model(tmp_path / "again.zarr")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.filterwarnings("default")  # those of the tools are theirs
@pytest.mark.parametrize("tool", ["skops", "mlflow"])
def test_other_tools_keep_models(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(tool)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if f"import {tool}" in block]
    names: dict = {}
    exec(compile(code, f"the part on {tool} of {PAGE.name}", "exec"), names)
    np.testing.assert_array_equal(names["again"].predict(names["X"]), names["clf"].predict(names["X"]))
