"""From pandas
===========

A frame of numbers with a label column, ingested, or fitted as it is. Feature names are kept.
"""

from tempfile import TemporaryDirectory

import pandas as pd

import dask_odm as odm

X, y = odm.datasets.make_overlapping(1000, 4)
frame = pd.DataFrame(X, columns=["width", "height", "weight", "age"]).assign(
    bought=y
)

# In memory: no store, no graph, no cluster.
clf = odm.ODMClassifier().fit(frame.drop(columns="bought"), frame["bought"])
print("features:", *clf.feature_names_in_)
print("first labels:", clf.predict(frame.drop(columns="bought"))[:5])

# As a store, for later or for a cluster.
with TemporaryDirectory() as folder:
    odm.ingest(frame, f"{folder}/train.zarr", label="bought")
    clf.fit(odm.open_store(f"{folder}/train.zarr"))
    print(
        f"gap {clf.dual_gap_:.1e}, "
        f"accuracy {clf.score(f'{folder}/train.zarr'):.3f}"
    )

# Words are taken, too, and so are dates and gaps.
words = frame.drop(columns="bought").assign(
    colour=frame["age"].gt(0).map({True: "red", False: "blue"})
)
of_words = odm.ODMClassifier().fit(words, frame["bought"])
print(f"with words: accuracy {of_words.score(words, frame['bought']):.3f}")

# Values beside two of the columns.
values = clf.decision_function(frame.drop(columns="bought"))
ax = frame.plot.scatter("width", "height", c=values, colormap="RdBu_r")
ax.set_title("Who buys (red)")
