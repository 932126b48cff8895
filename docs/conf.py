"""Configuration of the documentation site, which ``make docs`` builds without a network.

Left out on purpose: intersphinx, whose inventories would have to be fetched, and links to the source on a host, for
which viewcode's pages stand.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from dask_odm.cli.fit import fit, search
from dask_odm.estimators.cards import documentation

ROOT = Path(__file__).resolve().parent.parent

project = "dask_odm"
author = "dask_odm developers"
copyright = author
release = version = installed_version("dask-odm")

sys.path.insert(0, str(Path(__file__).parent))  # drawing, gallery_figures

extensions = [
    "drawing",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "generated/pictures"]
default_role = "autolink"  # `name` in a docstring is a link if there is such a name, else a word in italics
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r"sklearn\..*")
]  # whose pages are elsewhere
smartquotes = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = (
    4  # as GitHub has them, so that a link to a heading works in both places
)

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections tell the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template of classes lists them
numpydoc_class_members_toctree = False
# Sections in order and of known names, a summary in one line, every parameter told and no other.
numpydoc_validation_checks = {
    "GL06",
    "GL07",
    "GL08",
    "GL10",
    "PR01",
    "PR02",
    "PR06",
    "PR10",
    "SS01",
    "SS02",
    "SS03",
}
# Of `Store` and the like most is for the package itself, and has a line a method.
numpydoc_validation_exclude = {
    r"\.Store\b",
    r"\.Scene$",
    r"\.most_rows$",
}

copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": ["../examples", "../tutorials"],
    "gallery_dirs": ["gallery", "tutorials"],
    "copyfile_regex": r"index\.rst",  # the tutorials' own first page
    "filename_pattern": r"/[^/]*$",
    "ignore_pattern": r"saddle_data\.py$",  # what others import
    "capture_repr": ("_repr_html_",),
    "reset_argv": "gallery_figures.arguments",
    "image_scrapers": ("matplotlib", "gallery_figures.pictures"),
    "reset_modules": ("gallery_figures.use_style",),
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 3600,  # seconds differ from build to build
    "write_computation_times": False,
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "dask_odm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = html_logo = "logo.svg"  # drawn by logo.py
html_extra_path = ["social.png"]
html_context = {"social": f"{documentation()}social.png"}
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"**": ["sidebar-collapse", "all_pages"]}
html_theme_options = {
    "logo": {"text": "dask_odm", "alt_text": "dask_odm"},
    "navigation_with_keys": False,
    "navbar_center": [],  # all pages are in the sidebar
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}


def with_estimator_options(command: Any) -> None:
    """Give a command the options of its default estimator, which it makes only when it reads a command line."""
    context = command.make_context(command.name, ["STORE", "MODEL"])
    command.params = [
        each for each in command.get_params(context) if each.name != "help"
    ]
    for each in command.params:
        if getattr(each, "help", None):
            each.help = re.sub(
                r"(?<=\w)_(?!\w)", r"\_", each.help
            )  # else the end of a link


for command in (fit, search):
    with_estimator_options(command)

# Files beside docs/ that have a page of the site; elsewhere such a link opens the file itself.
PAGES = {
    "examples": "gallery/index.rst",
    **{
        f"examples/{path.name}": f"gallery/{path.stem}.rst"
        for path in (ROOT / "examples").glob("*.py")
    },
    "tutorials": "tutorials/index.rst",
    **{
        f"tutorials/{path.name}": f"tutorials/{path.stem}.rst"
        for path in (ROOT / "tutorials").glob("*.py")
    },
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "README.md": "index.md",
    "helm/README.md": "kubernetes.md",
    "helm/dask-odm/README.md": "chart_values.md",
}
LINK = re.compile(r"\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def link_pages(text: str, folder: Path) -> str:
    """Point links of a file in ``folder`` to files of the repository at their pages of the site."""

    def page(found: re.Match[str]) -> str:
        target = (folder / found["path"]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return found[0]
        path = target.relative_to(ROOT).as_posix()
        where = PAGES.get(path) or (
            path.removeprefix("docs/")
            if path.startswith("docs/")
            else f"../{path}"
        )
        return f"]({where}{found['anchor'] or ''})"

    return LINK.sub(page, text)


def read_page(app: Any, docname: str, source: list[str]) -> None:
    """Rewrite the links of a page before it is parsed."""
    source[0] = link_pages(source[0], ROOT / "docs")


def read_included(
    app: Any, path: Path, docname: str, source: list[str]
) -> None:
    """Rewrite the links of a file that a page includes, which are meant from its own folder."""
    source[0] = link_pages(source[0], (ROOT / "docs" / path).resolve().parent)


def skip_inherited(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn and Python define: their pages tell of it."""
    module = getattr(member, "__module__", None) or getattr(
        getattr(member, "fget", None), "__module__", ""
    )
    return None if str(module).startswith("dask_odm") else True


def mend_lines(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Make links to pages, and escape underscores at the ends of attributes' names: numpydoc escapes one a line."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith("**"):
            lines[number] = re.sub(r"(?<=\w)_(?=[,)\s])", r"\\_", line)
        lines[number] = re.sub(
            r"``docs/(\w+)\.md``", r":doc:`/\1`", lines[number]
        )


def setup(app: Any) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect(
        "autodoc-process-docstring", mend_lines, priority=600
    )  # after numpydoc
    app.connect("autodoc-skip-member", skip_inherited)
