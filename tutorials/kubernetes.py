"""A cluster on Kubernetes, end to end
===================================

Your store is too large for one machine, and you have a Kubernetes cluster. After this page you can start workers
there, train by a job that survives the loss of its pods, add workers, and fetch the model, having tried the same
training command at your desk first.

Commands for a shell are for your cluster. Nothing here has one, so this page shows them. All Python is run, and trains
by the very command that the chart's job has, on a Dask cluster in this process.
"""

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import dask
import matplotlib.pyplot as plt
import numpy as np
import yaml
from dask.distributed import LocalCluster

import dask_odm as odm
from dask_odm.cli import main

# %%
# What the job will do
# --------------------
#
# The chart ``helm/dask-odm`` starts a scheduler, workers and a training job. These values go to a file,
# ``train.yaml``:

VALUES = """
workers:
  default: {replicas: 2, threads: 1}
train:
  enabled: true
  store: /data/train.zarr
  model: /data/model.zarr
  minWorkers: 2
  args: [--kernel, rbf, --gamma, "0.1", --lam, "1e4", --scale, standard,
         --solver, landmark, --n-landmarks, "150", --certify,
         --random-state, "0"]
"""
train = yaml.safe_load(VALUES)["train"]

# %%
# The data
# --------
#
# Here a folder stands for the volume at ``/data`` that all pods see. The rows are two shells, one class around the
# other.

folder = TemporaryDirectory()
data = Path(folder.name)
test = data / "train-test.zarr"
train_store = odm.datasets.make_shells(
    20_000, 5, noise=0.2, store=data / "train.zarr"
)
odm.datasets.make_shells(5_000, 5, noise=0.2, start=20_000, store=test)
X, y = train_store.sample(2000, 0)
figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
for name in np.unique(y):
    ax.scatter(*X[y == name, :2].T, s=3, label=name)
ax.legend()

# %%
# The job, tried here
# -------------------
#
# The job waits for its workers and runs ``dask-odm fit`` with ``train.args``. A small store would be read into the
# job's memory, where workers have nothing to do, so this page sets ``dask_odm.read-into-memory`` to 0: the 20,000 rows
# go the way of 20 million.

SETTINGS = {
    "dask_odm.read-into-memory": 0,
    "temporary-directory": folder.name,
    "distributed.scheduler.worker-ttl": "60s",  # as the chart sets them
    "distributed.scheduler.no-workers-timeout": "300s",
}


def job(model, workers):
    """Run the job's command on a cluster of so many workers."""
    here = {"processes": False, "protocol": "tcp", "dashboard_address": None}
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=workers, **here) as cluster,
    ):
        command = f"fit {data}/train.zarr {data}/{model} --wait 10m"
        command += f" --scheduler {cluster.scheduler_address}"
        command += f" --min-workers {workers}"
        command += f" --checkpoint {data}/{model}.checkpoint.zarr --resume"
        main([*shlex.split(command), *train["args"]], standalone_mode=False)


job("two.zarr", 2)

# %%
# The last line has the certificate: no function of this kernel has an objective that is lower by more than this share.
#
# How many workers
# ----------------
#
# As many as you like to pay for. More of them never change a bit of the model:

job("one.zarr", 1)
one, two = (odm.load_model(data / f"{name}.zarr") for name in ("one", "two"))
print("the same bits:", np.array_equal(one.dual_coef_, two.dual_coef_))
print(f"new rows: {two.score(test):.1%} right")

# %%
# So try on few and small ones, and scale when the model is what you want. :doc:`/benchmarks` has what workers bring: 5
# million rows took two workers 63 s by cells, on two cores.
#
# On the cluster
# --------------
#
# Build the image, bring it to the nodes (here of kind; :doc:`/kubernetes` has other ways), and install the chart.
# ``helm test`` waits until all workers have joined.
#
# .. code-block:: sh
#
#    docker build --tag dask-odm:0.1.0 .
#    kind load docker-image dask-odm:0.1.0
#    helm install dask-odm helm/dask-odm --namespace learn --create-namespace
#    helm test dask-odm --namespace learn
#
# A worker's pod has the command that writes the store, and reads what you send it. A fifth of the rows go to another
# store, ``/data/train-test.zarr``:
#
# .. code-block:: sh
#
#    cat train.csv | \
#      kubectl --namespace learn exec -i deploy/dask-odm-worker-default -- \
#      dask-odm ingest - /data/train.zarr --format csv --label kind \
#      --test-size 0.2
#
# Start the job and follow it. Its last lines are those above.
#
# .. code-block:: sh
#
#    helm upgrade dask-odm helm/dask-odm --namespace learn --reuse-values \
#      --values train.yaml
#    kubectl --namespace learn logs --follow \
#      --selector app.kubernetes.io/component=train
#
# If it takes too long, add workers at any time.
#
# .. code-block:: sh
#
#    helm upgrade dask-odm helm/dask-odm --namespace learn --reuse-values \
#      --set workers.default.replicas=8
#
# A decision: take the model or not
# ---------------------------------
#
# Evaluate it on rows that it has not seen, and bring it home only if it is good enough:
#
# .. code-block:: sh
#
#    kubectl --namespace learn exec deploy/dask-odm-worker-default -- \
#      dask-odm evaluate /data/model.zarr /data/train-test.zarr
#    kubectl --namespace learn exec deploy/dask-odm-worker-default -- \
#      tar -C /data -cf - model.zarr | tar -xf -
#
# The same here:

main(
    ["evaluate", str(data / "two.zarr"), str(test)],
    standalone_mode=False,
)
folder.cleanup()

# %%
# What to try next
# ----------------
#
# * :doc:`/kubernetes` goes on to object stores, spot nodes, encryption, and what happens when something is lost.
# * :doc:`/chart_values` has every value of the chart.
# * A model that learns anew every night is ``train.schedule`` with ``train.overwrite``.
