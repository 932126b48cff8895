r"""Mixing shards with wrong labels
===============================

KL and Beta mixing over a hundred shards with wrong labels: accuracy per epoch, and the β that does best.

Run it by::

    DASK_ODM_DATA=folder python examples/mixing_tables.py mushrooms ijcnn1 a7a \
      --output mixing.png

The tables and figures of Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on
Divergence Minimization Principle* (table 2, figures 4 and 7): a fifth of the rows for the test, four fifths in 100
shards; clean, with 30 shards whose labels are flipped, and with 80 of random labels. The paper takes the β that does
best on the test rows. Here a tenth of the training rows, with the right labels, is held out for that, so that the
accuracies are what a user would get who has some rows to trust.

Without the folder of data sets in LIBSVM form (``name.svm.xz``, or ``name.train.svm.xz`` and ``name.test.svm.xz``,
which are joined), rows are generated. Needs Matplotlib (``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import csr_array, vstack
from sklearn.datasets import load_svmlight_files

from dask_odm import MixingClassifier
from dask_odm.datasets import contaminate_labels, deal_shards, make_separable

KAPPAS = (0.1, 0.5, 2.0, 6.0, 15.0)  # β times half the number of features
SETTINGS = {
    "clean": {},
    "flipped": {"flipped": 0.3},
    "random": {"random": 0.8},
}
LOCALS = ("perceptron", "pa", "odm")
PARTS = ("train", "test")


@dataclass
class Split:
    """Training rows, rows to choose β by, and test rows, each with the right
    labels.
    """

    train: tuple[Any, Any]
    trusted: tuple[Any, Any]
    test: tuple[Any, Any]


def load(name: str, folder: str | None) -> tuple[Any, Any]:
    """Rows (CSR) and labels of a data set, its parts joined."""
    if folder is None:
        X, y = make_separable(3000, 60, margin=0.2)
        return csr_array(X), y
    names = (
        [f"{name}.svm.xz"]
        if Path(folder, f"{name}.svm.xz").exists()
        else [f"{name}.{p}.svm.xz" for p in PARTS]
    )
    texts = [
        io.BytesIO(lzma.decompress(Path(folder, each).read_bytes()))
        for each in names
    ]
    parts = load_svmlight_files(texts)
    return csr_array(vstack(parts[::2])), np.concatenate(parts[1::2])


def split(X: Any, y: Any, rows: int | None) -> Split:
    """Four fifths for training, of which a tenth is trusted, and a fifth for
    the test.
    """
    order = np.random.default_rng(0).permutation(len(y))[:rows]
    a, b = round(0.72 * len(order)), round(0.8 * len(order))
    return Split(*((X[part], y[part]) for part in np.split(order, [a, b])))


def fit(
    data: Split, told: Any, shard: Any, epochs: int, **settings: Any
) -> MixingClassifier:
    with warnings.catch_warnings():
        # of a κ that leaves one shard, which is tried too
        warnings.simplefilter("ignore", UserWarning)
        model = MixingClassifier(max_iter=epochs, random_state=0, **settings)
        return model.fit(data.train[0], told, shard=shard)


def best_kappa(
    data: Split, told: Any, shard: Any, epochs: int, local: str
) -> float:
    """The κ whose model does best on trusted rows; of several, the least."""
    scores = [
        fit(data, told, shard, epochs, local=local, kappa=k).score(
            *data.trusted
        )
        for k in KAPPAS
    ]
    return KAPPAS[int(np.argmax(scores))]


def run(data: Split, shards: int, epochs: int) -> list[dict[str, Any]]:
    """A record for every setting and rule: accuracies of both mixtures, κ and
    β, and who is a suspect.
    """
    y, found = data.train[1], []
    shard = deal_shards(len(y), shards)
    for setting, shares in SETTINGS.items():
        counts = {
            what: round(share * shards) for what, share in shares.items()
        }
        told, bad = contaminate_labels(y, shard, **counts)
        for local in LOCALS:
            kappa = best_kappa(data, told, shard, epochs, local)
            models = {
                "kl": fit(
                    data, told, shard, epochs, local=local, mixing="kl"
                ),
                "beta": fit(
                    data, told, shard, epochs, local=local, kappa=kappa
                ),
            }
            features = (
                int((data.train[0] != 0).sum(axis=0).astype(bool).sum()) + 1
            )
            record = {
                "setting": setting,
                "local": local,
                "kappa": kappa,
                "chosen": 2.0 * kappa / features,
            }
            record |= {
                name: model.score(*data.test)
                for name, model in models.items()
            }
            record["bad_weight"] = float(
                models["beta"].shard_weights_[-1][bad].sum()
            )
            named = set(models["beta"].suspects_)
            record |= {
                "named": len(named & set(bad.tolist())),
                "bad": len(bad),
                "wrongly": len(named - set(bad.tolist())),
            }
            found.append(record)
    return found


def curves(
    data: Split, shards: int, epochs: int, records: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Accuracy after 1, 2, … epochs of Passive-Aggressive mixing, by setting
    and mixture.
    """
    y, found = data.train[1], {}
    shard, at = (
        deal_shards(len(y), shards),
        sorted({1, 2, 4, 8, 16, 30, epochs}),
    )
    at = [epoch for epoch in at if epoch <= epochs]
    for record in records:
        if record["local"] != "pa":
            continue
        counts = {
            what: round(share * shards)
            for what, share in SETTINGS[record["setting"]].items()
        }
        told, _ = contaminate_labels(y, shard, **counts)
        ways = {"kl": {"mixing": "kl"}, "beta": {"kappa": record["kappa"]}}
        found[record["setting"]] = {
            name: [
                fit(data, told, shard, epoch, local="pa", **way).score(
                    *data.test
                )
                for epoch in at
            ]
            for name, way in ways.items()
        } | {"epochs": at}
    return found


