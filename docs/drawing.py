"""Pictures of pages: the directive ``picture`` runs a script of ``docs/pictures`` when the site is built, and shows it.

A page has them as a fence ``:::{picture} maps``, with the option ``:alt:`` and a sentence on what to see. A script
leaves one pyplot figure. It is drawn once, and saved twice: for light pages, and with a light ink for dark ones.

``python docs/drawing.py landing docs/landing`` draws the files of the README, which are there before the site is built.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, ClassVar

import matplotlib as mpl
from docutils import nodes
from docutils.parsers.rst.directives import unchanged_required
from PIL import Image
from sphinx.util.docutils import SphinxDirective

from dask_odm.diagnostics import plotting

DOCS = Path(__file__).resolve().parent
SCRIPTS = DOCS / "pictures"
STYLE = SCRIPTS / "house.mplstyle"
HOUSE = [STYLE, {"axes.prop_cycle": mpl.cycler(color=plotting.COLOURS)}]
DRAWN = DOCS / "generated" / "pictures"
WIDE = 600.0  # points from which on a picture scrolls sideways on a telephone
INKS = {"light": "#333333", "dark": "#d8d8d8"}


@contextmanager
def drawn(name: str, theme: str = "light") -> Iterator[Any]:
    """Run a script in the style of all pictures, and yield its figure, to be saved in that style."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    with plt.style.context(HOUSE), mpl.rc_context({"svg.hashsalt": name}):
        for key, value in mpl.rcParams.items():
            if value == INKS["light"]:
                mpl.rcParams[key] = INKS[theme]
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        yield plt.gcf()
        plt.close("all")


def draw(name: str) -> None:
    """Write the pictures of a script, unless they are younger than what draws them."""
    files = {theme: DRAWN / f"{name}-{theme}.svg" for theme in INKS}
    palette = Path(plotting.__file__)
    sources = (SCRIPTS / f"{name}.py", STYLE, palette, DOCS / "boxes.py")
    if all(file.exists() for file in files.values()):
        age = min(file.stat().st_mtime for file in files.values())
        if age > max(source.stat().st_mtime for source in sources):
            return
    DRAWN.mkdir(parents=True, exist_ok=True)
    out = StringIO()
    with drawn(name) as figure:
        figure.savefig(
            out,
            format="svg",
            transparent=True,
            bbox_inches="tight",
            metadata={"Date": None},
        )
    for theme, file in files.items():
        file.write_text(
            out.getvalue().replace(INKS["light"], INKS[theme]),
            encoding="utf-8",
        )


class Picture(SphinxDirective):
    """A picture with its sentence, for light and dark pages, above a fold with the script that draws it."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"alt": unchanged_required}
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture and its script."""
        (name,) = self.arguments
        script = SCRIPTS / f"{name}.py"
        self.env.note_dependency(str(script))
        self.env.note_dependency(str(STYLE))
        draw(name)
        # Beside a picture that is hidden the theme hides the sentence, too.
        images = nodes.container()
        for theme in INKS:
            uri = f"/generated/pictures/{name}-{theme}.svg"
            images += nodes.image(
                uri=uri, alt=self.options["alt"], classes=[f"only-{theme}"]
            )
        text = (DRAWN / f"{name}-light.svg").read_text(encoding="utf-8")
        width = float(re.findall(r'width="([\d.]+)pt"', text)[0])
        wide = ["wide"] if width > WIDE else []
        figure = nodes.figure("", images, classes=["picture", *wide])
        caption = nodes.caption()
        inner = self.parse_content_to_nodes()
        caption += inner[0].children if inner else []
        figure += caption
        text = script.read_text(encoding="utf-8")
        code = nodes.literal_block(text, text, language="python")
        opened = '<details class="drawn"><summary>The script that draws it</summary>'
        return [
            figure,
            nodes.raw("", opened, format="html"),
            code,
            nodes.raw("", "</details>", format="html"),
        ]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive to Sphinx."""
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS))
    _, name, path = sys.argv
    for theme, ground in {"light": "white", "dark": "#0d1117"}.items():
        written = BytesIO()
        with drawn(name, theme) as figure:
            figure.savefig(
                written, bbox_inches="tight", facecolor=ground, dpi=160
            )
        # An octree keeps the ink, which few pixels have.
        Image.open(written).convert("RGB").quantize(
            128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        ).save(f"{path}-{theme}.png", optimize=True)
