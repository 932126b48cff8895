"""From Dask arrays and frames
===========================

One partition computed at a time, lengths resolved where they are unknown.
"""

from tempfile import TemporaryDirectory

import dask.array as da
import dask.dataframe as dd
import matplotlib.pyplot as plt
import pandas as pd

import dask_odm as odm

X, y = odm.datasets.make_overlapping(1000, 4)
of_array, of_frame = odm.ODMClassifier(), odm.ODMClassifier()

# Arrays: predictions are lazy dask arrays with the chunks of X.
rows, labels = (
    da.from_array(X, chunks=(250, -1)),
    da.from_array(y, chunks=250),
)
of_array.fit(rows, labels)
print("array:", of_array.predict(rows), of_array.score(rows, labels))

# Frames: here of partitions whose lengths Dask does not know.
frame = dd.from_pandas(
    pd.DataFrame(X, columns=list("abcd")).assign(label=y), npartitions=4
)
frame = frame[frame["a"] > -2]
of_frame.fit(frame[list("abcd")], frame["label"])
print(
    "frame:",
    *of_frame.feature_names_in_,
    of_frame.predict(frame[list("abcd")]).compute()[:5],
)

# Either as a store, and predictions block by block: of arrays as zarr, of
# frames as a column.
with TemporaryDirectory() as folder:
    odm.ingest((rows, labels), f"{folder}/array.zarr")
    odm.ingest(frame, f"{folder}/frame.zarr", label="label")
    of_array.predict(rows).to_zarr(f"{folder}/labels.zarr")
    frame.assign(found=of_frame.predict(frame[list("abcd")])).to_parquet(
        f"{folder}/labels", write_index=False
    )
    stores = (
        of_array.fit(f"{folder}/array.zarr"),
        of_frame.fit(f"{folder}/frame.zarr"),
    )
    print("stores:", *(model.dual_gap_ for model in stores))

# Predictions of one block at a time, here as boxes.
values = of_array.decision_function(rows)
plt.boxplot(
    [values.blocks[block].compute() for block in range(values.numblocks[0])]
)
plt.xlabel("block of rows")
plt.ylabel("decision value")
