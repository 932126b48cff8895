"""Valid LIBSVM and CSV text, and what can happen to it: the inputs of `fuzz_readers`, each made from its number."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
NASTY = [
    b"1e999", b"-1e400", b"1e-999", b"4e38", b"nan", b"NaN",
    b"-nan", b"inf", b"-Infinity", b"infinit", b"0x1F", b"0x1p3",
    b"1_000", b"1,5", b"1.2.3", b"--1", b"+-1", b"+", b"-", b".",
    b"e5", b"1e", b"1e+", b"1E5", b"1d5", b"", b" ", b"\t",
    "٣".encode(), "１２".encode(), "−1".encode(), b"\xff", b"\xc3",
    b"\xa0", b"\x00", b"1\x002", b"\x1a", b"\xef\xbb\xbf",
    b"2147483647", b"2147483648", b"4294967297", b"9223372036854775807",
    b"9223372036854775808", b"1" * 400, b"1" * 5000,
    b"0." + b"0" * 320 + b"1", b"9" * 310, b"1:1:1", b":", b"1:", b":1",
    b"0:1", b"-1:2", b"1.0:2", b"+3:1", b"1:1 1:2",
    b"5:1 2:1", b"2147483648:1", b"9223372036854775808:1", b"10000000:1", b"10000001:1",
    b"qid:3", b"qid", b"qid:x", b"#",
    b"True", b"false", b"TRUE", b"NA", b"None", b"null", b"?",
    b'"', b'""', b"'1'", b'"1"', b'"1', b'"a,b"', b'"a\nb"',
    b"\\", b"\r", b"\n", b"\r\n", b"\n\n", b"\x0b", b"\x0c",
    b"\x85", "\u2028".encode(), b"label", b"%s", b"{0}", b"1;2",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One input: the bytes of the file, its text where that is known, and how to read it."""

    number: int
    kind: str
    data: bytes
    text: bytes | None
    suffix: str
    options: dict[str, Any]
    ingested: bool


def make_case(number: int) -> Case:
    """The case of that number, always the same."""
    dice = random.Random(number)
    kind = dice.choice(["libsvm", "csv"])
    features, rows = dice.randint(1, 6), dice.choice([0, 1, 2, 5, 20, 60])
    text = (_libsvm if kind == "libsvm" else _csv)(dice, rows, features)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3, 8])):
        text = dice.choice(MUTATIONS)(dice, text)
    data, suffix, known = text, "", True
    if dice.random() < 0.2:
        suffix = dice.choice(list(COMPRESS))
        data = COMPRESS[suffix](text)
        if dice.random() < 0.5:
            data, known = dice.choice(DAMAGE)(dice, data), False
    options: dict[str, Any] = {"format": kind, "dtype": dice.choice(["float32", "float64"])}
    options["block_bytes"] = dice.choice([1, 7, 40, 300, 8_000_000]) if len(text) < 10_000 else 100_000
    if kind == "csv":
        options |= {"header": dice.choice([None, False, True]), "label": dice.choice([None, None, 0, False])}
    elif dice.random() < 0.5:
        options["n_features"] = features
    return Case(number, kind, data, text if known else None, suffix, options, dice.random() < 0.2)


def _number(dice: random.Random) -> bytes:
    value = dice.choice([dice.gauss(0, 1), dice.randint(-5, 5), dice.gauss(0, 1) * 10.0 ** dice.randint(-30, 30), 0])
    return dice.choice(["%r", "%.3f", "%+g", "%.17g", "%e"]).replace("%r", "%s").__mod__(value).encode()


def _libsvm(dice: random.Random, rows: int, features: int) -> bytes:
    end, lines = dice.choice([b"\n", b"\r\n"]), []
    for _ in range(rows):
        indices = [i for i in range(1, features + 1) if dice.random() < 0.7]
        pairs = [b"%d:%s" % (i, _number(dice)) for i in indices]
        comment = [b"# a 3:4 comment"] if dice.random() < 0.1 else []
        lines.append(b" ".join([dice.choice([b"+1", b"-1", b"1", b"2.5"]), *pairs, *comment]))
    return end.join(lines) + dice.choice([end, b""])


