"""A small table of numbers, words, dates, booleans and gaps, whose labels depend on the words and the numbers."""

import numpy as np
import pandas as pd


def made_table(n: int = 80, seed: int = 0) -> pd.DataFrame:
    """Rows whose ``kind`` is "yes" if ``job`` is "cook", or ``age`` above 45."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 70, n).astype(float),
            "job": rng.choice(["cook", "nurse", "smith"], n),
            "when": np.datetime64("2024-01-01") + rng.integers(0, 300, n).astype("timedelta64[D]"),
            "smoker": rng.random(n) < 0.5,
        }
    )
    frame["kind"] = np.where((frame["job"] == "cook") | (frame["age"] > 45), "yes", "no")
    frame.loc[::9, "age"] = np.nan
    frame.loc[::11, "job"] = None
    return frame
