#!/bin/sh
# Standard input: text from any program, ingested and trained on without a line of Python.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Two classes of points, those inside a circle and those outside, as LIBSVM text.
points() {
    awk 'BEGIN { srand(1); for (i = 0; i < 500; i++) { a = rand() * 2 - 1; b = rand() * 2 - 1
        print (a * a + b * b < 0.6 ? "+1" : "-1"), "1:" a, "2:" b } }'
}

points | dask-odm ingest - "$folder/train.zarr" --format libsvm --n-features 2
dask-odm fit "$folder/train.zarr" "$folder/model.zarr" --kernel rbf --scale minmax --random-state 0
