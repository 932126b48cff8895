"""``python -m dask_odm`` is the command ``dask-odm``."""

from dask_odm.cli import main

if __name__ == "__main__":
    main(prog_name="dask-odm")
