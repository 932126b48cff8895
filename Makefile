# make test, make demo, make bench, make docs: each builds .venv, installs what it needs (again when pyproject.toml changes) and runs.
#   make test ARGS="-k layers"     pass arguments on
#   make test ARGS="-n 0"          in one process, as for --pdb
#   make test SLOW=yes             with the long tests, as .ci/run does
#   make test CPU=avx2             compute without AVX-512, or by SSE alone (CPU=sse), whatever this processor has
#   make test PYTHON=python3.12    choose the Python that .venv is built with
#   make bench ARGS="cod-rna --cores 1,2"

PYTHON ?= python3
ARGS ?=
SLOW ?= no
CPU ?=
VENV := .venv
BIN := $(VENV)/bin
CHECKOV := .venv-checkov

# What holds down the dispatch of OpenBLAS, NumPy and Numba.
AS_avx2 := env OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= \
  NPY_DISABLE_CPU_FEATURES=X86_V4,AVX512_ICL,AVX512_SPR
AS_sse := env OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES= \
  NPY_DISABLE_CPU_FEATURES=X86_V3,X86_V4,AVX512_ICL,AVX512_SPR

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test demo bench docs lint format checkov clean

help:
	@echo "make test     run the test suite"
	@echo "make demo     train on a real data set and on one larger than its workers' memory"
	@echo "make bench    compare methods on two small data sets: tables and plots in dask-odm-bench/"
	@echo "make docs     build the site: docs/_build/html/index.html"
	@echo "make lint     ruff check, ruff format --check, mypy, lint-imports"
	@echo "make format   let ruff rewrite the files"
	@echo "make checkov  let checkov look for what is unsafe in what the helm chart renders"
	@echo "make clean    remove .venv and caches"

test: $(VENV)/.installed-test
	@$(AS_$(CPU)) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(if $(filter yes,$(SLOW)),,-m "not slow") $(ARGS)

demo: $(VENV)/.installed-plot
	@$(BIN)/dask-odm demo $(ARGS)

bench: $(VENV)/.installed-plot $(VENV)/.installed-bench
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.installed-docs
	@$(BIN)/python docs/error_tables.py
	@$(BIN)/python -m sphinx -W -n --keep-going -q -b html docs docs/_build/html $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

checkov: $(VENV)/.installed-test $(CHECKOV)/.installed
	@DASK_ODM_CHECKOV=$(CURDIR)/$(CHECKOV)/bin/checkov $(BIN)/python -m pytest -n 0 tests/helm/test_checkov.py $(ARGS)

clean:
	rm -rf $(VENV) $(CHECKOV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build docs/generated docs/gallery docs/tutorials
	find dask_odm tests examples tutorials -name __pycache__ -type d -prune -exec rm -rf {} +

# One file per set of extras (plot, bench, docs, test, dev), written only after an install that succeeded.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@echo "Installing dask_odm[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "dask_odm needs Python 3.11 or newer, and there is no '$(PYTHON)'. Name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "dask_odm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# It pins what it depends on, and so has an environment of its own.
$(CHECKOV)/.installed:
	@echo "Installing checkov into $(CHECKOV) ..."
	@$(PYTHON) -m venv $(CHECKOV)
	@$(CHECKOV)/bin/python -m pip install --quiet --disable-pip-version-check 'checkov>=3.3,<4'
	@touch $@
