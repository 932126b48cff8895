"""Ctrl-C at the n-th time a command touches a file, for every n asked for: forks a warm process for each.

``python interrupting.py FOLDER MOMENTS COMMANDS`` copies FOLDER for every moment of every command, runs it there
(``@`` in its arguments is the copy) and prints JSON: how many moments there are, and what was left at each one tried.
COMMANDS is JSON, name to arguments.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import dask_odm.cli
import dask_odm.data.ingest
import dask_odm.diagnostics.evaluation
import dask_odm.diagnostics.summaries
import dask_odm.estimators.odm_classifier
from dask_odm.methods.exact.solver import warm_up

TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "mmap.__new__", "shutil.rmtree"}
SECONDS = 60.0


def run(arguments: list[str], folder: Path, moment: int) -> None:
    """Be the command, and send SIGINT at a moment; at its end ``count`` holds how many moments there were."""
    touched = 0

    def watch(event: str, found: tuple) -> None:
        nonlocal touched
        if event in TOUCHES and (event == "mmap.__new__" or str(folder) in str(found[0])):
            touched += 1
            if touched == moment:
                os.kill(os.getpid(), signal.SIGINT)

    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["dask-odm", *arguments]
    sys.addaudithook(watch)
    status = 0
    try:
        dask_odm.cli.main()
    except SystemExit as end:
        status = end.code
    moment = 0
    folder.with_suffix(".count").write_text(str(touched))
    os._exit(status or 0)


def outcome(original: Path, arguments: list[str], moment: int) -> dict[str, object]:
    """Fork, wait, and say how the command ended and what it left."""
    folder = original.with_name(f"at-{moment}")
    shutil.copytree(original, folder)
    child = os.fork()
    if child == 0:
        try:
            run([each.replace("@", str(folder)) for each in arguments], folder, moment)
        finally:
            os._exit(99)
    deadline = time.monotonic() + SECONDS
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    stderr = folder.with_suffix(".stderr").read_text()
    counted = folder.with_suffix(".count")
    touched = int(counted.read_text()) if counted.exists() else None  # threads do not always touch files as often
    return {
        "moment": moment,
        "touched": touched,
        "status": os.waitstatus_to_exitcode(status) if ended else None,
        "stderr": stderr,
        "left": sorted(os.listdir(folder)),
    }


def main(inputs: Path, wanted: int, commands: dict[str, list[str]]) -> None:
    warm_up()
    found = {}
    for number, (name, arguments) in enumerate(commands.items()):
        original = inputs.parent / str(number) / "original"
        shutil.copytree(inputs, original)
        whole = outcome(original, arguments, -1)
        count = int(str(whole["touched"]))
        moments = sorted({*range(1, count + 1, max(1, count // wanted)), count})
        found[name] = {"folder": str(original.parent), "count": count, "whole": whole,
                       "found": [outcome(original, arguments, moment) for moment in moments]}  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