def _csv(dice: random.Random, rows: int, features: int) -> bytes:
    end, separator = dice.choice([b"\n", b"\r\n"]), dice.choice([b",", b",", b";", b"\t", b"|"])
    names = [b"f%d" % i for i in range(features)] + [b"label"]
    lines = [separator.join(names)] if dice.random() < 0.5 else []
    labels = dice.choice([[b"yes", b"no", b'"a ""b"""'], [b"1", b"-1"], [b"0.5", b"1e3"]])
    for _ in range(rows):
        fields = [_number(dice) for _ in range(features)]
        fields = [b'"%s"' % field if dice.random() < 0.05 else field for field in fields]
        lines.append(separator.join([*fields, dice.choice(labels)]))
    return end.join(lines) + dice.choice([end, b""])


def _place(dice: random.Random, text: bytes) -> int:
    return dice.randint(0, len(text))


def _flip(dice: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(dice.choice([1, 1, 3, 10])):
        if out:
            out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)
    return bytes(out)


def _any_byte(dice: random.Random, text: bytes) -> bytes:
    at = _place(dice, text)
    return text[:at] + bytes([dice.randrange(256)]) + text[at + dice.randint(0, 1) :]


def _insert(dice: random.Random, text: bytes) -> bytes:
    at = _place(dice, text)
    return text[:at] + dice.choice(NASTY) + text[at:]


def _replace_token(dice: random.Random, text: bytes) -> bytes:
    """Put a nasty thing in place of a field, an index, a value or a label."""
    tokens = list(re.finditer(rb"[^\s,;|:]+", text))
    if not tokens:
        return _insert(dice, text)
    token = dice.choice(tokens)
    return text[: token.start()] + dice.choice(NASTY) + text[token.end() :]


def _cut(dice: random.Random, text: bytes) -> bytes:
    return text[: _place(dice, text)]


def _drop(dice: random.Random, text: bytes) -> bytes:
    start, length = _place(dice, text), dice.choice([1, 2, 10, 100])
    return text[:start] + text[start + length :]


def _shuffle_lines(dice: random.Random, text: bytes) -> bytes:
    lines = text.split(b"\n")
    dice.shuffle(lines)
    return b"\n".join(lines)


def _double(dice: random.Random, text: bytes) -> bytes:
    """Repeat a part: a token twice, indices that descend, a file joined to itself."""
    start, stop = sorted((_place(dice, text), _place(dice, text)))
    return text[:stop] + text[start:stop] + text[stop:]


def _long_line(dice: random.Random, text: bytes) -> bytes:
    at, size = _place(dice, text), dice.choice([1_000, 5_000, 1_000_000])
    return text[:at] + dice.choice([b"1", b" ", b"1,", b"1 ", b"1:1 ", b"\x00", b"#", b"a", b'"']) * size + text[at:]


def _wide(dice: random.Random, text: bytes) -> bytes:
    return text + b"1 " + b" ".join(b"%d:1" % i for i in range(1, dice.choice([10, 3_000]))) + b"\n"


def _line_ends(dice: random.Random, text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(
        b"\n", dice.choice([b"\r", b"\n\r", b"\r\r\n", b"\n \n", b"\x0b", b"\x85"])
    )


def _encode(dice: random.Random, text: bytes) -> bytes:
    mark = dice.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b""])
    return mark + (text if dice.random() < 0.6 else text.decode("latin-1").encode(dice.choice(["utf-16", "utf-32"])))


def _random_bytes(dice: random.Random, text: bytes) -> bytes:
    return dice.randbytes(dice.choice([0, 1, 3, 20, 200]))


MUTATIONS = [
    *(_flip, _any_byte, _insert, _insert, _replace_token, _replace_token, _replace_token, _cut, _drop, _shuffle_lines),
    *(_double, _long_line, _wide, _line_ends, _encode, _random_bytes),
]
DAMAGE = [_flip, _cut, _drop, _double, _any_byte, lambda dice, data: data + dice.randbytes(dice.randint(1, 20))]
