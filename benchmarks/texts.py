"""Texts to a store: seconds and bytes a second beside reading the file and beside scikit-learn's hashing alone.

    python benchmarks/texts.py [--megabytes 40] [--words 200000] [--hash 1048576]

The texts are made up: words drawn with Zipf's frequencies, 20 to 400 in a text. Entries of the store are compared with
those of scikit-learn's `HashingVectorizer` and `TfidfTransformer`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from dask_odm.data.ingest import ingest

LEAST, MOST = 20, 400  # words of a text


def write_texts(path: Path, nbytes: int, words: int) -> None:
    """Write texts of some ``nbytes`` as JSON lines."""
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, (words, 12), dtype=np.uint8).view("S12").ravel().astype(str)
    vocabulary = np.array([word[: 2 + length] for word, length in zip(letters, rng.poisson(5, words), strict=True)])
    share = 1.0 / np.arange(1, words + 1)
    share /= share.sum()
    with path.open("w") as file:
        while file.tell() < nbytes:
            drawn = vocabulary[rng.choice(words, 100 * MOST, p=share)]
            for some in np.split(drawn, np.arange(MOST, len(drawn), MOST)):
                text = " ".join(some[: rng.integers(LEAST, MOST)])
                file.write(json.dumps({"topic": int(rng.integers(5)), "body": text}) + "\n")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file of JSON lines."""
    with path.open() as file:
        for line in file:
            yield json.loads(line)["body"]


def timed(what: str, nbytes: int, call: Callable[[], Any]) -> Any:
    """Print how long a call takes, and return what it does."""
    began = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - began
    print(f"{what:<34} {seconds:>7.2f} s {nbytes / seconds / 1e6:>8.3g} MB/s", flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each way to read the texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--words", type=int, default=200_000, help="different words")
    parser.add_argument("--hash", type=int, default=1 << 20, help="features")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "docs.jsonl")
        write_texts(path, int(given.megabytes * 1e6), given.words)
        nbytes = path.stat().st_size
        timed("read the file", nbytes, path.read_bytes)
        timed("parse its lines", nbytes, lambda: sum(map(len, texts_of(path))))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        options = {"text": "body", "label": "topic", "n_features": given.hash}
        store = timed("ingest", nbytes, lambda: ingest(path, Path(folder, "text.zarr"), **options))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        hashing = HashingVectorizer(n_features=given.hash, norm=None, alternate_sign=False)
        held = list(texts_of(path))
        counts = timed("HashingVectorizer, texts in memory", nbytes, lambda: hashing.transform(held))
        rows = timed("TfidfTransformer", nbytes, lambda: TfidfTransformer().fit_transform(counts))
        worst = 0.0
        for block in store.blocks():
            part = rows[block.first : block.first + block.X.shape[0]]
            worst = max(worst, float(abs(block.X - part).max()))
        print(
            f"{store.rows:,} texts, {rows.nnz:,} entries; largest difference {worst:.1e}; ingest grew by {grown:.0f} MB"
        )


if __name__ == "__main__":
    main()
