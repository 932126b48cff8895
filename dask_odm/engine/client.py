"""The active client, whose workers may be waited for, and the task that this thread runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dask_odm.engine.tasks import this_task, this_worker
from dask_odm.errors import ASYNCHRONOUS, ClusterError

if TYPE_CHECKING:
    from distributed import Client

    from dask_odm.engine.watch import Watch

T = TypeVar("T")


def active_client() -> Client | None:
    """Return the Dask client whose workers may be waited for, or None.

    A task has none, and so have other threads of a worker's process, and those in which its coroutine waits: all
    threads of the workers may be taken by tasks that wait like this one. A task that left its worker's thread pool
    (`distributed.secede`) has one. Raises ClusterError if the client runs in the event loop of this thread, which a
    wait would stop.
    """
    distributed: Any = sys.modules.get("distributed")  # it takes long to load, and is not loaded for this
    if distributed is None or worker_of_task() is not None:
        return None
    try:
        found: Client = distributed.get_client()
    except ValueError:  # there is none
        return None
    if found.asynchronous:
        raise ClusterError(ASYNCHRONOUS)
    if this_worker() is not None:
        return found if _has_seceded() else None
    return None if found.id.startswith("Client-worker-") else found  # so Dask names a worker's own


def worker_of_task() -> Any:
    """Return the Dask worker whose thread the task that calls this takes; None without one."""
    worker = this_worker()
    is_running = worker is not None and threading.get_ident() in worker.active_threads
    return worker if is_running and not _has_seceded() else None


def _has_seceded() -> bool:
    """Return whether the task that calls this has left the thread pool of its worker."""
    from distributed.threadpoolexecutor import thread_state

    return not getattr(thread_state, "proceed", True)  # `secede` unsets it


def watch_of(client: Client, preferring: Sequence[str] = ()) -> Watch:
    """Return the `Watch` of a client. It loads `distributed`, which whoever has a client has loaded already."""
    from dask_odm.engine.watch import Watch

    return Watch(client, preferring)


def while_wanted(items: Iterable[T]) -> Iterator[T]:
    """Yield the ``items`` of a task, and end a task that was cancelled meanwhile: Dask would let it run to its end."""
    task = this_task()
    for item in items:
        if task is not None and task.state == "cancelled":
            from distributed import Reschedule

            raise Reschedule  # the worker then forgets it, and logs nothing
        yield item
