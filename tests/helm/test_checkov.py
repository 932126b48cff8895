"""checkov finds nothing in what the chart renders but what the user's page gives a reason for.

checkov pins what it depends on, so it has an environment of its own: ``make checkov`` makes one and runs this test.
"""

import json
import os
import re
import shutil
import subprocess

import pytest
from charts import ROOT, template


def accepted() -> set[str]:
    """Checks in the page's table of reasons."""
    return set(re.findall(r"^\| (CKV_K8S_\d+), ", (ROOT / "helm" / "README.md").read_text("utf-8"), re.MULTILINE))


@pytest.fixture(scope="module")
def checkov() -> str:
    found = os.environ.get("DASK_ODM_CHECKOV") or shutil.which("checkov")
    if not found:
        pytest.skip("no checkov on the path; 'make checkov' installs one")
    return found


@pytest.mark.parametrize("value_set", ["default", "train"])
def test_nothing_is_found_without_a_reason(checkov, tmp_path, value_set):
    (tmp_path / "rendered.yaml").write_text(template(value_set))
    # without its maker's guidelines, which it would fetch
    command = [checkov, "--file", "rendered.yaml", "--framework", "kubernetes", "--skip-download", "--output", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["parsing_errors"] == 0
    assert found["summary"]["passed"] > 200
    failed = {each["check_id"]: each["resource"] for each in found["results"]["failed_checks"]}
    assert failed.keys() - accepted() == set(), failed
    if value_set == "default":
        assert accepted() - failed.keys() == set(), "reasons for what is not found any more"
    readiness = [each["resource"] for each in found["results"]["failed_checks"] if each["check_id"] == "CKV_K8S_9"]
    assert all(each.startswith("Pod.") for each in readiness)
