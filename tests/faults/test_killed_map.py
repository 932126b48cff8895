"""A client that dies while its workers write a map: another process writes the rest, region by region."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import mapping
from dask_odm import ODMClassifier
from estimators.odm_models import SETTINGS
from small_cubes import labels_of, scene


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process")
def test_a_map_whose_client_was_killed_goes_on_by_regions(client, tmp_path):
    fitted = ODMClassifier(**SETTINGS).fit(scene(), labels_of("floats")[0])
    bands = scene().drop_vars(["latitude", "wavelength"]).to_dataset("band").chunk(y=mapping.LINES)
    bands.to_zarr(tmp_path / "scene.zarr", consolidated=False)
    fitted.save(tmp_path / "model.zarr")
    path = tmp_path / "map.zarr"
    command = [sys.executable, mapping.__file__, str(tmp_path), client.scheduler.address]
    killed = subprocess.run(command, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (tmp_path / "done.txt").read_text().split() == ["0", "1"]
    cover = fitted.predict(xr.open_zarr(tmp_path / "scene.zarr", consolidated=False))
    started = xr.open_zarr(path, consolidated=False, mask_and_scale=False)["prediction"]
    regions = mapping.regions(cover.sizes["y"])
    before = [started[lines].values for lines in regions[:2]]
    for lines in regions[2:]:
        mapping.write_region(cover, path, lines)
    written = xr.open_zarr(path, consolidated=False, mask_and_scale=False)
    np.testing.assert_array_equal(written["prediction"], fitted.predict(scene()).values)
    np.testing.assert_array_equal(written["prediction"][: 2 * mapping.LINES], np.concatenate(before))
    assert set(written.variables) == {"prediction", *cover.coords}
