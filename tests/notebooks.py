"""Notebooks in tests: run in a kernel of their own, by nbclient; a skip with a reason where it is not installed."""

from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 120  # seconds a cell


def run_notebook(notebook: Any, folder: Path) -> Any:
    """Run a notebook, a path or made by `new_notebook`, in ``folder``; return it with outputs, warnings shown."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    if isinstance(notebook, Path):
        notebook = nbformat.read(notebook, 4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("import warnings; warnings.simplefilter('always')"))
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=TIMEOUT, resources={"metadata": {"path": str(folder)}}
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        return client.execute()


def new_notebook(*cells: str) -> Any:
    """A notebook of code cells."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def shown(notebook: Any, stream: str) -> str:
    """What the cells of a notebook wrote to ``stdout`` or ``stderr``."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.get("name") == stream)
