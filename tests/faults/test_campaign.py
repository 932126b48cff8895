"""The campaign in small: it tries, goes on where it was cut, tells breaks from the rest, and ends what hangs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import campaign
import pytest
from tries.base import chosen, generator
from tries.outcomes import ACCEPTED, BREAK, NAMED, SAME, Outcome, describe, judge, with_leftovers
from tries.processes import Process, answer_of

from dask_odm.errors import StoreError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, and sends POSIX signals")


def test_outcomes():
    assert judge({"digest": "a"}, "a", "").what == SAME
    assert judge({"digest": "b"}, "a", "") == Outcome(BREAK, "", "wrong bits")
    assert judge({"digest": "b"}, None, "").what == ACCEPTED
    assert judge(describe(StoreError("damaged")), "a", "") == Outcome(NAMED, "", "StoreError: damaged")
    assert judge(describe(KeyError("x")), "a", "") == Outcome(BREAK, "", "KeyError: 'x'")
    assert with_leftovers(Outcome(NAMED, ""), ["dask-odm-1"]).what == BREAK
    assert with_leftovers(Outcome(NAMED, ""), []).what == NAMED


def test_random_numbers_belong_to_the_try():
    first, again, other = (generator(0, kind, 7).integers(1 << 30) for kind in ("a", "a", "b"))
    assert first == again != other


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (lambda: "x", {"digest": "x"}),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), {"broken": "died with status -9: "}),
        (lambda: signal.pause(), {"broken": "hang: no end within 0.5 s"}),
    ],
    ids=["ends", "dies", "hangs"],
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_process_answers(function, answer, tmp_path):
    process = Process(lambda tell: tell(answer_of(function)), tmp_path / "log.txt")
    try:
        assert process.answer(0.5 if "hang" in str(answer) else 30) == answer
    finally:
        process.end()
    assert process.wait() in (0, -9)


def test_the_table_and_its_status(tmp_path, capsys):
    out = tmp_path / "c.jsonl"
    record = {"kind": "stops", "number": 0, "seed": 0, "fault": "f", "detail": "d", "seconds": 3.2}
    out.write_text(json.dumps(record | {"outcome": SAME}) + '\n{"kind": "cut o')
    assert campaign.main(["--table", "--out", str(out)]) == 0
    assert "| stops | 1 | 1 | 0 | 0 | 0 | 3 s |" in capsys.readouterr().out
    out.write_text(json.dumps(record | {"outcome": BREAK}) + "\n")
    assert campaign.main(["--table", "--out", str(out)]) == 1
    assert "stops 0: f: d" in capsys.readouterr().out


def test_a_campaign_goes_on_where_it_was_cut_and_pieces_are_all_of_it(tmp_path, capsys):
    out = tmp_path / "c.jsonl"
    options = ["--out", str(out), "--kinds", "mixed", "--folder", str(tmp_path)]
    assert campaign.main([*options, "--tries", "1"]) == 0, capsys.readouterr()
    first = out.read_text()
    for piece in ("0/2", "1/2"):
        assert campaign.main([*options, "--tries", "4", "--piece", piece]) == 0, capsys.readouterr()
    assert out.read_text().startswith(first)
    assert sorted(each["number"] for each in campaign.records_of(out)) == list(range(4))
    with pytest.raises(ValueError, match="3/3"):
        campaign._piece("3/3")


def test_a_campaign_of_some_families(tmp_path, capsys):
    out = tmp_path / "c.jsonl"
    options = ["--out", str(out), "--folder", str(tmp_path), "--families", "cells in memory; dsvrg of sparse"]
    kinds = ["--kinds", "client kills; corruptions", "--tries", "2"]
    assert campaign.main([*options, *kinds]) == 0, capsys.readouterr()
    found = [(each["kind"], each["fault"]) for each in campaign.records_of(out)]
    names = ["cells in memory", "dsvrg of sparse rows"]
    wanted = [*names, *(f"fitted by {name}" for name in names)]
    assert len(found) == 4
    assert all(text in fault for text, (_, fault) in zip(wanted, found, strict=True)), found
    with pytest.raises(SystemExit):
        campaign.main(["--families", "none"])
    assert "none is called 'none'" in capsys.readouterr().err


def test_names_that_are_chosen():
    names = ["cells", "cells in memory", "newton"]
    assert chosen(names, None) == chosen(names, " ; ") == names
    assert chosen(names, "newton;cells;") == ["cells", "newton"]
    assert chosen(names, "cell") == ["cells", "cells in memory"]


def test_processes_are_killed_and_calls_fail(tmp_path, capsys):
    kinds = "corruptions;failing;client kills;worker kills;scheduler"
    options = ["--out", str(tmp_path / "c.jsonl"), "--kinds", kinds, "--folder", str(tmp_path)]
    assert campaign.main([*options, "--tries", "1"]) == 0, capsys.readouterr()


def test_a_bench_that_dies_is_a_break(tmp_path: Path):
    bench = campaign.Bench(campaign.KINDS["corruptions"], tmp_path, 0)
    bench._process = campaign.subprocess.Popen(
        ["sh", "-c", "read number; exit 3"], stdin=-1, stdout=-1, text=True, start_new_session=True
    )
    (tmp_path / "bench.txt").write_text("said")
    found = bench.try_once(0)
    assert found["outcome"] == BREAK
    assert "said" in found["detail"]
