"""Real data sets, as arrays, files or stores: small ones of scikit-learn, and those of the LIBSVM site.

They are listed at https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. The site publishes no checksums,
so a file's digest is recorded when it is first fetched, and every later use is compared with it (`download`). The first
download is trusted, and a later change is noticed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from dask_odm.data.datasets.download import Patience, download
from dask_odm.data.ingest import ingest
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError
from dask_odm.progress import shown_if_long

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class LibsvmSet:
    """Files of a data set on the site: training rows, and test rows if they are in a file of their own."""

    n_features: int
    files: tuple[str, ...]
    rows: tuple[int, ...]

    @property
    def parts(self) -> dict[str, str]:
        """Files by part: "train" and "test"."""
        return dict(zip(("train", "test"), self.files, strict=False))


def _with_test(n_features: int, name: str, rows: tuple[int, int], suffix: str = "") -> LibsvmSet:
    return LibsvmSet(n_features, (f"{name}{suffix}", f"{name}.t{suffix}"), rows)


def _alone(n_features: int, file: str, rows: int) -> LibsvmSet:
    return LibsvmSet(n_features, (file,), (rows,))


# training rows of a1a to a8a and of w1a to w7a; their test rows are the rest of 32,561 and of 49,749
_ADULT = (1605, 2265, 3185, 4781, 6414, 11220, 16100, 22696)
_WEB = (2477, 3470, 4912, 7366, 9888, 17188, 24692)

LIBSVM_SETS: dict[str, LibsvmSet] = {
    **{f"a{i}a": _with_test(123, f"a{i}a", (rows, 32_561 - rows)) for i, rows in enumerate(_ADULT, 1)},
    "a9a": _with_test(123, "a9a", (32_561, 16_281)),
    **{f"w{i}a": _with_test(300, f"w{i}a", (rows, 49_749 - rows)) for i, rows in enumerate(_WEB, 1)},
    "w8a": _with_test(300, "w8a", (49_749, 14_951)),
    "australian": _alone(14, "australian_scale", 690),
    "breast-cancer": _alone(10, "breast-cancer_scale", 683),
    "cod-rna": _with_test(8, "cod-rna", (59535, 271617)),
    "covtype": _alone(54, "covtype.libsvm.binary.scale.bz2", 581012),
    "diabetes": _alone(8, "diabetes_scale", 768),
    "epsilon": _with_test(2000, "epsilon_normalized", (400_000, 100_000), ".bz2"),
    "fourclass": _alone(2, "fourclass_scale", 862),
    "german": _alone(24, "german.numer_scale", 1000),
    "gisette": _with_test(5000, "gisette_scale", (6000, 1000), ".bz2"),
    "heart": _alone(13, "heart_scale", 270),
    "HIGGS": _alone(28, "HIGGS.xz", 11_000_000),
    "ijcnn1": _with_test(22, "ijcnn1", (49990, 91701), ".bz2"),
    "ionosphere": _alone(34, "ionosphere_scale", 351),
    "madelon": _with_test(500, "madelon", (2000, 600)),
    "mushrooms": _alone(112, "mushrooms", 8124),
    "phishing": _alone(68, "phishing", 11055),
    "real-sim": _alone(20958, "real-sim.bz2", 72309),
    "skin-nonskin": _alone(3, "skin_nonskin", 245_057),
    "sonar": _alone(60, "sonar_scale", 208),
    "splice": _with_test(60, "splice", (1000, 2175)),
    "SUSY": _alone(18, "SUSY.xz", 5_000_000),
    "svmguide1": _with_test(4, "svmguide1", (3089, 4000)),
}


@shown_if_long()
def fetch_libsvm(
    name: str,
    *,
    part: str | None = None,
    cache: Path | None = None,
    url: str | None = None,
    sha256: Mapping[str, str] | None = None,
    store: Path | None = None,
    timeout: float = 30.0,
    retries: int = 4,
    wait: float = 1.0,
    **options: Any,
) -> tuple[str, ...] | Store | tuple[Store, Store]:
    """Fetch a data set of the LIBSVM site once; later calls check the files in the cache and use them.

    Parameters
    ----------
    name : name of the data set, such as ``a7a`` or ``SUSY``; with ``url``, any file's name
    part : ``train`` or ``test`` if the site has both; by default all
    cache : folder of the files; by default the environment's ``DASK_ODM_CACHE``, else ``~/.cache/dask-odm``
    url : address of the folder that holds the files, such as that of a mirror
    sha256 : digests by file name. By default a file is compared with its first download, whose digest is kept beside
        it in ``name.sha256``. The site publishes no digests, so a first download is trusted
    store : folder to ingest the files into, all of them into one store
    timeout : seconds without a byte after which an attempt is given up
    retries : attempts after the first; attempts that received bytes do not count
    wait : seconds before the first retry, doubled before every further one
    options : options of `ingest`, such as ``test_size`` or ``overwrite``; only with ``store``

    Returns
    -------
    tuple of paths (training rows first), or with ``store`` what `ingest` returns

    Raises
    ------
    InputError
        No such data set or file, a server that cannot be reached, or a checksum that does not match. What has arrived
        so far is kept, and the next call resumes it if the server supports that.
    StoreError
        The cache or the store cannot be written.
    """
    if options and store is None:
        raise InputError(f"{', '.join(options)}: only with store=.")
    known = LIBSVM_SETS.get(name)
    files = _files(name, known, part, custom=url is not None)
    folder = os.path.join(_cache(cache), "libsvm")
    base = (url or LIBSVM_URL).rstrip("/")
    patience = Patience(timeout, retries, wait)
    digests = sha256 or {}
    paths = tuple(
        download(f"{base}/{file}", os.path.join(folder, file), sha256=digests.get(file), patience=patience)
        for file in files
    )
    if store is None:
        return paths
    if known is not None:
        options = {"n_features": known.n_features, **options}
    return ingest(list(paths), store, **{"format": "libsvm", **options})


def _files(name: str, known: LibsvmSet | None, part: str | None, *, custom: bool) -> tuple[str, ...]:
    """Return the files to fetch."""
    if known is None and not custom:
        near = difflib.get_close_matches(name, LIBSVM_SETS, cutoff=0.5)
        raise InputError(
            f"no data set {name!r} in the table; {'close are' if near else 'there are'} "
            f"{', '.join(near or LIBSVM_SETS)}. For another file of the site, give its name and url={LIBSVM_URL!r}."
        )
    if known is None and (not name or os.path.basename(name) != name or name.startswith(".")):
        raise InputError(f"{name!r} is not a file's name; give the folder in url= and the file's name alone.")
    parts = {"train": name} if known is None else known.parts
    if part is None:
        return tuple(parts.values())
    if part not in parts:
        raise InputError(f"{name} has no part {part!r}; there is {', '.join(parts)}.")
    return (parts[part],)


def _cache(cache: Path | None) -> str:
    chosen = cache or os.environ.get("DASK_ODM_CACHE") or os.path.join("~", ".cache", "dask-odm")
    return os.path.abspath(os.path.expanduser(chosen))


# name: its loader, and the two classes to keep if there are more
_BUNDLED: dict[str, tuple[Callable[..., Any], tuple[int, int] | None]] = {
    "breast_cancer": (datasets.load_breast_cancer, None),
    "digits": (datasets.load_digits, (4, 9)),
    "iris": (datasets.load_iris, (1, 2)),
    "wine": (datasets.load_wine, (0, 1)),
}
BUNDLED = tuple(_BUNDLED)


def load_bundled(
    name: str,
    classes: tuple[Any, Any] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]] | Store:
    """Load one of scikit-learn's bundled data sets, with two classes.

    Parameters
    ----------
    name : ``breast_cancer`` (569 rows, 30 features), ``digits`` (64), ``iris`` (4) or ``wine`` (13)
    classes : the two classes to keep, by the names y has, such as ``("setosa", "virginica")`` or ``(3, 8)``. By
        default the digits 4 and 9, of iris versicolor and virginica, of wine class_0 and class_1
    store : folder to write the rows to, with the names of features; None for arrays
    dtype : ``float64``, as scikit-learn has them, or ``float32``
    overwrite : replace an existing store

    Returns
    -------
    (X, y) of shapes (rows, d) and (rows,), or with ``store`` the open Store. y holds the names of the classes, for
    digits the digits

    Raises
    ------
    InputError
        No such data set, no such classes, or the output exists.
    StoreError
        The output cannot be written.
    """
    if name not in _BUNDLED:
        raise InputError(f"no bundled data set {name!r}; there are {', '.join(BUNDLED)}.")
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be 'float32' or 'float64'. Got {dtype!r} instead.")
    loader, pair = _BUNDLED[name]
    data = loader()
    names = [each.item() for each in np.asarray(data.target_names)]
    kept = _two_classes(name, names, classes or tuple(names[i] for i in pair or (0, 1)))
    rows = np.isin(data.target, kept)
    X = np.ascontiguousarray(data.data[rows], dtype=dtype)
    codes = data.target[rows].astype(np.int64)
    if store is None:
        return X, np.array(names)[codes]
    with StoreWriter(store, dtype=dtype, overwrite=overwrite) as writer:
        writer.append(X, codes)
        features = [str(feature) for feature in data.feature_names]
        return writer.finish(names, feature_names=features, source=f"scikit-learn: {name}")


def _two_classes(name: str, names: list[Any], classes: Any) -> list[int]:
    """Return the codes of the two classes to keep."""
    chosen = list(classes) if isinstance(classes, tuple | list) else [classes]
    if len(chosen) != 2 or chosen[0] == chosen[1] or any(each not in names for each in chosen):
        known = ", ".join(map(repr, names))
        raise InputError(f"classes must be two of those of {name}: {known}. Got {classes!r} instead.")
    return [names.index(each) for each in chosen]
