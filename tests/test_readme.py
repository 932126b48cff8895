"""The Python and shell blocks of a page run in order, in one folder, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dask_odm.cli import main

ROOT = Path(__file__).parent.parent
RUN = ("docs/guide.md", "docs/text.md", "README.md")  # the latter ends with a client of a cluster
PAGES = (*RUN, "docs/benchmarks.md")
SMALLER = {"3_000_000": "30_000", "10_000": "1_000"}  # the large store, in a size that a test has time for
ADDRESS = "tcp://scheduler:8786"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the output shown right below it, if any."""

    language: str
    text: str
    shown: str | None

    @property
    def is_large(self) -> bool:
        return next(iter(SMALLER)) in self.text

    def runnable(self, address: str) -> str:
        """The block as a test can run it: the large store made smaller, and a scheduler that is there."""
        text = self.text.replace(ADDRESS, address)
        if self.is_large:
            for number, less in SMALLER.items():
                text = text.replace(number, less)
        return text


def read_blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [Block(language, text, shown or None) for language, text, shown in found]


@dataclass(frozen=True)
class Page:
    """A page, its Python blocks with what each of them printed, and its commands."""

    name: str
    printed: list[tuple[Block, str]]
    commands: list[list[str]]


@pytest.fixture(scope="module", params=RUN)
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, start_workers: Any
) -> Iterator[Page]:
    """A page whose Python was run; the folder it was run in is the current one until the next page."""
    blocks = read_blocks(request.param)
    commands = [
        shlex.split(line.split(" | ")[0], comments=True)
        for block in blocks
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("dask-odm")
    ]
    names: dict[str, Any] = {"__name__": "__main__"}
    out = []
    with pytest.MonkeyPatch.context() as patch, start_workers(1) as client:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for number, block in enumerate((each for each in blocks if each.language == "python"), 1):
            name = f"Python block {number} of {request.param}"
            code = compile(block.runnable(client.scheduler.address), name, "exec")
            with redirect_stdout(StringIO()) as text:
                exec(code, names)
            out.append((block, text.getvalue()))
        if "client" in names:
            names["client"].close()
        yield Page(request.param, out, commands)


def test_python_prints_what_is_shown(page: Page) -> None:
    compared = [(block.shown, text) for block, text in page.printed if not block.is_large]
    assert any(shown for shown, _ in compared)
    for shown, text in compared:
        assert text == (shown or "")


def test_the_large_store_is_one_block(page: Page) -> None:
    large = [pair for pair in page.printed if pair[0].is_large]
    assert len(large) == (page.name == RUN[0])
    for block, text in large:
        assert block.shown is not None
        assert re.sub(r"\d+", "0", text) == re.sub(r"\d+", "0", block.shown)  # the same sentence, of other figures


def test_shell(page: Page) -> None:
    more = {"evaluate", "info", "verify"} if page.name == RUN[0] else {"report"}
    assert {command[1] for command in page.commands} >= {"ingest", "fit", "predict", *more}
    for _, *arguments in page.commands:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    assert len(Path("predictions.csv").read_text().splitlines()) == 1201


@pytest.mark.parametrize("named", PAGES)
def test_files_that_are_named_are_there(named: str) -> None:
    text = (ROOT / named).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    scripts = re.findall(r"python ((?:tests|examples)/\S+\.py)", text)
    assert [link for link in links if not (ROOT / named).parent.joinpath(link).exists()] == []
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    assert links or scripts


def test_headings_that_are_linked_to_are_there() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in RUN}
    headings = {
        line.lstrip("# ").lower().replace(" ", "-") for line in texts[RUN[0]].splitlines() if line.startswith("## ")
    }
    linked = re.findall(r"\]\(docs/guide\.md#([^)]+)\)", texts[RUN[-1]]) + re.findall(r"\]\(#([^)]+)\)", texts[RUN[0]])
    assert linked
    assert set(linked) <= headings
    assert "](#" not in texts[RUN[-1]]
