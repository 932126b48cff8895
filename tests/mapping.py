"""A client that maps a cube by regions, and is killed while its workers compute the third.

    python mapping.py FOLDER ADDRESS

It reads ``model.zarr`` and ``scene.zarr`` in the folder, and writes ``map.zarr`` and a line of ``done.txt`` a region.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import xarray as xr
from distributed import Client

from dask_odm import load_model

LINES = 3  # of a region
EMPTY = np.empty((0, 0))  # or Dask calls the function here, to see what it makes


def regions(lines: int) -> list[slice]:
    return [slice(start, start + LINES) for start in range(0, lines, LINES)]


def write_region(cover: xr.DataArray, path: Path, lines: slice) -> None:
    """Write some lines of a map, as the guide does."""
    cover[lines].drop_vars(["x", "spatial_ref"]).drop_attrs().to_zarr(path, region={"y": lines}, consolidated=False)


def main(folder: Path, address: str) -> None:
    client_process = os.getpid()

    def kill_client(block: np.ndarray) -> np.ndarray:
        os.kill(client_process, signal.SIGKILL)
        return block

    with Client(address):
        cube = xr.open_zarr(folder / "scene.zarr", consolidated=False)
        deadly = cube.map(lambda band: band.copy(data=band.data.map_blocks(kill_client, dtype=band.dtype, meta=EMPTY)))
        model = load_model(folder / "model.zarr")
        model.predict(cube).to_zarr(folder / "map.zarr", compute=False, consolidated=False)
        for number, lines in enumerate(regions(cube.sizes["y"])):
            write_region(model.predict(deadly if number == 2 else cube), folder / "map.zarr", lines)
            with (folder / "done.txt").open("a") as done:
                done.write(f"{number}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
