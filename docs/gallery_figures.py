"""What the gallery needs of the examples: the arguments that make them draw, and the pictures that they wrote."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

PICTURE = Path(tempfile.gettempdir()) / "dask-odm-gallery.png"


def arguments(config: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return ``--output`` and a file for scripts that have the option."""
    return (
        ["--output", str(PICTURE)]
        if '"--output"'
        in Path(script["src_file"]).read_text(encoding="utf-8")
        else []
    )


def pictures(
    block: Any, block_vars: dict[str, Any], config: dict[str, Any]
) -> str:
    """Move the picture that a script wrote to the gallery, and return what shows it."""
    if not PICTURE.exists():
        return ""
    path = next(block_vars["image_path_iterator"])
    shutil.move(PICTURE, path)
    return str(figure_rst([path], config["src_dir"]))
