"""Datasets: synthetic, bundled with scikit-learn, or fetched from the LIBSVM site; and wrong labels in shards.

Each function that makes or fetches rows returns arrays (or paths). With ``store=`` it writes a store and returns it
open.
"""

from dask_odm.data.datasets.contamination import contaminate_labels as contaminate_labels
from dask_odm.data.datasets.contamination import contaminate_store as contaminate_store
from dask_odm.data.datasets.contamination import deal_shards as deal_shards
from dask_odm.data.datasets.fetch import fetch_libsvm as fetch_libsvm
from dask_odm.data.datasets.generators import load_bundled as load_bundled
from dask_odm.data.datasets.generators import make_chessboard as make_chessboard
from dask_odm.data.datasets.generators import make_duplicated as make_duplicated
from dask_odm.data.datasets.generators import make_imbalanced as make_imbalanced
from dask_odm.data.datasets.generators import make_overlapping as make_overlapping
from dask_odm.data.datasets.generators import make_separable as make_separable
from dask_odm.data.datasets.generators import make_shells as make_shells
from dask_odm.data.datasets.generators import make_susy as make_susy
from dask_odm.data.datasets.generators import make_wide as make_wide
from dask_odm.data.datasets.scenes import Scene as Scene
from dask_odm.data.datasets.scenes import make_scene as make_scene
