"""What the gallery needs of the examples: the arguments that make them draw, and the pictures that they wrote."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from drawing import HOUSE
from matplotlib import pyplot as plt
from sphinx_gallery.scrapers import figure_rst

SMALLER = {  # scripts that make figures of papers again, which take long
    "mixing_tables": ["--epochs", "2", "--rows", "1000"],
    "saddle_dsvc": ["figure3"],
    "saddle_svc": ["figure1"],
}
PICTURE = Path(tempfile.gettempdir()) / "dask-odm-gallery.png"


def arguments(config: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return ``--output`` and a file for scripts that have the option."""
    path = Path(script["src_file"])
    draws = '"--output"' in path.read_text(encoding="utf-8")
    file = ["--output", str(PICTURE)] if draws else []
    return [*SMALLER.get(path.stem, []), *file]


def use_style(config: dict[str, Any], name: str) -> None:
    """Give all figures of the gallery the style of the site's pictures."""
    plt.style.use(["default", *HOUSE])


def pictures(
    block: Any, block_vars: dict[str, Any], config: dict[str, Any]
) -> str:
    """Move the picture that a script wrote to the gallery, and return what shows it."""
    if not PICTURE.exists():
        return ""
    path = next(block_vars["image_path_iterator"])
    shutil.move(PICTURE, path)
    return str(figure_rst([path], config["src_dir"]))
