"""From SciPy sparse rows
======================

Sparse rows are never dense as a whole. The linear kernel works on the non-zeros alone.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import dask_odm as odm

X = scipy.sparse.random_array(
    (1000, 500), density=0.02, format="csr", rng=np.random.default_rng(0)
)
y = np.where(X @ np.linspace(-1.0, 1.0, 500) > 0, "yes", "no")

# any sparse format; rows as CSR
clf = odm.ODMClassifier(kernel="linear").fit(X, y)
print(
    f"linear: accuracy {clf.score(X, y):.3f}, "
    f"{X.nnz} of {X.shape[0] * X.shape[1]} values held"
)

clf = odm.ODMClassifier(kernel="rbf").fit(X, y)  # made dense tile by tile
print(f"rbf: accuracy {clf.score(X, y):.3f}")

with TemporaryDirectory() as folder:
    # a store is dense: filled block by block
    odm.ingest((X, y), f"{folder}/train.zarr")
    print("store:", odm.open_store(f"{folder}/train.zarr")["X"].shape)

# A tenth of the rows: most entries are zeros, which nobody holds.
plt.figure(figsize=(4.8, 3.2))
plt.spy(X[:100], markersize=1.5, aspect="auto")
plt.xlabel("features")
plt.ylabel("rows")
