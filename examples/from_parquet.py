"""From Parquet and Arrow
======================

Files and tables, ingested batch by batch. Needs pyarrow and, for the picture, Matplotlib
(``pip install "dask-odm[parquet,plot]"``).
"""

from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa
from pyarrow import feather, parquet
from sklearn.metrics import RocCurveDisplay

import dask_odm as odm

X, y = odm.datasets.make_overlapping(1000, 4)
table = pa.Table.from_pandas(
    pd.DataFrame(X, columns=list("abcd")).assign(label=y)
)
clf = odm.ODMClassifier()

with TemporaryDirectory() as folder:
    parquet.write_table(table, f"{folder}/train.parquet")
    odm.ingest(
        f"{folder}/train.parquet",
        f"{folder}/from_parquet.zarr",
        label="label",
    )
    print(
        "Parquet:",
        clf.fit(f"{folder}/from_parquet.zarr").score(
            f"{folder}/from_parquet.zarr"
        ),
    )

    feather.write_feather(table, f"{folder}/train.feather")
    # a column named label is the label
    odm.ingest(f"{folder}/train.feather", f"{folder}/from_feather.zarr")
    print(
        "Feather:",
        clf.fit(f"{folder}/from_feather.zarr").score(
            f"{folder}/from_feather.zarr"
        ),
    )

    # or a RecordBatchReader, or whatever offers an Arrow stream
    odm.ingest(table, f"{folder}/from_table.zarr")
    print(
        "Arrow table:",
        clf.fit(f"{folder}/from_table.zarr").score(
            f"{folder}/from_table.zarr"
        ),
    )

# fit itself takes a table as a frame.
frame = table.to_pandas()
print(
    "in memory:",
    clf.fit(frame[list("abcd")], frame["label"]).score(
        frame[list("abcd")], frame["label"]
    ),
)

# The same frame judges the model.
display = RocCurveDisplay.from_estimator(
    clf, frame[list("abcd")], frame["label"], plot_chance_level=True
)
display.ax_.set_title("ROC of the training rows")
