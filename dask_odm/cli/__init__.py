"""The command line ``dask-odm``: a file for each group of commands, joined in `commands`."""

from dask_odm.cli.commands import main

__all__ = ["main"]
