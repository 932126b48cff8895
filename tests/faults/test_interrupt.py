"""Ctrl-C at many moments of every command that writes: one line, status 130, nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_odm import ODMClassifier, Store
from dask_odm.data.store.records import read_kind, read_record
from faults.table import check
from small_stores import store_of

MOMENTS = int(os.environ.get("DASK_ODM_MOMENTS", "2"))  # of each command; raise it to try them all
SCRIPT = Path(__file__).with_name("interrupting.py")
X = np.random.default_rng(0).normal(size=(40, 3))
TREE = ("--solver", "sodm", "--n-partitions", "4", "--fan-in", "2", "--random-state", "0", "--scratch", "@")
TREE += ("--checkpoint", "@/c.zarr")
COMMANDS = {
    "ingest": ("ingest", "@/a.csv", "@/out.zarr", "--chunk-rows", "10"),
    "ingest, replacing": ("ingest", "@/a.csv", "@/s.zarr", "--chunk-rows", "10", "--overwrite"),
    "ingest in two": ("ingest", "@/a.csv", "@/out.zarr", "--test-size", "0.5", "--compression", "zstd"),
    "fit": ("fit", "@/s.zarr", "@/out.zarr", *TREE),
    "fit, replacing": ("fit", "@/s.zarr", "@/m.zarr", "--overwrite", "--random-state", "0"),
    "predict": ("predict", "@/m.zarr", "@/s.zarr", "@/out.zarr"),
    "predict, csv": ("predict", "@/m.zarr", "@/s.zarr", "@/out.csv"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Any]:
    """What every command left at the moments tried, by command."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork and signals")
    folder = tmp_path_factory.mktemp("interrupted") / "inputs"
    folder.mkdir()
    y = np.arange(40) % 2
    np.savetxt(folder / "a.csv", np.column_stack([X, y]), fmt="%g", delimiter=",")
    store_of(folder / "s.zarr", X, y, chunk_rows=10)
    ODMClassifier(random_state=0).fit(X, y).save(folder / "m.zarr")
    command = [sys.executable, str(SCRIPT), str(folder), str(MOMENTS), json.dumps(COMMANDS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def verify(path: Path) -> None:
    """Fail unless what is there is whole."""
    if path.suffix == ".zarr":
        kind = read_kind(path)
        (Store.open(path) if kind == "store" else read_record(path, str(kind))).verify()
    elif path.name == "out.csv":
        assert len(path.read_text().splitlines()) == 41


@pytest.mark.parametrize("what", COMMANDS)
def test_ctrl_c_at_any_moment(what, results):
    result = results[what]
    assert result["whole"]["status"] == 0, result["whole"]
    assert result["count"] >= 10
    may_be_left = set(result["whole"]["left"])
    reached = [found for found in result["found"] if found["status"] != 0 or found["touched"] >= found["moment"]]
    assert len(reached) >= MOMENTS
    for found in reached:
        where = f"{what}, moment {found['moment']} of {result['count']}: {found}"
        assert found["status"] == 130, where
        (line,) = found["stderr"].splitlines()
        check("Interrupt", line.removeprefix("dask-odm: "))
        assert {"a.csv", "m.zarr", "s.zarr"} <= set(found["left"]) <= may_be_left, where
        assert what != "ingest in two" or len({"out.zarr", "out-test.zarr"} & set(found["left"])) in (0, 2), where
        for name in found["left"]:
            verify(Path(result["folder"], f"at-{found['moment']}", name))
