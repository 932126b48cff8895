"""Pages and docstrings keep those rules of style that can be counted; a reader must judge the others."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import dask_odm

ROOT = Path(__file__).parent.parent
DOCS = sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))
BESIDE = sorted(p.relative_to(ROOT).as_posix() for top in ("benchmarks", "tests") for p in ROOT.glob(f"{top}/**/*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "helm/README.md", *BESIDE, *DOCS)
SCRIPTS = sorted(p.relative_to(ROOT).as_posix() for top in ("examples", "tutorials") for p in ROOT.glob(f"{top}/*.py"))
LONGEST = 40  # words of a sentence that can be read aloud once
COLUMNS = 78  # of code, which a page shows without scrolling
README_WORDS = 350
FORBIDDEN = {  # what is wrong with them: the words, in any case
    "call a thing simple": "simply|just|easy|easily|obvious(ly)?|of course|basically|clearly|trivial(ly)?|painless",
    "praise": "powerful|seamless(ly)?|effortless(ly)?|elegant(ly)?|blazing|state-of-the-art|cutting-edge",
    "add nothing": "very|really|quite|actually|please|note that|in order to|it is worth noting",
    "promise what a page should state": "will|shall|won't|going to",
    "nobody else knows": "faces?|asides?|handing up|thin rows|row span|span quer(y|ies)|common points?|whole files",
}
SPELLINGS = {  # one for each term, in this case: as it is not written, and as it is
    r"datasets?|data-sets?": "data set",
    r"dask(?!-)": "Dask",
    r"Zarr": "zarr",
    r"numpy|Numpy": "NumPy",
    r"scipy|Scipy": "SciPy",
    r"sklearn|Scikit-[Ll]earn": "scikit-learn",
    r"xgboost": "XGBoost",
    r"Xarray": "xarray",
    r"kubernetes": "Kubernetes",
    r"python": "Python",
    r"leave one out": "leave-one-out",
    r"[Mm]ulti-?class": "many classes",
    r"[Hh]yper-?parameters?": "settings",
    r"Nystr(oe|o)m": "Nyström",
    r"behavior": "behaviour",
    r"colors?": "colour",
    r"labeled": "labelled",
    r"neighbors?": "neighbour",
    r"\w*(optimi|minimi|maximi|normali|regulari|paralleli|initiali|summari|seriali)z(e[sd]?|ing)": "-ise",
}
BEGUN = {"What", "Of", "As", "Those", "Where", "How", "Which", "That"}  # with which no whole statement begins


def passages(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, points and cells of a page, each with its line, without code and directives."""
    lines: list[str] = []
    first = 0
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = line.strip()
        code = mark.startswith("```")
        fenced ^= code
        point = re.match(r"([-*]|\d+\.) +", mark)
        apart = fenced or code or not mark or mark.startswith(("#", ":", "|"))
        if (apart or point) and lines:
            yield first, " ".join(lines)
            lines = []
        if mark.startswith("|") and not fenced:
            yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", mark) if re.search(r"\w", cell))
        if not apart and (lines or point or not line.startswith("    ")):  # else a formula
            first = first if lines else number
            lines.append(mark[point.end() :] if point else mark)


def sentences(page: str) -> list[tuple[int, str]]:
    """Return the sentences of a page with their lines; a piece of code counts as a word."""
    found = []
    for line, passage in passages((ROOT / page).read_text(encoding="utf-8")):
        plain = re.sub(r"!?\[((?:[^][]|\[[^]]*\])*)\]\([^)]*\)", r"\1", passage)
        plain = re.sub(r"(`+).+?\1", "CODE", plain).replace("*", "")
        found += [(line, each) for each in re.split(r"(?<=[.!?:])\)? +(?=[A-Z(“\"])", plain)]
    return found


def said(page: str, words: str, flags: re.RegexFlag = re.NOFLAG) -> list[str]:
    """Return where a page says one of these words."""
    pattern = re.compile(rf"(?<![\w./-])(?:{words})(?![\w/])", flags)
    return [f"{page}:{line}: {sentence}" for line, sentence in sentences(page) if pattern.search(sentence)]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_can_be_read_once(page: str) -> None:
    long = [f"{page}:{line}: {each}" for line, each in sentences(page) if len(each.split()) > LONGEST]
    halved = [f"{page}:{line}: {each}" for line, each in sentences(page) if ";" in each and re.search(" [–—] ", each)]
    assert long + halved == []


