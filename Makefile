# The commands for users, contributors and CI. `make help` lists them.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The Python of the environment. By default, tests/support/create_venv.sh chooses one.
PYTHON ?=

DEMO_DIR ?= build/demo
DEMO_CONNECTORS_DIR ?= build/demo-connectors
DEMO_ROWS ?= 50000
PYTEST   := $(BIN)/python -m pytest
# More tests at a time than processors, because some tests wait. `worksteal` balances small tests.
UNIT     := $(PYTEST) -n 3 --dist worksteal tests/unit tests/property
# CI runs a failed test with real processes a second time and lists it as RERUN, because other programs use CI's processors too.
AGAIN    := $(if $(CI),--reruns 1 --rerun-show-tracebacks)
# `loadfile` keeps the tests of a file, and the servers that they share, in one process. tests/conftest.py orders the files.
PARALLEL := $(PYTEST) $(AGAIN) -n 4 --dist loadfile --no-loadscope-reorder
SERVERS  := tests/simulation tests/lakehouse tests/wire tests/integration tests/fuzz
# Tests that compare real time with a limit: at most one test per processor.
TIMED    := $(PYTEST) $(AGAIN) -n 2 --dist loadfile tests/integration tests/fuzz tests/wire
QUICK    := not jvm and not slow and not prove
LONG     := (jvm or slow) and not prove

# With this variable, pytest would not cache the test modules that it rewrites, and each worker would start 7 s later.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help .venv system-packages demo demo-connectors check test test-unit test-long prove bench docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv: $(STAMP) ## create the environment with all extras and console scripts, once

# Have uv trust the system's certificates (a company's proxy, for example) if the system has any.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

# Every distribution is pinned by hash. uv itself is installed first, from a lock file of its own.
$(STAMP): requirements.lock requirements-bootstrap.lock pyproject.toml
	@test -x $(BIN)/python || tests/support/create_venv.sh $(VENV) $(PYTHON)
	@echo "installing headrace and its locked dependencies into $(VENV) (first time: one to three minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q broker platform transforms connectors
	@touch $@

system-packages: ## install the Debian packages that tests use (PostgreSQL, kcat, iproute2), if apt-get and root are available
	@tests/support/system_packages.sh postgresql kcat iproute2

demo: $(STAMP) ## run the main job: from a database through the broker into Delta tables (DEMO_DIR=build/demo)
	@$(BIN)/python configs/demo/run_demo.py --dir "$(DEMO_DIR)"

demo-connectors: $(STAMP) ## move data from PostgreSQL through topics to S3, OpenSearch and SQLite (DEMO_ROWS=50000 per table)
	@tests/support/system_packages.sh postgresql
	@$(BIN)/python configs/demo/run_connectors_demo.py --dir "$(DEMO_CONNECTORS_DIR)" --rows $(DEMO_ROWS)

check: $(STAMP) build ## check format, lint, types and import rules
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > build/import-rules.txt 2>&1 || { cat build/import-rules.txt; exit 1; }
	@echo "check: format, lint, types and import rules are correct"

test-unit: $(STAMP) build ## run the unit and property tests
	@$(UNIT) -m "$(QUICK)"

test: $(STAMP) system-packages check test-unit ## run check and all tests except those of test-long and prove (about 8 minutes)
	@$(PARALLEL) $(SERVERS) -m "$(QUICK) and not timed"
	@$(TIMED) -m "$(QUICK) and timed"

test-long: $(STAMP) system-packages build ## run the tests with a JVM (if mvn is on the path) and the long ones (at most 20 minutes)
	@tests/support/system_packages.sh mariadb-server tinyproxy
	@$(PARALLEL) $(SERVERS) tests/property tests/unit -m "$(LONG) and not timed"
	@$(TIMED) -m "$(LONG) and timed"

prove: $(STAMP) system-packages build ## run the tests that take hours
	@tests/support/system_packages.sh mariadb-server tinyproxy
	@TEST_EXAMPLES=all $(UNIT) -m "hypothesis and $(QUICK)"
	@$(PYTEST) -m "prove"

bench: $(STAMP) build ## run the benchmarks, next to Apache Kafka if mvn is on the path; results in tests/benchmarks/results/
	@$(BIN)/python tests/benchmarks/run.py

docs: $(STAMP) ## generate docs/reference, the list of all configuration keys
	@$(BIN)/python -m headrace.cli.key_reference docs/reference

lock: ## resolve requirements.lock from pyproject.toml again
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-find-links --all-extras --group dev \
	  --python-version 3.11 pyproject.toml --output-file requirements.lock
	@echo "uv==$$($(BIN)/uv --version | cut -d' ' -f2)" | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header \
	  --no-emit-find-links --python-version 3.11 - --output-file requirements-bootstrap.lock

build:
	@mkdir -p build

clean: ## remove everything that make created, except the environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
