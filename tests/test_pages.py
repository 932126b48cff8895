"""Every snippet of every page runs, in the order of the page and in a folder of its own, and prints what is shown."""

import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import dask
import pandas as pd
import pytest
from click.testing import CliRunner
from logo import logo

import dask_odm as odm
from dask_odm.cli import main
from dask_odm.diagnostics import planning
from dask_odm.kernels import KERNELS
from dask_odm.kernels.pivots import RACES
from object_server import BUCKET as SERVED

ROOT = Path(__file__).parent.parent
BESIDE = sorted(p.relative_to(ROOT).as_posix() for top in ("benchmarks", "tests") for p in ROOT.glob(f"{top}/**/*.md"))
DOCS = sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "helm/README.md", *BESIDE, *DOCS)
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
SMALLER = {"3_000_000": "30_000", "10_000": "1_000"}  # the large store, in a size that a test has time for
ADDRESS = "tcp://scheduler:8786"
BUCKET = "s3://bucket"
JOBS = {  # of a batch system: started here as processes, by the same package
    "from dask_jobqueue import SLURMCluster": "from dask_jobqueue.local import LocalCluster as SLURMCluster",
    'job_script_prologue=["export DASK_CONFIG=$HOME/dask-odm.yaml"]': 'scheduler_options={"dashboard_address": ":0"}',
    "maximum_jobs=20": "maximum_jobs=2",
}
PICTURE = re.compile(r"^:::+\{picture\} (\w+)\n:alt: (.+)\n\n((?:.+\n)*?.+)\n:::", re.MULTILINE)
TRIED_ELSEWHERE = {"docker", "helm", "kind", "kubectl"}  # by the tests of the chart, as far as they can be


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the output shown right below it, if any."""

    language: str
    text: str
    shown: str

    @property
    def is_python(self) -> bool:
        return self.language == "python" and "import mlflow" not in self.text  # which test_compatibility.py runs

    @property
    def is_large(self) -> bool:
        return next(iter(SMALLER)) in self.text

    @property
    def runnable(self) -> str:
        text = self.text
        for number, less in SMALLER.items() if self.is_large else ():
            text = text.replace(number, less)
        return text

    @property
    def commands(self) -> list[list[str]]:
        """Words of each command; those that a line continues are one."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "sh" else []
        return [words for line in lines if (words := shlex.split(line.split(" | ")[0], comments=True))]


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", TEXTS[page], re.M | re.S)
    return [Block(*each) for each in found]


def is_run(block: Block) -> bool:
    return block.is_python or any(words[0] == "dask-odm" for words in block.commands)


def slug(heading: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


QUICK = ("README.md", "docs/index.md")  # what everybody reads first
RUN = [
    pytest.param(page, marks=() if page in QUICK else pytest.mark.slow)
    for page in PAGES
    if any(map(is_run, blocks(page)))
]


@pytest.fixture(autouse=True)
def settings_of_the_process() -> Iterator[None]:
    """Put back what pages may change: Dask's settings, and what Ctrl-C does, which dask_jobqueue replaces."""
    before, ctrl_c = deepcopy(dask.config.config), signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, ctrl_c)
    dask.config.config.clear()
    dask.config.config.update(before)


# Of jobs: what dask-jobqueue starts in their place is killed without being waited for.
@pytest.mark.filterwarnings("ignore:.*Popen.__del__:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("page", RUN)
def test_snippets(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    for registry, word in ((KERNELS, "exponential"), (RACES, "diagonal")):  # which a page registers
        monkeypatch.setitem(registry, word, None)  # so that it is forgotten afterwards
    monkeypatch.setattr(planning, "NUMBERS", dict.fromkeys(planning.NUMBERS, (20_000, 4000)))  # else fits of seconds
    names: dict[str, Any] = {"__name__": "__main__"}
    stands_for = dict(JOBS)
    with ExitStack() as stack:
        if ADDRESS in TEXTS[page]:
            client = stack.enter_context(request.getfixturevalue("start_workers")(1))
            stands_for[ADDRESS] = client.scheduler.address
        if BUCKET in TEXTS[page]:
            stands_for[BUCKET] = request.getfixturevalue("place")
            put_rows(request.getfixturevalue("object_server"), stands_for[BUCKET])
        for number, block in enumerate(blocks(page), 1):
            if block.is_python:
                text = run_python(replaced(block.runnable, stands_for), f"Python block {number} of {page}", names)
                if block.is_large:  # the same sentence, of other figures
                    text, shown = (re.sub(r"\d+", "0", each) for each in (text, block.shown))
                else:
                    shown = block.shown
                assert text == shown, f"block {number}"
            for words in block.commands:
                if words[0] == "dask-odm":
                    done = CliRunner().invoke(main, [replaced(word, stands_for) for word in words[1:]])
                    assert done.exit_code == 0, f"{words}: {done.output}"
        if "client" in names:
            names["client"].close()


def replaced(text: str, stands_for: dict[str, str]) -> str:
    for written, meant in stands_for.items():
        text = text.replace(written, meant)
    return text


def run_python(text: str, title: str, names: dict[str, Any]) -> str:
    """Return what a block prints."""
    with redirect_stdout(StringIO()) as out:
        exec(compile(text, title, "exec"), names)
    return out.getvalue()


def put_rows(server: Any, place: str) -> None:
    """Upload the file and the store that the page of object stores takes for granted."""
    X, y = odm.datasets.make_overlapping(60, 3)
    lines = ["a,b,c,kind", *(",".join(map(str, [*row, kind])) for row, kind in zip(X, y, strict=True))]
    server.put(f"{place.removeprefix(f's3://{SERVED}/')}/train.csv", "\n".join(lines).encode())
    odm.ingest(pd.DataFrame(X, columns=list("abc")), f"{place}/new.zarr", label=False)


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.commands for block in blocks(page))])
def test_commands_name_what_is_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in (words for block in blocks(page) for words in block.commands):
        while "=" in words[0]:  # a variable of the environment
            words = words[1:]
        program, *rest = words
        match program.removeprefix(".venv/bin/"):
            case "python" | "python3":
                name = rest[1] if rest[0] == "-m" else rest[0]
                assert name == "venv" or any((ROOT / each).exists() for each in (name, name.replace(".", "/"))), words
            case "make":
                assert rest[0] in targets
            case "pytest":
                assert (ROOT / rest[0]).exists()
            case "pip":
                assert rest[0] == "install"
            case ".ci/run":
                assert (ROOT / program).exists()
            case "dask-odm":
                assert rest[0] == "--help" or rest[0] in main.commands
            case "export" | "cat" | "cp" | "git" | "cd":
                pass
            case other:
                assert other in TRIED_ELSEWHERE, words


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """As GitHub follows them; `tests/test_site.py` looks at the site's."""
    text = re.sub(r"^```.*?^```$", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), link


def test_pictures_are_drawn_by_a_script_and_told_in_words() -> None:
    """Each has a text for who cannot see it, and a sentence on what to see."""
    found = [each for text in TEXTS.values() for each in re.findall(PICTURE, text)]
    assert {name for name, _, _ in found} == {path.stem for path in (ROOT / "docs" / "pictures").glob("*.py")}
    assert [name for name, alt, said in found if len(alt.split()) < 5 or not said.endswith(".")] == []


def test_the_logo_is_what_its_script_draws() -> None:
    assert logo() == (ROOT / "docs" / "logo.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_scripts_that_are_named_are_there(page: str) -> None:
    named = re.findall(r"(?:python |`)((?:tests|examples|benchmarks)/[\w/]+\.py)", TEXTS[page])
    assert [script for script in named if not (ROOT / script).exists()] == []
