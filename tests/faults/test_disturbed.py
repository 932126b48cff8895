"""A client that is closed or restarted, or whose tasks are cancelled, amid a fit: the same bits, or one line."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.delayed import delayed
from distributed import Client, LocalCluster, Worker
from tries.disturbed import Disturb, DisturbedClient, cancel, restart
from tries.things import FAMILIES, Family

from dask_odm import ClusterError, MDDRidge, ODMClassifier, ingest
from dask_odm.datasets import make_shells
from dask_odm.diagnostics.maps import maps_of
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed
from faults.table import check, raises
from small_stores import store_of

# of which everything that `engine` does with a client is part: passes, trees, chains, rounds, products
NAMES = ("newton", "sodm", "dsvrg", "exact", "kernel ridge")
WAYS = {"close": "Client that is closed", "restart": "Cluster that is restarted", "cancel": "Tasks that are cancelled"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    X = rng.normal(size=(64, 3)).astype(np.float32)
    target = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=64)
    store_of(folder / "store.zarr", X, (target > 0).astype(int), chunk_rows=8)
    store_of(folder / "real.zarr", X, target, chunk_rows=8, real=True)
    return folder


class Threads:
    """A cluster of two workers that are threads of this process."""

    def __init__(self) -> None:
        self.cluster = LocalCluster(0, processes=False, dashboard_address=":0", silence_logs=logging.CRITICAL)
        self.cluster.sync(self.begin)

    async def begin(self) -> None:
        """Start the workers."""
        self._workers = [Worker(self.cluster.scheduler_address, nthreads=1, dashboard=False) for _ in range(2)]
        await asyncio.gather(*self._workers)

    async def end(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def close(self) -> None:
        self.cluster.sync(self.end)
        self.cluster.close()

    def restart(self, client: Client) -> None:
        """Restart the cluster, which ends workers without nannies, and start others."""
        restart(client)
        self.cluster.sync(self.begin)


@pytest.fixture(scope="module")
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


def bits(model: Any) -> bytes:
    return b"".join(array.tobytes() for _, array in sorted(model._model.arrays().items()))


def fit(threads: Threads, family: Family, store: Path, at: int, how: Disturb) -> tuple[DisturbedClient, Any]:
    """The client that was disturbed at a call of a fit, and the bits or the error of that."""
    with DisturbedClient(threads.cluster, at=at, disturb=how, before=True) as client:
        client.begin()
        try:
            found: Any = bits(family.fit(store))
        except ClusterError as error:
            found = error
        client.end()
    return client, found


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", [each for each in FAMILIES if each.name in NAMES], ids=lambda family: family.name)
def test_a_disturbed_fit(threads, stores, family, way):
    how = {"close": Client.close, "restart": threads.restart, "cancel": cancel}[way]
    store = stores / family.store
    calm, expected = fit(threads, family, store, 0, how)
    middle = len(calm.calls) // 2
    firsts = {calm.calls.index(name) + 1 for name in calm.calls}
    named = 0
    for at in sorted(firsts) if way == "close" else (middle,):
        _, found = fit(threads, family, store, at, how)
        if isinstance(found, ClusterError):
            check(WAYS[way], str(found))
            named += 1
        else:
            assert found == expected
    assert named or way != "close"  # between two questions the others cost nothing


STARTED, ENOUGH = Event(), Event()


def wait(_: object = None) -> None:
    """A task that ends when it is told to."""
    STARTED.set()
    ENOUGH.wait(30)


@pytest.mark.parametrize("ask", ["results", "each", "score"])
@pytest.mark.parametrize("way", WAYS)
def test_work_that_is_waited_for(threads, way, ask):
    """The message is that of docs/errors.toml, whatever Dask says, and it comes at once."""
    how = {"close": Client.close, "restart": threads.restart, "cancel": cancel}[way]

    def disturb() -> None:
        STARTED.wait(30)
        how(client)
        ENOUGH.set()

    STARTED.clear()
    ENOUGH.clear()
    name = f"wait-{uuid4().hex}"
    with Client(threads.cluster) as client, ThreadPoolExecutor(1) as other:
        cluster = Cluster.current()
        done = other.submit(disturb)
        with pytest.raises(ClusterError) as caught:
            {
                "results": lambda: list(cluster.done(cluster.started({name: (wait,)}, [name]))),
                "each": lambda: cluster.each(wait, [(0,)], "wait"),
                "score": lambda: computed(delayed(wait)(dask_key_name=name)),
            }[ask]()
        done.result(30)
    check(WAYS[way], str(caught.value))


def test_an_asynchronous_client_waits_in_another_thread_alone(tmp_path):
    """In the thread of its event loop, what it waited for would never come."""
    row = "Client that is asynchronous"
    X, y = make_shells(300, 3, noise=0.2)
    lazy = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=2)  # partitions' lengths have to be asked for
    model = ODMClassifier("linear", scale="standard")
    fitted = ODMClassifier("linear").fit(X, y), MDDRidge().fit(X, X[:, 0])
    cube = xr.DataArray(X, dims=("place", "band")).chunk({"place": 100})

    async def serve():
        async with Client(asynchronous=True, processes=False, n_workers=1, dashboard_address=":0"):
            for call in (
                lambda: model.fit(*lazy),
                lambda: model.fit(frame, y),
                lambda: model.fit(X, y).score(*lazy),
                lambda: model.fit(X, y, groups=lazy[1]),
                lambda: ingest(lazy, tmp_path / "lazy.zarr"),
                lambda: ingest((frame, y), tmp_path / "lazy.zarr"),
                lambda: maps_of(fitted[0], cube),
                lambda: maps_of(fitted[1], cube),
            ):
                raises(row, call)
            ingest((X, y), tmp_path / "held.zarr")  # asks no worker
            return await asyncio.to_thread(lambda: model.fit(*lazy).score(*lazy))

    assert asyncio.run(serve()) == model.score(X, y)
