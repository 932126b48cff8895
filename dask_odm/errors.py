"""The errors that a user meets: subclasses of `DaskODMError`, and each of the built-in error that it refines."""

from __future__ import annotations

from dask_odm.printing import MESSAGE_LETTERS, printable

NO_ROWS = "no row has both a label and a positive weight."
ASYNCHRONOUS = (
    "The active Dask client is asynchronous and runs in this thread, which would wait for it for ever: call this in "
    'another thread, as in "await asyncio.to_thread(clf.fit, X, y)", or make the client without asynchronous=True.'
)


class DaskODMError(Exception):
    """Base class of every error that dask_odm raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__(), MESSAGE_LETTERS, kept="\n\t")


class InputError(DaskODMError, ValueError):
    """Data or parameters that cannot be learned from. The message names the cause and says what to do."""


class StoreError(DaskODMError, ValueError):
    """A store, model or checkpoint that is missing, unfinished, damaged or of another format."""


class MemoryLimitError(DaskODMError, ValueError):
    """Work whose estimated peak of memory exceeds the limit. The message has both figures."""


class ClusterError(DaskODMError, RuntimeError):
    """Workers or a scheduler that are lost or stuck, or differ in version from the client."""


class ObjectStoreError(DaskODMError, RuntimeError):
    """An object store that does not answer for a long time, refuses access, or has no such bucket."""
