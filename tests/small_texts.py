"""Texts with topics to learn, and scikit-learn's way from them to rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.pipeline import Pipeline, make_pipeline

TOPICS = ("Käse", "news", "sport")


def made_texts(rows: int = 300, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts, some of them without a word, of words that topics share in part; and their topics."""
    rng = np.random.default_rng(seed)
    words = np.array([f"{begin}{i}" for i in range(150) for begin in ("Wort", "straße_", "日本語")])
    topics = rng.choice(TOPICS, rows)
    first = {topic: 100 * i for i, topic in enumerate(TOPICS)}
    texts = [", ".join(rng.choice(words[first[topic] : first[topic] + 200], rng.integers(0, 40))) for topic in topics]
    return [*texts[:-2], "A b c.", ""], topics


def pipeline(n_features: int = 2**20) -> Pipeline:
    return make_pipeline(HashingVectorizer(n_features=n_features, norm=None, alternate_sign=False), TfidfTransformer())


def write_lines(path: Path, **named: Any) -> str:
    """Write a file of JSON lines with these columns."""
    rows = zip(*named.values(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(named, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    return str(path)
