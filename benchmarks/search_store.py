"""A search for settings over a store larger than its workers' memory together, killed on the way and gone on with.

    python benchmarks/search_store.py [--rows 1800000] [--features 150] [--limit 500MB] [--kill-at 40]

Three processes of their own, each with its workers: one searches undisturbed; one is killed with all its workers as
soon as so many settings are tried; one goes on from the checkpoint of that. Peaks are read from the kernel (VmHWM) of
every worker. ``killed`` says whether the second was killed before it ended, and ``same`` whether both searches that
ended have the same ``cv_results_``, clocks apart, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask

import dask_odm as odm
from dask_odm.engine.workers import local_workers, peak_bytes
from dask_odm.events import Progress

WORKERS = 2
TOLD = "settings tried: "


def told(event: Any) -> None:
    """Say how far the search is, to the process that waits for it."""
    if isinstance(event, Progress) and event.phase == "search":
        print(f"{TOLD}{event.done}", flush=True)


def search(store: str, checkpoint: str | None, limit: str, landmarks: int) -> dict[str, Any]:
    """One search by workers of its own; on from ``checkpoint`` if there is one."""
    dask.config.set({"dask_odm.read-into-memory": 0})
    more = {} if checkpoint is None else {"checkpoint": checkpoint, "resume": True}
    model = odm.ODMClassifierCV(solver=odm.solvers.Landmark(landmarks), random_state=0, callbacks=[told], **more)
    with local_workers(WORKERS, memory_limit=limit) as client:
        began = time.perf_counter()
        model.fit(store)
        seconds = time.perf_counter() - began
        peaks = sorted(client.run(peak_bytes).values())
    columns = {name: values for name, values in model.cv_results_.items() if not name.endswith("time")}
    results = {name: values.tolist() if hasattr(values, "tolist") else values for name, values in columns.items()}
    return {"seconds": seconds, "peaks": peaks, "score": model.best_score_, "results": results}


def run(arguments: list[str], kill_at: int | None = None) -> dict[str, Any] | None:
    """`search` in a process of its own, which is killed, workers and all, when so many settings are tried."""
    command = [sys.executable, __file__, "--search", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if kill_at is not None and line.startswith(TOLD) and int(line[len(TOLD) :]) >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                return None
    found: dict[str, Any] = json.loads(last)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_800_000)
    parser.add_argument("--features", type=int, default=150)
    parser.add_argument("--limit", default="500MB")
    parser.add_argument("--landmarks", type=int, default=100)
    parser.add_argument("--kill-at", type=int, default=40)
    parser.add_argument("--search", nargs=4, metavar=("STORE", "CHECKPOINT", "LIMIT", "LANDMARKS"), help="one search")
    given = parser.parse_args(arguments)
    if given.search:
        store, checkpoint, limit, landmarks = given.search
        print(json.dumps(search(store, checkpoint or None, limit, int(landmarks))), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        store, checkpoint = str(Path(folder, "rows.zarr")), str(Path(folder, "search.zarr"))
        odm.datasets.make_shells(given.rows, given.features, store=store)
        rest = [given.limit, str(given.landmarks)]
        whole = run([store, "", *rest])
        killed = run([store, checkpoint, *rest], given.kill_at) is None
        again = run([store, checkpoint, *rest])
    assert whole is not None
    assert again is not None
    figures = {
        "store_mb": round(4e-6 * given.rows * given.features),
        "limit": given.limit,
        "settings": len(whole["results"]["params"]),
        "score": whole["score"],
        "seconds": round(whole["seconds"], 1),
        "seconds_after_kill": round(again["seconds"], 1),
        "peaks_mb": [round(peak * 1e-6) for peak in whole["peaks"] + again["peaks"]],
        "killed": killed,
        "same": whole["results"] == again["results"],
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
