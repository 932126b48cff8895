"""The demonstration at a size that takes seconds, twice into one folder."""

import json
import os
from functools import partial
from inspect import signature

import numpy as np
import pytest
from dask.utils import parse_bytes

import dask_odm
from cli.running import run
from dask_odm.cli import demo
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.diagnostics.summaries import plain
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.limits import USABLE
from dask_odm.engine.shuffle import Shuffle
from dask_odm.errors import InputError
from dask_odm.kernels import RBF
from dask_odm.learning.problem.losses import ODMSettings
from dask_odm.learning.solution import SolverSettings
from dask_odm.papers.sodm.node_workers import TreeJob
from dask_odm.papers.sodm.workers import TreeSettings, check_memory

REAL = (".csv", ".zarr", "-test.zarr", "-model.zarr", "-predictions.csv", ".html")
FILES = {f"breast-cancer{end}" for end in REAL}
FILES |= {"larger.zarr", "larger-test.zarr", "larger-model.zarr", "margins.png"}
SMALL = {"rows": 1200, "features": 40, "workers": 1, "worker_memory": "1GB", "partitions": 8}


@pytest.mark.usefixtures("quick_workers")
def test_it_leaves_what_it_says_and_runs_again_into_the_same_folder(tmp_path, monkeypatch):
    lines: list[str] = []
    result = demo.run_demo(tmp_path / "d", lines.append, **SMALL)
    assert set(os.listdir(tmp_path / "d")) == FILES
    json.dumps(plain(result), allow_nan=False)
    assert result["real"]["accuracy"] > 0.95
    assert result["larger"]["accuracy"] > 0.8
    assert [level["partitions"] for level in result["larger"]["history"]] == [8, 2]
    memory = result["larger"]["memory"]
    assert memory["workers_lived"]
    assert memory["limit"] == 10**9
    assert all(50 << 20 < peak < 10**9 for peak in memory["peaks"])
    assert len(memory["peaks"]) == 1
    text = "\n".join(lines)
    ends = ("margins.png: ", "breast-cancer-predictions.csv: ", "breast-cancer.html: ")
    for word in (
        "not certified: gaps are of the partitions",
        "start gap",
        "accuracy",
        "peak",
        "of its limit of 0.93 GiB",
        str(tmp_path / "d"),
        *ends,
    ):
        assert word in text
    model = dask_odm.load_model(result["larger"]["model"])
    assert model.score(str(tmp_path / "d/larger-test.zarr")) == result["larger"]["accuracy"]

    monkeypatch.setattr(demo, "run_demo", partial(demo.run_demo, **SMALL))
    (tmp_path / "d/mine.txt").write_text("stays")
    again = run("demo", "--folder", tmp_path / "d", "--json")
    assert json.loads(again.stdout)["folder"] == str(tmp_path / "d")
    assert set(os.listdir(tmp_path / "d")) == FILES | {"mine.txt"}
    assert "accuracy" in again.stderr


@pytest.mark.usefixtures("quick_workers")
def test_without_matplotlib_there_is_no_plot(tmp_path, monkeypatch):
    def unavailable(*args):
        raise demo.PlottingUnavailableError("Plotting needs matplotlib.")

    monkeypatch.setattr(demo, "plot_margin_distribution", unavailable)
    lines: list[str] = []
    result = demo.run_demo(tmp_path, lines.append, **SMALL)
    assert result["larger"]["plot"] is None
    assert "no plot: Plotting needs matplotlib." in lines


@pytest.mark.parametrize("start", [75, 210])
def test_its_workers_have_room_to_spare_at_full_size(tmp_path, start):
    """Workers take ``start`` MB before any task; every twentieth byte of their limit is left over."""
    full = {name: each.default for name, each in signature(demo.run_demo).parameters.items()}
    features, parts, limit = full["features"], full["partitions"], parse_bytes(full["worker_memory"])
    free = int((USABLE - 0.05) * limit) - start * 10**6
    cluster = Cluster(None, full["workers"], 1, free, limit)
    store = dask_odm.datasets.make_shells(1100, features, store=tmp_path / "a.zarr")
    assert store.chunk_rows < 1100, "its chunks are as those of any number of rows"
    Shuffle(store, TwoClasses(), str(tmp_path), cluster)
    counts = (-(-full["rows"] // parts),) * parts
    plain = Scaling(np.zeros(features), np.ones(features))
    partitions = StoredPartitions.plan(str(tmp_path), store, counts)
    job = TreeJob(partitions, plain, RBF(1.0, 1 / features), ODMSettings(1e3, 0.2, 0.2), SolverSettings())
    check_memory(job, TreeSettings(stop_at=parts // 4).levels(parts), cluster)


def test_a_folder_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot use the folder"):
        demo.run_demo(tmp_path / "file", print, **SMALL)
    with pytest.raises(InputError, match="of free disk, but the demo needs"):
        demo.run_demo(tmp_path, print, rows=10**12)
    assert os.listdir(tmp_path) == ["file"]
