"""Kernel entries a second: tiles stored, and ``K @ v`` and ``K.T @ u`` without storing them, beside NumPy's tiles.

    python benchmarks/kernel_tiles.py [--kernels rbf laplacian] [--features 3 8 22 123] [--prototype FILE]
    python benchmarks/kernel_tiles.py --kernels rbf --features 100 500 3000 --density 0.1

In one table, by kernel, dtype, number of features and threads, in 1e9 entries a second; the best of ``--repeat`` runs.
``--prototype`` names a Python file with ``kernels(d)`` and ``pack`` of float32 RBF tiles; what it reaches in the same
run is added, and how our tiles compare with it. With a ``--density`` below 1, so many entries are not zero: ours are
tiles of sparse rows, and in the place of NumPy's are our tiles of the same rows made dense.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Sides
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.threads import single_threaded_blas

WHAT = ("stored", "K @ v")
BLOCK_ROWS = 256
GAMMA = 0.5
RIVALS = ("rbf", "linear")  # kernels of which `by_numpy` has the formula
Work = Callable[[int], None]


def rate(work: Work, blocks: int, entries: int, threads: int, repeat: int) -> float:
    """1e9 entries a second of ``work(block)`` over all blocks."""
    work(0)
    best = np.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeat):
            began = time.perf_counter()
            list(pool.map(work, range(blocks)))
            best = min(best, time.perf_counter() - began)
    return entries / best / 1e9


def ours(name: str, X: Any, Z: Any) -> list[Work]:
    """What computes a block of rows for each of WHAT."""
    kernel = from_parameters({"name": name} | ({} if name == "linear" else {"gamma": GAMMA}))
    lefts = [kernel.pack_left(X[i : i + BLOCK_ROWS]) for i in range(0, len(X), BLOCK_ROWS)]
    right, out = kernel.pack_right(Z), np.empty((len(X), len(Z)), X.dtype)
    v, by_row = np.ones(len(Z)), np.zeros(len(X))

    def rows(b: int) -> slice:
        return slice(b * BLOCK_ROWS, (b + 1) * BLOCK_ROWS)

    def stored(b: int) -> None:
        kernel.tile_packed(lefts[b], right, out[rows(b)])

    def forward(b: int) -> None:
        kernel.products(lefts[b], right, Sides(v, by_row[rows(b)]))

    return [stored, forward]


def by_numpy(name: str, X: Any, Z: Any) -> list[Work]:
    """The same by matrix products and ``np.exp``."""
    out = np.empty((len(X), len(Z)), X.dtype)
    norms, right_norms, ones = np.einsum("ij,ij->i", X, X), np.einsum("ij,ij->i", Z, Z), np.ones(len(Z), X.dtype)

    def tile(b: int) -> Any:
        rows = slice(b * BLOCK_ROWS, (b + 1) * BLOCK_ROWS)
        K = np.matmul(X[rows], Z.T, out=out[rows])
        if name == "rbf":
            K *= 2.0
            K -= norms[rows, None]
            K -= right_norms
            K *= GAMMA
            np.exp(K, out=K)
        return K

    return [tile, lambda b: tile(b) @ ones]


def by_prototype(path: str, X: Any, Z: Any) -> list[Work]:
    spec = importlib.util.spec_from_file_location("prototype", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    block, width, columns = module.kernels(X.shape[1])
    scale = 2.0 * GAMMA / np.log(2.0)
    A, B = module.pack(X, width, columns, scale, True), module.pack(Z, width, columns, scale, False)
    out, u, v = np.empty((len(X), len(Z)), np.float32), np.ones(len(X), np.float32), np.ones(len(Z), np.float32)
    y, g = np.zeros(len(X)), np.zeros((len(X) // BLOCK_ROWS, len(Z)), np.float32)

    def run(mode: int) -> Work:
        return lambda b: block(A, B, b * BLOCK_ROWS, (b + 1) * BLOCK_ROWS, mode, out, v, y, u, g[b])

    return [run(mode) for mode in range(2)]


def measure(name: str, dtype: str, d: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z = (0.3 * rng.standard_normal((n, d)).astype(dtype) for n in (options.rows, options.columns))
    if options.density < 1:
        X, Z = (np.where(rng.random(each.shape) < options.density, each, 0).astype(dtype) for each in (X, Z))
        works = {"ours": ours(name, *(CSRRows.of(csr_array(each)) for each in (X, Z))), "numpy": ours(name, X, Z)}
    else:
        works = {"ours": ours(name, X, Z)}
        if name in RIVALS:
            works["numpy"] = by_numpy(name, X, Z)
    if options.prototype and (name, dtype) == ("rbf", "float32"):
        works["prototype"] = by_prototype(options.prototype, X, Z)
    blocks, entries = options.rows // BLOCK_ROWS, options.rows * options.columns
    row: dict[str, Any] = {"kernel": name, "dtype": dtype, "d": d, "threads": threads}
    for which, what in enumerate(WHAT):
        row[what] = {by: rate(work[which], blocks, entries, threads, options.repeat) for by, work in works.items()}
    return row


def shown(row: dict[str, Any]) -> str:
    text = f"{row['kernel']:9} {row['dtype']:7} {row['d']:5} {row['threads']:7}"
    for what in WHAT:
        found = row[what]
        rivals = [f"{found[by]:5.2f}" if by in found else "     " for by in ("ours", "numpy", "prototype")]
        ratio = f"{found['ours'] / found['prototype']:5.2f}" if "prototype" in found else "     "
        text += f" | {' '.join(rivals)} {ratio}"
    return text


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=["rbf", "laplacian"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--features", nargs="+", type=int, default=[3, 8, 22, 123])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", type=int, default=2048, help=f"a multiple of {BLOCK_ROWS}")
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--density", type=float, default=1.0, help="share of entries that are not zero")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prototype", help="a Python file to compare with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not options.json:
        print(f"{'kernel':9} {'dtype':7} {'d':>5} threads" + "".join(f" | {what:23}" for what in WHAT))
        print(f"{'1e9 entries a second':30}" + 3 * " |  ours numpy proto ratio")
    rows = []
    with single_threaded_blas:
        for name in options.kernels:
            for dtype in options.dtypes:
                for d in options.features:
                    for threads in options.threads:
                        rows.append(measure(name, dtype, d, threads, options))
                        if not options.json:
                            print(shown(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
