"""Reads files of every kind while the system puts off (EAGAIN) one read after the other, under the preloaded library.

    LD_PRELOAD=failing_calls.so python putting_off.py failing_calls.so FOLDER

Prints, for every way to read, how many reads it makes, and what became of those that ended neither as without it nor
with an OSError or an error of the package.
"""

import ctypes
import errno
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from dask_odm import DaskODMError, Store
from dask_odm.data.readers.formats import open_source
from dask_odm.data.rows.scaling import Scaling, load_scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.storage.files import save_bytes
from dask_odm.data.storage.storage import storage_of
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import RandomPartitioner
from dask_odm.engine.rounds import _load
from dask_odm.engine.shuffle import Shuffle
from dask_odm.learning.distributed_products import ROWS, read_rows
from small_stores import store_of

READ = 1  # of the calls that the library knows
MOST_READS = 60


def shuffled(store: Store, folder: Path) -> Any:
    """Put the rows of a store into partitions, and return those of the first."""
    cluster = Cluster.local(threads=1)
    plain = Scaling(np.zeros(3), np.ones(3))
    partitions = Shuffle(store, TwoClasses(), str(folder), cluster).by_partitioner(RandomPartitioner(2, 0), plain)
    return [each.tolist() for block in partitions.blocks(0, plain) for each in block], partitions.labels(0, 2)


def ways(folder: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a file that Python opens."""
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    names = {suffix: str(folder / f"a.{suffix}") for suffix in ("npy", "npz", "csv", "libsvm", "zarr")}
    np.save(folder / ROWS, X)
    np.save(names["npy"], np.column_stack([X, y]))
    np.savez(names["npz"], X=X, y=y)
    Scaling(X[0], X[1]).save(str(folder / "scaling.npy"))
    np.savetxt(names["csv"], np.column_stack([X, y]), delimiter=",")
    (folder / "a.libsvm").write_text("1 1:2 2:3\n0 1:1\n" * 10)
    save_bytes(str(folder / "state"), pickle.dumps({"w": X}))
    store_of(names["zarr"], X, y, chunk_rows=8)
    storage = storage_of(names["zarr"])
    return {
        "rows of a fit": lambda: read_rows(str(folder)).sum(),
        "a scaling": lambda: load_scaling.__wrapped__(str(folder / "scaling.npy")),
        "the state of a round": lambda: _load(str(folder / "state")),
        "a shuffle": lambda: shuffled(Store.open(names["zarr"]), folder / "partitions"),
        "bytes of a store": lambda: storage.read("zarr.json", 1 << 20),
        "bytes into memory": lambda: storage.read_into("zarr.json", memoryview(bytearray(10))),
        "a store": lambda: Store.open(names["zarr"]).read(1),
        **{
            suffix: lambda path=path: [block.X.tolist() for block in open_source(path).blocks()]
            for suffix, path in names.items()
        },
    }


def put_off(library: ctypes.CDLL, read: Callable[[], Any], folder: Path) -> dict[str, Any]:
    """Put off the first read, then the second, until there are no more."""
    broken: list[str] = []
    library.faults_arm(READ, ctypes.c_long(-1), errno.EAGAIN, False, str(folder).encode())
    expected = repr(read())
    for nth in range(1, MOST_READS):
        library.faults_arm(READ, ctypes.c_long(nth), errno.EAGAIN, False, str(folder).encode())
        try:
            found = repr(read())
        except (OSError, DaskODMError):
            continue
        except Exception as error:
            broken.append(f"read {nth}: {type(error).__name__}: {error}")
            continue
        if library.faults_count(READ) < nth:
            return {"reads": nth - 1, "broken": broken}
        if found != expected:  # NumPy and zipfile try some reads again
            broken.append(f"read {nth}: wrong, and nothing was said")
    return {"reads": MOST_READS, "broken": [*broken, "reads without end"]}


def main(path: str, folder: Path) -> None:
    """Try them all."""
    (folder / "partitions").mkdir()
    library = ctypes.CDLL(path)
    library.faults_count.restype = ctypes.c_long
    print(json.dumps({name: put_off(library, read, folder) for name, read in ways(folder).items()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
