"""Datasets: synthetic, bundled with scikit-learn, or fetched from the LIBSVM site; and wrong labels in shards.

Each function that makes or fetches rows returns arrays (or paths). With ``store=`` it writes a store and returns it
open.
"""

from dask_odm.data.datasets.bundled import load_bundled
from dask_odm.data.datasets.contamination import contaminate_labels, contaminate_store, deal_shards
from dask_odm.data.datasets.fetch import fetch_libsvm
from dask_odm.data.datasets.generators import (
    make_duplicated,
    make_imbalanced,
    make_overlapping,
    make_separable,
    make_shells,
    make_susy,
    make_wide,
)

__all__ = [
    "contaminate_labels",
    "contaminate_store",
    "deal_shards",
    "fetch_libsvm",
    "load_bundled",
    "make_duplicated",
    "make_imbalanced",
    "make_overlapping",
    "make_separable",
    "make_shells",
    "make_susy",
    "make_wide",
]
