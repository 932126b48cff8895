"""One table by every door."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

DOORS = ("frame", "csv", "csv.gz", "jsonl", "parquet", "feather", "stream", "dask", "polars")


def through(door: str, frame: pd.DataFrame, folder: Path) -> Any:
    """Return a frame as a source of one kind: itself, a file in the folder by its ending, or that of a library."""
    path = folder / f"a.{door}"
    if door.startswith("csv"):
        frame.to_csv(path, index=False)
    elif door == "jsonl":
        frame.to_json(path, orient="records", lines=True, date_format="iso", double_precision=15)
    elif door == "parquet":
        frame.to_parquet(path, row_group_size=50)
    elif door == "feather":
        frame.to_feather(path)
    elif door == "stream":
        pyarrow = pytest.importorskip("pyarrow")
        held = pyarrow.Table.from_pandas(frame)
        return pyarrow.RecordBatchReader.from_batches(held.schema, held.to_batches(max_chunksize=50))
    elif door == "dask":
        return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)
    elif door == "polars":
        return pytest.importorskip("polars").from_pandas(frame)
    else:
        return {"frame": frame}[door]
    return path
