# The commands for users, contributors and CI. `make help` lists them.

VENV   := .venv
BIN    := $(VENV)/bin
# The environment of a user, and the same environment with the packages for tests and checks.
STAMP      := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
# The Python of the environment. By default, tests/support/create_venv.sh chooses one.
PYTHON ?=

# Measured on x86-64 Linux (CONTRIBUTING.md).
USER_SIZE := the first time, it downloads 700 MB, needs 1.2 GB of disk space and takes one to three minutes
TEST_SIZE := the first time, it downloads 120 MB and needs another 0.55 GB of disk space

DEMO_DIR ?= build/demo
DEMO_CONNECTORS_DIR ?= build/demo-connectors
DEMO_ROWS ?= 50000
PYTEST   := $(BIN)/python -m pytest
# More tests at a time than processors, because some tests wait. `worksteal` balances small tests.
UNIT     := $(PYTEST) -n 3 --dist worksteal tests/unit tests/property
# CI runs a failed test with real processes a second time and lists it as RERUN, because other programs use CI's processors too.
AGAIN    := $(if $(CI),--reruns 1 --rerun-show-tracebacks)
# `loadfile` keeps the tests of a file, and the servers that they share, in one process. tests/conftest.py orders the files.
PARALLEL := $(PYTEST) $(AGAIN) -n 6 --dist loadfile --no-loadscope-reorder
SERVERS  := tests/simulation tests/lakehouse tests/wire tests/integration tests/fuzz
# The test files with one of the given markers. Each worker collects all files that it receives, even if it runs few tests.
marked    = $(sort $(shell grep -rlE 'mark\.($(1))\b' --include='test_*.py' tests))
# Tests that compare real time with a limit: at most one test per processor.
TIMED     = $(PYTEST) $(AGAIN) -n 2 --dist loadfile $(call marked,timed)
QUICK    := not jvm and not slow and not prove
LONG     := (jvm or slow) and not prove

.DEFAULT_GOAL := help
.PHONY: help .venv system-packages demo demo-connectors check test test-unit test-long prove bench docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv: $(STAMP) ## create the environment with all extras and console scripts, once

# Have uv trust the system's certificates (a company's proxy, for example) if the system has any.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

# Every distribution is pinned by hash. pip installs uv from a lock file of its own, and uv installs everything else.
INSTALL_UV := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
INSTALL    := $(BIN)/uv pip install --quiet --python $(BIN)/python
COMPILE    := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-find-links --python-version 3.11

$(STAMP): requirements.lock requirements-bootstrap.lock pyproject.toml
	@echo "installing headrace with all extras into $(VENV): $(USER_SIZE)"
	@test -x $(BIN)/python || tests/support/create_venv.sh $(VENV) $(PYTHON)
	@$(INSTALL_UV)
	@$(INSTALL) --require-hashes -r requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip uninstall --quiet --yes uv
	@$(BIN)/python -m compileall -q broker platform transforms connectors
	@touch $@

# Many tests start processes, so this target compiles the bytecode of all packages. A user's Python compiles a module when it
# is first imported, which needs 140 MB less. Files that cannot be compiled are not imported.
# The commands `kafka-*` are headrace's, so this target removes the commands of the clients that tests import.
$(TEST_STAMP): $(STAMP) requirements-dev.lock Makefile
	@echo "installing the packages for tests and checks into $(VENV): $(TEST_SIZE)"
	@$(INSTALL_UV)
	@$(INSTALL) --require-hashes -r requirements.lock -r requirements-dev.lock
	@rm -f $(addprefix $(BIN)/,kafka-connect kafkaconnect kc kafka-python)
	-@$(BIN)/python -m compileall -q -j 2 $(VENV)/lib
	@touch $@

system-packages: ## install the Debian packages that tests use (PostgreSQL, kcat, iproute2), if apt-get and root are available
	@tests/support/system_packages.sh postgresql kcat iproute2

demo: $(STAMP) ## run the main job: from a database through the broker into Delta tables (DEMO_DIR=build/demo)
	@$(BIN)/python configs/demo/run_demo.py --dir "$(DEMO_DIR)"

demo-connectors: $(TEST_STAMP) ## move data from PostgreSQL through topics to S3, OpenSearch and SQLite (DEMO_ROWS=50000 per table)
	@tests/support/system_packages.sh postgresql
	@$(BIN)/python configs/demo/run_connectors_demo.py --dir "$(DEMO_CONNECTORS_DIR)" --rows $(DEMO_ROWS)

check: $(TEST_STAMP) build ## check format, lint, types and import rules
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > build/import-rules.txt 2>&1 || { cat build/import-rules.txt; exit 1; }
	@$(BIN)/python tests/support/pure_modules.py
	@echo "check: format, lint, types and import rules are correct"

test-unit: $(TEST_STAMP) build ## run the unit and property tests
	@$(UNIT) -m "$(QUICK)"

test: $(TEST_STAMP) system-packages check test-unit ## run check and all tests except those of test-long and prove (about 9 minutes)
	@$(PARALLEL) $(SERVERS) -m "$(QUICK) and not timed"
	@$(TIMED) -m "$(QUICK) and timed"

test-long: $(TEST_STAMP) system-packages build ## run the tests with a JVM (if mvn is on the path) and the long ones (about half an hour)
	@tests/support/system_packages.sh mariadb-server tinyproxy
	@$(PARALLEL) $(call marked,jvm|slow) -m "$(LONG) and not timed"
	@$(TIMED) -m "$(LONG) and timed"

prove: $(TEST_STAMP) system-packages build ## run the tests that take hours
	@tests/support/system_packages.sh mariadb-server tinyproxy
	@TEST_EXAMPLES=all $(UNIT) -m "hypothesis and $(QUICK)"
	@$(PYTEST) -m "prove"

bench: $(TEST_STAMP) build ## run the benchmarks, next to Apache Kafka if mvn is on the path; results in tests/benchmarks/results/
	@$(BIN)/python tests/benchmarks/run.py

docs: $(STAMP) ## generate docs/reference, the list of all configuration keys
	@$(BIN)/python -m headrace.cli.key_reference docs/reference

# The second lock file pins the same versions as the first.
lock: $(TEST_STAMP) ## resolve the lock files from pyproject.toml again
	@$(COMPILE) --all-extras --group user pyproject.toml --output-file requirements.lock
	@$(COMPILE) --constraint requirements.lock --group dev --output-file requirements-dev.lock
	@echo "uv==$$($(BIN)/uv --version | cut -d' ' -f2)" | $(COMPILE) - --output-file requirements-bootstrap.lock

build:
	@mkdir -p build

clean: ## remove everything that make created, except the environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
