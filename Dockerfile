# One image for all roles of helm/dask-odm: scheduler, workers, training.
#   docker build --tag dask-odm:0.1.0 .
# The project's tests have no container engine, so they never build it: they read what it sets (user, environment) and run
# the chart's commands with it.

# Pin it further by digest, --build-arg PYTHON=3.12.11-slim-bookworm@sha256:…, where builds must be the same for ever.
ARG PYTHON=3.12.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY dask_odm ./dask_odm
RUN python -m venv /opt/dask-odm \
    && /opt/dask-odm/bin/pip install --no-cache-dir --disable-pip-version-check ".[objects,parquet]" prometheus-client

FROM python:${PYTHON}
RUN groupadd --gid 10001 odm \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/dask-odm --shell /usr/sbin/nologin odm \
    && install --directory --owner 10001 --group 10001 --mode 0755 /var/lib/dask-odm
COPY --from=build /opt/dask-odm /opt/dask-odm
# Loops are compiled when they are first used, some seconds in every new container. To have them in the image, compile them
# here, to where NUMBA_CACHE_DIR points below, and mount no volume over it. What is compiled for a named processor runs on
# every node that has its instructions, with the same bits; x86-64-v3 has AVX2, with which kernels take twice as long as
# with AVX-512:
#   ENV NUMBA_CPU_NAME=x86-64-v3
#   ENV NUMBA_CPU_FEATURES=
#   RUN NUMBA_CACHE_DIR=/var/lib/dask-odm/numba /opt/dask-odm/bin/dask-odm warmup
# All that is written goes below this folder: the chart mounts the root read-only and a volume there. Temporary files lie
# in it, and what Numba compiles.
ENV PATH=/opt/dask-odm/bin:$PATH
ENV HOME=/var/lib/dask-odm
ENV TMPDIR=/var/lib/dask-odm
ENV NUMBA_CACHE_DIR=/var/lib/dask-odm/numba
ENV PYTHONDONTWRITEBYTECODE=1
ENV PYTHONUNBUFFERED=1
WORKDIR /var/lib/dask-odm
USER 10001:10001
CMD ["dask-odm", "--help"]
