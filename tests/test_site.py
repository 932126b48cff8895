"""The site is built without a warning, its links lead somewhere, and a browser finds nothing wrong with it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

import dask_odm
from dask_odm.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NEEDED = ("sphinx", "pydata_sphinx_theme", "myst_parser", "numpydoc", "sphinx_gallery", "sphinx_click")
THEME_SAYS = ("[PST]: ", "Got invalid theme mode: . Resetting to auto.")  # of the theme itself, on every page
SHOWN = ("gallery", "tutorials")  # folders of pages that show scripts
DRAWN = ("linear", "saddle_dsvc")  # one leaves a figure, the other writes a picture; `test_examples.py` runs them all
GENERATED = ("_modules", "generated")  # folders of which a browser opens a few pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site as ``make docs`` builds it; tutorials do not run, nor most examples without a browser."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-b", "html"]
    run = "" if shutil.which("chromium") else f"({'|'.join(DRAWN)})[.]"
    command += ["-D", f"sphinx_gallery_conf.filename_pattern=/examples/{run}", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """Anchors of a page, what it links to, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a":
            self.links += [named["href"]] if "href" in named else []
        elif tag != "link" or named.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded += [named[name] for name in ("src", "href") if name in named]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}


def test_links_and_images_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not link:
                continue
            target = path.parent.joinpath(unquote(parts.path)).resolve() if parts.path else path
            there = target.exists() and (
                not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors
            )
            broken += [] if there else [f"{path.name}: {link}"]
    assert broken == []


def test_every_how_to_page_has_a_picture_with_a_text_for_who_cannot_see_it(site: Path) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    names = index.split(":caption: How-to\n")[1].split("```")[0].split()
    assert len(names) > 10
    found = {name: (site / f"{name}.html").read_text(encoding="utf-8") for name in names}
    assert [name for name, text in found.items() if not re.search(r'<img alt="[^"]{20,}" class="only-', text)] == []


def test_an_example_s_thumbnail_is_what_it_draws(site: Path) -> None:
    found = {path.name: path.read_bytes() for path in (site / "_images").glob("sphx_glr_*_thumb.png")}
    drawn = {found.pop(f"sphx_glr_{name}_thumb.png") for name in DRAWN}
    assert len(drawn - set(found.values())) == len(DRAWN)


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    loaded = {link for page in pages.values() for link in page.loaded}
    assert len(loaded) > 20
    assert [link for link in loaded if urlsplit(link).netloc] == []


def test_every_public_name_and_command_has_a_place(pages: dict[Path, Page]) -> None:
    anchors = set().union(*(page.anchors for page in pages.values()))
    names = {f"dask_odm.{name}" for name in dask_odm.__all__} - {"dask_odm.__version__"}
    names -= {"dask_odm.datasets", "dask_odm.solvers"}
    names |= {f"dask_odm.solvers.{name}" for name in dask_odm.solvers.__all__}
    names |= {f"dask_odm.datasets.{name}" for name in vars(dask_odm.datasets) if not name.startswith("_")}
    assert names - anchors == set()
    assert {f"dask-odm-{name}" for name in main.commands} - anchors == set()


def test_the_index_of_the_search_has_the_classifier(site: Path) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    assert any(term.startswith("odmclassif") for term in index["terms"])  # terms are stems


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site, for a browser."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with serving(partial(Quiet, directory=str(site))) as url:
        yield url


@contextmanager
def serving(handler: partial[SimpleHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def browse(url: str, folder: Path, seconds: int = 10) -> tuple[str, list[str]]:
    """Return what a page is once its scripts have run, and what it wrote to the console."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on this machine")
    command = [
        browser,
        "--headless",
        "--no-sandbox",  # the site is ours, and the tests may run as root
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--virtual-time-budget={1000 * seconds}",
        f"--user-data-dir={folder}",
        "--dump-dom",
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + seconds, check=True)
    said = re.findall(r"CONSOLE.*", done.stderr)
    return done.stdout, [line for line in said if not any(each in line for each in THEME_SAYS)]


def test_pages_are_read_on_a_telephone_and_in_the_dark(pages, site, address, tmp_path):
    """No page scrolls sideways, nor the code of one on a desk; no text or picture fades into what is behind it.

    Nor have the pages anything to say on the console.
    """
    script = (ROOT / "tests" / "look_at_pages.js").read_text(encoding="utf-8")
    few = [path for each in GENERATED for path in sorted((site / each).rglob("*.html"))[:3]]
    opened = [path for path in pages if path.parent == site or path.parent.name in SHOWN] + few
    assert len(opened) > 20
    there = json.dumps([f"/{path.relative_to(site).as_posix()}" for path in opened])
    call = f'look({there}, [400, 1400], ["light", "dark"]);'
    (site / "_static" / "look.html").write_text(
        f'<!doctype html><meta charset="utf-8"><body><script>{script}\n{call}</script>', encoding="utf-8"
    )
    dom, said = browse(f"{address}/_static/look.html", tmp_path, seconds=600)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, "the browser did not come to the end"
    assert json.loads(unescape(found[1])) == []
    assert said == []


def test_the_search_finds_the_classifier(address: str, tmp_path: Path) -> None:
    dom, _ = browse(f"{address}/search.html?q=ODMClassifier", tmp_path)
    results = dom[dom.index('id="search-results"') :]
    assert "generated/dask_odm.ODMClassifier.html" in results
