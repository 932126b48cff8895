"""A small array of another generation, of the same shape and sound in itself, is damage that is named."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tries.things import FAMILIES, Family, made_up

from dask_odm import Store, StoreError, load_model, open_store
from dask_odm.data.store.records import read_record
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics.predictions import write_predictions

ROWS, CHUNK_ROWS = 96, 24
SMALL = {"feature", *(f"statistics/{name}" for name in ("minimum", "maximum", "mean", "variance"))}
# families whose models and checkpoints hold different arrays, and whose fits are quick
NAMES = ("landmark", "sodm", "newton", "mixing", "kernel ridge")


def mixed(path: Path, other: Path) -> Iterator[str]:
    """Put each chunk of the ``other`` generation in this one's place, one at a time, and yield its array's name."""
    for file in sorted(each for each in path.rglob("*") if "/c" in str(each.relative_to(path)) and each.is_file()):
        own, theirs = file.read_bytes(), (other / file.relative_to(path)).read_bytes()
        if own != theirs and len(own) == len(theirs) and file.name != "zarr.json":
            file.write_bytes(theirs)
            try:
                yield str(file.relative_to(path)).partition("/c/")[0].removesuffix("/c")
            finally:
                file.write_bytes(own)


def check(paths: list[Path], read: Callable[[Path], object]) -> set[str]:
    """Fail unless `read` names every array of another generation; return the names."""
    found = set()
    for name in mixed(*paths):
        with pytest.raises(StoreError, match=rf"array '{name}', chunk .* of another store"):
            read(paths[0])
        found.add(name)
    read(paths[0])
    return found


def write(path: Path, seed: int, **options: Any) -> None:
    X, y = made_up(seed, ROWS)
    target = X[:, 0] * X[:, 1] + np.sin(X[:, 2]) if path.stem == "real" else y
    with StoreWriter(path, chunk_rows=CHUNK_ROWS, **options) as writer:
        writer.append(X, target, np.full(ROWS, 1.0 + seed))
        writer.finish(feature_names=[f"{'uv'[seed]}{j}" for j in range(X.shape[1])])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """Stores of two generations."""
    found = [tmp_path_factory.mktemp(f"generation-{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(found):
        write(folder / "store.zarr", seed)
        write(folder / "real.zarr", seed)
        write(folder / "zstd.zarr", seed, compression="zstd")
    return found


@pytest.mark.parametrize("name", ["store", "real", "zstd"])
def test_stores(folders, name):
    paths = [folder / f"{name}.zarr" for folder in folders]
    assert check(paths, lambda path: list(Store.open(path).blocks())) > SMALL
    for array in mixed(*paths):
        if array in SMALL:
            with pytest.raises(StoreError, match=array):
                open_store(paths[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("family", [each for each in FAMILIES if each.name in NAMES], ids=lambda family: family.name)
def test_records(folders, family: Family):
    """Of a model as it is loaded, of a checkpoint as a fit goes on from it, of a prediction as it is verified."""

    def fit(folder: Path, **more: Any) -> Any:
        more["checkpoint"] = folder / f"{family.name}-checkpoint.zarr"
        return family.make(**family.parameters | more).fit(folder / family.store)

    for folder in folders:
        model, rows = fit(folder), Store.open(folder / family.store)
        model.save(folder / f"{family.name}-model.zarr")
        what = "labels" if rows.y_kind == "real" else "scores"
        write_predictions(model, rows, folder / f"{family.name}-prediction.zarr", what=what)
    readers: dict[str, Callable[[Path], object]] = {
        "model": load_model,
        "prediction": lambda path: read_record(path, "prediction").verify(),
        "checkpoint": lambda path: fit(folders[0], resume=True),
    }
    for kind, read in readers.items():
        paths = [folder / f"{family.name}-{kind}.zarr" for folder in folders]
        assert not paths[0].exists() or check(paths, read)
