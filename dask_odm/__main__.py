"""``python -m dask_odm`` is the command ``dask-odm``."""

from dask_odm.cli import main

main(prog_name="dask-odm")
