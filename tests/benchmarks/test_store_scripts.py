"""The benchmarks of stores and workers run, on small sizes, so that they cannot rot."""

import dask
import dsvc
import landmark_store
import linear_store
import mixing_shards
import numpy as np
import object_reads
import out_of_core
import pytest
import ridge_store
import ring
import saddle_store
import scale
import scene
import search_store
import sparse_store


def test_out_of_core_prints_one_object(run_json, tmp_path):
    size = "--rows 600 --features 200 --worker-memory 1GB --n-partitions 8 --stop-at 2 --folder"
    (found,) = run_json(out_of_core, size, tmp_path)
    assert [level["partitions"] for level in found["history"]] == [8, 2]
    assert not found["killed"]
    assert max(found["peaks"]) < found["limit_bytes"]
    assert np.isclose(found["times_the_limit"], 600 * 200 * 4 / 2e9, rtol=0.1)


def test_a_scene_is_mapped_by_workers(run_json, tmp_path):
    size = "--size 128 --bands 3 --workers 1 --per-class 50 --n-landmarks 20 --folder"
    (found,) = run_json(scene, size, tmp_path)
    assert found["data_bytes"] == 128 * 128 * 3 * 4
    assert 0.3 < found["accuracy"] <= found["best"] + 0.05
    assert not found["killed"]
    assert max(found["peaks"]) < found["limit_bytes"]


def test_object_reads_measures_both():
    row = object_reads.measure(4, 1, 0.0, 1)
    assert min(row["disk_mb_s"], row["objects_mb_s"]) > 0


def test_ring_measures_a_hop(run_json):
    (found,) = run_json(ring, "--rows 4000 --partitions 4 --repeat 2")
    assert found["hops"] == 4
    assert 0 < found["least_empty_hop_ms"] <= found["empty_hop_ms"] < 1000


@pytest.fixture
def by_passes(run_json):
    """The benchmarks go the way of stores that are not read into memory."""
    dask.config.config["dask_odm"]["read-into-memory"] = 0


@pytest.mark.usefixtures("by_passes")
def test_linear_store_measures_the_fit_beside_bare_reads(run_json, tmp_path):
    found = run_json(linear_store, "--rows 20000 --workers 1 --limit 1GB --store", tmp_path / "susy.zarr")[-1]
    assert found["gap"] <= 1e-6
    assert found["passes"] >= 3
    assert max(found["peak_mb"]) < 1000
    assert found["ratio"] == pytest.approx(found["fit_s"] / (found["passes"] * found["bare_read_s"]))


def test_sparse_store_measures_the_fit_beside_bare_reads(run_json, monkeypatch, tmp_path):
    monkeypatch.setattr(sparse_store, "BLOCK", 500)
    size = "--rows 4000 --features 1000 --entries 20 --text-rows 500 --workers 1 --kill --tol 0.05 --folder"
    found = run_json(sparse_store, size, tmp_path)[-1]
    assert found["same_bits"]
    assert [fit["killed"] for fit in found["fits"]] == [False, True]
    assert all(fit["gap"] <= 0.05 and fit["accuracy"] > 0.7 for fit in found["fits"])
    calm = found["fits"][0]
    assert calm["ratio"]["zarr"] == pytest.approx(calm["pass_s"] / calm["bare_s"]["zarr"])
    assert found["text_mb_s"].keys() == {"bytes", "scikit-learn", "ingest"}


def test_the_engine_is_measured_by_tasks_that_sleep(run_json):
    found = run_json(scale, "--workers 3 --chunks 8 --seconds 0.02 --processes 1")
    assert [each["way"] for each in found] == list(scale.WAYS)
    for each in found[1:]:
        assert 0 < each["alone"] < 1
        assert each["seconds"] > each["ideal"]
        assert each["scheduler_mb"] > each["client_mb"] > 0
        if each["way"] != "cells":
            assert each["ideal"] == pytest.approx(8 * 0.02), "a worker's chunks"
    assert found[1]["tasks"] == 3, "a task for each worker"


def test_saddle_store_measures_the_fit_beside_bare_reads(run_json, tmp_path):
    found = run_json(saddle_store, "--rows 15000 --workers 1 --limit 1GB --store", tmp_path / "susy.zarr")[-1]
    assert found["gap"] <= 1e-3
    assert found["iterations"] <= found["passes"] <= 3 * found["iterations"]
    assert max(found["peak_mb"]) < 1000


def test_ridge_over_a_store_takes_one_pass_whatever_the_shards(run_json):
    one, three = run_json(ridge_store, "--rows 3000 --workers 1 --limit 1GB --partitions 1 3")
    assert (one["passes"], one["rounds"], three["passes"], three["shards"]) == (1.0, 1, 1.0, 3)
    assert three["rounds"] > 1
    assert one["r2"] > 0.9
    assert three["r2"] > 0.8  # shards that are pushed apart


@pytest.mark.usefixtures("by_passes")
def test_landmark_store_goes_by_passes(run_json, tmp_path):
    (row,) = run_json(landmark_store, "--rows 1500 --landmarks 30 --workers 1 --limit 1GB --folder", tmp_path)
    assert (row["rows"], row["landmarks"]) == (1500, 30)
    assert row["gap"] <= 1e-3
    assert row["accuracy"] > 0.6


def test_search_store_compares_both_searches(monkeypatch, run_json):
    found = []

    def once(arguments, kill_at=None):
        """In this process, once, and not killed."""
        if not found:
            found.append(search_store.search(arguments[0], None, "1GB", 20))
        return found[0]

    monkeypatch.setattr(search_store, "run", once)
    figures = run_json(search_store, "--rows 600 --features 3")[-1]
    assert figures["same"]
    assert not figures["killed"]
    assert figures["settings"] > 36
    assert len(figures["peaks_mb"]) == 4


@pytest.mark.usefixtures("by_passes")
def test_parameter_mixing_over_a_store_stays_within_its_limit(run_json, tmp_path):
    (found,) = run_json(mixing_shards, "store --rows 5000 --epochs 2 --workers 1 --limit 1GB --folder", tmp_path)
    assert (found["epochs"], found["wrongly_named"]) == (2, 0)
    assert max(found["peak_mb"]) < 1000
    assert list(tmp_path.iterdir()) == []


def test_dsvc_measures_rounds(run_json, monkeypatch):
    monkeypatch.setattr(dsvc, "TOL", 0.05)
    (found,) = run_json(dsvc, "--rows 300 --features 4 --clients 3 --workers 1")
    assert all(fit["gap"] <= 0.05 for fit in found["fits"])
    assert found["fits"][-1]["rounds"] > 1
    assert found["bare_round"] > 0
