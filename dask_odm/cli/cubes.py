"""Cubes on disk, zarr or NetCDF as xarray writes them: how commands open them, and write maps of predictions.

A map is a zarr group that xarray opens, or a GeoTIFF. It appears whole or not at all.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click

from dask_odm.cli.shell import gathered, option_field
from dask_odm.errors import InputError
from dask_odm.html import safe

_NETCDF = (".nc", ".nc4", ".cdf")
_TIFF = (".tif", ".tiff")
_COLUMNS = ("class", "target", "end")  # dimensions of a map that are not those of rows


@dataclass(frozen=True)
class CubeOptions:
    """Options for learning from cubes. They do not apply to stores and files of rows."""

    labels: str | None = option_field(
        "Take labels from there, for a source that is a cube: zarr, NetCDF, or a CSV of points whose columns are "
        "coordinates and labels. A file with one variable needs no name.",
        metavar="PATH:VARIABLE",
    )
    ignore: int | None = option_field(
        "Whole number that labels hold where there is none, if their variable does not tell it.", type=int
    )
    features: str | None = option_field(
        "Variables or bands of the cube that are features.  [default: all]", metavar="NAME,NAME…"
    )

    def __post_init__(self) -> None:
        for name in ("features", "ignore"):
            if getattr(self, name) is not None and self.labels is None:
                raise click.UsageError(f"--{name} goes with --labels.")

    def opened(self, path: str) -> tuple[Any, Any]:
        """Open the cube at a path, with the features that were named, and its labels.

        Raises InputError if xarray cannot open one, or if there is no such variable or band.
        """
        from dask_odm.data.storage.locations import is_address

        assert self.labels is not None
        if not is_address(path) and os.path.exists(path) and not is_cube(path):
            raise InputError(
                f"'{path}' is not a cube, zarr or NetCDF as xarray writes them, which --labels is for; of files with "
                "columns, --label of ingest names that of the labels."
            )
        where, colon, name = self.labels.rpartition(":")
        if not colon or not (is_cube(where) or _is_csv(where)):  # there is no name
            where, name = self.labels, ""
        X = _open(path)
        if _is_csv(where):
            labels = _points(where, name, [str(d) for d in X.dims], self.ignore)
        else:
            codes = _open(where, mask_and_scale=False)  # whole numbers stay as they are
            labels = _variable(codes, name or None, where)
            if self.ignore is not None:
                labels = labels.assign_attrs(_FillValue=self.ignore)
        if os.path.realpath(where) == os.path.realpath(path):
            X = X.drop_vars(labels.name)
        return _only_one(X) if self.features is None else _selected(X, self.features.split(","), path), labels


cube_options = gathered("cube", CubeOptions)


def is_cube(path: str) -> bool:
    """Return whether a path is a zarr group of another program, or a NetCDF file."""
    from dask_odm.data.storage.locations import is_address
    from dask_odm.data.store.manifest import other_zarr

    if is_address(path):
        return False
    return (path.lower().endswith(_NETCDF) and os.path.isfile(path)) or other_zarr(path) is not None


def _is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def _points(path: str, label: str, dimensions: list[str], ignore: int | None) -> Any:
    """Read a table of points: columns named as dimensions, and the column of labels, by default the only other one."""
    import pandas as pd

    from dask_odm.data.cubes.cube import listed

    try:
        found = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a table of points ({error}).") from error
    along = [name for name in found.columns if name in dimensions]
    names = [label] if label else [name for name in found.columns if name not in along]
    if not along or len(names) != 1 or names[0] not in found.columns:
        raise InputError(
            f"{path}: needs columns of coordinates, of {listed(dimensions)}, and one of labels, which --labels "
            f"PATH:NAME tells from others. Its columns are {listed(found.columns)}."
        )
    return found.loc[found[names[0]] != ignore, [*along, names[0]]]


def open_cube(path: str) -> Any:
    """Open a cube lazily: a DataArray if the file has one variable, else a Dataset. Raises InputError if it cannot."""
    return _only_one(_open(path))


def write_map(method: Any, path: str, out: str, *, overwrite: bool) -> int:
    """Write what ``method`` predicts of the cube at a path to a zarr group or GeoTIFF; return the number of its cells.

    Raises InputError if the cube cannot be opened or predicted, or ``out`` may not be written.
    """
    target = _target(out, overwrite=overwrite)
    found = method(open_cube(path))
    if target.endswith(".zarr"):
        _write_zarr(found, target, overwrite=overwrite)
    else:
        _write_tiff(found, target)
    return math.prod(size for name, size in found.sizes.items() if name not in _COLUMNS)


def _target(out: str, *, overwrite: bool) -> str:
    """Return where a map is written; raise InputError if it may not be."""
    from dask_odm.data.storage.locations import is_address, location_of
    from dask_odm.data.storage.staging import check_output
    from dask_odm.data.store.manifest import other_zarr
    from dask_odm.diagnostics.predictions import check_file

    path = location_of(out)
    if is_address(path) or not path.endswith((".zarr", *_TIFF)):
        raise InputError(f"'{out}' must end in .zarr or .tif, which tells the format of a map, and be on a disk.")
    if not path.endswith(".zarr"):
        if find_spec("rioxarray") is None:
            raise InputError(f"'{out}': a GeoTIFF needs rioxarray; install it, or write a .zarr.")
        check_file(path, overwrite=overwrite)
    elif check_output(path, overwrite=overwrite) and other_zarr(path) is None:
        raise InputError(f"'{path}' exists and is not a map; remove it yourself or choose another name.")
    return path


def _write_zarr(found: Any, target: str, *, overwrite: bool) -> None:
    """Write a map block by block."""
    from dask_odm.data.storage.storage import new_storage

    storage = new_storage(target)
    try:
        storage.begin(overwrite=overwrite)
        found.to_zarr(storage.location, mode="w", consolidated=False)
        storage.publish(overwrite=overwrite)
    finally:
        storage.discard()


def _write_tiff(found: Any, target: str) -> None:
    """Write a map, which is held in memory, and the names of its classes in a file beside it, where GDAL looks."""
    from rioxarray.exceptions import RioXarrayError

    from dask_odm.data.storage.staging import owned_file

    found = found.transpose(*(d for d in found.dims if d in _COLUMNS), ...)  # bands first
    if found.dims[0] in found.coords and found.dims[0] in _COLUMNS:
        bands = found[found.dims[0]]
        names = bands.attrs.get("flag_meanings", "").split() or map(str, bands.values.tolist())
        found = found.assign_attrs(long_name=tuple(names))
    try:
        with owned_file(target) as new:
            found.rio.to_raster(new, driver="GTiff", compress="deflate", tiled=True)
            os.replace(new, target)
    except RioXarrayError as error:
        raise InputError(f"'{target}': a GeoTIFF is over y and x ({error}); write a .zarr.") from error
    names = dict(zip(found.attrs.get("flag_values", ()), found.attrs.get("flag_meanings", "").split(), strict=True))
    if names and min(names) >= 0 and max(names) < 256:
        words = "".join(f"<Category>{safe(names.get(code, ''))}</Category>" for code in range(max(names) + 1))
        band = f'<PAMRasterBand band="1"><CategoryNames>{words}</CategoryNames></PAMRasterBand>'
        with open(f"{target}.aux.xml", "w", encoding="utf-8") as file:
            file.write(f"<PAMDataset>{band}</PAMDataset>\n")


def _open(path: str, **options: Any) -> Any:
    """Open all variables of a zarr group or NetCDF file as a lazy Dataset; a map projection is a coordinate."""
    import xarray as xr

    is_netcdf = path.lower().endswith(_NETCDF)
    # the metadata of a folder are read quickly, consolidated or not
    kind: dict[str, Any] = {"chunks": "auto"} if is_netcdf else {"engine": "zarr", "chunks": {}, "consolidated": False}
    try:
        found = xr.open_dataset(os.path.abspath(path), decode_coords="all", **kind, **options)  # for workers, too
        return found if is_netcdf else found[sorted(found.data_vars, key=str)]  # which folders list in any order
    except (OSError, ValueError, KeyError, TypeError) as error:
        needed = "; NetCDF needs h5netcdf or netCDF4" if is_netcdf else ""
        raise InputError(f"{path}: xarray cannot open it as a cube ({error}){needed}.") from error


def _only_one(dataset: Any) -> Any:
    """Return the only variable of a Dataset as a DataArray, else the Dataset."""
    names = list(dataset.data_vars)
    return dataset[names[0]] if len(names) == 1 else dataset


def _variable(dataset: Any, name: str | None, path: str) -> Any:
    """Return a variable, or the only one; raise InputError if there is none of that name, or no name and several."""
    names = [str(each) for each in dataset.data_vars]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        missing = f"no variable {name!r}" if name else "several variables, or none; name that of the labels"
        raise InputError(f"{path}: {missing}. Its variables are {', '.join(map(repr, names)) or 'none'}.")
    return dataset[name]


def _selected(dataset: Any, names: list[str], path: str) -> Any:
    """Return the variables of a Dataset with these names, or the bands of its only variable with these names."""
    if set(names) <= set(dataset.data_vars):
        return dataset[names]
    one = _only_one(dataset)
    for d in one.dims if one is not dataset else ():
        if set(names) <= set(one.indexes.get(d, ())):
            return one.sel({d: names})
    known = [str(each) for each in (dataset.data_vars if one is dataset else one.dims)]
    what = "variables are" if one is dataset else "only variable has the dimensions"
    raise InputError(f"{path}: no features {', '.join(map(repr, names))}; its {what} {', '.join(map(repr, known))}.")
