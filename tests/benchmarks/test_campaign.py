"""The campaign of faults runs, goes on where it was cut, and sees what breaks."""

import json
import os

import campaign
import pytest
from tries.outcomes import ACCEPTED, BREAK, NAMED, SAME, Outcome, describe, judge, with_leftovers

from dask_odm.errors import StoreError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, and sends POSIX signals")


def test_a_campaign_of_a_family_goes_on_where_it_was_cut(tmp_path, capsys):
    out = tmp_path / "c.jsonl"
    kinds = "corruptions;failing;mixed;worker kills;scheduler"
    options = ["--out", str(out), "--folder", str(tmp_path), "--families", "dsvrg of sparse"]
    assert campaign.main([*options, "--kinds", "mixed", "--tries", "3", "--piece", "0/2"]) == 0
    assert campaign.main([*options, "--kinds", kinds, "--tries", "1"]) == 0, capsys.readouterr()
    found = campaign.records_of(out)
    assert sorted(each["number"] for each in found if each["kind"] == "mixed generations") == [0, 2]
    assert {each["kind"] for each in found} >= {"corruptions", "worker kills", "scheduler kills"}
    with pytest.raises(SystemExit):
        campaign.main(["--families", "none"])


def test_breaks_are_seen_and_told(tmp_path, capsys):
    assert judge({"digest": "a"}, "a", "").what == SAME
    assert judge({"digest": "b"}, "a", "") == Outcome(BREAK, "", "wrong bits")
    assert judge({"digest": "b"}, None, "").what == ACCEPTED
    assert judge(describe(StoreError("damaged")), "a", "") == Outcome(NAMED, "", "StoreError: damaged")
    assert judge(describe(KeyError("x")), "a", "") == Outcome(BREAK, "", "KeyError: 'x'")
    assert with_leftovers(Outcome(NAMED, ""), ["dask-odm-1"]).what == BREAK
    bench = campaign.Bench(campaign.KINDS["corruptions"], tmp_path, 0)
    bench._process = campaign.subprocess.Popen(["sh", "-c", "read n; exit 3"], stdin=-1, stdout=-1, text=True)
    (tmp_path / "bench.txt").write_text("said")
    found = bench.try_once(0)
    assert found["outcome"] == BREAK
    assert "said" in found["detail"]
    (tmp_path / "c.jsonl").write_text(json.dumps(found) + '\n{"kind": "cut o')
    assert campaign.main(["--table", "--out", str(tmp_path / "c.jsonl")]) == 1
    assert "| corruptions | 1 | 0 | 0 | 0 | 1 |" in capsys.readouterr().out
