"""The Python and shell blocks of README and guide run in order, in one folder, and print what the pages show."""

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
RUN = ("docs/guide.md", "README.md")  # the latter ends with a client of a cluster
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


def read_blocks() -> list[Block]:
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in RUN)
    found = re.findall(r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [Block(language, text, shown or None) for language, text, shown in found]


BLOCKS = read_blocks()
PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [
    shlex.split(line.split(" | ")[0], comments=True)
    for block in BLOCKS
    if block.language == "sh"
    for line in block.text.splitlines()
    if line.startswith("dask-odm")
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, start_workers: Any) -> Iterator[list[str]]:
    """What every Python block prints; the folder they were run in is the current one until the module's tests end."""
    names: dict[str, Any] = {"__name__": "__main__"}
    out = []
    with pytest.MonkeyPatch.context() as patch, start_workers(1) as client:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for number, block in enumerate(PYTHON, 1):
            code = compile(block.runnable(client.scheduler.address), f"Python block {number} of {RUN}", "exec")
            with redirect_stdout(StringIO()) as text:
                exec(code, names)
            out.append(text.getvalue())
        names["client"].close()
        yield out


def test_python_prints_what_is_shown(printed: list[str]) -> None:
    compared = [(block.shown, text) for block, text in zip(PYTHON, printed, strict=True) if not block.is_large]
    assert any(shown for shown, _ in compared)
    for shown, text in compared:
        assert text == (shown or "")


def test_the_large_store_is_one_block(printed: list[str]) -> None:
    ((block, text),) = [pair for pair in zip(PYTHON, printed, strict=True) if pair[0].is_large]
    assert block.shown is not None
    assert re.sub(r"\d+", "0", text) == re.sub(r"\d+", "0", block.shown)  # the same sentence, of other figures


@pytest.mark.usefixtures("printed")
def test_shell() -> None:
    assert {command[1] for command in COMMANDS} >= {"ingest", "fit", "predict", "evaluate", "info", "verify"}
    for _, *arguments in COMMANDS:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    assert len(Path("predictions.csv").read_text().splitlines()) == 1201


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    scripts = re.findall(r"python ((?:tests|examples)/\S+\.py)", text)
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    assert links or scripts


def test_headings_that_are_linked_to_are_there() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in RUN}
    headings = {
        line.lstrip("# ").lower().replace(" ", "-") for line in texts[RUN[0]].splitlines() if line.startswith("## ")
    }
    linked = re.findall(r"\]\(docs/guide\.md#([^)]+)\)", texts[RUN[1]]) + re.findall(r"\]\(#([^)]+)\)", texts[RUN[0]])
    assert linked
    assert set(linked) <= headings
    assert "](#" not in texts[RUN[1]]
