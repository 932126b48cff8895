"""The command line ``dask-odm``: one file a group of commands; `commands` joins them."""

from dask_odm.cli.commands import main

__all__ = ["main"]
