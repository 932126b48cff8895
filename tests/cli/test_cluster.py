"""The commands that look after a cluster, and the options that name one."""

import dask
import pytest
from click.testing import CliRunner

from cli.running import run, run_json
from dask_odm.cli import main
from dask_odm.diagnostics import planning


def test_what_a_cluster_has_and_retiring_one_of_its_workers(client):
    address = client.scheduler.address
    with dask.config.set({"scheduler-address": address}):
        found = run_json("cluster", "--min-workers", 2)["workers"]
        assert [each["threads"] for each in found] == [1, 1]
        assert (
            run("cluster", "--scheduler", address).stdout.splitlines()[0] == f"{found[0]['name']}: 1 threads, 0.93 GiB"
        )
        name = found[0]["name"]
        assert run_json("retire", "--name", name)["retired"] == [name]
    result = CliRunner().invoke(main, ["retire", "--scheduler", address], env={"DASK_ODM_WORKER": "nobody"})
    assert result.stdout == "no worker is called nobody\n"


@pytest.mark.parametrize(("arguments", "said"), [
    (("cluster",), "Name the --scheduler, or set DASK_SCHEDULER_ADDRESS"),
    (("retire", "--name", "a"), "Name the --scheduler, or set DASK_SCHEDULER_ADDRESS"),
    (("retire", "--scheduler", "tcp://a:1"), "Missing option '--name'"),
    (("fit", "a", "b", "--min-workers", 2), "go with --scheduler"),
    (("fit", "a", "b", "--workers", 10**20), "is not in the range 1<=x<=4096"),
    (("fit", "a", "b", "--tls-ca", "ca.pem", "--workers", 2), "go with --scheduler"),
    (("cluster", "--scheduler", "tls://a:1", "--tls-ca", "ca.pem"), "missing: certificate, key"),
    (("cluster", "--scheduler", "tcp://a:1", "--wait", "soon"), "wait must be a time such as"),
])  # fmt: skip
def test_wrong_usage(arguments, said):
    assert said in run(*arguments, status=2).stderr


@pytest.mark.usefixtures("quick_workers")
def test_a_plan_is_one_line_for_each_solver(monkeypatch):
    monkeypatch.setattr(planning, "NUMBERS", dict.fromkeys(planning.NUMBERS, (20_000, 4000)))
    asked = ("plan", "--rows", "1e9", "--features", 5, "--workers", 200, "--memory", "8GB")
    (found,) = run_json(*asked, "--solver", "newton", "--price", 0.1)["plans"]
    assert found["cost"] == pytest.approx(0.1 * 200 * found["seconds"] / 3600)
    assert found["fits"]
    assert found["worker_bytes"] > 100e6
    head, *lines = run(*asked).stdout.splitlines()
    assert head.split()[:2] == ["solver", "time"]
    assert [line.split()[0] for line in lines] == ["newton", "landmark", "cells"]


@pytest.mark.parametrize(
    ("rows", "memory", "told"),
    [("0", "8GB", "--rows must be positive"), ("1e9", "much", "Got 'much'"), ("1.5e3", "8GB", "integer")],
)
def test_what_cannot_be_planned_is_told_at_once(rows, memory, told):
    asked = ("--rows", rows, "--features", 5, "--workers", 2, "--memory", memory)
    assert told in run("plan", *asked, status=2).stderr
