"""Prints the oldest version of every dependency that pyproject.toml allows, as constraints for pip.

python tests/minimum_versions.py > minimum.txt && PIP_CONSTRAINT=minimum.txt make test
"""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
OPTIONAL = ("geo", "objects", "parquet", "plot")  # extras that the package uses; the others are tools


def oldest_versions() -> list[str]:
    """One line `name==version` for each dependency; raises ValueError for one without a lower bound."""
    extras = PROJECT["optional-dependencies"]
    found = []
    for each in [*PROJECT["dependencies"], *(one for extra in OPTIONAL for one in extras[extra])]:
        match = re.match(r"([\w.-]+)>=([\d.]+)", each)
        if match is None:
            raise ValueError(f"{each} has no lower bound")
        found.append("{}=={}".format(*match.groups()))
    return found


if __name__ == "__main__":
    print(*oldest_versions(), sep="\n")