@pytest.mark.parametrize("page", PAGES)
def test_conditions_begin_with_if_or_when(page: str) -> None:
    assert [f"{page}:{line}: {each}" for line, each in sentences(page) if re.match(r"Where [^?]*, \w", each)] == []


@pytest.mark.parametrize("why", FORBIDDEN)
def test_no_words_that(why: str) -> None:
    assert [place for page in PAGES for place in said(page, FORBIDDEN[why], re.IGNORECASE)] == []


@pytest.mark.parametrize("wrong", SPELLINGS)
def test_terms_have_one_spelling(wrong: str) -> None:
    assert [place for page in PAGES for place in said(page, wrong)] == [], SPELLINGS[wrong]


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_comes_before_a_table(page: str) -> None:
    """It says what to see in the table; below a heading or another table there is none."""
    text = (ROOT / page).read_text(encoding="utf-8")
    before = re.findall(r"^(.*)\n\n(?=\|.*\n\|[-| :]+\|$)", text, re.MULTILINE)
    assert [line for line in before if line.startswith(("#", "|"))] == []


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_its_box(page: str) -> None:
    """A comment that would make a line too long stands above it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL)
    long = [line for block in blocks for line in block.splitlines() if len(line) > COLUMNS]
    assert page.startswith(("benchmarks/", "tests/")) or long == []  # those are not on the site


@pytest.mark.parametrize("script", SCRIPTS)
def test_code_of_a_script_fits_its_box(script: str) -> None:
    """Its first string and comments below ``# %%`` are text of its page, but for what is indented there."""
    text = (ROOT / script).read_text(encoding="utf-8")
    told = re.compile(r'\Ar?""".*?"""|^# %%\n(#.*\n)*', re.MULTILINE | re.DOTALL)
    shown = [line for part in told.finditer(text) for line in re.findall(r"^#? {4}(.*)", part[0], re.MULTILINE)]
    shown += told.sub("", text).splitlines()
    assert [line for line in shown if len(line) > COLUMNS] == []


def test_the_readme_is_read_in_a_minute() -> None:
    """Its code and its table are counted, too."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]*>|\]\([^)]*\)", " ", text)
    assert len(re.findall(r"\S*\w\S*", shown)) <= README_WORDS
    assert re.search(r"^```python\n(?:.*\n){,8}```$", text, re.MULTILINE), "seven lines, and one between"
    commands = re.findall(r"\bmake (\w+)", text)
    assert {"demo", "test"} <= set(commands)


def test_how_to_pages_begin_with_what_their_reader_can_do() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    names = [
        name for part in ("Start", "How-to") for name in index.split(f":caption: {part}\n")[1].split("```")[0].split()
    ]
    pages = ["../helm/README" if name == "kubernetes" else name for name in names if name != "tutorials/index"]
    texts = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in pages}
    assert len(texts) > 15
    assert [page for page, text in texts.items() if not text.split("\n\n")[1].startswith("After this page")] == []


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield modules, and what the site's reference shows: public names with their methods."""
    for module in walk_packages(dask_odm.__path__, "dask_odm."):
        yield module.name, import_module(module.name)
    for space in (dask_odm, dask_odm.solvers, dask_odm.datasets):
        for name in (name for name in dir(space) if not name.startswith("_")):
            thing = getattr(space, name)
            yield f"{space.__name__}.{name}", thing
            if inspect.isclass(thing):
                yield from ((f"{name}.{part}", it) for part, it in vars(thing).items() if not part.startswith("_"))


def test_docstrings_begin_with_a_whole_statement() -> None:
    told = {name: doc for name, thing in public_objects() if (doc := inspect.getdoc(thing))}
    assert len(told) > 300
    assert {name: doc.splitlines()[0] for name, doc in told.items() if doc.split()[0] in BEGUN} == {}
