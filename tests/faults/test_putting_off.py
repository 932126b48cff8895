"""A read that the system puts off (EAGAIN) is an error, wherever a file is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tries.system_calls import build

SCRIPT = Path(__file__).with_name("putting_off.py")


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
def test_a_read_that_is_put_off_is_an_error(tmp_path):
    library = build(tmp_path)
    if library is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "read").mkdir()
    command = [sys.executable, str(SCRIPT), str(library), str(tmp_path / "read")]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: each["broken"] for name, each in found.items() if each["broken"]} == {}
    assert all(each["reads"] for each in found.values()), found
