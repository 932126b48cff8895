"""Built-in data: made up to order, bundled with scikit-learn, or fetched from the LIBSVM site.

Each function returns arrays (or paths), or with ``store=`` writes a store and returns it open.
"""

from dask_odm.data.datasets.bundled import load_bundled
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
