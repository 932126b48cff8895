"""The benchmarks run, on small sizes, so that they cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import out_of_core
import pytest
import real_data


def test_real_data_measures_both_classifiers(data_dir: Path, tmp_path: Path) -> None:
    row = real_data.measure("svmguide1", tmp_path, data_dir, repeat=1, seed=0)
    assert row["gap"] <= 1e-3
    assert row["accuracy"] > 0.95
    assert row["svc_accuracy"] > 0.95
    assert row["fit"] > 0


def test_real_data_refuses_unknown_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        real_data.main(["nonesuch", "--data", str(tmp_path)])
    assert stopped.value.code == 2
    assert "nonesuch" in capsys.readouterr().err


@pytest.mark.slow
def test_out_of_core_prints_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    size = ["--rows", "600", "--features", "200", "--worker-memory", "1GB", "--n-partitions", "8", "--stop-at", "2"]
    assert out_of_core.main([*size, "--folder", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [level["partitions"] for level in found["levels"]] == [8, 2]
    assert not found["killed"]
    assert max(found["peaks"]) < found["limit_bytes"]
    assert np.isclose(found["times_the_limit"], 600 * 200 * 4 / 2e9, rtol=0.1)
