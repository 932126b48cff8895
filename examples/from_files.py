"""From files
==========

One file, a list, a folder or a pattern, of one format; columns of words, and gaps, which are filled or dropped.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dask_odm as odm

X, y = odm.datasets.make_overlapping(1000, 4)
clf = odm.ODMClassifier()

with TemporaryDirectory() as temporary:
    folder = Path(temporary)
    (folder / "parts").mkdir()
    for i in range(4):
        part = pd.DataFrame(X[i::4], columns=list("abcd")).assign(
            label=y[i::4]
        )
        part.to_csv(folder / "parts" / f"part-{i}.csv.gz", index=False)

    odm.ingest(folder / "parts", folder / "folder.zarr")
    odm.ingest(f"{folder}/parts/part-[01].csv.gz", folder / "pattern.zarr")
    clf.fit(folder / "folder.zarr")
    print(
        "trained on the folder, accuracy on half of it: "
        f"{clf.score(folder / 'pattern.zarr'):.3f}"
    )

    np.savez(folder / "train.npz", X=X, y=y)
    train, test = odm.ingest(
        folder / "train.npz", folder / "train.zarr", test_size=0.2, seed=1
    )
    print(f"split: {train.rows} and {test.rows} rows")

    (folder / "table.csv").write_text(
        "width,colour,label\n1,red,yes\n3,,no\n,blue,no\n6,red,yes\n"
    )
    table = odm.ingest(folder / "table.csv", folder / "table.zarr")
    for column in table.column_recipe.facts():
        print(
            f"{column['name']}: {column['read_as']}, {column['values']}, "
            f"{column['gaps']} gap"
        )
    print(
        "rows left:",
        odm.ingest(
            folder / "table.csv", folder / "whole.zarr", drop_missing=True
        ).rows,
    )

# Values of both classes, by the model of the folder.
values = clf.decision_function(pd.DataFrame(X, columns=list("abcd")))
plt.hist(
    [values[y > 0], values[y < 0]],
    40,
    histtype="stepfilled",
    alpha=0.6,
    label=["1", "-1"],
)
plt.xlabel("decision value")
plt.legend(title="label")