def plot(
    results: dict[
        str, tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]
    ],
) -> Figure:
    """Accuracy per epoch of every data set and setting, and the best β over
    features.
    """
    figure = Figure(figsize=(10, 3.8 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), len(SETTINGS) + 1, squeeze=False)
    for row, (name, (records, lines)) in zip(
        grid, results.items(), strict=True
    ):
        for ax, setting in zip(row, SETTINGS, strict=False):
            for mixing in ("kl", "beta"):
                ax.plot(
                    lines[setting]["epochs"],
                    lines[setting][mixing],
                    "o-",
                    markersize=3,
                    label=f"{mixing}, pa",
                )
            ax.set(
                title=f"{name}, {setting}", xlabel="epoch", ylabel="accuracy"
            )
            ax.grid(alpha=0.3)
            ax.legend(fontsize="small")
        last = row[-1]
        for local in LOCALS:
            chosen = [
                record["chosen"]
                for record in records
                if record["local"] == local
            ]
            last.semilogy(
                list(SETTINGS), chosen, "o-", markersize=4, label=local
            )
        last.set(title=f"{name}, β")
        last.grid(alpha=0.3)
        last.legend(fontsize="small")
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Fit everything, print the table, and draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", default=["generated"])
    parser.add_argument(
        "--data",
        help="Folder of data sets; by default what DASK_ODM_DATA names.",
    )
    parser.add_argument("--shards", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--rows", type=int, help="So many rows of each data set only."
    )
    parser.add_argument(
        "--output",
        help="File for the plot, such as mixing.png; else none.",
    )
    options = parser.parse_args(arguments)
    small = options.names == ["generated"]
    shards, epochs = (
        options.shards or (10 if small else 100),
        options.epochs or (8 if small else 50),
    )
    folder = (
        None if small else options.data or os.environ.get("DASK_ODM_DATA")
    )
    if folder is None and not small:
        parser.error(
            "name the folder of the data sets by --data or DASK_ODM_DATA"
        )
    results = {}
    print(
        f"{'data':10} {'setting':8} {'local':10} {'KL':>6} {'Beta':>6} "
        f"{'kappa':>6}  weight of bad shards, suspects"
    )
    for name in options.names:
        data = split(*load(name, folder), options.rows)
        records = run(data, shards, epochs)
        for r in records:
            print(
                f"{name:10} {r['setting']:8} {r['local']:10} {r['kl']:6.3f} "
                f"{r['beta']:6.3f} {r['kappa']:6g}  "
                f"{r['bad_weight']:.3f}, "
                f"{r['named']} of {r['bad']} and {r['wrongly']} others"
            )
        results[name] = records, curves(data, shards, epochs, records)
    plot(results).savefig(options.output or io.BytesIO(), dpi=130)


if __name__ == "__main__":
    main()
