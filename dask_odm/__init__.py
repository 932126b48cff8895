"""The public names of dask_odm, each loaded on first use (PEP 562).

``import dask_odm`` itself loads only this file. It takes names and homes from ``__init__.pyi``, as type checkers do.
So a worker that needs a kernel or a store does not pay for scikit-learn, pandas and xarray.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.M)}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, and keep it."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("dask-odm")
    elif _HOME.get(name) == __name__:
        value = import_module(f"{__name__}.{name}")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'dask_odm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names; none is loaded for it."""
    return sorted(__all__)
