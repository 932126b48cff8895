"""Text from data, such as labels, names and paths, as people may see it: nothing a terminal obeys, and not endless.

Errors, warnings, the command line, pages and pictures show such text through this module.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any

NAME_LETTERS = 60  # most letters that are shown of a label or a name
MESSAGE_LETTERS = 2000  # most letters of a message
_LABELS = Repr()
_LABELS.maxlist = 10
_LABELS.maxstring = _LABELS.maxother = NAME_LETTERS


def printable(text: str, most: int | None = None, *, kept: str = "") -> str:
    """Return text in which escapes, line ends and halves of surrogates are spelled as `repr` spells them.

    Of text longer than ``most`` letters, the beginning and the end are left. Characters in ``kept`` stay as they are.
    """
    if most is not None and len(text) > most:
        end = most // 3
        text = f"{text[: most - end - 1]}…{text[-end:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def short(value: Any, most: int = NAME_LETTERS) -> str:
    """Return a label or a name as printable text of about ``most`` letters."""
    return printable(str(value), most)


def quoted(labels: Any) -> str:
    """Return a label, or the first of a list of labels, for a message: as Python spells them, long ones cut."""
    return _LABELS.repr(labels)
