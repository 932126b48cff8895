"""A robust ODM
============

Senders whose rows were tampered with are found, and do not spoil the model.

Run it by::

    python examples/robust_odm.py --output robust_odm.png

Forty senders label mails; sixteen of them turn every label round. An ODM of all rows learns from the lies too;
``MixingClassifier(local="odm")`` sees who contradicts the others. The plot has the weight of every sender in every
epoch, suspects in red. Needs Matplotlib (``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io

import dask_odm as odm
from dask_odm.datasets import contaminate_labels, deal_shards, make_separable
from dask_odm.diagnostics.plotting import plot_shard_weights


def main(arguments: list[str] | None = None) -> None:
    """Tamper, fit both, say who is suspected, and draw the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--output", help="File for the plot, such as robust_odm.png; without it there is none.")
    options = parser.parse_args(arguments)

    X, truth = make_separable(options.rows, 50)
    X_test, y_test = make_separable(2000, 50, start=options.rows)
    sender = deal_shards(options.rows, 40)
    told, liars = contaminate_labels(truth, sender, flipped=16)

    plain = odm.ODMClassifier("linear", lam=1e3).fit(X, told)
    robust = odm.MixingClassifier("odm", lam=1e3, random_state=0).fit(X, told, shard=sender)
    print(f"ODM of all rows   accuracy {plain.score(X_test, y_test):.3f}")
    print(f"robust ODM        accuracy {robust.score(X_test, y_test):.3f}")
    print(f"suspects          {robust.suspects_}")
    print(f"who lied          {liars.tolist()}")
    plot_shard_weights(robust).figure.savefig(options.output or io.BytesIO(), dpi=150)


if __name__ == "__main__":
    main()
